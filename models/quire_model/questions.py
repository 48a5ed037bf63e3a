"""Asks what the documents of a context answer.
Answers come from what was stated, the latest document counting."""

from . import asking, relations
from .pages import Question

KINDS = (
    "single",
    "continuation",
    "alias",
    "update",
    "two_hop",
    "three_hop",
    "comparison",
    "count",
    "list",
    "needle",
    "needle_multi_key",
    "needle_multi_value",
    "needle_multi_query",
    "variable_tracking",
    "few_shot",
    "absent",
)
NOT_STATED = "not stated"
NEEDLE_QUESTIONS = (
    "What is the special magic number for {k}?",
    "What is the magic number of the {k}?",
)
MANY_VALUES = (
    "What are all the magic numbers for {k}?",
    "What are all the special magic numbers for {k}?",
)
MANY_KEYS = ("What are the magic numbers for {k}?", "What are the special magic numbers for {k}?")
VARIABLES = (
    "Which variables have the value {v}?",
    "Find all variables that are assigned the value {v}.",
)
MAX_LISTED, MAX_COUNTED = 4, 9


def unique(items):
    return list(dict.fromkeys(items))


class Questioner:
    """Words the questions of one context whose documents are complete."""

    def __init__(self, rng, world, context, kinds=KINDS):
        self._rng, self._world, self._context, self._kinds = rng, world, context, kinds
        self._latest, self._all = {}, {}
        self._by_subject = {}
        for s in context.statements:
            self._latest[s.subject, s.relation] = s
            self._all.setdefault((s.subject, s.relation), []).append(s)
            self._by_subject.setdefault(s.subject, {})[s.relation] = s
        # (type, relation) -> latest statements about subjects that go by their own name
        self._plain = {}
        for s in self._latest.values():
            if s.subject not in context.aliases:
                self._plain.setdefault((s.type, s.relation), []).append(s)

    def ask(self, most):
        """Up to `most` questions of every kind, in random order."""
        makers = {
            "two_hop": lambda: self._chains(2),
            "three_hop": lambda: self._chains(3),
            "comparison": self._comparisons,
            "count": lambda: self._groups("count"),
            "list": lambda: self._groups("list"),
            "needle": self._needles,
            "variable_tracking": self._variables,
            "few_shot": self._few_shot,
            "absent": self._absent,
        }
        found = self._facts(most)
        for kind, maker in makers.items():
            if kind in self._kinds or kind == "needle":
                found += self._rng.sample(c, most) if len(c := maker()) > most else c
        found = [make() for make in found]
        found = [q for q in found if q is not None and q.kind in self._kinds]
        self._rng.shuffle(found)
        return found

    def _documents(self, statement):
        """Those needed to answer with `statement`:
        what it corrects, what explains its subject's name, itself."""
        earlier = self._all[statement.subject, statement.relation]
        alias = self._context.aliases.get(statement.subject)
        found = [alias[1].document] if alias else []
        return unique(found + [d for s in earlier for d in s.documents])

    # Single facts. Each method below returns functions that word a question (or None),
    # so that only those kept cost time.

    def _kind(self, s):
        if len(self._all[s.subject, s.relation]) > 1:
            return "update"
        if s.subject in self._context.aliases:
            return "alias"
        return "single" if len(s.documents) == 1 else "continuation"

    def _facts(self, most):
        by_kind = {}
        for s in self._latest.values():
            by_kind.setdefault(self._kind(s), []).append(s)
        found = []
        for kind, statements in by_kind.items():
            if kind in self._kinds:
                chosen = (
                    self._rng.sample(statements, most) if len(statements) > most else statements
                )
                found += [lambda s=s, kind=kind: self._fact(s, kind) for s in chosen]
        return found

    def _fact(self, s, kind):
        text = self._rng.choice(relations.RELATIONS[s.type][s.relation].questions).format(
            e=s.subject
        )
        return Question(kind, text, s.value, self._documents(s), ("value", s.subject, s.relation))

    # Several facts

    def _chains(self, hops):
        chains = [
            (s,)
            for (type_, relation), found in self._plain.items()
            if (type_, relation) in asking.PHRASES
            for s in found
        ]
        for hop in range(1, hops):
            longer = []
            for chain in chains:
                if chain[-1].value in self._context.aliases:
                    continue
                for name, s in self._by_subject.get(chain[-1].value, {}).items():
                    if s.value == chain[0].subject or (
                        hop < hops - 1 and (s.type, name) not in asking.PHRASES
                    ):
                        continue
                    longer.append(chain + (s,))
            chains = longer
        return [lambda chain=chain: self._chain(chain) for chain in chains]

    def _chain(self, chain):
        names = tuple(s.relation for s in chain)
        text = asking.chain_question(self._rng, chain[0].subject, chain[0].type, names)
        support = unique(d for s in chain for d in self._documents(s))
        return Question(
            "two_hop" if len(chain) == 2 else "three_hop",
            text,
            chain[-1].value,
            support,
            ("chain", chain[0].subject, names),
        )

    def _comparisons(self):
        found = []
        for key, (smaller, larger) in asking.COMPARISONS.items():
            known = self._plain.get(key, ())
            if len(known) < 2:
                continue
            for _ in range(min(8, len(known))):
                a, b = self._rng.sample(known, 2)
                if a.value != b.value:
                    found.append(
                        lambda a=a, b=b, smaller=smaller, larger=larger: self._comparison(
                            a, b, smaller, larger
                        )
                    )
        return found

    def _comparison(self, a, b, smaller, larger):
        wants_smaller = self._rng.random() < 0.5
        winner = a if (int(a.value) < int(b.value)) == wants_smaller else b
        text = (smaller if wants_smaller else larger).format(a=a.subject, b=b.subject)
        return Question(
            "comparison",
            text,
            winner.subject,
            unique(self._documents(a) + self._documents(b)),
            ("compare", a.subject, b.subject, a.relation, wants_smaller),
        )

    def _groups(self, kind):
        """Only values that no alias and no correction touches:
        then the stream of documents gives the order."""
        found = []
        touched = {
            (s.type, s.relation, s.value)
            for statements in self._all.values()
            for s in statements
            if len(statements) > 1 or s.subject in self._context.aliases
        }
        for (type_, relation), known in self._plain.items():
            if (type_, relation) not in asking.GROUPS:
                continue
            by_value = {}
            for s in known:
                by_value.setdefault(s.value, []).append(s)
            for value, same in by_value.items():
                if (type_, relation, value) not in touched and len(same) <= (
                    MAX_LISTED if kind == "list" else MAX_COUNTED
                ):
                    makers = [lambda same=same: self._group(kind, same)]
                    found += makers if len(same) > 1 or self._rng.random() < 0.3 else []
        return found

    def _group(self, kind, same):
        things, said = asking.GROUPS[same[0].type, same[0].relation]
        start = "How many" if kind == "count" else "Which"
        answer = str(len(same)) if kind == "count" else ", ".join(s.subject for s in same)
        support = unique(d for s in same for d in self._documents(s))
        return Question(
            kind,
            f"{start} {things} {said.format(v=same[0].value)}?",
            answer,
            support,
            (kind, same[0].type, same[0].relation, same[0].value),
        )

    def _few_shot(self):
        found = []
        for known in self._plain.values():
            if len(known) >= 3:
                for _ in range(min(3, len(known))):
                    found.append(lambda shown=self._rng.sample(known, 3): self._shots(shown))
        return found

    def _shots(self, shown):
        text = "".join(f"{s.subject}: {s.value}. " for s in shown[:-1]) + f"{shown[-1].subject}:"
        support = unique(d for s in shown for d in self._documents(s))
        return Question(
            "few_shot",
            text,
            shown[-1].value,
            support,
            ("value", shown[-1].subject, shown[-1].relation),
        )

    # What is not there

    def _absent(self):
        found = []
        for entity in self._world.entities:
            stated = self._by_subject.get(entity.name)
            if not stated:
                continue
            missing = [r for r in entity.facts if r not in stated and not self._implied(entity, r)]
            missing.sort(
                key=lambda r, t=entity.type: (t, r) not in self._plain
            )  # first what is said of others
            for name in missing[:2]:
                found.append(lambda e=entity, r=name: self._missing(e.type, e.name, r))
            if self._rng.random() < 0.25:
                stranger = self._world.new_name(entity.type)
                found.append(
                    lambda t=entity.type, n=stranger, r=self._rng.choice(list(stated)): (
                        self._missing(t, n, r)
                    )
                )
        return found

    def _implied(self, entity, relation):
        """Whether another article may give the fact away."""
        if relation == "country":
            return any(s.value == entity.name for s in self._plain.get(("country", "capital"), ()))
        return relation in asking.SYMMETRIC and any(
            s.value == entity.name
            for statements in self._all.values()
            for s in statements
            if s.relation == relation
        )

    def _missing(self, type_, name, relation):
        text = self._rng.choice(relations.RELATIONS[type_][relation].questions).format(e=name)
        support = unique(s.passage.document for s in self._by_subject.get(name, {}).values())
        return Question("absent", text, NOT_STATED, support, ("value", name, relation))

    # What is hidden

    def _needles(self):
        keys = {}
        for key, value, document in self._context.needles:
            keys.setdefault(key, []).append((value, document))
        found = []
        single = "needle_multi_key" if len(keys) > 3 else "needle"
        for key, places in keys.items():
            found.append(
                lambda k=key, p=places: self._needle(
                    single if len(p) == 1 else "needle_multi_value", [k], p
                )
            )
        alone = [k for k, places in keys.items() if len(places) == 1]
        for _ in range(min(3, len(alone) - 1)):
            chosen = self._rng.sample(alone, min(len(alone), self._rng.choice((2, 2, 3))))
            found.append(
                lambda c=chosen: self._needle("needle_multi_query", c, [keys[k][0] for k in c])
            )
        return found

    def _needle(self, kind, keys, places):
        forms = {"needle_multi_value": MANY_VALUES, "needle_multi_query": MANY_KEYS}.get(
            kind, NEEDLE_QUESTIONS
        )
        joined = ", ".join(keys[:-1]) + " and " + keys[-1] if len(keys) > 1 else keys[0]
        text = self._rng.choice(forms).format(k=joined)
        return Question(
            kind,
            text,
            ", ".join(v for v, _ in places),
            unique(d for _, d in places),
            ("needle",) + tuple(keys),
        )

    def _variables(self):
        roots, holders = {}, {}
        for name, source, document in self._context.variables:
            number = roots[name] = roots.get(source, source)
            holders.setdefault(number, []).append((name, document))
        return [
            lambda n=n, h=h: Question(
                "variable_tracking",
                self._rng.choice(VARIABLES).format(v=n),
                ", ".join(name for name, _ in h),
                unique(d for _, d in h),
                ("variables", n),
            )
            for n, h in holders.items()
        ]
