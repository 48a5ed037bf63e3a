"""Makes documents of 300 to 500 tokens out of a suite's short ones; every question keeps its own.

    python3 bench/long_documents.py models/demo/encyclopedia.jsonl --per-kind 20 >suite.jsonl

A record's documents stay together and in order, as continuations need it, at a random place among documents of other records; the
whole is cut into long documents of about equal length. Where a question has several supporting documents, a cut parts them. A fixed seed.
"""
import argparse
import json
import random


def words(document):
    return len(document["text"].split())


def even(documents, count):
    """`count` runs of documents, about equally long."""
    total, seen, runs = sum(words(d) for d in documents), 0, [[] for _ in range(count)]
    for d in documents:
        runs[min(count - 1, (2 * seen + words(d)) * count // (2 * total))].append(d)
        seen += words(d)
    return [run for run in runs if run]


def cut(documents, count, between):
    """As even(), with a cut in front of index `between` (None: anywhere)."""
    if between is None:
        return even(documents, count)
    front = sum(words(d) for d in documents[:between]) / sum(words(d) for d in documents)
    parts = min(count - 1, max(1, round(count * front)))
    return even(documents[:between], parts) + even(documents[between:], count - parts)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("suite")
    p.add_argument("--per-kind", type=int, default=20)
    p.add_argument("--documents", type=int, default=4)
    p.add_argument("--words", type=int, default=860, help="of all documents of a question together, roughly; the embedded model has 1.8 tokens a word")
    p.add_argument("--seed", type=int, default=1)
    args = p.parse_args()
    rng = random.Random(args.seed)
    records, documents = [], None
    for line in open(args.suite, encoding="utf-8"):
        record = json.loads(line)
        if record["documents"] == "previous":
            record["documents"] = documents
        documents = record["documents"]
        records.append(record)
    asked = {}
    for record in rng.sample(records, len(records)):
        asked.setdefault(record["kind"], []).append(record)
    for kind in sorted(asked):
        for record in asked[kind][:args.per_kind]:
            own = record["documents"]
            room = args.words - sum(words(d) for d in own)
            front, behind = [], []
            while room > 0:
                other = rng.choice(records)
                if other["documents"] is own:
                    continue
                stranger = rng.choice(other["documents"])
                (front if rng.random() < 0.5 else behind).append({**stranger, "id": "other-" + stranger["id"]})
                room -= words(stranger)
            supporting = [i for i, d in enumerate(own) if d["id"] in record["supporting_ids"]]
            between = len(front) + supporting[-1] if len(supporting) > 1 else None
            runs = cut(front + own + behind, args.documents, between)
            out = {"documents": [{"id": f"long-{i + 1}", "text": " ".join(d["text"] for d in run)} for i, run in enumerate(runs)],
                   "question": record["question"], "answers": record["answers"], "kind": kind,
                   "supporting_ids": [f"long-{i + 1}" for i, run in enumerate(runs) if any(d["id"] in record["supporting_ids"] for d in run)]}
            print(json.dumps(out, ensure_ascii=False))


if __name__ == "__main__":
    main()
