"""Held-out contexts: seeds and names that training never used."""

import dataclasses
import random

from .encyclopedia import KINDS, Encyclopedia, Style, tokens_per_entity

# Articles of several facts, so that every document has 60 to 400 tokens.
STYLE = Style(
    facts=(5, 10),
    filler=0.9,
    aside=0.3,
    cut=0.6,
    min_chunk=3,
    listing=0.0,
    table=0.1,
    title=1.0,
    shared_relations=(3, 5),
    num_needles=(2, 6),
    variables=0.3,
    document_chars=(230, 1300),
)
LONGEST_DOCUMENT_CHARS = 6500  # about 2,000 tokens, in contexts of 4,000 tokens and more
MAX_TRIES = 1000


def contexts(seed, codec, tokens, split="test", kinds=KINDS, max_questions=60):
    """Endless contexts of 0.85 to 1.0 times `tokens` tokens, the same for the same arguments."""
    style, i, scale = STYLE, 0, 1.0
    if tokens >= 4000:
        style = dataclasses.replace(
            style, document_chars=(230, LONGEST_DOCUMENT_CHARS), num_needles=(3, 12)
        )
    last = 0
    while i - last < MAX_TRIES:
        i += 1
        rng = random.Random(f"{split}/{seed}/{tokens}/{i}")
        entities = max(2, round(scale * tokens * 0.9 / tokens_per_entity(style)))
        context = Encyclopedia(rng, entities, style, split).build(max_questions, kinds)
        size = len(codec.documents(d.text for d in context.documents)[0])
        if not 0.85 * tokens <= size <= tokens:
            scale *= 1.03 if size < 0.85 * tokens else 0.97
            continue
        last = i
        yield context
    raise ValueError(f"no context of {tokens} tokens in {MAX_TRIES} tries")
