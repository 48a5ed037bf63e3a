"""What the model is trained on: which lengths, which styles, and batches of packed token ids."""
import dataclasses
import random

import numpy as np

from .encyclopedia import Encyclopedia, Style
from .prompt import PAD

# (from this share of the training on, {length: weight})
CURRICULUM = (
    (0.00, {256: 0.2, 512: 0.8}),
    (0.08, {512: 0.5, 1024: 0.5}),
    (0.25, {512: 0.2, 1024: 0.5, 2048: 0.3}),
    (0.70, {512: 0.15, 1024: 0.3, 2048: 0.55}),
)
SHORT = Style(facts=(2, 4), filler=0.1)
MIDDLE = Style(facts=(3, 6), filler=0.4, aside=0.3)
LONG = Style(facts=(5, 10), filler=0.9, aside=0.5, cut=0.6, shared_relations=(2, 5))
ARTICLES = Style(facts=(4, 10), filler=0.7, aside=0.3, cut=0.6, min_chunk=2, listing=0.0, shared_relations=(3, 5))
LM_SHARE = 0.15    # share of the positions outside answers that also count, as language modelling
LM_WEIGHT = 0.25
WANTED_SHARE = 3   # a batch predicts at most 1 / WANTED_SHARE of its positions


def length_at(progress, rng, max_length):
    weights = [w for start, w in CURRICULUM if progress >= start][-1]
    weights = {n: w for n, w in weights.items() if n <= max_length} or {max_length: 1.0}
    return rng.choices(list(weights), list(weights.values()))[0]


def style_for(length, rng):
    styles = (SHORT, MIDDLE) if length <= 512 else (SHORT, MIDDLE, LONG, ARTICLES)
    style = rng.choice(styles)
    needles = (0, 1) if length <= 512 else (1, 4)
    return dataclasses.replace(style, num_needles=needles)


def tokens_per_entity(style):
    facts = sum(style.facts) / 2
    return 10 + facts * (17 + 13 * style.filler) + 22 * style.aside


def pack(rng, length, codec, held_out=False):
    """One sequence: (ids, [(start, end) of every answer]); documents first, then as many questions as fit."""
    while True:
        style = style_for(length, rng)
        room = length * rng.uniform(0.55, 0.88)
        context = Encyclopedia(rng, max(2, round(room / tokens_per_entity(style))), style, held_out).build()
        ids, _ = codec.documents(d.text for d in context.documents)
        if len(ids) > length * 0.9 or len(ids) < length * 0.3:
            continue
        spans = []
        for question, answer in codec.questions(balanced(rng, context.questions)):
            if len(ids) + len(question) + len(answer) > length:
                continue
            start = len(ids) + len(question)
            ids += question + answer
            spans.append((start, start + len(answer)))
        if spans:
            return ids, spans


def balanced(rng, questions):
    """The questions in an order that asks the rarer, harder kinds early and often enough."""
    urgency = {"single": 0.0, "continuation": 0.35, "needle": 0.3, "multi_value": 0.3, "two_hop": 0.45, "comparison": 0.3}
    return sorted(questions, key=lambda q: -(rng.random() + urgency[q.kind]))


@dataclasses.dataclass
class Batch:
    ids: np.ndarray       # [sequences, length] int64
    wanted: np.ndarray    # flat positions whose next token is predicted, int64, fixed count
    targets: np.ndarray   # those next tokens
    weights: np.ndarray   # float32; answers sum to 1, language modelling to LM_WEIGHT, fill-up is 0
    num_answer: int       # the first `num_answer` entries belong to answers
    answers: list         # (start, end) into `wanted` for every whole answer


def make_batch(seed, sequences, length, codec):
    rng = random.Random(seed)
    ids = np.full((sequences, length), PAD, np.int64)
    wanted, answers, others = [], [], []
    limit = sequences * length // WANTED_SHARE
    for row in range(sequences):
        tokens, spans = pack(rng, length, codec)
        ids[row, :len(tokens)] = tokens
        inside = np.zeros(len(tokens), bool)
        for start, end in spans:
            inside[start:end] = True
            if len(wanted) + end - start <= limit:
                answers.append((len(wanted), len(wanted) + end - start))
                wanted += range(row * length + start - 1, row * length + end - 1)
        others += [row * length + i for i in np.flatnonzero(~inside[1:]) if rng.random() < LM_SHARE]
    num_answer = len(wanted)
    others = rng.sample(others, min(len(others), limit - num_answer))
    weights = np.zeros(limit, np.float32)
    weights[:num_answer] = 1 / num_answer
    weights[num_answer:num_answer + len(others)] = LM_WEIGHT / max(1, len(others))
    wanted = np.array(wanted + others + [0] * (limit - num_answer - len(others)))
    return Batch(ids, wanted, ids.reshape(-1)[wanted + 1], weights, num_answer, answers)
