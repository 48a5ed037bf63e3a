"""Texts as vectors without a model, so that the examples run anywhere: hashed words, names counting
most. Use your own embeddings."""

import math
import re
import zlib

DIMENSIONS = 512
_COMMON = {
    "and",
    "are",
    "did",
    "does",
    "for",
    "from",
    "has",
    "her",
    "his",
    "how",
    "its",
    "many",
    "much",
    "the",
    "was",
    "were",
}
_COMMON |= {"what", "when", "where", "which", "who", "whom", "with"}


def embed(text: str) -> list[float]:
    """A vector of length one; equal texts have equal vectors everywhere."""
    vector = [0.0] * DIMENSIONS
    for word in set(re.findall(r"\w{3,}", text)):
        if word.lower() not in _COMMON:
            vector[zlib.crc32(word.lower().encode()) % DIMENSIONS] += (
                4.0 if word[0].isupper() else 1.0
            )
    length = math.sqrt(sum(x * x for x in vector)) or 1.0
    return [x / length for x in vector]
