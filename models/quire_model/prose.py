"""Turning facts into sentences: pronouns, descriptions, openers,
lists and sentences that say nothing in particular."""

import re

from . import relations

OPENERS = (
    "Records show that ",
    "According to local papers, ",
    "As far as is known, ",
    "By all accounts, ",
    "It is well known that ",
    "The old guide says that ",
)
FILLERS = (
    "Little else is recorded.",
    "Many books have been written about this.",
    "The records are kept in an old archive.",
    "Visitors often ask about this.",
    "Several letters from that time survive.",
    "This is still discussed today.",
    "The details were confirmed by two witnesses.",
    "Few people know the whole story.",
    "Local papers reported it at length.",
    "The story is told in many songs.",
    "Historians agree on most points.",
)
TYPE_FILLERS = {
    "person": (
        "Friends remembered a calm and friendly nature.",
        "The early years were not easy.",
        "A small portrait still hangs in the town hall.",
        "Neighbours told many stories about those days.",
        "A street now carries the family name.",
        "Most of the private letters were lost in a fire.",
        "A short book about this life was printed later.",
        "Work began early in the morning and ended late.",
    ),
    "city": (
        "An old map shows the place clearly.",
        "Narrow streets lead down to the water.",
        "The towers can be seen from far away.",
        "Winters are cold and summers are short.",
        "A long wall once stood around the houses.",
        "The bridge was built again after a flood.",
        "Many families have lived here for centuries.",
        "A small museum tells the story of the place.",
    ),
    "country": (
        "High mountains stand in the north.",
        "The roads are good and the villages are small.",
        "Most of the land is covered with forest.",
        "The coast is long and full of small islands.",
        "Old songs are still sung in the villages.",
        "The borders have not changed for a long time.",
    ),
    "company": (
        "The first years were hard.",
        "Most of the work is done by hand.",
        "New buildings were added after the war.",
        "Its goods are sold in many countries.",
        "The accounts are read aloud once a year.",
        "A small school for young workers was opened later.",
    ),
    "product": (
        "Early reviews were friendly.",
        "It needs little care and lasts for many years.",
        "The first models were sold out in a week.",
        "A small handbook comes in the box.",
        "Collectors pay well for the first models.",
        "Repairs are easy and spare parts are cheap.",
    ),
    "event": (
        "Tickets were sold out within a day.",
        "Heavy rain fell on the second evening.",
        "Music was played until late at night.",
        "Guests came from many countries.",
        "The streets were full of flags.",
        "A small band opened the day.",
    ),
}
TYPE_FILLERS["society"] = (
    "The first rooms were small and cold.",
    "A long list of gifts is kept in the hall.",
    "Guests may visit on the first day of the week.",
    "The old statutes were written by hand.",
    "A short speech opens every meeting.",
    "Its papers fill a whole cellar.",
)
TYPE_FILLERS["law"] = (
    "The debate lasted for three days.",
    "Judges have often asked what it means.",
    "Copies were nailed to the doors of the town halls.",
    "It was read aloud in the markets.",
    "Several clerks complained about its length.",
    "The text fits on a single page.",
)
# Sentences without facts, put together from parts,
# for articles longer than the lists above can fill.
FILLER_OPENINGS = (
    "In those days",
    "For many years",
    "Now and then",
    "As the old papers tell",
    "Towards the end of summer",
    "After the long winter",
    "On market days",
    "Some time later",
    "In the quieter months",
    "By all reports",
    "When the weather allowed",
    "Before the railway came",
)
FILLER_SUBJECTS = (
    "the neighbours",
    "a few travellers",
    "the clerks",
    "some of the older families",
    "young workers",
    "the ferrymen",
    "two or three writers",
    "the shopkeepers",
    "visitors from the coast",
    "the schoolchildren",
    "several merchants",
    "the night watch",
)
FILLER_ACTIONS = (
    "walked along the old wall",
    "told the same stories again",
    "kept careful notes of the weather",
    "met in the back room of an inn",
    "waited for letters from abroad",
    "mended the road by hand",
    "argued about small matters",
    "planted trees along the square",
    "copied long lists into thick books",
    "sang until the lamps went out",
    "repaired the roofs after the storms",
    "shared bread and salt at the gate",
)
FILLER_ENDINGS = (
    "",
    "",
    " without much haste",
    " as their parents had done",
    " until it grew dark",
    ", and nobody minded",
    ", or so it is said",
    " for the rest of the week",
)
# How a later document takes back what an earlier one said.
CORRECTIONS = (
    "Correction: {s}",
    "Update: {s}",
    "A later report corrects an earlier article: {s}",
    "This notice replaces what was said before: {s}",
    "The earlier article is out of date. {s}",
    "Since that article was written things have changed. {s}",
)
ALIASES = (
    "{n} is also known as {a}.",
    "{n} is called {a} in these papers.",
    "In what follows {n} is called {a}.",
    "The name {a} stands for {n}.",
    "{a} is another name for {n}.",
)
GLOSSARY_TITLES = ("Names used in these papers", "Other names", "A list of short names")
# How somebody else is brought into an article: "her cousin Mara Tol".
COMPANIONS = {
    "person": ("cousin", "neighbour", "friend", "rival"),
    "city": ("neighbour",),
    "country": ("neighbour",),
    "company": ("partner",),
    "product": ("competitor",),
    "event": ("forerunner",),
    "society": ("neighbour",),
    "law": ("forerunner",),
}


