"""What the model is trained on: lengths and styles by progress, and batches of token ids.

A row is one context: documents in its first part, questions in its second. Every question sees the
documents and itself, never another question, and stands at the positions right behind the
documents: what it sees when it is asked alone.
"""

import dataclasses
import math
import random

import numpy as np

from . import exercises, haystack, names
from .encyclopedia import Encyclopedia, Style, tokens_per_entity
from .prompt import PAD

TINY = Style(facts=(1, 2), filler=0.05, aside=0.0, shared_relations=(1, 2))
SHORT = Style(facts=(2, 4), filler=0.1)
MIDDLE = Style(facts=(3, 6), filler=0.4, aside=0.3)
LONG = Style(facts=(5, 10), filler=0.9, aside=0.5, cut=0.6, shared_relations=(2, 5))
ARTICLES = Style(
    facts=(4, 10), filler=0.7, aside=0.3, cut=0.6, min_chunk=2, listing=0.0, shared_relations=(3, 5)
)
LM_SHARE = 0.15  # share of the documents' positions that also count, as language modelling
LM_WEIGHT = 0.25
WANTED_SHARE = 6  # a batch predicts at most 1 / WANTED_SHARE of its positions
MAX_TRIES = 200
SHORTEST_HAYSTACK = 512  # tokens of a row
LONGEST_EXERCISE = 512  # tokens of a row, where a part says nothing else
# How often kinds are asked relative to each other, where the context has them.
WEIGHTS = {
    "single": 1.0,
    "continuation": 2.0,
    "alias": 0.8,
    "update": 0.9,
    "two_hop": 1.8,
    "three_hop": 1.0,
    "comparison": 1.0,
    "count": 0.6,
    "list": 0.6,
    "needle": 0.5,
    "needle_multi_key": 0.6,
    "needle_multi_value": 1.2,
    "needle_multi_query": 0.6,
    "variable_tracking": 0.3,
    "few_shot": 0.6,
    "absent": 1.0,
    "card": 1.0,
}


@dataclasses.dataclass(frozen=True)
class Part:
    """The mixture from a share of the training on."""

    start: float
    lengths: dict  # length -> weight
    cards: float = 0.0  # share of rows up to `longest` that are "key: value" cards
    exercises: float = 0.0  # share of those rows that drill one skill of exercises.ALL
    longest: int = LONGEST_EXERCISE  # tokens of a row with cards or exercises
    haystacks: float = (
        0.0  # share of rows from SHORTEST_HAYSTACK on that hide numbers as RULER does
    )
    listing: float = 0.04
    plans: tuple = (0.25, 0.40, 0.22, 0.13)
    wide_share: float = names.WIDE_SHARE


