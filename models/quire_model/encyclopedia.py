"""The generator: a world's articles as documents, and questions whose answers stand in them.

Kinds of question:
  single              the fact stands in a document that names its subject
  continuation        the article was cut; the fact's document says only "she" or "the city", an
                      earlier one names the subject
  alias               the article uses another name, which a document of its own explains
  update              a later document corrects the fact
  two_hop, three_hop  the value of one fact names the entity whose fact is asked next
  comparison          two years or numbers, from two articles
  count, list         over all articles of a type
  needle              a number hidden in an unrelated article
  needle_multi_key    the same, among many with similar keys
  needle_multi_value  several numbers under one key, in document order
  needle_multi_query  the numbers of several keys
  variable_tracking   every name that a number was assigned to, directly or by way of another name
  few_shot            the relation is given by examples alone
  absent              the documents do not say: the answer is "not stated"
"""

import math

from . import articles, hidden, prose, questions, world
from .pages import Context, Document, Style

KINDS = questions.KINDS
CHARS_PER_TOKEN = 3.1  # of the embedded tokenizer on these texts; an estimate good to about 10 %

__all__ = ["CHARS_PER_TOKEN", "Encyclopedia", "KINDS", "Style", "tokens_per_entity"]


def tokens_per_entity(style):
    """A rough guess, for choosing how many entities fill a context."""
    return 12 + sum(style.facts) / 2 * (17 + 13 * style.filler) + 22 * style.aside


class Encyclopedia:
    """Builds one Context. Consumes `rng`; use a fresh instance for each context."""

    def __init__(self, rng, num_entities, style, split="train"):
        self._rng, self._style = rng, style
        kind = (
            rng.choices(("mixed", "focus", "linked", "collide"), style.plans)[0]
            if num_entities > 1
            else "mixed"
        )
        self._world = world.World(
            rng,
            num_entities,
            world.draw_plan(rng, kind, style.shared_relations),
            split,
            style.wide_share,
        )

    def build(self, max_questions=60, kinds=KINDS):
        """At most `max_questions` of each kind are worded."""
        rng, style = self._rng, self._style
        writer = articles.Writer(rng, self._world, style)
        writer.write()
        documents = self._cut([p for group in writer.groups for p in group])
        needles = hidden.hide_needles(rng, documents, style.num_needles)
        variables = hidden.hide_variables(rng, documents) if rng.random() < style.variables else []
        for i, document in enumerate(documents):
            document.id = f"doc-{i + 1}"
        order = {p: i for i, p in enumerate(p for d in documents for p in d.passages)}
        statements = sorted(writer.statements, key=lambda s: order[s.passage])
        context = Context(documents, [], statements, writer.aliases, needles, variables)
        context.questions = questions.Questioner(rng, self._world, context, kinds).ask(
            max_questions
        )
        return context

    def _cut(self, passages):
        """Passages as documents: each by itself,
        or together up to a length drawn for every document."""
        limits, documents = self._style.document_chars, []
        size = target = 0
        for passage in passages:
            if limits is None or not documents or size + passage.num_chars > target:
                documents.append(Document(passage.title))
                target = math.exp(self._rng.uniform(*map(math.log, limits))) if limits else 0
                size = 0
            documents[-1].passages.append(passage)
            passage.document = documents[-1]
            size += passage.num_chars
        if limits:
            for document in documents:
                self._lengthen(
                    document.passages[-1], limits[0] - sum(p.num_chars for p in document.passages)
                )
        return documents

    def _lengthen(self, passage, missing_chars):
        """Adds sentences without facts until nothing is missing."""
        while missing_chars > 0:
            passage.sentences.append(prose.endless_filler(self._rng))
            missing_chars -= len(passage.sentences[-1]) + 1
