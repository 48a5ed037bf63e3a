"""A random world: entities of eight types with a value for every relation,
linked to each other where they can be."""

import dataclasses

from . import relations
from .asking import COMPARISONS, GROUPS, PHRASES, next_type
from .names import WIDE_SHARE, Namer

TYPES = ("person", "city", "country", "company", "product", "event", "society", "law")
TYPE_WEIGHTS = (32, 20, 8, 15, 11, 8, 8, 6)
YEARS = {
    "person": (1500, 2010),
    "city": (1000, 1900),
    "company": (1600, 2020),
    "product": (1800, 2020),
    "event": (1700, 2020),
    "society": (1500, 2000),
    "law": (1200, 2020),
}
LINKED_PAIRS = (
    ("person", "city"),
    ("person", "company"),
    ("product", "company"),
    ("company", "city"),
    ("event", "city"),
    ("city", "country"),
    ("event", "person"),
    ("society", "person"),
    ("law", "person"),
)
FOCUS_TYPES = (
    ("person", "city", "company", "product", "event", "society", "law"),
    (38, 18, 14, 11, 8, 6, 5),
)


@dataclasses.dataclass
class Entity:
    type: str
    name: str
    female: bool
    facts: dict  # relation name -> value, a string
    alias: str = ""  # the name its article uses instead of its own


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a world is built for. `shared` names, by type, the relations every article of the type
    states, so that only the subject, not the relation, tells facts apart; `path` is a chain of
    (type, relation) that the world's entities follow."""

    # "mixed", "focus" (one type), "linked" (a path), "collide" (values that several entities share)
    kind: str
    types: tuple = ()  # the types most entities have
    shared: dict = dataclasses.field(default_factory=dict)
    path: tuple = ()


def draw_plan(rng, kind, shared_relations):
    """`shared_relations`: how many relations are shared, an inclusive range."""
    if kind == "mixed":
        return Plan(kind)
    if kind == "linked":
        return _linked_plan(rng, shared_relations)
    type_ = rng.choices(FOCUS_TYPES[0], FOCUS_TYPES[1])[0]
    names = list(relations.RELATIONS[type_])
    chosen = rng.sample(names, min(len(names), rng.randint(*shared_relations)))
    if kind == "collide":
        first = rng.choice([r for t, r in GROUPS if t == type_])
        second = rng.choice([r for t, r in COMPARISONS if t == type_] or [first])
        chosen = list(dict.fromkeys([first, second] + chosen))[: max(2, len(chosen))]
    return Plan(kind, (type_,), {type_: chosen})


def _linked_plan(rng, shared_relations):
    hops = rng.choice((1, 1, 2))
    while True:
        type_, path = rng.choice(list(PHRASES))[0], []
        for _ in range(hops):
            known = [
                r
                for t, r in PHRASES
                if t == type_ and PHRASES[t, r][1] not in [p[0] for p in path] + [type_]
            ]
            if not known:
                break
            path.append((type_, rng.choice(known)))
            type_ = next_type(*path[-1])
        if len(path) == hops:
            break
    shared = {t: [r] for t, r in path}
    names = list(relations.RELATIONS[type_])
    shared[type_] = rng.sample(names, min(len(names), rng.randint(*shared_relations)))
    return Plan("linked", tuple(shared), shared, tuple(path))


class World:
    """Entities with a value for every relation of their type;
    which of them are written down is the articles' business."""

    def __init__(self, rng, num_entities, plan=Plan("mixed"), split="train", wide_share=WIDE_SHARE):
        self._rng, self.plan, self.namer = rng, plan, Namer(rng, split, wide_share)
        self._few = {}  # (type, relation) -> the few values that a "collide" world uses
        self._unlinked = {}  # (type, relation) of the path -> names not yet pointed at
        self.entities, self.by_name, self.by_type = [], {}, {}
        for type_ in self._types(num_entities):
            female = rng.random() < 0.5
            entity = Entity(type_, self.new_name(type_, female), female, {})
            self.entities.append(entity)
            self.by_name[entity.name] = entity
            self.by_type.setdefault(type_, []).append(entity)
        for entity in self.entities:
            entity.facts = {
                name: self._value(entity, r) for name, r in relations.RELATIONS[entity.type].items()
            }
            if entity.type == "person":
                born = rng.randint(1500, 1925)
                entity.facts |= {
                    "birth_year": str(born),
                    "death_year": str(born + rng.randint(30, 95)),
                }

    def new_name(self, type_, female=None):
        if type_ == "person":
            return self.namer.person(self._rng.random() < 0.5 if female is None else female)
        return getattr(self.namer, type_)()

    def new_value(self, type_, relation):
        """Another value for a relation of an entity of `type_`."""
        kind = relation.value
        return (
            self.new_name(kind) if kind in TYPES else draw_value(self._rng, kind, self.namer, type_)
        )

    def _types(self, count):
        types = self._rng.choices(TYPES, weights=TYPE_WEIGHTS, k=count)
        if self.plan.types:
            for i in range(count):
                if self._rng.random() < 0.85:
                    types[i] = self._rng.choice(self.plan.types)
            for i, type_ in enumerate(self.plan.types[:count]):
                types[i] = type_
        elif count >= 3 and self._rng.random() < 0.8:
            types[:2] = self._rng.choice(LINKED_PAIRS)
        return types

    def _value(self, entity, relation):
        rng, kind, key = self._rng, relation.value, (entity.type, relation.name)
        if kind in TYPES:
            if key in self.plan.path and rng.random() < 0.95:
                return self._next_on_path(key, kind, entity)
            known = [e.name for e in self.by_type.get(kind, ()) if e is not entity]
            linked = 0.15 if kind == "person" and relation.name != "winner" else 0.6
            if self.plan.kind == "collide" and key in GROUPS:
                return self._one_of_few(
                    key, lambda: rng.choice(known) if known else self.new_name(kind)
                )
            return rng.choice(known) if known and rng.random() < linked else self.new_name(kind)
        if self.plan.kind == "collide" and key in GROUPS:
            return self._one_of_few(key, lambda: draw_value(rng, kind, self.namer, entity.type))
        return draw_value(rng, kind, self.namer, entity.type)

    def _next_on_path(self, key, kind, entity):
        """An entity that none points at yet, while there is one."""
        left = self._unlinked.get(key)
        if not left:
            left = self._unlinked[key] = [
                e.name for e in self.by_type.get(kind, ()) if e is not entity
            ]
            self._rng.shuffle(left)
        return left.pop() if left else self.new_name(kind)

    def _one_of_few(self, key, draw):
        if key not in self._few:
            self._few[key] = [draw() for _ in range(self._rng.randint(2, 5))]
        return self._rng.choice(self._few[key])


def draw_value(rng, kind, namer, entity_type):
    """A value that is not an entity."""
    if kind in relations.WORD_LISTS:
        return rng.choice(relations.WORD_LISTS[kind])
    if kind == "year":
        return str(rng.randint(*YEARS[entity_type]))
    if kind == "hundreds":
        return str(rng.randint(11, 999) * 100)
    if kind == "count":
        return str(rng.randint(20, 9999))
    if kind == "coins":
        return str(rng.randint(12, 990))
    if kind == "prize":
        return rng.choice(relations.COLOURS).capitalize() + " " + rng.choice(relations.PRIZES)
    return getattr(namer, kind)()  # river, currency, language
