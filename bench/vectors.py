#!/usr/bin/env python3
"""Embeds real paragraphs and questions for the benchmark of large vector indexes (vectors.sh)."""

import argparse
import base64
import gzip
import itertools
import json
import os
from pathlib import Path

from retrieval import ROOT, Service, lines_of

BATCH = 64
MOST_CHARACTERS = 600


def embedded(service, texts, path):
    """Writes the vectors of the texts as rows of f32."""
    with open(path, "wb") as file:
        for begin in range(0, len(texts), BATCH):
            reply = service.call(
                "POST",
                "/v1/embeddings",
                {"input": texts[begin : begin + BATCH], "encoding_format": "base64"},
            )
            for entry in reply["data"]:
                file.write(base64.b64decode(entry["embedding"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="folder with the question sets")
    parser.add_argument("--out", required=True, help="folder for paragraphs.f32, questions.f32")
    parser.add_argument("--paragraphs", type=int, default=6000)
    parser.add_argument("--questions", type=int, default=200)
    options = parser.parse_args()
    data = Path(options.data)
    with gzip.open(data / "2wiki_corpus6119.jsonl.gz", "rt", encoding="utf-8") as file:
        records = [json.loads(line) for line in itertools.islice(file, options.paragraphs)]
    # Some are longer than the encoder's window, and /v1/embeddings refuses those.
    paragraphs = [f"{record['title']}\n{record['text']}"[:MOST_CHARACTERS] for record in records]
    asked = lines_of(data / "2wikimultihop_train500.jsonl.gz")
    questions = [record["question"] for record in asked][: options.questions]
    service = Service(
        f"--retrieve.encoder={ROOT / 'models/minilm'}",
        f"--retrieve.encoder_threads={os.cpu_count()}",
    )
    try:
        embedded(service, questions, f"{options.out}/questions.f32")
        embedded(service, paragraphs, f"{options.out}/paragraphs.f32")
    finally:
        service.stop()


if __name__ == "__main__":
    main()
