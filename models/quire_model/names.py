"""Invented names. Every name is drawn afresh from syllables,
so no answer can be remembered from training.

The words names are made of are divided once and for all by a hash into the splits: training never
sees a word of the held-out fifth, half of which is for validation and half for the test, and
held-out names consist of such words only. Some training names come from a second, wider alphabet of
syllables, so that copying a name does not depend on how it is spelt.
"""

import hashlib

ONSETS = ("b c d f g h j k l m n p r s t v w z br cl dr fr gl gr kr pl st th tr sh").split()
VOWELS = ("a e i o u ai ea ou").split()
CODAS = ("n", "r", "l", "s", "m", "nd", "th", "rk", "x", "t")
WIDE_ONSETS = tuple(ONSETS) + (
    "",
    "ch",
    "ph",
    "qu",
    "sk",
    "sp",
    "sw",
    "tw",
    "y",
    "wh",
    "sl",
    "sn",
    "fl",
    "cr",
    "gn",
    "kh",
)
WIDE_VOWELS = tuple(VOWELS) + ("ie", "oo", "ee", "au", "y", "oi", "ei", "ua", "eo", "io")
WIDE_CODAS = CODAS + (
    "",
    "",
    "",
    "ck",
    "ng",
    "mp",
    "lt",
    "b",
    "d",
    "g",
    "p",
    "v",
    "z",
    "ss",
    "ll",
    "nt",
    "rn",
    "sh",
)
WIDE_SHARE = 0.35  # of the words in training names
SPLITS = ("train", "validation", "test")

FEMALE, MALE = ("a", "ia", "elle", "ine", "eth"), ("o", "us", "an", "ard", "ik")
SURNAME = ("", "son", "wick", "man", "ley", "ov", "berg")
CITY = ("", "ton", "burg", "ville", "mouth", "stad", "holm")
COUNTRY = ("ia", "land", "stan", "onia")
ORGANISATION, PRODUCT, RIVER = ("", "ex", "tron", "co", "ix"), ("", "o", "ix", "el"), ("", "e", "a")
CURRENCY, LANGUAGE = ("", "o", "ar"), ("ish", "ese", "ic")

COMPANY_KINDS = (
    "Industries",
    "Works",
    "Group",
    "Labs",
    "Motors",
    "Foods",
    "Systems",
    "Trading",
    "Press",
    "Mills",
)
PRODUCT_KINDS = (
    "engine",
    "lamp",
    "camera",
    "bicycle",
    "radio",
    "piano",
    "clock",
    "kettle",
    "telescope",
    "tractor",
    "printer",
    "drone",
)
SOCIETY_KINDS = (
    "Museum",
    "Society",
    "Orchestra",
    "Academy",
    "Club",
    "Library",
    "Hospital",
    "Theatre",
)
LAW_KINDS = ("Act", "Charter", "Decree", "Treaty", "Statute")
EVENT_KINDS = ("race", "festival", "tournament", "concert", "fair", "debate", "regatta", "contest")


def split_of(word):
    """The one split whose names may contain this word:
    a fixed fifth of all words is kept out of training."""
    digest = hashlib.sha256(word.lower().encode()).digest()
    return "train" if digest[0] % 5 else SPLITS[1 + digest[1] % 2]


class Namer:
    """Draws unused names. Not safe to share between threads: it consumes `rng`."""

    def __init__(self, rng, split="train", wide_share=WIDE_SHARE):
        self._rng, self._split = rng, split
        self._wide_share = wide_share if split == "train" else 0.0
        self._used = set()

    def _word(self, endings):
        draw = self._wide_stem if self._rng.random() < self._wide_share else self._stem
        while True:
            ending = self._rng.choice(endings)
            word = draw(ending) + ending
            if 4 <= len(word) <= 12 and split_of(word) == self._split:
                return word.capitalize()

    def _stem(self, ending):
        count = self._rng.choice((1, 1, 2) if len(ending) > 1 else (1, 2, 2))
        parts = []
        for i in range(count):
            last = i == count - 1
            coda = self._rng.random() < (0.5 if last else 0.3) and not (
                last and ending[:1] in tuple("aeiou")
            )
            syllable = self._rng.choice(ONSETS) + self._rng.choice(VOWELS)
            parts.append(syllable + (self._rng.choice(CODAS) if coda else ""))
        return "".join(parts)

    def _wide_stem(self, _):
        choice = self._rng.choice
        syllables = (
            choice(WIDE_ONSETS) + choice(WIDE_VOWELS) + choice(WIDE_CODAS)
            for _ in range(choice((1, 2, 2, 3)))
        )
        return "".join(syllables)

    def _fresh(self, draw):
        while True:
            name = draw()
            if name not in self._used:
                self._used.add(name)
                return name

    def person(self, female):
        first = FEMALE if female else MALE
        return self._fresh(lambda: self._word(first) + " " + self._word(SURNAME))

    def city(self):
        return self._fresh(lambda: self._word(CITY))

    def country(self):
        return self._fresh(lambda: self._word(COUNTRY))

    def company(self):
        return self._fresh(lambda: self._word(ORGANISATION) + " " + self._rng.choice(COMPANY_KINDS))

    def product(self):
        return self._fresh(lambda: self._word(PRODUCT) + " " + self._rng.choice(PRODUCT_KINDS))

    def event(self):
        return self._fresh(lambda: self._word(CITY + PRODUCT) + " " + self._rng.choice(EVENT_KINDS))

    def society(self):
        return self._fresh(lambda: self._word(SURNAME) + " " + self._rng.choice(SOCIETY_KINDS))

    def law(self):
        return self._fresh(lambda: self._word(SURNAME) + " " + self._rng.choice(LAW_KINDS))

    def alias(self):
        return self._fresh(lambda: self._word(PRODUCT))

    def river(self):
        return self._fresh(lambda: self._word(RIVER))

    def currency(self):
        return self._fresh(lambda: self._word(CURRENCY).lower())

    def language(self):
        return self._fresh(lambda: self._word(LANGUAGE))
