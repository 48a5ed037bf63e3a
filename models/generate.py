#!/usr/bin/env python3
"""Writes synthetic question-answering records as JSON lines.

    python generate.py --seed 7 --documents 8 --questions 100 --out questions.jsonl
    python generate.py --seed 7 --context-tokens 16000 --kinds needle_multi_key,variable_tracking \\
        --questions 50 --out hay.jsonl

Each line: documents (id, title, text), question, answers, kind, supporting (ids of the documents
the answer rests on). Records drawn from one world share their documents. Lengths in tokens are
estimates from characters (within about 10 % for the embedded tokenizer), so that the output depends
on the arguments alone. Names consist of words that no other split uses.
"""

import argparse
import itertools
import json
import math
import multiprocessing
import random
import sys

from quire_model import check
from quire_model.encyclopedia import CHARS_PER_TOKEN, KINDS, Encyclopedia, Style, tokens_per_entity
from quire_model.names import SPLITS

MAX_TRIES = 2000  # worlds drawn in a row without a fitting one before giving up
BLOCK = 16  # worlds a worker makes at a time


def pair(text):
    low, _, high = text.partition(":")
    return int(low), int(high or low)


def parse(argv=None):
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--seed", type=int, required=True)
    p.add_argument(
        "--documents", type=int, help="documents of each record; default 8 without --context-tokens"
    )
    p.add_argument("--context-tokens", type=int, help="tokens of all documents of a record, about")
    p.add_argument("--questions", type=int, required=True, help="records to write")
    p.add_argument("--out", required=True)
    p.add_argument(
        "--split",
        choices=SPLITS,
        default="test",
        help="whose names are used (default: %(default)s)",
    )
    p.add_argument(
        "--document-tokens",
        type=pair,
        default=(60, 400),
        metavar="A:B",
        help="length of a document, 60:400 unless given",
    )
    p.add_argument(
        "--per-world", type=int, default=6, help="questions asked over the same documents, at most"
    )
    p.add_argument(
        "--kinds", default=",".join(KINDS), help="comma-separated; default: all of %(default)s"
    )
    p.add_argument(
        "--filler", type=float, default=0.9, help="sentences without facts, for each fact"
    )
    p.add_argument(
        "--workers", type=int, default=1, help="processes; the output does not depend on it"
    )
    p.add_argument(
        "--check",
        action="store_true",
        help="work every answer out again and stop at the first that differs",
    )
    args = p.parse_args(argv)
    args.kinds = tuple(args.kinds.split(","))
    unknown = sorted(set(args.kinds) - set(KINDS))
    if unknown:
        p.error(f"--kinds: unknown {', '.join(unknown)}; known are {', '.join(KINDS)}")
    if args.documents is None and args.context_tokens is None:
        args.documents = 8
    if (args.documents or 2) < 2 or args.questions < 1 or args.per_world < 1 or args.workers < 1:
        p.error("--documents must be at least 2; --questions, --per-world and --workers at least 1")
    low, high = args.document_tokens
    if not 20 <= low <= high <= 100000:
        p.error("--document-tokens A:B: A must be at least 20 and at most B")
    if args.context_tokens is not None and args.context_tokens < 2 * low:
        p.error("--context-tokens must leave room for two documents")
    return args


def style_of(args):
    chars = tuple(n * CHARS_PER_TOKEN for n in args.document_tokens)
    large = (args.context_tokens or 0) >= 4000
    return Style(
        facts=(4, 9),
        filler=args.filler,
        aside=0.3,
        min_chunk=2,
        listing=0.02,
        shared_relations=(2, 5),
        num_needles=(3, 10) if large else (1, 5),
        variables=1.0 if args.kinds == ("variable_tracking",) else 0.3,
        alias=1.0 if args.kinds == ("alias",) else 0.3,
        update=1.0 if args.kinds == ("update",) else 0.5,
        document_chars=chars,
    )


def tokens_wanted(args, rng):
    if args.context_tokens:
        return args.context_tokens * rng.uniform(0.88, 0.97)
    low, high = args.document_tokens
    mean = (high - low) / math.log(high / low) if high > low else low  # of log-uniform lengths
    return args.documents * mean


def make_world(args, number):
    """Context number `number`, or None when it does not fit."""
    rng = random.Random(f"records/{args.split}/{args.seed}/{number}")
    style = style_of(args)
    entities = max(
        2, round(tokens_wanted(args, rng) / tokens_per_entity(style) * rng.uniform(0.8, 1.2))
    )
    context = Encyclopedia(rng, entities, style, args.split).build(
        max(8, 4 * args.per_world), args.kinds
    )
    low, high = args.document_tokens
    sizes = [len(d.text) / CHARS_PER_TOKEN for d in context.documents]
    if (
        args.documents
        and len(sizes) != args.documents
        or args.context_tokens
        and sum(sizes) > args.context_tokens
    ):
        return None
    if (
        args.context_tokens
        and sum(sizes) < 0.8 * args.context_tokens
        or max(sizes) > 1.1 * high
        or not context.questions
    ):
        return None
    if args.check:
        wrong = [e for q in context.questions for e in check.errors(context, q)]
        if wrong:
            raise ValueError(f"world {number}: {wrong[0]}")
    return [record(context, q) for q in spread(context.questions)[: args.per_world]]


def spread(questions):
    """One of each kind, then the second of each, and so on."""
    seen, ranked = {}, []
    for q in questions:
        seen[q.kind] = seen.get(q.kind, 0) + 1
        ranked.append((seen[q.kind], q))
    return [q for _, q in sorted(ranked, key=lambda r: r[0])]


def record(context, question):
    return {
        "documents": [{"id": d.id, "title": d.title, "text": d.text} for d in context.documents],
        "question": question.text,
        "answers": [question.answer],
        "kind": question.kind,
        "supporting": [d.id for d in question.support],
    }


def make_block(task):
    args, block = task
    return [make_world(args, number) for number in range(block * BLOCK, (block + 1) * BLOCK)]


def worlds(args):
    tasks = ((args, block) for block in itertools.count())
    if args.workers == 1:
        yield from itertools.chain.from_iterable(map(make_block, tasks))
        return
    with multiprocessing.get_context("fork").Pool(args.workers) as pool:
        while True:
            yield from itertools.chain.from_iterable(
                pool.map(make_block, itertools.islice(tasks, 4 * args.workers), chunksize=1)
            )


def records(args):
    """The records, in an order that depends on the arguments alone."""
    written = misses = 0
    for found in worlds(args):
        misses = 0 if found else misses + 1
        if misses == MAX_TRIES:
            sys.exit(
                f"no fitting world in {MAX_TRIES} tries; widen --document-tokens, "
                "or change --documents or --context-tokens"
            )
        for line in found or ():
            yield line
            written += 1
            if written == args.questions:
                return


def main():
    args = parse()
    with open(args.out, "w", encoding="utf-8") as out:
        for line in records(args):
            out.write(json.dumps(line, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
