"""Facts hidden in articles about something else: numbers under a key, and chains of assignments (as
in RULER, Hsieh et al. 2024: needle in a haystack and variable tracking)."""

import string

ADJECTIVES = (
    "quiet,ancient,rapid,bitter,gentle,hollow,frozen,bright,clever,distant,eager,fancy,humble,"
    "jolly,lucky,misty,noble,proud,rusty,sleepy,tiny,vivid,wild,young,zesty,brave"
).split(",")
NOUNS = (
    "apple,badger,candle,desert,engine,forest,garden,hammer,island,jacket,kitten,ladder,mirror,"
    "needle,ocean,pencil,rabbit,saddle,temple,violin,window,anchor,bottle,castle,dragon,feather"
).split(",")
NEEDLES = (
    "The special magic number for {k} is {v}.",
    "The magic number of the {k} is {v}.",
    "Note that the special magic number for {k} is {v}.",
    "One of the special magic numbers for {k} is: {v}.",
)


def _insert(rng, document, text):
    sentences = rng.choice(document.passages).sentences
    sentences.insert(rng.randint(1, len(sentences)), text)


def hide_needles(rng, documents, num_needles):
    """Hides numbers under `num_needles` (a range) keys; returns (key, value, Document) in document
    order. A key has one number or, one time in four, two to four of them in documents of their
    own."""
    found, used = [], set()
    adjectives, nouns = (
        rng.sample(words, rng.choice((3, 6, len(words)))) for words in (ADJECTIVES, NOUNS)
    )
    for _ in range(rng.randint(*num_needles)):
        key = rng.choice(adjectives) + " " + rng.choice(nouns)
        if key in used:
            continue
        used.add(key)
        count = 1 if rng.random() < 0.75 else min(len(documents), rng.choice((2, 2, 3, 4)))
        for place in sorted(rng.sample(range(len(documents)), count)):
            found.append((key, str(rng.randint(1000, 9999999)), place))
    for key, value, place in found:
        _insert(rng, documents[place], rng.choice(NEEDLES).format(k=key, v=value))
    return [
        (key, value, documents[place]) for key, value, place in sorted(found, key=lambda f: f[2])
    ]


def hide_variables(rng, documents):
    """Hides two or three chains of assignments; returns (name, number or the name it copies,
    Document) in document order. A name is assigned in an earlier document than those that copy
    it."""
    found, names = [], set()
    for number in rng.sample(range(10000, 99999), rng.randint(2, 3)):
        source = str(number)
        # one link of a chain per document: the order of assignment is the order of documents
        places = sorted(rng.sample(range(len(documents)), min(len(documents), rng.randint(2, 4))))
        for place in places:
            name = "".join(rng.choices(string.ascii_uppercase, k=3))
            while name in names:
                name = "".join(rng.choices(string.ascii_uppercase, k=3))
            names.add(name)
            text = f"VAR {name} = {'VAR ' if source.isalpha() else ''}{source}."
            _insert(rng, documents[place], text)
            found.append((name, source, place))
            source = name
    return [
        (name, source, documents[place])
        for name, source, place in sorted(found, key=lambda f: f[2])
    ]
