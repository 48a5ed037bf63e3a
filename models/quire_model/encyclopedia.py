"""The generator: a world's articles as documents, and questions whose answers stand in them.

Kinds of question:
  single        the fact stands in a document that names its subject
  continuation  the article was cut; the fact's document says only "she" or "the city", an earlier one names the subject
  needle        a number hidden in an unrelated article
  multi_value   two such numbers under one key, in document order
  two_hop       the first article's value names the entity whose article holds the answer
  comparison    two years, from two articles
"""
import dataclasses

from . import prose, relations
from .world import World, draw_value

KINDS = ("single", "continuation", "needle", "multi_value", "two_hop", "comparison")
ADJECTIVES = ("quiet,ancient,rapid,bitter,gentle,hollow,frozen,bright,clever,distant,eager,fancy,humble,jolly,lucky,"
              "misty,noble,proud,rusty,sleepy,tiny,vivid,wild,young,zesty,brave").split(",")
NOUNS = ("apple,badger,candle,desert,engine,forest,garden,hammer,island,jacket,kitten,ladder,mirror,needle,ocean,"
         "pencil,rabbit,saddle,temple,violin,window,anchor,bottle,castle,dragon,feather").split(",")
NEEDLES = ("The special magic number for {k} is {v}.", "The magic number of the {k} is {v}.",
           "Note that the special magic number for {k} is {v}.")
NEEDLE_QUESTIONS = ("What is the special magic number for {k}?", "What is the magic number of the {k}?")


@dataclasses.dataclass
class Document:
    title: str
    sentences: list
    id: str = ""

    @property
    def text(self):
        return " ".join(self.sentences)


@dataclasses.dataclass
class Question:
    kind: str
    text: str
    answer: str
    support: list  # Documents


@dataclasses.dataclass
class Style:
    """How articles are written. Chances are probabilities, pairs are inclusive ranges."""
    facts: tuple = (2, 5)
    filler: float = 0.15           # sentences that say nothing, per fact
    aside: float = 0.15            # chance that an article ends with a fact about somebody else
    cut: float = 0.5               # chance that an article is cut into chunks
    min_chunk: int = 1             # facts every chunk keeps at least
    title: float = 0.85            # chance that a first chunk starts with "Name: "
    listing: float = 0.04          # chance that an article is a terse list
    focus: float = 0.6             # chance that most entities share type and relations
    shared_relations: tuple = (1, 3)
    full_name: float = 0.25        # chance of the full name after the first sentence
    num_needles: tuple = (0, 2)


@dataclasses.dataclass
class Context:
    documents: list
    questions: list


