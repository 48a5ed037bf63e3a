"""Numbers and assignments hidden in noise, in running text or among others like them, worded as
RULER words them (Hsieh et al. 2024). Keys are drawn from this generator's own words and names."""

import string
import uuid

from . import names
from .encyclopedia import Encyclopedia, Style, tokens_per_entity
from .hidden import ADJECTIVES, NOUNS
from .pages import Context, Document, Passage, Question

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
ONE = (
    "A special magic {what} is hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the {what} afterwards."
)
MANY = (
    "Some special magic {what}s are hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the {what}s afterwards."
)
NEEDLE = "One of the special magic {what}s for {k} is: {v}."
ASK_ONE = "What is the special magic {what} for {k} mentioned in the provided text?"
ASK_MANY = "What are all the special magic {what}s for {k} mentioned in the provided text?"
TRACK = "Memorize and track the chain of variable assignment hidden in the following text."
ASK_TRACK = "Find all variables that are assigned the value {v} in the text above."
ESSAY = Style(facts=(3, 6), filler=0.4, aside=0.3, num_needles=(0, 0), variables=0.0)
MOST_ASKED = 40


def _key(rng, namer):
    if rng.random() < 0.25:
        return "-".join(namer.alias().lower().split())
    return f"{rng.choice(ADJECTIVES)}-{rng.choice(NOUNS)}"


def _uuid(rng, _=None):
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


def _number(rng, _=None):
    return str(rng.randint(1000000, 9999999))


def _essay(rng, lines, split):
    world = Encyclopedia(
        rng, max(2, lines * 20 // round(tokens_per_entity(ESSAY))), ESSAY, split
    ).build(0)
    return [s for d in world.documents for s in d.sentences]


def _scatter(rng, hay, inserts):
    places = sorted(rng.randint(0, len(hay)) for _ in inserts)
    for place, text in reversed(list(zip(places, inserts))):
        hay.insert(place, text)
    return hay


def _one_document(head, sentences, questions):
    document = Document("text", [Passage("text", [head, *sentences])])
    return Context(
        [document],
        [Question(kind, text, answer, [document]) for kind, text, answer in questions],
        [],
        {},
        [],
        [],
    )


def _listed(keys):
    return keys[0] if len(keys) == 1 else ", ".join(keys[:-1]) + ", and " + keys[-1]


def needles(rng, lines, split):
    """Keys of one to four values in noise or running text,
    or as many keys as fit and nothing else."""
    namer = names.Namer(rng, split)
    hay = rng.choice(("noise", "essay", "essay", "needles"))
    value = _uuid if rng.random() < 0.15 else _number
    draw = _uuid if hay == "needles" and rng.random() < 0.2 else _key
    what = "uuid" if value is _uuid else "number"
    keys = list(
        dict.fromkeys(
            draw(rng, namer)
            for _ in range(
                lines
                if hay == "needles"
                else rng.choice((1, *(max(4, lines // part) for part in (4, 5, 6, 8, 12))))
            )
        )
    )
    counts = [1 if hay == "needles" or rng.random() < 0.6 else rng.randint(2, 4) for _ in keys]
    items = [(k, value(rng)) for k, count in zip(keys, counts) for _ in range(count)]
    rng.shuffle(items)
    texts = [NEEDLE.format(what=what, k=k, v=v) for k, v in items]
    sentences = (
        texts
        if hay == "needles"
        else _scatter(
            rng,
            [NOISE] * max(1, lines * 2 // 3) if hay == "noise" else _essay(rng, lines, split),
            texts,
        )
    )
    questions = []
    for key in rng.sample(keys, min(len(keys), MOST_ASKED)):
        values = [v for k, v in items if k == key]
        kind = (
            "needle_multi_value"
            if len(values) > 1
            else "needle_multi_key"
            if len(keys) > 1
            else "needle"
        )
        questions.append(
            (
                kind,
                (ASK_MANY if len(values) > 1 else ASK_ONE).format(what=what, k=key),
                ", ".join(values),
            )
        )
    lone = [k for k, count in zip(keys, counts) if count == 1]
    for _ in range(max(2, len(lone) // 6) if len(lone) > 1 else 0):
        asked = rng.sample(lone, min(len(lone), rng.randint(2, 4)))
        questions.append(
            (
                "needle_multi_query",
                ASK_MANY.format(what=what, k=_listed(asked)),
                ", ".join(dict(items)[k] for k in asked),
            )
        )
    return _one_document((MANY if len(items) > 1 else ONE).format(what=what), sentences, questions)


def assignments(rng, lines, split):
    """Chains of five names in noise."""
    del split
    chains, texts = [], []
    for _ in range(rng.choice((1, 1, max(1, lines // 20)))):
        chain = ["".join(rng.choices(string.ascii_uppercase, k=5)) for _ in range(5)]
        value = str(rng.randint(10000, 99999))
        texts += [f"VAR {chain[0]} = {value}"] + [
            f"VAR {b} = VAR {a}" for a, b in zip(chain, chain[1:])
        ]
        chains.append((value, chain))
    sentences = _scatter(rng, [NOISE] * max(1, lines * 2 // 3), texts)
    return _one_document(
        TRACK,
        sentences,
        [("variable_tracking", ASK_TRACK.format(v=v), ", ".join(chain)) for v, chain in chains],
    )


ALL = ((needles, 0.9), (assignments, 0.1))


def draw(rng, lines, split):
    make = rng.choices([m for m, _ in ALL], [w for _, w in ALL])[0]
    return make(rng, lines, split)
