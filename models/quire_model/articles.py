"""Writes a world's entities up as passages and keeps the ledger of what was stated where."""

from . import prose, relations
from .asking import next_type
from .pages import Passage, Statement


class Writer:
    """One context's articles. `groups` are lists of passages that stay together, in order."""

    def __init__(self, rng, world, style):
        self._rng, self._world, self._style = rng, world, style
        self.groups, self.statements, self.aliases = [], [], {}

    def write(self):
        entities, rng, style = list(self._world.entities), self._rng, self._style
        if rng.random() < style.alias:
            self._name_aliases(entities)
        if len(entities) >= 4 and rng.random() < style.table:
            entities = self._write_table(entities)
        for entity in entities:
            self.groups.append(self._article(entity))
        rng.shuffle(self.groups)
        if rng.random() < style.update:
            self._write_corrections()

    def _state(self, entity, name, passage):
        named = passage.first is passage
        self.statements.append(
            Statement(entity.name, entity.type, name, entity.facts[name], passage, named)
        )

    # Articles

    def _chosen_relations(self, entity):
        rng, world, low_high = self._rng, self._world, self._style.facts
        names = list(entity.facts)
        rng.shuffle(names)
        count = min(len(names), rng.randint(*low_high))
        shared = world.plan.shared.get(entity.type)
        if shared:
            kept = [n for n in shared if rng.random() >= self._style.omit] or shared[:1]
            rest = [n for n in names if n not in shared]
            extra = max(0, count - len(kept)) if low_high[1] > 4 else 0
            names = kept + rest[:extra]
        else:
            hops = [
                n for n in names if next_type(entity.type, n) and entity.facts[n] in world.by_name
            ]
            if hops and rng.random() < 0.7:
                names.remove(hops[0])
                names.insert(0, hops[0])
            names = names[:count]
        rng.shuffle(names)
        return names

    def _cut(self, names, entity):
        """Splits relation names into one, two or three chunks."""
        rng, least = self._rng, self._style.min_chunk
        chance = min(
            1.0, self._style.cut + (0.15 if entity.type in self._world.plan.types else 0.0)
        )
        if len(names) < 2 * least or entity.alias or rng.random() >= chance:
            return [names]
        cut = rng.randint(least, len(names) - least)
        parts = [names[:cut], names[cut:]]
        if len(parts[1]) >= 2 * least and rng.random() < 0.4:
            inner = rng.randint(least, len(parts[1]) - least)
            parts[1:] = [parts[1][:inner], parts[1][inner:]]
        return parts

    def _article(self, entity):
        rng, style = self._rng, self._style
        title = prose.capitalised(entity.alias or entity.name)
        names = self._chosen_relations(entity)
        if rng.random() < style.listing:
            passage = self._passage(title, [])
            passage.sentences.append(prose.listing(entity, names))
            for name in names:
                self._state(entity, name, passage)
            return [passage]
        passages, unused = [], prose.fillers(rng, entity.type)
        for i, part in enumerate(self._cut(names, entity)):
            passages.append(self._passage(title if i == 0 else f"{title} (part {i + 1})", passages))
            self._write_chunk(entity, part, passages, unused)
        if rng.random() < style.title:
            passages[0].sentences[0] = f"{title}: {passages[0].sentences[0]}"
        if rng.random() < style.aside:
            self._write_aside(entity, passages[-1])
        return passages

    @staticmethod
    def _passage(title, earlier):
        passage = Passage(title)
        passage.first = earlier[0] if earlier else passage
        return passage

    def _write_chunk(self, entity, names, passages, unused_fillers):
        """Writes the last of `passages`; the first one names the subject."""
        rng, style, passage, is_first = self._rng, self._style, passages[-1], len(passages) == 1
        for i, name in enumerate(names):
            if is_first:
                full = i == 0 or rng.random() < style.full_name
                form = "full" if full else rng.choice(("pronoun", "description", "short"))
            else:
                form = (
                    "description"
                    if i == 0
                    else rng.choice(("description", "description", "pronoun"))
                )
            relation = relations.RELATIONS[entity.type][name]
            passage.sentences.append(
                prose.statement(rng, relation, prose.pronouns(entity, form), entity.facts[name])
            )
            self._state(entity, name, passage)
            extra = style.filler
            while rng.random() < extra:
                passage.sentences.append(
                    unused_fillers.pop() if unused_fillers else prose.endless_filler(rng)
                )
                extra -= 1.0

    def _write_aside(self, entity, passage):
        """A fact about somebody else, who has no article."""
        rng = self._rng
        name = self._world.new_name(entity.type)
        relation = rng.choice(list(relations.RELATIONS[entity.type].values()))
        value = self._world.new_value(entity.type, relation)
        owner = prose.pronouns(entity, "description")[1]
        companions, named = prose.COMPANIONS[entity.type], prose.with_article(entity.type, name)
        subject = f"{owner} {rng.choice(companions)} {named}"
        if entity.type in relations.WITH_ARTICLE:
            subject = f"{owner} {rng.choice(companions)}, {named},"
        forms = (subject, prose.possessive(subject.rstrip(",")), subject.rstrip(","))
        passage.sentences.append(prose.statement(rng, relation, forms, value, opener_chance=0.0))
        self.statements.append(
            Statement(name, entity.type, relation.name, value, passage, names_subject=True)
        )

    def _write_table(self, entities):
        """Writes two to six entities of one type as rows; returns the others."""
        rng = self._rng
        type_ = rng.choice(entities).type
        rows = [e for e in entities if e.type == type_ and not e.alias][: rng.randint(2, 6)]
        if len(rows) < 2:
            return entities
        shared = self._world.plan.shared.get(type_) or rng.sample(
            list(rows[0].facts), rng.randint(2, 3)
        )
        passage = self._passage(rng.choice(("Overview", "Table", "Summary")), [])
        passage.sentences.append(f"{passage.title}:")
        for entity in rows:
            passage.sentences.append(prose.table_row(entity, shared))
            for name in shared:
                self._state(entity, name, passage)
        self.groups.append([passage])
        return [e for e in entities if e not in rows]

    # Other names and corrections

    def _name_aliases(self, entities):
        """Gives some entities another name, which their article uses;
        the explanation stands in a passage of its own."""
        rng = self._rng
        chosen = rng.sample(entities, min(len(entities), rng.randint(2, 3 + len(entities) // 8)))
        glossary = self._passage(rng.choice(prose.GLOSSARY_TITLES), [])
        glossary.sentences.append(f"{glossary.title}.")
        for entity in chosen:
            if entity.type == "person" and rng.random() < 0.5:
                colour = rng.choice(relations.COLOURS).capitalize()
                entity.alias = f"the {colour} {rng.choice(relations.ANIMALS).capitalize()}"
                if any(entity.alias == alias for alias, _ in self.aliases.values()):
                    entity.alias = self._world.namer.alias()
            else:
                entity.alias = self._world.namer.alias()
            text = rng.choice(prose.ALIASES).format(
                n=prose.with_article(entity.type, entity.name), a=entity.alias
            )
            glossary.sentences.append(prose.capitalised(text))
            self.aliases[entity.name] = (entity.alias, glossary)
        self.groups.append([glossary])

    def _write_corrections(self):
        rng = self._rng
        home = {id(p): i for i, group in enumerate(self.groups) for p in group}
        known = [
            s
            for s in self.statements
            if s.subject in self._world.by_name
            and s.subject not in self.aliases
            and s.relation not in ("birth_year", "death_year")
        ]
        for statement in rng.sample(known, min(len(known), rng.randint(1, 2 + len(known) // 15))):
            after = home[id(statement.passage)]
            for _ in range(1 if rng.random() < 0.85 else 2):
                after = self._write_correction(statement, after)
            home = {id(p): i for i, group in enumerate(self.groups) for p in group}

    def _write_correction(self, statement, after):
        """Adds a notice behind group `after`; returns its index.
        The facts of the world stay as they were."""
        rng, type_ = self._rng, statement.type
        relation = relations.RELATIONS[type_][statement.relation]
        entity = self._world.by_name[statement.subject]
        stated = {
            s.value
            for s in self.statements
            if s.subject == entity.name and s.relation == relation.name
        }
        value = self._world.new_value(type_, relation)
        while value in stated:
            value = self._world.new_value(type_, relation)
        passage = self._passage(f"{prose.capitalised(entity.name)} (notice)", [])
        text = prose.statement(
            rng, relation, prose.pronouns(entity, "full"), value, opener_chance=0.0
        )
        passage.sentences.append(rng.choice(prose.CORRECTIONS).format(s=text))
        if rng.random() < self._style.filler:
            passage.sentences.append(prose.endless_filler(rng))
        self.statements.append(
            Statement(entity.name, type_, relation.name, value, passage, names_subject=True)
        )
        at = rng.randint(after + 1, len(self.groups))
        self.groups.insert(at, [passage])
        return at
