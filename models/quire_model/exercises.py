"""One skill at a time, without prose:
short lines of names and values, and many questions about them.

Prose teaches some skills only after a long time, or never at the size of these models: to bind a
value to its key, to compare two numbers, to go by way of another name, to gather all of several.
Lines that hold nothing else teach them in a few million tokens, and prose then takes them over.
"""

import string

from . import names, prose
from .asking import COMPARISONS, GROUPS, PHRASES, chain_question, next_type
from .hidden import ADJECTIVES, NOUNS
from .pages import Context, Document, Passage, Question
from .questions import MANY_VALUES, MAX_COUNTED, MAX_LISTED, NEEDLE_QUESTIONS, NOT_STATED, VARIABLES
from .relations import (
    ANIMALS,
    COLOURS,
    GOODS,
    HOBBIES,
    INDUSTRIES,
    MATERIALS,
    PROFESSIONS,
    RELATIONS,
)
from .world import draw_value

MARKS = (": ", " is ", " has ", " likes ", " = ")
LISTS = (PROFESSIONS, COLOURS, MATERIALS, GOODS, HOBBIES)
WORDS = sorted(
    {*ANIMALS, *COLOURS, *GOODS, *HOBBIES, *INDUSTRIES, *MATERIALS, *PROFESSIONS}
)  # one token each, most of them
# Half of the exercises ask in few words, so that a row holds many questions; the others as the
# encyclopedia does. Half of the short ones use plain words for names: a skill forms on single
# tokens first.
SHORT_COMPARISON = ("{a} or {b}, less?", "{a} or {b}, more?")
SHORT_CHAIN = {2: "{e}, twice?", 3: "{e}, three times?"}
SHORT_GROUP = {"list": "{v}: who?", "count": "{v}: how many?"}
PLAIN_SHARE = 0.6
MOST_PLAIN = 60  # lines: beyond, there are too few plain words for names


def _documents(rng, lines):
    """Lines in documents of one to four; [(line's document)] beside the documents."""
    size, documents, homes = rng.randint(1, 4), [], []
    for start in range(0, len(lines), size):
        passage = Passage("Lines", list(lines[start : start + size]))
        documents.append(Document("Lines", [passage]))
        passage.document = documents[-1]
        homes += [documents[-1]] * len(passage.sentences)
    return documents, homes


def _context(rng, lines, questions):
    """`questions`: (kind, text, answer, numbers of the lines that it rests on)."""
    documents, homes = _documents(rng, lines)
    asked = [
        Question(kind, text, answer, list(dict.fromkeys(homes[i] for i in support)))
        for kind, text, answer, support in questions
    ]
    return Context(documents, asked, [], {}, [], [])


def _any_name(rng, namer):
    return rng.choice(
        (
            namer.city,
            namer.company,
            namer.alias,
            lambda: namer.person(True),
            lambda: namer.person(False),
        )
    )()


def _name(rng, namer, type_):
    return namer.person(rng.random() < 0.5) if type_ == "person" else getattr(namer, type_)()


def _word(rng, namer):
    return (
        rng.choice(rng.choice(LISTS))
        if rng.random() < 0.7
        else rng.choice((namer.city, namer.country))()
    )


def cards(rng, count, split):
    """A value for every key: what taught the first model to bind a value to its key."""
    namer, mark = names.Namer(rng, split), rng.choice(MARKS)
    items = [(_any_name(rng, namer), _word(rng, namer)) for _ in range(count)]
    return _context(
        rng,
        [f"{k}{mark}{v}." for k, v in items],
        [("card", k + "?", v, [i]) for i, (k, v) in enumerate(items)],
    )