_A_BEFORE_VOWEL = re.compile(r"\ba(?= [aeiou])")


def capitalised(text):
    return text[0].upper() + text[1:]


def with_article(entity_type, name):
    return "the " + name if entity_type in relations.WITH_ARTICLE else name


def possessive(name):
    return name + ("'" if name.endswith("s") else "'s")


def pronouns(entity, form):
    """(subject, possessive, object) for form "full", "short" (surname),
    "pronoun" or "description"."""
    if entity.alias and form in ("full", "short"):
        return entity.alias, possessive(entity.alias), entity.alias
    if form == "full" or (form == "short" and entity.type != "person"):
        name = with_article(entity.type, entity.name)
        return name, possessive(name), name
    if form == "short":
        name = entity.name.split()[-1]
        return name, possessive(name), name
    if entity.type == "person":
        return ("she", "her", "her") if entity.female else ("he", "his", "him")
    name = relations.DESCRIPTION[entity.type]
    if form == "pronoun":
        return "it", "its", name
    return name, possessive(name), name


def statement(rng, relation, forms, value, opener_chance=0.08):
    """One sentence that says `relation` of the subject whose (subject, possessive, object)
    forms are given."""
    template = rng.choice(relation.statements)
    text = template.format(it=forms[0], its=forms[1], him=forms[2], v=value)
    if " a " in text:
        text = _A_BEFORE_VOWEL.sub("an", text)
    if template[0] == "{" and rng.random() < opener_chance:
        text = rng.choice(OPENERS) + text
    return capitalised(text)


def fillers(rng, entity_type):
    """All sentences without facts that suit an article of this type, each once, in random order."""
    sentences = list(FILLERS + TYPE_FILLERS[entity_type])
    rng.shuffle(sentences)
    return sentences


def endless_filler(rng):
    """A sentence without facts; there are some ten thousand of them."""
    choice = rng.choice
    start = f"{choice(FILLER_OPENINGS)} {choice(FILLER_SUBJECTS)}"
    return f"{start} {choice(FILLER_ACTIONS)}{choice(FILLER_ENDINGS)}."


def table_row(entity, names):
    """One row of a table: "Mara Tol | birthplace Olton | hobby chess."."""
    table = relations.RELATIONS[entity.type]
    return (
        " | ".join(
            [capitalised(entity.name)] + [f"{table[n].label} {entity.facts[n]}" for n in names]
        )
        + "."
    )


def listing(entity, names):
    """The facts as one terse line: "Mara Tol: birthplace Olton; hobby chess."."""
    table = relations.RELATIONS[entity.type]
    items = "; ".join(f"{table[n].label} {entity.facts[n]}" for n in names)
    return f"{capitalised(entity.alias or entity.name)}: {items}."
