#!/usr/bin/env python3
"""Writes the held-out questions that `quire fidelity` asks by default,
beside the model they were made for.

    python make_suite.py --out demo/encyclopedia.jsonl

Records of generate.py, the same number of each kind; a record over the documents of the line before
says "previous" instead of repeating them.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from quire_model.encyclopedia import KINDS

HERE = Path(__file__).resolve().parent


def parse():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--out", required=True)
    p.add_argument("--seed", type=int, default=9001)
    p.add_argument("--documents", type=int, default=8, help="of each record")
    p.add_argument("--per-kind", type=int, default=100)
    p.add_argument(
        "--kinds", default=",".join(KINDS), help="comma-separated; default: all of %(default)s"
    )
    return p.parse_args()


def generated(args, kind, number):
    with tempfile.NamedTemporaryFile("r", suffix=".jsonl") as file:
        subprocess.run(
            [
                sys.executable,
                str(HERE / "generate.py"),
                "--seed",
                str(args.seed + number),
                "--documents",
                str(args.documents),
                "--questions",
                str(args.per_kind),
                "--kinds",
                kind,
                "--out",
                file.name,
            ],
            check=True,
        )
        return [json.loads(line) for line in file]


def main():
    args = parse()
    before = None
    with open(args.out, "w", encoding="utf-8") as out:
        for number, kind in enumerate(args.kinds.split(",")):
            for record in generated(args, kind, number):
                documents = record["documents"]
                line = {
                    "documents": "previous" if documents == before else documents,
                    "question": record["question"],
                    "answers": record["answers"],
                    "kind": record["kind"],
                    "supporting_ids": record["supporting"],
                }
                before = documents
                out.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