def cards_or_none(rng, count, split):
    """Cards, and keys that have none."""
    context, namer = cards(rng, count, split), names.Namer(rng, split)
    listed = {q.text for q in context.questions}
    strangers = [
        q
        for q in (_any_name(rng, namer) + "?" for _ in range(max(1, count // 4)))
        if q not in listed
    ]
    context.questions += [Question("absent", text, NOT_STATED, []) for text in strangers]
    return context


def _plain_chains(rng, count, hops):
    """Levels of words, each leading to one of the next: [[word]], and the step from each level."""
    words = rng.sample(WORDS, min(len(WORDS), max(2, count // hops) * (hops + 1)))
    size = len(words) // (hops + 1)
    levels = [words[i * size : (i + 1) * size] for i in range(hops + 1)]
    return levels[:-1], [
        dict(zip(here, rng.sample(there, size))) for here, there in zip(levels, levels[1:])
    ]


def _named_chains(rng, namer, count, path):
    levels = [
        [_name(rng, namer, type_) for _ in range(max(2, count // len(path)))] for type_, _ in path
    ]
    last = RELATIONS[path[-1][0]][path[-1][1]].value
    end = {
        n: _name(rng, namer, last)
        if last in RELATIONS
        else draw_value(rng, last, namer, path[-1][0])
        for n in levels[-1]
    }
    return levels, [
        dict(zip(here, rng.sample(there, len(there)))) for here, there in zip(levels, levels[1:])
    ] + [end]


def chains(rng, count, split):
    """Names that lead to names that have a value, two or three steps away from the first."""
    namer, mark = names.Namer(rng, split), rng.choice(MARKS)
    hops = rng.choice((2, 2, 2, 3))
    path = _path(rng, hops)
    short = rng.random() < 0.4
    plain = short and count <= MOST_PLAIN and rng.random() < PLAIN_SHARE
    levels, follow = (
        _plain_chains(rng, count, hops) if plain else _named_chains(rng, namer, count, path)
    )
    lines = [
        (name, f"{name}{mark}{step[name]}.") for here, step in zip(levels, follow) for name in here
    ]
    rng.shuffle(lines)
    home = {name: i for i, (name, _) in enumerate(lines)}
    questions = []
    for name in levels[0]:
        way = [name]
        for step in follow:
            way.append(step[way[-1]])
        text = (
            SHORT_CHAIN[hops].format(e=name)
            if short
            else chain_question(rng, name, path[0][0], tuple(r for _, r in path))
        )
        questions.append(
            ("two_hop" if hops == 2 else "three_hop", text, way[-1], [home[n] for n in way[:-1]])
        )
    return _context(rng, [text for _, text in lines], questions)


def _path(rng, hops):
    """[(type, relation)] of `hops` steps over different types."""
    while True:
        type_, path = rng.choice(list(PHRASES))[0], []
        while len(path) < hops - 1:
            known = [
                r
                for t, r in PHRASES
                if t == type_ and next_type(t, r) not in [t for t, _ in path] + [type_]
            ]
            if not known:
                break
            path.append((type_, rng.choice(known)))
            type_ = next_type(*path[-1])
        else:
            return path + [(type_, rng.choice(list(RELATIONS[type_])))]


def comparisons(rng, count, split):
    """A number for every name, of one digit up to what the encyclopedia holds; every pair may be
    asked about. A question may repeat the numbers of both names or of one: to compare forms before
    looking up two at once does."""
    namer, mark = names.Namer(rng, split), rng.choice(MARKS)
    (type_, relation), wording = rng.choice(list(COMPARISONS.items()))
    kind = RELATIONS[type_][relation].value
    one, two, more = (
        (lambda: str(rng.randint(1, 9))),
        (lambda: str(rng.randint(10, 99))),
        (lambda: str(rng.randint(100, 9999))),
    )
    draw = rng.choice(
        (one, one, one, two, two, more, *[lambda: draw_value(rng, kind, namer, type_)] * 3)
    )
    short = rng.random() < 0.6
    plain = short and count <= MOST_PLAIN and rng.random() < PLAIN_SHARE
    told = rng.choice((0, 1, 2))  # numbers that a question repeats
    if short:
        wording = SHORT_COMPARISON
    if plain:
        keys = rng.sample(WORDS, min(len(WORDS), count))
    else:
        keys = [namer.alias() if short else _name(rng, namer, type_) for _ in range(count)]
    items = [(key, draw()) for key in keys]
    pairs = [
        (i, j)
        for i in range(len(items))
        for j in range(len(items))
        if int(items[i][1]) < int(items[j][1])
    ]
    questions = []
    for low, high in rng.sample(pairs, min(len(pairs), 40)):
        a, b = rng.sample((low, high), 2)
        larger = rng.random() < 0.5
        hints = rng.sample((told > 0, told > 1), 2)
        first, second = (
            f"{items[i][0]} ({items[i][1]})" if hint else items[i][0]
            for i, hint in zip((a, b), hints)
        )
        questions.append(
            (
                "comparison",
                wording[larger].format(a=first, b=second),
                items[high if larger else low][0],
                [a, b],
            )
        )
    return _context(rng, [f"{k}{mark}{v}." for k, v in items], questions)


def other_names(rng, count, split):
    """Every second key has another name, under which its value is given."""
    namer, mark = names.Namer(rng, split), rng.choice(MARKS)
    explained, given, questions = [], [], []
    plain = count <= MOST_PLAIN and rng.random() < 0.3
    words = rng.sample(WORDS, len(WORDS)) if plain else []
    for i in range(max(2, min(count * 2 // 3, len(WORDS) // 3 if plain else count))):
        key, value, other = (
            (words.pop(), words.pop(), words.pop())
            if plain
            else (_any_name(rng, namer), _word(rng, namer), namer.alias())
        )
        if i % 2 == 0:
            explained.append((i, rng.choice(prose.ALIASES).format(n=key, a=other)))
        given.append((i, f"{other if i % 2 == 0 else key}{mark}{value}."))
        questions.append(("alias" if i % 2 == 0 else "card", key + "?", value, i))
    rng.shuffle(given)
    lines = explained + given if rng.random() < 0.5 else given + explained
    return _context(
        rng,
        [text for _, text in lines],
        [
            (kind, text, answer, [n for n, (i, _) in enumerate(lines) if i == item])
            for kind, text, answer, item in questions
        ],
    )


def groups(rng, count, split):
    """Few values, each of several names: how many, and which in order."""
    namer, mark = names.Namer(rng, split), rng.choice(MARKS)
    type_, relation = rng.choice(list(GROUPS))
    things, said = GROUPS[type_, relation]
    kind = RELATIONS[type_][relation].value
    value = (
        (lambda: _name(rng, namer, kind))
        if kind in RELATIONS
        else (lambda: draw_value(rng, kind, namer, type_))
    )
    values = list(dict.fromkeys(value() for _ in range(max(2, count // rng.choice((1, 2, 3))))))
    items = [(_name(rng, namer, type_), rng.choice(values)) for _ in range(count)]
    questions, short = [], rng.random() < 0.5
    for v in values:
        same = [i for i, item in enumerate(items) if item[1] == v]
        for kind, start, most in (
            ("list", "Which", MAX_LISTED),
            ("count", "How many", MAX_COUNTED),
        ):
            if 0 < len(same) <= most:
                text = (
                    SHORT_GROUP[kind].format(v=v)
                    if short
                    else f"{start} {things} {said.format(v=v)}?"
                )
                questions.append(
                    (
                        kind,
                        text,
                        str(len(same)) if kind == "count" else ", ".join(items[i][0] for i in same),
                        same,
                    )
                )
    return _context(rng, [f"{k}{mark}{v}." for k, v in items], questions)


def several_values(rng, count, split):
    """Keys with one to four numbers, all asked for at once."""
    del split  # its keys are words that every split uses
    keys = [f"{a} {n}" for a in ADJECTIVES for n in NOUNS]
    rng.shuffle(keys)
    mark, digits = rng.choice(MARKS), rng.choice((1, 2, 4, 7))
    items = [
        (k, str(rng.randint(10 ** (digits - 1), 10**digits - 1)))
        for k in keys[: max(2, count // 2)]
        for _ in range(rng.randint(1, 4))
    ][:count]
    rng.shuffle(items)
    questions, short = [], rng.random() < 0.5
    for key in dict.fromkeys(k for k, _ in items):
        same = [i for i, item in enumerate(items) if item[0] == key]
        kind, forms = (
            ("needle", NEEDLE_QUESTIONS) if len(same) == 1 else ("needle_multi_value", MANY_VALUES)
        )
        text = key + "?" if short else rng.choice(forms).format(k=key)
        questions.append((kind, text, ", ".join(items[i][1] for i in same), same))
    return _context(rng, [f"{k}{mark}{v}." for k, v in items], questions)


def variables(rng, count, split):
    """Chains of assignments, interleaved: every name that holds a number."""
    del split
    taken, chains, lines = set(), [], []
    while sum(map(len, chains)) < max(2, count):
        chain = []
        for _ in range(rng.randint(1, 4)):
            name = "".join(rng.choices(string.ascii_uppercase, k=3))
            while name in taken:
                name = "".join(rng.choices(string.ascii_uppercase, k=3))
            taken.add(name)
            chain.append(name)
        chains.append(chain)
    numbers = rng.sample(range(10000, 99999), len(chains))
    waiting = [0] * len(chains)
    while any(at < len(chain) for at, chain in zip(waiting, chains)):
        c = rng.choice([i for i, chain in enumerate(chains) if waiting[i] < len(chain)])
        source = numbers[c] if waiting[c] == 0 else f"VAR {chains[c][waiting[c] - 1]}"
        lines.append((c, f"VAR {chains[c][waiting[c]]} = {source}."))
        waiting[c] += 1
    forms = ("{v}?",) if rng.random() < 0.5 else VARIABLES
    return _context(
        rng,
        [text for _, text in lines],
        [
            (
                "variable_tracking",
                rng.choice(forms).format(v=n),
                ", ".join(chain),
                [i for i, (c, _) in enumerate(lines) if c == at],
            )
            for at, (n, chain) in enumerate(zip(numbers, chains))
        ],
    )


# Cards and absent keys gain from the first million tokens on, other names and several values
# slowly; the rest did not form at the size of demo (models/README.md) and is kept for larger
# models.
ALL = (
    (cards_or_none, 0.3),
    (other_names, 0.15),
    (several_values, 0.2),
    (chains, 0.1),
    (comparisons, 0.2),
    (groups, 0.03),
    (variables, 0.02),
)


def draw(rng, count, split):
    """An exercise of about `count` lines."""
    make = rng.choices([m for m, _ in ALL], [w for _, w in ALL])[0]
    return make(rng, count, split)
