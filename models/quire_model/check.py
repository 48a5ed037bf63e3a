"""Works every answer out again, from the ledger of statements, another way than the questions were
made; for tests and for `generate.py --check`."""

from .questions import NOT_STATED


def recompute(context, question):
    """The answer to `question.query`, following documents from the last to the first."""
    what, *rest = question.query
    return {
        "value": _value,
        "chain": _chain,
        "compare": _compare,
        "count": _count,
        "list": _list,
        "needle": _needle,
        "variables": _variables,
    }[what](context, *rest)


def errors(context, question):
    """What is wrong with a question, in words; nothing when it is right."""
    found = []
    answer = recompute(context, question)
    if answer != question.answer:
        found.append(
            f"{question.kind}: {question.text!r} is answered {question.answer!r}; "
            f"the documents say {answer!r}"
        )
    texts = [d.text for d in question.support]
    if question.kind in ("count", "absent"):
        parts = []
    elif question.kind in (
        "comparison",
        "list",
    ):  # the names must be told in the supporting documents, maybe as an alias
        parts = [question.answer] if question.kind == "comparison" else question.answer.split(", ")
    else:
        parts = question.answer.split(", ")
    for part in parts:
        if not any(part.lower() in text.lower() for text in texts):
            found.append(
                f"{question.kind}: {part!r} stands in no supporting document of {question.text!r}"
            )
    if question.kind != "absent" and not question.support:
        found.append(f"{question.kind}: no supporting documents for {question.text!r}")
    return found


def _value(context, subject, relation):
    for s in reversed(context.statements):
        if (s.subject, s.relation) == (subject, relation):
            return s.value
    return NOT_STATED


def _chain(context, subject, relations):
    for relation in relations:
        subject = _value(context, subject, relation)
    return subject


def _compare(context, a, b, relation, wants_smaller):
    pick = min if wants_smaller else max
    return pick((a, b), key=lambda name: int(_value(context, name, relation)))


def _members(context, type_, relation, value):
    names = dict.fromkeys(
        s.subject for s in context.statements if (s.type, s.relation) == (type_, relation)
    )
    return [n for n in names if _value(context, n, relation) == value]


def _count(context, type_, relation, value):
    return str(len(_members(context, type_, relation, value)))


def _list(context, type_, relation, value):
    return ", ".join(_members(context, type_, relation, value))


def _needle(context, *keys):
    return ", ".join(v for key in keys for k, v, _ in context.needles if k == key)


def _variables(context, number):
    holders = []
    for name, source, _ in context.variables:
        if source == number or source in holders:
            holders.append(name)
    return ", ".join(holders)
