#!/usr/bin/env python3
"""Picks the sample corpus that ships beside the model:
readable worlds whose questions the model answers surely.

    python make_sample.py --model demo --out demo/sample

Writes corpus.jsonl (id, title, text, metadata) and questions.jsonl (question, document_ids in
prompt order, answers, kind, supporting, right_under: the ways of filling the cache under which
greedy decoding prints exactly the answer).
"""

import argparse
import json
import random
import re
from pathlib import Path

from quire_model import scoring
from quire_model.encyclopedia import Encyclopedia, Style
from quire_model.hf_folder import load_model
from quire_model.network import rope_table
from quire_model.prompt import Codec

STYLE = Style(
    facts=(5, 7),
    filler=0.5,
    aside=0.25,
    cut=0.35,
    min_chunk=3,
    title=0.0,
    listing=0.0,
    table=0.0,
    plans=(1, 0, 0, 0),
    full_name=0.2,
    alias=0.0,
    update=0.0,
    variables=0.0,
    num_needles=(0, 0),
)
WANTED = {
    "single": 4,
    "continuation": 2,
    "two_hop": 1,
    "comparison": 1,
}  # questions of each kind, at most, per world
SURE = 0.7  # the least likely token of a picked answer has at least this probability
ODD_SPELLING = re.compile(r"ou|ea|ai|x|rk|[aeiou]{3}|ii|oo|(.)o\1o|.{10,}", re.IGNORECASE)


def parse():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--model", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--seed", type=int, default=2026)
    p.add_argument("--worlds", type=int, default=3)
    p.add_argument("--documents", type=int, default=6, help="of each world")
    p.add_argument("--tries", type=int, default=20000, help="worlds to choose from")
    return p.parse_args()


def candidates(args):
    """Worlds of the wanted size, the easiest names to read first."""
    found = []
    for i in range(args.tries):
        rng = random.Random(f"sample/{args.seed}/{i}")
        context = Encyclopedia(rng, 4, STYLE, "test").build()
        names = {d.title.split(" (part")[0] for d in context.documents}
        if len(context.documents) == args.documents and len({n.split()[-1] for n in names}) == len(
            names
        ):
            words = set(re.findall(r"[A-Z]\w+", " ".join(d.text for d in context.documents)))
            found.append(
                (sum(bool(ODD_SPELLING.search(w)) for w in words) / len(words), i, context)
            )
    return [context for _, _, context in sorted(found, key=lambda f: f[:2])]


def pick(scorer, context):
    """[(question, methods under which it is right)], the sure ones only;
    None when the world has too few."""
    result, _ = scorer.score(context)
    by_kind = {}
    for question, full, reuse in zip(context.questions, result["recompute"], result["reuse"]):
        if full[0] and full[1] >= SURE:
            right = ["recompute"] + (["reuse"] if reuse[0] and reuse[1] >= SURE else [])
            by_kind.setdefault(question.kind, []).append((question, right))
    picked = []
    for kind, most in WANTED.items():
        known = by_kind.get(kind, [])
        if kind != "continuation":
            known = [p for p in known if len(p[1]) == 2]
        picked += known[:most]
    kinds = [question.kind for question, _ in picked]
    return picked if kinds.count("single") == WANTED["single"] and len(set(kinds)) >= 3 else None


def slug(title):
    return re.sub(r"\W+", "-", title.lower()).strip("-")


def main():
    args = parse()
    model, codec = load_model(args.model), Codec(Path(args.model) / "tokenizer.model")
    scorer = scoring.Scorer(model, codec, rope_table(model.config, 4096))
    chosen = []
    for context in candidates(args):
        picked = pick(scorer, context)
        if picked:
            chosen.append((context, picked))
        if len(chosen) == args.worlds:
            break
    else:
        raise SystemExit(
            f"only {len(chosen)} of {args.worlds} worlds found in {args.tries} tries; raise --tries"
        )
    write(Path(args.out), chosen)


def write(folder, chosen):
    folder.mkdir(parents=True, exist_ok=True)
    with (
        open(folder / "corpus.jsonl", "w") as corpus,
        open(folder / "questions.jsonl", "w") as questions,
    ):
        for number, (context, picked) in enumerate(chosen, 1):
            for d in context.documents:
                d.id = slug(d.title)
                line = {
                    "id": d.id,
                    "title": d.title,
                    "text": d.text,
                    "metadata": {"world": number, "source": "synthetic"},
                }
                corpus.write(json.dumps(line) + "\n")
            for question, right in picked:
                questions.write(
                    json.dumps(
                        {
                            "question": question.text,
                            "document_ids": [d.id for d in context.documents],
                            "answers": [question.answer],
                            "kind": question.kind,
                            "supporting": [d.id for d in question.support],
                            "right_under": right,
                        }
                    )
                    + "\n"
                )
    print(
        f"{folder}: {sum(len(c.documents) for c, _ in chosen)} documents, "
        f"{sum(len(p) for _, p in chosen)} questions"
    )


if __name__ == "__main__":
    main()
