#!/usr/bin/env python3
"""Asks a service for the weights of SamKV's bias: `bias_weights.py QUIRE MODEL` (bias_weights.sh).

Reads records of HotpotQA, 2WikiMultihopQA and MuSiQue from stdin, a line each. Asks every question
over its paragraphs by `samkv` as published, with the similarity measured before RoPE (raw) and
behind it (rotated), and prints {"settings", "rows"}: per frame the weights w_j and the shares P_i
of all documents, as quantiles.
"""

import json
import sys
from pathlib import Path

import retrieval
from retrieved_order import paragraphs_of


def quantiles(values):
    values = sorted(values)
    return {
        name: round(values[min(int(share * len(values)), len(values) - 1)], 3)
        for name, share in (("least", 0), ("p10", 0.1), ("p50", 0.5), ("p90", 0.9), ("most", 1))
    }


def members(value, name):
    """Yields every member of that name, however deep it lies."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        if key == name and inner is not None:
            yield inner
        elif isinstance(inner, dict | list):
            yield from members(inner, name)


def main():
    retrieval.QUIRE = Path(sys.argv[1])
    records = [json.loads(line) for line in sys.stdin]
    service = retrieval.Service("--model.path", sys.argv[2])
    weights, shares = {"raw": [], "rotated": []}, {"raw": [], "rotated": []}
    try:
        for number, record in enumerate(records):
            corpus = retrieval.Corpus(f"q{number}")
            for (title, text), _ in paragraphs_of(record):
                corpus.add(title, text)
            service.store(corpus)
            for frame in weights:
                reply = service.call(
                    "POST",
                    "/v1/query",
                    {
                        "query": record["question"].strip(),
                        "document_ids": [f"{corpus.name}-{i}" for i in range(len(corpus.texts))],
                        "max_tokens": 1,
                        "explain": "blocks",
                        "cache": {
                            "strategy": "samkv",
                            "options": {"score": "keys", "bias_frame": frame},
                        },
                    },
                )
                weights[frame] += members(reply["explain"], "bias_weight")
                shares[frame] += members(reply["explain"], "keep_share")
    finally:
        service.stop()
    rows = [
        {
            "frame": frame,
            "documents": len(weights[frame]),
            "weight": quantiles(weights[frame]),
            "share": quantiles(shares[frame]),
        }
        for frame in weights
    ]
    print(json.dumps({"settings": {"questions": len(records)}, "rows": rows}))


if __name__ == "__main__":
    main()
