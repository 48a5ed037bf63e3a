"""Questions on a PDF of 300 pages, asked of a real model in an 8K window. Run by long_pdf.sh."""

import argparse
import gzip
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
import urllib.request
from pathlib import Path

PAGES, LINES, COLUMNS = 300, 40, 88
ANSWER_TOKENS = 40


def pdf_of(pages, outline):
    """A PDF of these pages, lists of lines, with an outline of (title, page)."""

    def written(text):
        data = text.encode("cp1252", "replace")
        return data.replace(b"\\", b"\\\\").replace(b"(", b"\\(").replace(b")", b"\\)")

    first_page = 4
    first_title = first_page + 2 * len(pages) + 1
    kids = " ".join(f"{first_page + 2 * i} 0 R" for i in range(len(pages)))
    objects = [
        f"<< /Type /Catalog /Pages 2 0 R /Outlines {first_title - 1} 0 R >>".encode(),
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
    ]
    for i, lines in enumerate(pages):
        shown = b" ".join(b"(" + written(line) + b") Tj T*" for line in lines)
        stream = b"BT /F1 10 Tf 14 TL 50 790 Td " + shown + b" ET"
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] "
            b"/Resources << /Font << /F1 3 0 R >> >> "
            + f"/Contents {first_page + 2 * i + 1} 0 R >>".encode()
        )
        objects.append(f"<< /Length {len(stream)} >>\nstream\n".encode() + stream + b"\nendstream")
    last_title = first_title + len(outline) - 1
    ends = f"/First {first_title} 0 R /Last {last_title} 0 R"
    objects.append(f"<< /Type /Outlines {ends} >>".encode())
    for i, (title, page) in enumerate(outline):
        links = f" /Parent {first_title - 1} 0 R /Dest [{first_page + 2 * page} 0 R /Fit]"
        links += f" /Prev {first_title + i - 1} 0 R" if i > 0 else ""
        links += f" /Next {first_title + i + 1} 0 R" if i + 1 < len(outline) else ""
        objects.append(b"<< /Title (" + written(title) + b")" + links.encode() + b" >>")
    out, places = bytearray(b"%PDF-1.4\n"), []
    for number, body in enumerate(objects, 1):
        places.append(len(out))
        out += f"{number} 0 obj\n".encode() + body + b"\nendobj\n"
    table = len(out)
    out += f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n".encode()
    out += b"".join(f"{at:010} 00000 n \n".encode() for at in places)
    out += f"trailer << /Size {len(objects) + 1} /Root 1 0 R >>\n".encode()
    out += f"startxref\n{table}\n%%EOF\n".encode()
    return bytes(out)


def book(data):
    """Pages, outline, and questions as (question, answers, page from 1, heading)."""
    with gzip.open(data / "xquad_en.json.gz", "rt", encoding="utf-8") as file:
        articles = json.load(file)["data"]
    with gzip.open(data / "2wiki_corpus6119.jsonl.gz", "rt", encoding="utf-8") as file:
        others = [json.loads(line) for line in file]
    rng = random.Random(5)
    rng.shuffle(others)
    pages, outline, questions = [], [], []

    def fill(lines):
        """Other paragraphs follow until the page is full."""
        while len(lines) < LINES:
            other = others.pop()
            lines += ["", *textwrap.wrap(f"{other['title']}: {other['text']}", COLUMNS)]
        pages.append(lines[:LINES])

    count = sum(len(article["paragraphs"]) for article in articles)
    between = (PAGES - count) / len(articles)  # pages of other texts behind an article
    for number, article in enumerate(articles, 1):
        heading = f"Chapter {number}"
        outline.append((heading, len(pages)))
        for i, paragraph in enumerate(article["paragraphs"]):
            lines = [heading, ""] if i == 0 else []
            fill(lines + textwrap.wrap(paragraph["context"], COLUMNS))
            for qa in paragraph["qas"]:
                answers = [answer["text"] for answer in qa["answers"]]
                questions.append((qa["question"], answers, len(pages), heading))
        while len(pages) < round(count / len(articles) * number + between * number):
            fill([])
    assert len(pages) == PAGES, len(pages)
    return pages, outline, questions


class Service:
    def __init__(self, quire, model, folder, *flags):
        self.quire, self.log = quire, Path(folder) / "log"
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [quire, "serve", "-m", model, "--server.port=0", f"--disk.path={folder}/store",
                 "--log.format=json", *flags],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log,
            )  # fmt: skip
        for _ in range(600):
            entries = [json.loads(line) for line in self.log.read_text().splitlines()]
            if any(entry["msg"] == "ready" for entry in entries):
                break
            if self.process.poll() is not None:
                raise RuntimeError("the service did not start:\n" + self.log.read_text())
            time.sleep(0.2)
        self.port = next(entry["port"] for entry in entries if entry["msg"] == "listening")
        self.address = f"http://127.0.0.1:{self.port}"

    def call(self, path, body=None):
        request = urllib.request.Request(
            self.address + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=600) as reply:
            return json.loads(reply.read())

    def stop(self):
        self.process.terminate()
        self.process.wait()


