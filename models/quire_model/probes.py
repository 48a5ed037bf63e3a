"""Quick looks at a model in training, on validation names and seeds that do not change: a part of
the training that did not take shows here first. Exact match of whole answers, teacher-forced,
documents prefilled together."""

import torch

from . import mixture

# n entities that share one relation: guessing among the candidates gives 1/n.
# Prose and cards are probed apart.
BINDING = {
    "binding@512": mixture.Part(0.0, {512: 1.0}, plans=(0.0, 1.0, 0.0, 0.0)),
    "cards@192": mixture.Part(0.0, {192: 1.0}, 1.0),
}
HARD = ("single", "continuation")  # what "binding" counts


@torch.no_grad()
def exact_by_kind(trainer, name, rows, length, part):
    """{kind: (right, asked)}"""
    batch = mixture.make_batch(f"probe/{name}", rows, length, trainer.codec, part, "validation")
    inputs, targets, _ = trainer.tensors(batch)
    trainer.model.eval()
    hits = (trainer.model(*inputs, *trainer.rope).argmax(-1) == targets).cpu()
    trainer.model.train()
    found = {}
    for start, end, kind in batch.answers:
        right, asked = found.get(kind, (0, 0))
        found[kind] = (right + bool(hits[start:end].all()), asked + 1)
    return found


def run(trainer, part):
    """{"binding@512": share right, "exact@LENGTH": share right, "single@LENGTH": ...,
    every kind at the part's longest}"""
    result = {}
    for name, probe in BINDING.items():
        length = next(iter(probe.lengths))
        if length <= trainer.o.max_length:
            found = exact_by_kind(trainer, name, 4 * trainer.o.probe_rows, length, probe)
            counted = [v for kind, v in found.items() if kind in HARD + ("card",)]
            result[name] = round(sum(r for r, _ in counted) / max(1, sum(n for _, n in counted)), 3)
    lengths = [n for n in sorted(part.lengths) if n <= trainer.o.max_length]
    for length in lengths:
        rows = max(1, trainer.o.probe_rows * 512 // length)
        found = exact_by_kind(trainer, f"{length}", rows, length, part)
        result[f"exact@{length}"] = round(
            sum(r for r, _ in found.values()) / sum(n for _, n in found.values()), 3
        )
        if length == lengths[-1]:
            result |= {f"{kind}@{length}": [r, n] for kind, (r, n) in sorted(found.items())}
    return result


def text_line(tokens, found):
    """One line of the text curve: tokens, then a bar for every share."""
    shares = {k: v for k, v in found.items() if not isinstance(v, list)}
    bars = "  ".join(
        f"{name} {'#' * round(10 * v):<10s} {100 * v:5.1f}" for name, v in shares.items()
    )
    return f"{tokens / 1e6:8.1f} M  {bars}\n"
