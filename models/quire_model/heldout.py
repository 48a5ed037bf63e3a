"""Held-out contexts: seeds and names that training never used."""
import random

from .encyclopedia import Encyclopedia, Style

# Articles of several facts, so that every document has 60 to 400 tokens.
STYLE = Style(facts=(5, 10), filler=0.9, aside=0.3, cut=0.6, min_chunk=3, listing=0.0, title=1.0, shared_relations=(3, 5),
              num_needles=(1, 3))
DOCUMENT_TOKENS = (60, 400)


def contexts(seed, codec, min_documents=4, max_documents=12, max_tokens=2000, style=STYLE):
    """Endless contexts of `min_documents` to `max_documents` documents within the limits, the same for the same seed."""
    i = 0
    while True:
        i += 1
        rng = random.Random(f"held-out/{seed}/{i}")
        wanted = rng.randint(min_documents, max_documents)
        context = Encyclopedia(rng, max(2, round(wanted * 0.65)), style, held_out=True).build()
        if len(context.documents) != wanted:
            continue
        ids, starts = codec.documents(d.text for d in context.documents)
        lengths = [b - a for a, b in zip(starts, starts[1:] + [len(ids)])]
        if len(ids) > max_tokens or min(lengths) < DOCUMENT_TOKENS[0] or max(lengths) > DOCUMENT_TOKENS[1]:
            continue
        yield context
