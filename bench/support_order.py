"""Moves the documents that support an answer: `support_order.py given|first|last|alone`.

Reads records of HotpotQA, 2WikiMultihopQA or MuSiQue from stdin, a line each, and writes them to
stdout with the supporting documents where the files have them, before the others, behind them, or
without the others. The order among supporting documents and among the others stays.
"""

import json
import sys


def moved(documents: list, supports: list[bool], order: str) -> list:
    """Returns the documents in the order asked for."""
    yes = [d for d, s in zip(documents, supports, strict=True) if s]
    no = [d for d, s in zip(documents, supports, strict=True) if not s]
    return {"given": documents, "first": yes + no, "last": no + yes, "alone": yes}[order]


def main() -> None:
    order = sys.argv[1]
    for line in sys.stdin:
        record = json.loads(line)
        if "paragraphs" in record:  # MuSiQue
            documents = record["paragraphs"]
            supports = [d["is_supporting"] for d in documents]
            record["paragraphs"] = moved(documents, supports, order)
        else:
            titles = {title for title, _ in record["supporting_facts"]}
            documents = record["context"]
            record["context"] = moved(documents, [d[0] in titles for d in documents], order)
        print(json.dumps(record, ensure_ascii=False))


if __name__ == "__main__":
    main()
