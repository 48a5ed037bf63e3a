"""A random world: entities of six types with a value for every relation, linked to each other where they can be."""
import dataclasses

from . import relations
from .names import Namer

TYPES = ("person", "city", "country", "company", "product", "event")
TYPE_WEIGHTS = (34, 22, 8, 16, 12, 8)
YEARS = {"person": (1500, 2010), "city": (1000, 1900), "company": (1600, 2020), "product": (1800, 2020),
         "event": (1700, 2020)}
LINKED_PAIRS = (("person", "city"), ("person", "company"), ("product", "company"), ("company", "city"),
                ("event", "city"), ("city", "country"), ("event", "person"))


@dataclasses.dataclass
class Entity:
    type: str
    name: str
    female: bool
    facts: dict  # relation name -> value, a string


class World:
    """`focus`: the type most entities share, so that only the subject, not the relation, tells facts apart."""

    def __init__(self, rng, num_entities, focus=None, held_out=False):
        self._rng, self.namer = rng, Namer(rng, held_out)
        self.entities, self.by_name = [], {}
        for type_ in self._types(num_entities, focus):
            female = rng.random() < 0.5
            entity = Entity(type_, self.new_name(type_, female), female, {})
            self.entities.append(entity)
            self.by_name[entity.name] = entity
        for entity in self.entities:
            entity.facts = {name: self._value(entity, r) for name, r in relations.RELATIONS[entity.type].items()}
            if entity.type == "person":
                born = rng.randint(1500, 1925)
                entity.facts |= {"birth_year": str(born), "death_year": str(born + rng.randint(30, 95))}

    def new_name(self, type_, female=None):
        if type_ == "person":
            return self.namer.person(self._rng.random() < 0.5 if female is None else female)
        return getattr(self.namer, type_)()

    def _types(self, count, focus):
        types = self._rng.choices(TYPES, weights=TYPE_WEIGHTS, k=count)
        if focus:
            for i in range(count):
                if self._rng.random() < 0.85:
                    types[i] = focus
        elif count >= 3 and self._rng.random() < 0.8:
            types[:2] = self._rng.choice(LINKED_PAIRS)
        return types

    def _value(self, entity, relation):
        rng, kind = self._rng, relation.value
        if kind in TYPES:
            known = [e.name for e in self.entities if e.type == kind and e is not entity]
            linked = 0.15 if kind == "person" and relation.name != "winner" else 0.6
            return rng.choice(known) if known and rng.random() < linked else self.new_name(kind)
        return draw_value(rng, kind, self.namer, entity.type)


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
