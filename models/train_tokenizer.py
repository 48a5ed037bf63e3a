#!/usr/bin/env python3
"""Trains a sentencepiece BPE vocabulary with byte fallback on generated text.

    python train_tokenizer.py --out runs/tokenizer

Writes tokenizer.model into --out. The pieces <doc>, <q>, <a>, </a> get ids of their own;
digits are split.
"""

import argparse
import random
import tempfile
from pathlib import Path

import sentencepiece

from quire_model.encyclopedia import Encyclopedia
from quire_model.pages import Style

SYMBOLS = ["<doc>", "<q>", "<a>", "</a>"]


def write_corpus(path, seed, contexts):
    rng = random.Random(f"tokenizer/{seed}")
    with open(path, "w", encoding="utf-8") as out:
        for _ in range(contexts):
            context = Encyclopedia(rng, rng.randint(2, 6), Style()).build()
            for document in context.documents:
                out.write("\n".join(document.sentences) + "\n")
            for question in context.questions[:4]:
                out.write(f"{question.text} {question.answer}\n")


def main():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--out", required=True)
    p.add_argument("--vocab-size", type=int, default=4096)
    p.add_argument("--contexts", type=int, default=30000)
    p.add_argument("--seed", type=int, default=42)
    args = p.parse_args()
    Path(args.out).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "corpus.txt"
        write_corpus(corpus, args.seed, args.contexts)
        sentencepiece.SentencePieceTrainer.train(
            input=str(corpus),
            model_prefix=str(Path(args.out) / "tokenizer"),
            vocab_size=args.vocab_size,
            model_type="bpe",
            split_digits=True,
            byte_fallback=True,
            character_coverage=1.0,
            user_defined_symbols=SYMBOLS,
            unk_id=0,
            bos_id=1,
            eos_id=2,
            pad_id=3,
            add_dummy_prefix=True,
            input_sentence_size=300000,
            shuffle_input_sentence=True,
            minloglevel=1,
        )
    print(f"{args.out}/tokenizer.model written")


if __name__ == "__main__":
    main()