HOPS = (0.24, 0.40, 0.28, 0.08)  # plans of worlds: more chains, less to count
CURRICULA = {
    # From random weights: copying from prose first, binding by cards, then length (design: what is
    # learnt in which order).
    "full": (
        Part(0.00, {96: 0.4, 128: 0.4, 192: 0.2}, 0.3, 0.0, 0.3, (0.3, 0.6, 0.1, 0.0), 0.1),
        Part(0.08, {128: 0.3, 192: 0.3, 256: 0.4}, 0.25, 0.0, 0.2, (0.1, 0.8, 0.1, 0.0), 0.15),
        Part(0.18, {256: 0.5, 512: 0.5}, 0.1, 0.0, 0.1, (0.2, 0.45, 0.22, 0.13), 0.25),
        Part(0.35, {256: 0.15, 512: 0.45, 1024: 0.4}, 0.03, 0.0, 0.05),
        Part(0.55, {512: 0.25, 1024: 0.35, 2048: 0.4}),
        Part(0.72, {512: 0.15, 1024: 0.2, 2048: 0.3, 4096: 0.2, 8192: 0.15}),
        Part(0.90, {1024: 0.1, 2048: 0.2, 4096: 0.2, 8192: 0.3, 16384: 0.2}),
    ),
    # For weights that already answer: the present lengths at once, longer ones later.
    "continue": (
        Part(0.00, {256: 0.1, 512: 0.4, 1024: 0.5}),
        Part(0.30, {512: 0.3, 1024: 0.4, 2048: 0.3}),
        Part(0.65, {512: 0.15, 1024: 0.3, 2048: 0.45, 4096: 0.1}),
    ),
    # For small weights that do not bind: cards in short rows until they do, then prose beside them.
    "bind": (
        Part(0.00, {96: 0.5, 128: 0.3, 192: 0.2}, 0.7, 0.1),
        Part(0.40, {96: 0.2, 128: 0.3, 192: 0.3, 256: 0.2}, 0.5, 0.2),
        Part(0.70, {128: 0.2, 256: 0.4, 512: 0.4}, 0.25, 0.2, plans=HOPS),
    ),
    # For weights of a short window: the same to longer rows,
    # with time for another RoPE base before they come.
    "extend": (
        Part(0.00, {256: 0.3, 512: 0.5, 1024: 0.2}),
        Part(0.15, {256: 0.1, 512: 0.35, 1024: 0.35, 2048: 0.2}),
        Part(0.50, {512: 0.2, 1024: 0.3, 2048: 0.3, 4096: 0.2}),
        Part(0.80, {1024: 0.25, 2048: 0.3, 4096: 0.25, 8192: 0.2}),
    ),
    # For weights that answer at every length but lack skills:
    # drilled in short rows first, then taken to long ones.
    "drill": (
        Part(0.00, {256: 0.2, 512: 0.3, 1024: 0.3, 2048: 0.2}, 0.0, 0.25),
        Part(0.30, {256: 0.1, 512: 0.2, 1024: 0.3, 2048: 0.3, 4096: 0.1}, 0.0, 0.20),
        Part(0.60, {512: 0.15, 1024: 0.25, 2048: 0.3, 4096: 0.2, 8192: 0.1}, 0.0, 0.15),
        Part(0.85, {512: 0.1, 1024: 0.2, 2048: 0.35, 4096: 0.2, 8192: 0.15}, 0.0, 0.10),
    ),
    # For weights with skills in short rows:
    # long rows, drilled too, and fewer worlds for what does not form.
    "lengthen": (
        Part(
            0.00,
            {256: 0.1, 512: 0.25, 1024: 0.25, 2048: 0.25, 4096: 0.15},
            0.0,
            0.25,
            8192,
            0.12,
            plans=HOPS,
        ),
        Part(
            0.30,
            {512: 0.15, 1024: 0.25, 2048: 0.25, 4096: 0.2, 8192: 0.15},
            0.0,
            0.2,
            8192,
            0.12,
            plans=HOPS,
        ),
        Part(
            0.65,
            {512: 0.1, 1024: 0.2, 2048: 0.25, 4096: 0.2, 8192: 0.25},
            0.0,
            0.15,
            8192,
            0.12,
            plans=HOPS,
        ),
    ),
}


def part_at(curriculum, progress):
    return [p for p in CURRICULA[curriculum] if progress >= p.start][-1]


def length_at(part, rng, max_length):
    weights = {n: w for n, w in part.lengths.items() if n <= max_length} or {max_length: 1.0}
    return rng.choices(list(weights), list(weights.values()))[0]


