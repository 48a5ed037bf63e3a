#!/usr/bin/env python3
"""Makes smollm2_tokens.json: the ids the Python package tokenizers gives for
the vocabulary in SmolLM2's GGUF file.

Usage: make_smollm2_golden.py MODEL.gguf DATA_DIR [FILE]   (needs gguf and tokenizers)

Of every text file in the folders of DATA_DIR (gzip or not; .jsonl, .json, .md, .txt, .inp): the
number of its lines, of their ids, and the SHA-256 of the ids of each line as little-endian i32,
each line followed by an i32 -1. Of every 4096 code points: the same for two texts for each 256 of
them (unicode_texts()). And the ids of some short texts.
"""

import gzip
import hashlib
import json
import struct
import sys
from pathlib import Path

from gguf import GGUFReader
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import BPE

SHORT = [
    "",
    " ",
    "  ",
    "\n",
    "\n\n\n",
    "\t\tx",
    "Hello, world!",
    "It's 12 o'clock; we'll've 1234567890 things",
    "a\x04b",
    "\x04",
    "x \x04\x06 y\x13",
    "\x14\x15\x16 \x1d",
    "na\u00efve caf\u00e9 \u4f60\u597d \u3053\u3093",
    "\U0001f642\U0001f9d1\u200d\U0001f680",
    "!\U00040000!",
    "\U00040000",
    "ab\U00080001cd",
    "<|im_start|>user",
    "\u0663\u0664 \u00b2\u00bd \u2167",
    "a\r\nb",
    "\u00a0x\u2003y\u3000z",
    "def f(x):\n    return x ** 2  # 3.14\n",
    "https://example.com/?q=1&r=%20",
    "\ufeffBOM",
    "e\u0301",
    "\u0e01\u0e33",
    "\ud55c\uad6d\uc5b4",
    "\u0627\u0644\u0633\u0644\u0627\u0645 \u0639\u0644\u064a\u0643\u0645",
    "\u05e9\u05dc\u05d5\u05dd",
    "\u0928\u092e\u0938\u094d\u0924\u0947",
]


def build(path):
    reader = GGUFReader(path)
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(m.split(" ")) for m in reader.fields["tokenizer.ggml.merges"].contents()]
    tokenizer = Tokenizer(BPE({t: i for i, t in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    return tokenizer


def unicode_texts(start):
    points = [chr(p) for p in range(start, start + 256) if not 0xD800 <= p < 0xE000]
    return ["".join(points), "".join("a" + c + c + " " + c + "1" for c in points)]


def digest(tokenizer, lines):
    sha, count = hashlib.sha256(), 0
    for begin in range(0, len(lines), 4096):
        for encoding in tokenizer.encode_batch(
            lines[begin : begin + 4096], add_special_tokens=False
        ):
            count += len(encoding.ids)
            sha.update(struct.pack(f"<{len(encoding.ids) + 1}i", *encoding.ids, -1))
    return {"lines": len(lines), "ids": count, "sha256": sha.hexdigest()}


def main():
    tokenizer, data = build(sys.argv[1]), Path(sys.argv[2])
    out = {
        "short": [
            {"text": t, "ids": tokenizer.encode(t, add_special_tokens=False).ids} for t in SHORT
        ],
        "files": {},
        "unicode": {},
    }
    for path in sorted(p for p in data.rglob("*") if p.is_file() and p.parent != data):
        name = str(path.relative_to(data))
        if not name.removesuffix(".gz").endswith((".jsonl", ".json", ".md", ".txt", ".inp")):
            continue
        raw = gzip.open(path).read() if name.endswith(".gz") else path.read_bytes()
        out["files"][name] = digest(tokenizer, raw.decode("utf-8").split("\n"))
    for start in range(0, 0x110000, 4096):
        out["unicode"][f"{start:06X}"] = digest(
            tokenizer, [t for b in range(start, start + 4096, 256) for t in unicode_texts(b)]
        )
    path = (
        Path(sys.argv[3]) if len(sys.argv) > 3 else Path(__file__).with_name("smollm2_tokens.json")
    )
    path.write_text(json.dumps(out, indent=0, ensure_ascii=True) + "\n")


if __name__ == "__main__":
    main()