def bare(text):
    return re.sub(r"\W+", " ", text.lower()).strip()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quire", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--encoder")
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--questions", type=int, default=24)
    parser.add_argument("--rounds", default="recompute,reuse,auto")
    parser.add_argument("--work", type=Path)
    parser.add_argument("--lazy", action="store_true")
    asked = parser.parse_args()
    pages, outline, questions = book(asked.data)
    random.Random(7).shuffle(questions)
    # Questions stand on pages all over the book, one a page.
    chosen, seen = [], set()
    for question in questions:
        if question[2] not in seen and len(chosen) < asked.questions:
            chosen.append(question)
            seen.add(question[2])
    strategies = asked.rounds.split(",")
    with tempfile.TemporaryDirectory(prefix="quire-long-pdf-") as folder:
        folder = asked.work or folder
        Path(folder).mkdir(parents=True, exist_ok=True)
        path = Path(folder) / "book.pdf"
        path.write_bytes(pdf_of(pages, outline))
        flags = [f"--retrieve.encoder={asked.encoder}"] if asked.encoder else []
        # Probes in idle moments would only add to the clock's noise.
        service = Service(asked.quire, asked.model, folder, "--policy.evidence=false", *flags)
        try:
            measure(service, path, chosen, strategies, asked)
        finally:
            service.stop()


def measure(service, path, chosen, strategies, asked):
    command = [service.quire, "ingest", "--server", service.address, "-q", str(path)]
    lazy = ["--kv", "lazy", "--context-tokens", "0"] if asked.lazy else []
    subprocess.run(command + lazy, check=True, stdout=sys.stderr)
    while asked.encoder and service.call("/v1/info")["retrieval"]["embeddings"]["pending"]:
        time.sleep(0.5)
    document = service.call("/v1/documents/book.pdf")
    window = service.call("/v1/info")["limits"]["max_model_len"]
    chunks = service.call("/v1/documents/book.pdf/chunks")["data"]

    def ask(strategy, question):
        body = {"query": question, "document_ids": ["book.pdf"], "max_tokens": ANSWER_TOKENS,
                "temperature": 0, "cache": {"strategy": strategy}}  # fmt: skip
        return service.call("/v1/query", body)

    replies = {s: [] for s in strategies}
    for strategy in strategies:  # not counted: buffers grow
        ask(strategy, chosen[-1][0])
    for n, (question, _, _, _) in enumerate(chosen):
        if asked.lazy:
            ask("reuse", question)
        turn = strategies if n % 2 == 0 else strategies[::-1]  # each is as often the first
        for strategy in turn:
            replies[strategy].append(ask(strategy, question))
    rows = []
    for strategy in strategies:
        row = {"strategy": strategy, "questions": len(chosen)}
        sums = dict.fromkeys(
            ("page_in_prompt", "cited", "first_citation_page", "first_citation_heading",
             "any_citation_page", "answer_in_page", "contains"), 0)  # fmt: skip
        for (_, answers, number, heading), reply in zip(chosen, replies[strategy]):
            shown = [chunks[c] for d in reply["documents"] for c in d.get("chunks") or []]
            sums["page_in_prompt"] += any(
                c["page"] <= number <= c.get("last_page", c["page"]) for c in shown
            )
            cited = [
                (c["page"] <= number <= c["last_page"], c.get("heading") == heading)
                for c in reply["citations"]
            ]
            sums["cited"] += bool(cited)
            sums["first_citation_page"] += bool(cited) and cited[0][0]
            sums["first_citation_heading"] += bool(cited) and cited[0][1]
            sums["any_citation_page"] += any(right for right, _ in cited)
            right = any(bare(a) in bare(reply["answer"]) for a in answers)
            sums["contains"] += right
            sums["answer_in_page"] += right and bool(cited) and cited[0][0]
        row |= {name: round(count / len(chosen), 3) for name, count in sums.items()}
        times = [r["timings"]["ttft_ms"] for r in replies[strategy]]
        first = [r["timings"]["ttft_ms"] for r in replies["recompute"]]
        row["prompt_tokens"] = round(
            statistics.mean(r["usage"]["prompt_tokens"] for r in replies[strategy])
        )
        row["took"] = sorted({r["cache"]["strategy"] for r in replies[strategy]})
        row["ttft_ms_p50"] = round(statistics.median(times), 1)
        row["of_first_without_cache"] = round(
            statistics.median(a / b for a, b in zip(times, first)), 3
        )
        row["of_first_without_cache_worst"] = round(max(a / b for a, b in zip(times, first)), 3)
        rows.append(row)
    settings = {
        "pages": PAGES,
        "tokens": document["tokens"],
        "chunks": len(chunks),
        "window": window,
        "lazy": asked.lazy,
        "encoder": Path(asked.encoder).name if asked.encoder else None,
        "model": Path(asked.model).name,
    }
    json.dump({"settings": settings, "rows": rows}, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
