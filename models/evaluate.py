#!/usr/bin/env python3
"""Exact match per kind of question on held-out data, under full recompute and per-document reuse.

    python evaluate.py --model demo --contexts 60
"""
import argparse
import itertools
import json
import random
import sys
from pathlib import Path

import torch

from quire_model import heldout, mixture, scoring
from quire_model.encyclopedia import KINDS
from quire_model.hf_folder import load_model
from quire_model.network import LanguageModel, ModelConfig, rope_table
from quire_model.prompt import Codec

HERE = Path(__file__).resolve().parent


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", required=True, help="model folder, or a checkpoint.pt of train.py")
    p.add_argument("--tokenizer", default=str(HERE / "demo" / "tokenizer.model"))
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--contexts", type=int, default=60)
    p.add_argument("--questions", type=int, default=8, help="at most, per context")
    p.add_argument("--kinds", default=",".join(KINDS), help="comma-separated; default: all of %(default)s")
    p.add_argument("--min-documents", type=int, default=4)
    p.add_argument("--max-documents", type=int, default=12)
    p.add_argument("--max-tokens", type=int, default=2000)
    p.add_argument("--json", help="also write the numbers to this file")
    return p.parse_args()


def load(path):
    if Path(path).is_dir():
        return load_model(path)
    state = torch.load(path, weights_only=True, map_location="cpu")
    model = LanguageModel(ModelConfig(**state["config"]))
    # what will be exported: weights rounded to bfloat16
    model.load_state_dict({k: v.bfloat16().float() for k, v in state["model"].items()})
    return model


def main():
    args = parse()
    model, codec = load(args.model), Codec(args.tokenizer)
    scorer = scoring.Scorer(model, codec, rope_table(model.config, args.max_tokens + 256))
    source = heldout.contexts(args.seed, codec, args.min_documents, args.max_documents, args.max_tokens)
    right = {m: {k: [] for k in KINDS} for m in scoring.METHODS}
    tokens = documents = 0
    for i, context in enumerate(itertools.islice(source, args.contexts)):
        asked = [q for q in context.questions if q.kind in args.kinds.split(",")]
        context.questions = mixture.balanced(random.Random(i), asked)[:args.questions]
        result, count = scorer.score(context)
        tokens, documents = tokens + count, documents + len(context.documents)
        for method, marks in result.items():
            for question, (mark, _) in zip(context.questions, marks):
                right[method][question.kind].append(mark)
        if sys.stderr.isatty():
            print(f"\r{i + 1}/{args.contexts}", end="", file=sys.stderr, flush=True)
    report(args, right, tokens / args.contexts, documents / args.contexts)


def report(args, right, tokens, documents):
    print(f"{args.contexts} contexts, {documents:.1f} documents and {tokens:.0f} tokens on average, seed {args.seed}")
    print(f"{'':12s}" + "".join(f"{k:>14s}" for k in KINDS) + f"{'all':>10s}")
    rows = {}
    for method, kinds in right.items():
        kinds = {**kinds, "all": [m for marks in kinds.values() for m in marks]}
        rows[method] = {k: {"n": len(v), "exact": sum(v) / len(v) if v else None} for k, v in kinds.items()}
        print(f"{method:12s}" + "".join(
            f"{'-' if not v else f'{100 * sum(v) / len(v):.1f} %':>{10 if k == 'all' else 14}s}" for k, v in kinds.items()))
    print(f"{'questions':12s}" + "".join(f"{len(right['recompute'][k]):>14d}" for k in KINDS))
    if args.json:
        summary = {"seed": args.seed, "contexts": args.contexts, "tokens": tokens, "documents": documents, "rows": rows}
        Path(args.json).write_text(json.dumps(summary, indent=2) + "\n")


if __name__ == "__main__":
    main()
