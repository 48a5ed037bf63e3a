"""Questions about several short documents, of XQuAD's paragraphs:
`short_questions.py FILE MOST [PARAGRAPHS] [--unanswerable] [--each N]`.

FILE is xquad_en.json.gz. N questions (4) are asked over PARAGRAPHS (4) paragraphs of as many
articles, each over all of them in an order of its own; with --unanswerable over the paragraphs of
the next questions, none of which is of the same article. The questions that this leaves come last.
Prints at most MOST records, one JSON object a line, in an order that the seed fixes.
"""

import argparse
import gzip
import json
import random


def parse():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("file")
    p.add_argument("most", type=int)
    p.add_argument("paragraphs", type=int, nargs="?", default=4)
    p.add_argument("--unanswerable", action="store_true")
    p.add_argument("--each", type=int, default=4, help="questions over the same paragraphs")
    return p.parse_args()


def groups_of(articles, size, rng):
    """Yields groups of paragraphs, each of another article; no paragraph comes twice."""
    left = {i: rng.sample(a["paragraphs"], len(a["paragraphs"])) for i, a in enumerate(articles)}
    while True:
        # Articles with most paragraphs left come first, so that none is left over alone.
        mine = sorted((i for i in left if left[i]), key=lambda i: (-len(left[i]), rng.random()))
        if len(mine) < size:
            return
        yield [(i, left[i].pop()) for i in mine[:size]]


def document(article, paragraph, articles):
    return {
        "id": f"a{article}",
        "title": articles[article]["title"].replace("_", " "),
        "text": paragraph["context"],
    }


def asked_over(group, k, qa, shown, articles, args, rng):
    """A question about a paragraph of the group, over those that are shown."""
    article, paragraph = group[k % len(group)]
    documents = [document(i, p, articles) for i, p in shown]
    rng.shuffle(documents)
    record = {
        "documents": documents,
        "question": qa["question"],
        "answers": [qa["answers"][0]["text"]],
        "kind": "passage",
    }
    if not args.unanswerable:
        begin = qa["answers"][0]["answer_start"]
        text = paragraph["context"]
        before = text.rfind(". ", 0, begin)
        end = text.find(". ", begin + len(qa["answers"][0]["text"]))
        found = text[before + 2 if before >= 0 else 0 : end + 1 if end >= 0 else len(text)]
        record["support"] = [{"id": f"a{article}", "text": found}]
    return record


def main():
    args = parse()
    rng = random.Random(23)
    with gzip.open(args.file, "rt", encoding="utf-8") as file:
        articles = json.load(file)["data"]
    groups = list(groups_of(articles, args.paragraphs, rng))
    records, rest = [], []
    for number, group in enumerate(groups):
        shown = group
        if args.unanswerable:
            asked = {i for i, _ in group}
            others = groups[number + 1 :] + groups[:number]
            shown = next(g for g in others if asked.isdisjoint(i for i, _ in g))
        left = [rng.sample(p["qas"], len(p["qas"])) for _, p in group]
        for k in range(args.each):
            if left[k % len(group)]:
                qa = left[k % len(group)].pop()
                records.append(asked_over(group, k, qa, shown, articles, args, rng))
        rest.append((group, shown, left))
    for group, shown, left in rest:
        for k, qas in enumerate(left):
            for qa in qas:
                records.append(asked_over(group, k, qa, shown, articles, args, rng))
    for record in records[: args.most]:
        print(json.dumps(record))


if __name__ == "__main__":
    main()
