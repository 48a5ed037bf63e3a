#!/usr/bin/env python3
"""Asks questions over what retrieval finds for them:
`retrieved_order.py QUIRE DATA HALF OUT [--k K] [--questions N]`.

DATA holds hotpotqa_train100, 2wikimultihop_train500 and musique_train100 (.jsonl.gz). Paragraphs of
their first records are one corpus, in a service of QUIRE that ranks them by words. Asks N of each
set's records 1, 3, 5 and so on (HALF 1) or of the others (HALF 0). Writes OUT/best_first.jsonl,
OUT/best_last.jsonl and OUT/shuffled.jsonl: the same questions over the same K paragraphs in three
orders. Prints how many of the supporting paragraphs were found. Run by retrieved_order.sh.
"""

import argparse
import json
import random
from pathlib import Path

import retrieval

SETS = {"hotpotqa_train100": 50, "2wikimultihop_train500": 60, "musique_train100": 50}


def parse():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("quire", type=Path)
    p.add_argument("data", type=Path)
    p.add_argument("half", type=int, choices=(0, 1))
    p.add_argument("out", type=Path)
    p.add_argument("--k", type=int, default=4)
    p.add_argument("--questions", type=int, help="of each set at most")
    return p.parse_args()


def paragraphs_of(record):
    """Yields (title, text) of each paragraph, and the sentences of it that support the answer."""
    if "paragraphs" in record:
        for p in record["paragraphs"]:
            text = p["paragraph_text"].strip()
            yield (p["title"].strip(), text), [text] if p["is_supporting"] else []
        return
    for title, sentences in record["context"]:
        stripped = [s.strip() for s in sentences]
        numbers = [n for name, n in record["supporting_facts"] if name == title]
        supports = [stripped[n] for n in numbers if n < len(stripped)]
        yield (title.strip(), " ".join(stripped).strip()), supports


def asked(record, found):
    """A record of a suite over paragraphs, each (id, (title, text)), best first."""
    supports = dict(paragraphs_of(record))
    support = [
        {"id": i, "text": sentence} for i, text in found for sentence in supports.get(text, [])
    ]
    return {
        "documents": [{"id": i, "title": title, "text": text} for i, (title, text) in found],
        "question": record["question"].strip(),
        "answers": [record["answer"], *record.get("answer_aliases", [])],
        "kind": "found" if support else "not_found",
        "support": support,
    }


def main():
    args = parse()
    retrieval.QUIRE = args.quire
    corpus, records = retrieval.Corpus("p"), []
    for name, most in SETS.items():
        lines = retrieval.lines_of(args.data / f"{name}.jsonl.gz")[: retrieval.CONTEXT_RECORDS]
        for record in lines:
            for (title, text), _ in paragraphs_of(record):
                corpus.add(title, text)
        mine = [r for rank, r in enumerate(lines, 1) if rank % 2 == args.half]
        records += mine[: args.questions or most]
    service = retrieval.Service()
    suite, supporting, kept = [], 0, 0
    try:
        service.store(corpus)
        for record in records:
            ranked = service.rank(record["question"].strip(), "bm25", args.k)
            found = [(f"p-{i}", corpus.texts[i]) for i, _ in ranked]
            needed = {text for text, support in paragraphs_of(record) if support}
            supporting += len(needed)
            kept += len(needed & {text for _, text in found})
            suite.append(asked(record, found))
    finally:
        service.stop()
    rng = random.Random(7)
    orders = {
        "best_first": lambda found: found,
        "best_last": lambda found: found[::-1],
        "shuffled": lambda found: rng.sample(found, len(found)),
    }
    for name, order in orders.items():
        with (args.out / f"{name}.jsonl").open("w", encoding="utf-8") as file:
            for record in suite:
                row = {**record, "documents": order(record["documents"])}
                print(json.dumps(row, ensure_ascii=False), file=file)
    print(json.dumps({"k": args.k, "supporting": supporting, "found": kept}))


if __name__ == "__main__":
    main()
