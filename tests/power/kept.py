"""What a round expects of the disk that it left, as JSON, so that its checks can be repeated."""

import json

from expected import Document
from losses import Remembered

# Members of Expected that hold documents by id, and lists of such.
BY_ID = ("allowed", "past")


def packed(values):
    return {name: [d and d.shown() for d in ds] for name, ds in values.items()}


def unpacked(values):
    return {name: [d and Document(*d) for d in ds] for name, ds in values.items()}


def copied(expected):
    """Returns a copy that keeps what it expects while checks go on with the other one."""
    out = Remembered(expected.failing)
    for name in ("allowed", "past", "times", "backups", "acknowledged", "refused"):
        setattr(out, name, dict(getattr(expected, name)))
    out.jobs, out.unsure = list(expected.jobs), list(expected.unsure)
    return out


def save(path, settings, expected, rng_state):
    """`settings`: members of the round that JSON can hold. `rng_state`: of random.Random."""
    held = {name: packed(getattr(expected, name)) for name in BY_ID}
    held["backups"] = {number: packed(values) for number, values in expected.backups.items()}
    held["unsure"] = [packed(values) for values in expected.unsure]
    held |= {"times": expected.times, "jobs": expected.jobs, "failing": expected.failing}
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"settings": settings, "expected": held, "rng": rng_state}, file)


def load(path):
    """Returns what save() was given."""
    with open(path, encoding="utf-8") as file:
        saved = json.load(file)
    held, (version, words, rest) = saved["expected"], saved["rng"]
    expected = Remembered(held["failing"])
    for name in BY_ID:
        setattr(expected, name, unpacked(held[name]))
    expected.backups = {int(n): unpacked(values) for n, values in held["backups"].items()}
    expected.unsure = [unpacked(values) for values in held["unsure"]]
    expected.times, expected.jobs = held["times"], held["jobs"]
    return saved["settings"], expected, (version, tuple(words), rest)
