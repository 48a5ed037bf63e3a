"""Turning facts into sentences: pronouns, descriptions, openers, lists and sentences that say nothing in particular."""
import re

from . import relations

OPENERS = ("Records show that ", "According to local papers, ", "As far as is known, ", "By all accounts, ",
           "It is well known that ", "The old guide says that ")
FILLERS = ("Little else is recorded.", "Many books have been written about this.",
           "The records are kept in an old archive.", "Visitors often ask about this.",
           "Several letters from that time survive.", "This is still discussed today.",
           "The details were confirmed by two witnesses.", "Few people know the whole story.",
           "Local papers reported it at length.", "The story is told in many songs.", "Historians agree on most points.")
TYPE_FILLERS = {
    "person": ("Friends remembered a calm and friendly nature.", "The early years were not easy.",
               "A small portrait still hangs in the town hall.", "Neighbours told many stories about those days.",
               "A street now carries the family name.", "Most of the private letters were lost in a fire.",
               "A short book about this life was printed later.", "Work began early in the morning and ended late."),
    "city": ("An old map shows the place clearly.", "Narrow streets lead down to the water.",
             "The towers can be seen from far away.", "Winters are cold and summers are short.",
             "A long wall once stood around the houses.", "The bridge was built again after a flood.",
             "Many families have lived here for centuries.", "A small museum tells the story of the place."),
    "country": ("High mountains stand in the north.", "The roads are good and the villages are small.",
                "Most of the land is covered with forest.", "The coast is long and full of small islands.",
                "Old songs are still sung in the villages.", "The borders have not changed for a long time."),
    "company": ("The first years were hard.", "Most of the work is done by hand.",
                "New buildings were added after the war.", "Its goods are sold in many countries.",
                "The accounts are read aloud once a year.", "A small school for young workers was opened later."),
    "product": ("Early reviews were friendly.", "It needs little care and lasts for many years.",
                "The first models were sold out in a week.", "A small handbook comes in the box.",
                "Collectors pay well for the first models.", "Repairs are easy and spare parts are cheap."),
    "event": ("Tickets were sold out within a day.", "Heavy rain fell on the second evening.",
              "Music was played until late at night.", "Guests came from many countries.",
              "The streets were full of flags.", "A small band opened the day."),
}
# How somebody else is brought into an article: "her cousin Mara Tol".
COMPANIONS = {"person": ("cousin", "neighbour", "friend", "rival"), "city": ("neighbour",), "country": ("neighbour",),
              "company": ("partner",), "product": ("competitor",), "event": ("forerunner",)}


_A_BEFORE_VOWEL = re.compile(r"\ba(?= [aeiou])")


def capitalised(text):
    return text[0].upper() + text[1:]


def with_article(entity_type, name):
    return "the " + name if entity_type in ("product", "event") else name


def possessive(name):
    return name + ("'" if name.endswith("s") else "'s")


def pronouns(entity, form):
    """(subject, possessive, object) for form "full", "short" (surname), "pronoun" or "description"."""
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
    """One sentence that says `relation` of the subject whose (subject, possessive, object) forms are given."""
    template = rng.choice(relation.statements)
    text = _A_BEFORE_VOWEL.sub("an", template.format(it=forms[0], its=forms[1], him=forms[2], v=value))
    if template[0] == "{" and rng.random() < opener_chance:
        text = rng.choice(OPENERS) + text
    return capitalised(text)


def fillers(rng, entity_type):
    """All sentences without facts that suit an article of this type, each once, in random order."""
    sentences = list(FILLERS + TYPE_FILLERS[entity_type])
    rng.shuffle(sentences)
    return sentences


def listing(entity, names):
    """The facts as one terse line: "Mara Tol: birthplace Olton; hobby chess."."""
    table = relations.RELATIONS[entity.type]
    items = "; ".join(f"{table[n].label} {entity.facts[n]}" for n in names)
    return f"{capitalised(entity.name)}: {items}."
