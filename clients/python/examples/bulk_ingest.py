"""Caches many documents, and goes on where it was stopped:
the service is the record of what is done.

    python bulk_ingest.py                      # 10,000 small documents made up here
    python bulk_ingest.py notes.jsonl          # your own: one {"id", "text", ...} a line
    python bulk_ingest.py notes.jsonl --all    # where texts changed under ids that are there

Stop it at any time and start it again: what is cached is neither sent nor computed a second time.
With --all every document is sent, and the service computes those whose text is new.
The address of the service comes from QUIRE_SERVER, the key from QUIRE_API_KEY.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from tqdm import tqdm

from quire_client import DocumentInput, QuireClient


def made_up(count: int) -> Iterator[DocumentInput]:
    """Small documents, each one different."""
    for number in range(count):
        customer, order = number * 7919 % 1009, number * 104729 % 99991
        text = f"Ticket {number} was opened by customer {customer}. It is about order {order}."
        yield {"id": f"ticket-{number:05}", "text": text, "metadata": {"source": "tickets"}}


def lines_of(path: Path) -> Iterator[DocumentInput]:
    """Documents of a file with one JSON object a line;
    each needs an id, or it could not be recognised."""
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                document = json.loads(line)
                if not document.get("id"):
                    raise SystemExit(f"{path}:{number} has no id")
                yield document


def ingest(
    quire: QuireClient,
    documents: Iterable[DocumentInput],
    progress: bool = True,
    batch_size: int = 250,
    send_all: bool = False,
) -> tuple[int, int]:
    """Caches what is not cached yet, by id, or with send_all everything. Returns how many
    were not sent, because they were there already, and how many were."""
    there: set[str] = set() if send_all else {d.id for d in quire.documents.iter(status="ready")}
    there_already = 0

    def missing() -> Iterator[DocumentInput]:
        nonlocal there_already
        for document in documents:
            if document["id"] in there:
                there_already += 1
            else:
                yield document

    with tqdm(unit="doc", desc="caching", disable=not progress) as bar:
        report = quire.documents.add_many(missing(), batch_size=batch_size, progress=bar.update)
    report.raise_for_failures()
    return there_already, len(report.ids)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "file", nargs="?", type=Path, help="JSON lines; without it documents are made up"
    )
    parser.add_argument(
        "--count", type=int, default=10_000, help="documents to make up (default: %(default)s)"
    )
    parser.add_argument("--namespace", default="bulk", help="where they go (default: %(default)s)")
    parser.add_argument(
        "--all", action="store_true", help="send documents whose ids are there already, too"
    )
    arguments = parser.parse_args()
    documents = lines_of(arguments.file) if arguments.file else made_up(arguments.count)
    with QuireClient(namespace=arguments.namespace) as quire:
        there, sent = ingest(quire, documents, progress=sys.stderr.isatty(), send_all=arguments.all)
        counts = quire.documents.list(limit=1, counts=True).counts
    print(
        f"{there} documents were there already, {sent} were sent; "
        f"{counts.ready if counts else 0} are ready"
    )


if __name__ == "__main__":
    main()
