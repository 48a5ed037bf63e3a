#!/usr/bin/env python3
"""Writes synthetic question-answering records as JSON lines.

    python generate.py --seed 7 --documents 8 --questions 100 --out questions.jsonl

Each line: documents (id, title, text), question, answers, kind, supporting (ids of the documents the answer rests on).
Records drawn from one world share their documents. Names consist of words that training never used, unless
--training-names is given.
"""
import argparse
import json
import random
import sys

from quire_model.encyclopedia import KINDS, Encyclopedia, Style
from quire_model.mixture import balanced

MAX_TRIES = 20000  # worlds drawn before giving up


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--seed", type=int, required=True)
    p.add_argument("--documents", type=int, required=True, help="documents of each record, at least 2")
    p.add_argument("--questions", type=int, required=True, help="records to write")
    p.add_argument("--out", required=True)
    p.add_argument("--per-world", type=int, default=6, help="questions asked over the same documents, at most")
    p.add_argument("--kinds", default=",".join(KINDS), help="comma-separated; default: all of %(default)s")
    p.add_argument("--facts", type=int, nargs=2, default=(4, 8), metavar=("MIN", "MAX"), help="facts of an article")
    p.add_argument("--filler", type=float, default=0.6, help="sentences without facts, for each fact")
    p.add_argument("--training-names", action="store_true", help="names as in training instead of held-out ones")
    args = p.parse_args()
    args.kinds = args.kinds.split(",")
    unknown = sorted(set(args.kinds) - set(KINDS))
    if unknown:
        p.error(f"--kinds: unknown {', '.join(unknown)}; known are {', '.join(KINDS)}")
    if args.documents < 2 or args.questions < 1 or args.per_world < 1:
        p.error("--documents must be at least 2, --questions and --per-world at least 1")
    if not 1 <= args.facts[0] <= args.facts[1]:
        p.error("--facts: MIN must be at least 1 and at most MAX")
    return args


def worlds(args):
    """Contexts of exactly `args.documents` documents."""
    style = Style(facts=tuple(args.facts), filler=args.filler, aside=0.3, min_chunk=2, listing=0.0, shared_relations=(2, 5))
    for i in range(MAX_TRIES):
        rng = random.Random(f"records/{args.seed}/{i}")
        entities = max(2, round(args.documents * rng.uniform(0.5, 0.9)))
        context = Encyclopedia(rng, entities, style, held_out=not args.training_names).build()
        if len(context.documents) == args.documents:
            yield rng, context
    sys.exit(f"no world with {args.documents} documents and the kinds asked for in {MAX_TRIES} tries; relax --facts or --kinds")


def record(context, question):
    return {
        "documents": [{"id": d.id, "title": d.title, "text": d.text} for d in context.documents],
        "question": question.text, "answers": [question.answer], "kind": question.kind,
        "supporting": [d.id for d in question.support],
    }


def main():
    args = parse()
    written = 0
    with open(args.out, "w", encoding="utf-8") as out:
        for rng, context in worlds(args):
            asked = [q for q in balanced(rng, context.questions) if q.kind in args.kinds]
            for question in asked[:args.per_world]:
                out.write(json.dumps(record(context, question), ensure_ascii=False) + "\n")
                written += 1
                if written == args.questions:
                    return


if __name__ == "__main__":
    main()
