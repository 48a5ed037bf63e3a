"""What a context is made of: documents of passages, the facts stated in them,
and questions over them."""

import dataclasses


@dataclasses.dataclass(eq=False)
class Document:
    title: str
    passages: list = dataclasses.field(default_factory=list)
    id: str = ""

    @property
    def sentences(self):
        return [s for p in self.passages for s in p.sentences]

    @property
    def text(self):
        return " ".join(self.sentences)


@dataclasses.dataclass(eq=False)
class Passage:
    """A run of sentences that stays together: an article or one chunk of it. Only an article's
    first passage names the subject."""

    title: str
    sentences: list = dataclasses.field(default_factory=list)
    first: "Passage" = None  # the article's first passage; itself there
    document: Document = None  # known once documents are cut

    @property
    def num_chars(self):
        return sum(map(len, self.sentences)) + len(self.sentences)


@dataclasses.dataclass(eq=False)
class Statement:
    """A fact as written down: the ledger from which every answer can be worked out again."""

    subject: str
    type: str
    relation: str
    value: str
    passage: Passage
    names_subject: bool  # False in the later chunks of an article

    @property
    def documents(self):
        """Those needed to read the fact and whom it is about."""
        own, first = self.passage.document, self.passage.first.document
        return [own] if self.names_subject or own is first else [first, own]


@dataclasses.dataclass(eq=False)
class Question:
    """`query` says in terms of the ledger what is asked: see quire_model/check.py."""

    kind: str
    text: str
    answer: str
    support: list  # Documents
    query: tuple = ()


@dataclasses.dataclass
class Style:
    """How worlds are drawn and articles are written.
    Chances are probabilities, pairs are inclusive ranges."""

    facts: tuple = (2, 5)
    filler: float = 0.15  # sentences that say nothing, per fact
    aside: float = 0.15  # chance that an article ends with a fact about somebody else
    cut: float = 0.5  # chance that an article is cut into chunks
    min_chunk: int = 1  # facts every chunk keeps at least
    title: float = 0.85  # chance that a first chunk starts with "Name: "
    listing: float = 0.04  # chance that an article is a terse list
    table: float = 0.06  # chance that some articles become the rows of a table
    plans: tuple = (
        0.25,
        0.40,
        0.22,
        0.13,
    )  # weights of the plans "mixed", "focus", "linked", "collide" (world.Plan)
    shared_relations: tuple = (1, 3)
    omit: float = 0.08  # chance that an article leaves out a relation its peers state
    full_name: float = 0.25  # chance of the full name after the first sentence
    alias: float = 0.25  # chance that some articles go by another name, explained elsewhere
    update: float = 0.45  # chance that later documents correct earlier ones
    num_needles: tuple = (0, 2)
    variables: float = 0.15  # chance of chains of assignments hidden in the articles
    document_chars: tuple = (
        None  # lengths of documents cut from the stream of articles; None: each passage by itself
    )
    wide_share: float = 0.35  # share of name words from the wider alphabet, in training


@dataclasses.dataclass
class Context:
    documents: list
    questions: list
    statements: list  # in document order
    aliases: dict  # name -> (alias, Passage that explains it)
    needles: list  # (key, value, Document), in document order
    variables: list  # (name, value or the name it copies, Document), in document order
