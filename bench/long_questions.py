"""Questions about long documents, of XQuAD's articles:
`long_questions.py FILE HALF MOST [--others N] [--joined]`.

FILE is xquad_en.json.gz. Each article's paragraphs are joined to one document, as they stood in the
article; a question is asked over its article and N others (2) of the same half (HALF 0 or 1 of the
articles), with --joined over one document that these articles are parts of. Prints at most MOST
records, one JSON object a line, in an order that the seed fixes. `kind` says whether the answer
stands in the article's first paragraph or in a later one, and `support` is the sentence around it.
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
    p.add_argument("half", type=int, choices=(0, 1))
    p.add_argument("most", type=int)
    p.add_argument("--others", type=int, default=2)
    p.add_argument("--joined", action="store_true")
    return p.parse_args()


def joined(record: dict) -> dict:
    """Returns the record over one document, of which its documents are parts."""
    parts = [f"{d['title']}\n\n{d['text']}" for d in record["documents"]]
    document = {"id": "all", "title": "Articles", "text": "\n\n".join(parts)}
    support = [{"id": "all", "text": s["text"]} for s in record["support"]]
    return {**record, "documents": [document], "support": support}


def sentence(text: str, begin: int, end: int) -> str:
    """Returns the sentence of the text that holds [begin, end)."""
    before, after = text.rfind(". ", 0, begin), text.find(". ", end)
    return text[before + 2 if before >= 0 else 0 : after + 1 if after >= 0 else len(text)]


def main() -> None:
    args = parse()
    with gzip.open(args.file, "rt", encoding="utf-8") as file:
        articles = json.load(file)["data"]
    rng = random.Random(11)
    mine = range(args.half, len(articles), 2)
    documents = {
        i: {
            "id": f"d{i}",
            "title": articles[i]["title"].replace("_", " "),
            "text": "\n\n".join(p["context"] for p in articles[i]["paragraphs"]),
        }
        for i in mine
    }
    records = []
    for i in mine:
        for number, paragraph in enumerate(articles[i]["paragraphs"]):
            # Later paragraphs are what a document's own context helps.
            for qa in rng.sample(
                paragraph["qas"], min(1 if number == 0 else 2, len(paragraph["qas"]))
            ):
                answer = qa["answers"][0]
                begin = answer["answer_start"]
                order = [i, *rng.sample([k for k in mine if k != i], args.others)]
                rng.shuffle(order)
                found = sentence(paragraph["context"], begin, begin + len(answer["text"]))
                records.append(
                    {
                        "documents": [documents[k] for k in order],
                        "question": qa["question"],
                        "answers": [answer["text"]],
                        "kind": "first" if number == 0 else "later",
                        "support": [{"id": f"d{i}", "text": found}],
                    }
                )
    rng.shuffle(records)
    for record in records[: args.most]:
        print(json.dumps(joined(record) if args.joined else record))


if __name__ == "__main__":
    main()