class Encyclopedia:
    """Builds one Context. Consumes `rng`; use a fresh instance for each context."""

    def __init__(self, rng, num_entities, style, held_out=False):
        self._rng, self._style = rng, style
        focus = None
        if rng.random() < style.focus and num_entities > 1:
            focus = rng.choices(("person", "city", "company", "product", "event"), weights=(40, 20, 16, 14, 10))[0]
        self._focus = focus
        self._world = World(rng, num_entities, focus, held_out)
        self._shared = None
        if focus:
            names = list(relations.RELATIONS[focus])
            self._shared = rng.sample(names, min(len(names), rng.randint(*style.shared_relations)))
        self._groups = []        # lists of Documents that stay together, in order
        self._stated = {}        # (entity name, relation name) -> (kind, Document)
        self._questions = []

    def build(self):
        for entity in self._world.entities:
            self._groups.append(self._article(entity))
        self._ask_two_hops()
        self._ask_comparisons()
        self._rng.shuffle(self._groups)
        documents = [d for group in self._groups for d in group]
        for i, document in enumerate(documents):
            document.id = f"doc-{i + 1}"
        self._hide_needles(documents)
        self._rng.shuffle(self._questions)
        return Context(documents, self._questions)

    # Articles

    def _chosen_relations(self, entity):
        rng, low_high = self._rng, self._style.facts
        names = list(entity.facts)
        rng.shuffle(names)
        hops = [h[1] for h in relations.TWO_HOPS if h[0] == entity.type and entity.facts[h[1]] in self._world.by_name]
        if hops and rng.random() < 0.7:
            names.sort(key=lambda n, first=rng.choice(hops): n != first)
        count = min(len(names), rng.randint(*low_high))
        if entity.type == self._focus:
            rest = [n for n in names if n not in self._shared]
            extra = max(0, count - len(self._shared)) if low_high[1] > 4 else 0
            names = self._shared + rest[:extra]
        else:
            names = names[:count]
        rng.shuffle(names)
        return names

    def _cut(self, names, entity):
        """Splits relation names into one, two or three chunks."""
        rng, least = self._rng, self._style.min_chunk
        chance = min(1.0, self._style.cut + (0.15 if entity.type == self._focus else 0.0))
        if len(names) < 2 * least or rng.random() >= chance:
            return [names]
        cut = rng.randint(least, len(names) - least)
        parts = [names[:cut], names[cut:]]
        if len(parts[1]) >= 2 * least and rng.random() < 0.4:
            inner = rng.randint(least, len(parts[1]) - least)
            parts[1:] = [parts[1][:inner], parts[1][inner:]]
        return parts

    def _article(self, entity):
        rng, style, title = self._rng, self._style, prose.capitalised(entity.name)
        names = self._chosen_relations(entity)
        if rng.random() < style.listing:
            document = Document(title, [prose.listing(entity, names)])
            for name in names:
                self._state(entity, name, "single", document, document)
            return [document]
        parts = self._cut(names, entity)
        documents, unused = [], prose.fillers(rng, entity.type)
        for i, part in enumerate(parts):
            documents.append(Document(title if i == 0 else f"{title} (part {i + 1})", []))
            self._write_chunk(entity, part, documents, unused)
        if rng.random() < style.title:
            documents[0].sentences[0] = f"{title}: {documents[0].sentences[0]}"
        if rng.random() < style.aside:
            self._write_aside(entity, documents[-1])
        return documents

    def _write_chunk(self, entity, names, documents, unused_fillers):
        """Writes the last of `documents`; the first one names the subject."""
        rng, style, document, is_first = self._rng, self._style, documents[-1], len(documents) == 1
        for i, name in enumerate(names):
            if is_first:
                full = i == 0 or rng.random() < style.full_name
                form = "full" if full else rng.choice(("pronoun", "description", "short"))
            else:
                form = "description" if i == 0 else rng.choice(("description", "description", "pronoun"))
            relation = relations.RELATIONS[entity.type][name]
            value = entity.facts[name]
            document.sentences.append(prose.statement(rng, relation, prose.pronouns(entity, form), value))
            self._state(entity, name, "single" if is_first else "continuation", document, documents[0])
            extra = style.filler
            while rng.random() < extra and unused_fillers:
                document.sentences.append(unused_fillers.pop())
                extra -= 1.0

    def _write_aside(self, entity, document):
        rng = self._rng
        female = rng.random() < 0.5
        name = self._world.new_name(entity.type, female)
        table = relations.RELATIONS[entity.type]
        relation = table[rng.choice(list(table))]
        kind = relation.value
        value = (self._world.new_name(kind) if kind in relations.RELATIONS
                 else draw_value(rng, kind, self._world.namer, entity.type))
        owner = prose.pronouns(entity, "description")[1]
        subject = f"{owner} {rng.choice(prose.COMPANIONS[entity.type])} {prose.with_article(entity.type, name)}"
        if entity.type in ("product", "event"):
            subject = f"{owner} {rng.choice(prose.COMPANIONS[entity.type])}, {prose.with_article(entity.type, name)},"
        forms = (subject, prose.possessive(subject.rstrip(",")), subject.rstrip(","))
        document.sentences.append(prose.statement(rng, relation, forms, value, opener_chance=0.0))
        self._questions.append(Question("single", rng.choice(relation.questions).format(e=name), value, [document]))

    def _state(self, entity, name, kind, document, first):
        self._stated[(entity.name, name)] = (kind, document)
        question = self._rng.choice(relations.RELATIONS[entity.type][name].questions).format(e=entity.name)
        support = [document] if kind == "single" else [first, document]
        self._questions.append(Question(kind, question, entity.facts[name], support))

    # Questions over several articles

    def _ask_two_hops(self):
        for type_, first, next_type, second, questions in relations.TWO_HOPS:
            for entity in self._world.entities:
                bridge = self._world.by_name.get(entity.facts.get(first)) if entity.type == type_ else None
                if bridge is None or bridge.type != next_type:
                    continue
                one, two = self._stated.get((entity.name, first)), self._stated.get((bridge.name, second))
                if one and two:
                    text = self._rng.choice(questions).format(e=entity.name)
                    self._questions.append(Question("two_hop", text, bridge.facts[second], [one[1], two[1]]))

    def _ask_comparisons(self):
        for type_, name, text, earlier in relations.COMPARISONS:
            known = [e for e in self._world.entities if e.type == type_ and (e.name, name) in self._stated]
            if len(known) < 2:
                continue
            a, b = self._rng.sample(known, 2)
            if a.facts[name] == b.facts[name]:
                continue
            answer = a if (int(a.facts[name]) < int(b.facts[name])) == earlier else b
            support = [self._stated[(e.name, name)][1] for e in (a, b)]
            self._questions.append(Question("comparison", text.format(a=a.name, b=b.name), answer.name, support))

    def _hide_needles(self, documents):
        rng, used = self._rng, set()
        for _ in range(rng.randint(*self._style.num_needles)):
            key = rng.choice(ADJECTIVES) + " " + rng.choice(NOUNS)
            if key in used:
                continue
            used.add(key)
            count = 1 if rng.random() < 0.75 else 2
            spots = sorted(rng.choices(range(len(documents)), k=count))
            values = [str(rng.randint(1000, 9999999)) for _ in spots]
            if len(set(spots)) < count:
                spots, values = spots[:1], values[:1]
            for spot, value in zip(spots, values):
                sentences = documents[spot].sentences
                sentences.insert(rng.randint(1, len(sentences)), rng.choice(NEEDLES).format(k=key, v=value))
            support = [documents[s] for s in spots]
            if len(values) == 1:
                self._questions.append(Question("needle", rng.choice(NEEDLE_QUESTIONS).format(k=key), values[0], support))
            else:
                text = f"What are all the magic numbers for {key}?"
                self._questions.append(Question("multi_value", text, ", ".join(values), support))