def question_room(length):
    """Tokens at the end of a row that are kept for questions: a multiple of 8."""
    return min(length * 2 // 5, 40 + length // 5) // 8 * 8


def style_for(length, part, rng):
    style = rng.choice(
        (TINY,)
        if length <= 128
        else (TINY, SHORT)
        if length <= 256
        else (SHORT, MIDDLE)
        if length <= 512
        else (SHORT, MIDDLE, LONG, ARTICLES)
    )
    changes = {
        "num_needles": (0, 1) if length <= 256 else (0, 3) if length <= 512 else (1, 6),
        "plans": part.plans,
        "listing": part.listing,
        "wide_share": part.wide_share,
    }
    if length <= 256:
        changes |= {"alias": 0.1, "update": 0.25, "table": 0.03, "variables": 0.05}
    if length >= 1024 and rng.random() < 0.35:  # long documents of several articles
        changes["document_chars"] = (300, min(6500, length))
        changes["filler"] = style.filler + rng.choice((0.0, 0.5, 1.5))
    return dataclasses.replace(style, **changes)


def draw_context(rng, length, part, split, scale):
    drawn = rng.random()
    lines = max(2, int(scale * length / rng.uniform(15, 26)))
    if length <= part.longest and drawn < part.cards:
        return exercises.cards(rng, lines, split)
    if length <= part.longest and drawn < part.cards + part.exercises:
        return exercises.draw(rng, lines, split)
    if length >= SHORTEST_HAYSTACK and drawn > 1 - part.haystacks:
        return haystack.draw(rng, lines, split)
    style = style_for(length, part, rng)
    entities = max(
        2,
        round(
            scale
            * (length - question_room(length))
            * rng.uniform(0.72, 0.98)
            / tokens_per_entity(style)
        ),
    )
    return Encyclopedia(rng, entities, style, split).build(max_questions=max(4, length // 100))


def pack(rng, length, codec, part, split="train"):
    """One row: (document ids, [(question ids, answer ids, kind)]) within the room each has."""
    room, scale = question_room(length), 1.0
    for _ in range(MAX_TRIES):
        context = draw_context(rng, length, part, split, scale)
        ids, _ = codec.documents(d.text for d in context.documents)
        if len(ids) > length - room:
            scale *= 0.9
            continue
        if len(ids) < 0.5 * (length - room):
            scale = min(1.5, scale * 1.1)
            continue
        asked = balanced(rng, context.questions)[: room // 6]
        taken, left = [], room
        for (question, answer), q in zip(codec.questions(asked), asked):
            if len(question) + len(answer) <= left:
                taken.append((question, answer, q.kind))
                left -= len(question) + len(answer)
        if taken:
            return ids, taken
    raise ValueError(f"no context of {length} tokens in {MAX_TRIES} tries")


def balanced(rng, questions):
    """The questions in an order that asks every kind by its weight, however many there are of each
    (weighted sampling without replacement: Efraimidis and Spirakis 2006)."""
    counts = {}
    for q in questions:
        counts[q.kind] = counts.get(q.kind, 0) + 1
    return sorted(
        questions, key=lambda q: -math.log(1.0 - rng.random()) * counts[q.kind] / WEIGHTS[q.kind]
    )


@dataclasses.dataclass
class Batch:
    """`length` tokens a row: `length - room` for documents, `room` for questions,
    both filled up with PAD."""

    ids: np.ndarray  # [rows, length] int32
    room: int
    documents: np.ndarray  # [rows] int32: tokens of the documents
    segments: (
        np.ndarray
    )  # [rows, room] int32: number of the question a token belongs to; -1 for PAD
    positions: np.ndarray  # [rows, length] int32
    wanted: np.ndarray  # int64 flat positions whose next token is predicted, a fixed count
    targets: np.ndarray  # int64: those next tokens
    weights: np.ndarray  # float32; answers sum to 1, language modelling to LM_WEIGHT, fill-up is 0
    num_answer: int  # the first `num_answer` entries belong to answers
    answers: list  # (start, end, kind) into `wanted` for every whole answer


def make_batch(seed, rows, length, codec, part, split="train"):
    """The same for the same arguments."""
    rng = random.Random(seed)
    room = question_room(length)
    ids = np.full((rows, length), PAD, np.int32)
    positions = np.tile(np.arange(length, dtype=np.int32), (rows, 1))
    segments = np.full((rows, room), -1, np.int32)
    documents = np.zeros(rows, np.int32)
    wanted, answers, limit = [], [], rows * length // WANTED_SHARE
    for row in range(rows):
        tokens, questions = pack(rng, length, codec, part, split)
        documents[row] = len(tokens)
        ids[row, : len(tokens)] = tokens
        at = length - room
        for number, (question, answer, kind) in enumerate(questions):
            size = len(question) + len(answer)
            ids[row, at : at + size] = question + answer
            segments[row, at - length + room : at - length + room + size] = number
            positions[row, at : at + size] = np.arange(len(tokens), len(tokens) + size)
            if len(wanted) + len(answer) <= limit:
                start = row * length + at + len(question) - 1
                answers.append((len(wanted), len(wanted) + len(answer), kind))
                wanted += range(start, start + len(answer))
            at += size
        positions[row, at:] = positions[row, at - 1]
    num_answer = len(wanted)
    others = _language_positions(rng.getrandbits(64), documents, length, limit - num_answer)
    weights = np.zeros(limit, np.float32)
    weights[:num_answer] = 1 / num_answer
    weights[num_answer : num_answer + len(others)] = LM_WEIGHT / max(1, len(others))
    wanted = np.concatenate(
        [np.array(wanted, np.int64), others, np.zeros(limit - num_answer - len(others), np.int64)]
    )
    targets = ids.reshape(-1)[wanted + 1].astype(np.int64)
    return Batch(
        ids, room, documents, segments, positions, wanted, targets, weights, num_answer, answers
    )


def _language_positions(seed, documents, length, most):
    """Flat positions inside documents, a sample."""
    picks = np.random.default_rng(seed)
    found = np.concatenate(
        [
            row * length + np.flatnonzero(picks.random(n - 1) < LM_SHARE)
            for row, n in enumerate(documents)
        ]
    )
    picks.shuffle(found)
    return found[:most].astype(np.int64)
