"""Damage to files of a store."""

import os

PAGE = 4096
# The record is what is in db/, without these, which are no part of it.
OUTSIDE = ("LOCK", "IDENTITY", "OPTIONS", "LOG", "LEDGER")
# What counts the writes of the log.
LEDGERS = ("LEDGER", "db/LEDGER")


def in_record(name):
    """Returns whether a file, named from the store's folder, holds documents or jobs."""
    folder, file = os.path.split(name)
    return folder == "db" and not file.startswith(OUTSIDE)


def files_of(store):
    """Returns the names of all files of a store."""
    out = []
    for folder, _, names in os.walk(store):
        out += [os.path.relpath(os.path.join(folder, name), store) for name in names]
    return sorted(out)


def one_bit(data, rng, _):
    at = rng.randrange(len(data))
    data[at] ^= 1 << rng.randrange(8)


def some_bytes(data, rng, _):
    for _ in range(rng.randint(1, 64)):
        data[rng.randrange(len(data))] = rng.randrange(256)


def zero_page(data, rng, _):
    at = rng.randrange(0, len(data), PAGE)
    count = len(data[at : at + PAGE])
    data[at : at + count] = bytes(count)


def swapped_pages(data, rng, _):
    pages = max(1, len(data) // PAGE)
    a, b = (PAGE * rng.randrange(pages) for _ in range(2))
    data[a : a + PAGE], data[b : b + PAGE] = data[b : b + PAGE], data[a : a + PAGE]


def cut(data, rng, _):
    del data[rng.randrange(len(data)) :]


def emptied(data, _, __):
    data.clear()


def longer(data, rng, _):
    data += rng.randbytes(rng.randint(1, 5000))


def other_file(data, _, other):
    data[:] = other


KINDS = (one_bit, one_bit, some_bytes, zero_page, swapped_pages, cut, emptied, longer, other_file)


def damage(store, name, rng):
    """Damages a file, which is named from the store's folder. Returns what was done."""
    path = os.path.join(store, name)
    if rng.random() < 0.1:
        os.remove(path)
        return "removed"
    with open(path, "rb") as file:
        data = bytearray(file.read())
    with open(os.path.join(store, rng.choice(files_of(store))), "rb") as file:
        other = file.read()
    kind = rng.choice(KINDS) if data else longer
    kind(data, rng, other)
    with open(path, "wb") as file:
        file.write(data)
    return kind.__name__.replace("_", " ")


def choose(store, rng, count):
    """Damages so many files, those with documents twice as often as others. Returns their names and
    what was done."""
    names = files_of(store)
    weights = [2 if in_record(name) else 1 for name in names]
    return [
        (name, damage(store, name, rng))
        for name in rng.choices(names, weights, k=count)
        if os.path.exists(os.path.join(store, name))
    ]


def choose_log_and(store, ledgers, rng):
    """Cuts or empties the newest log and damages the files that count its writes. Returns their
    names and what was done."""
    names = files_of(store)
    logs = [name for name in names if in_record(name) and name.endswith(".log")]
    done = []
    for name in logs[-1:]:
        with open(os.path.join(store, name), "r+b") as file:
            size = file.seek(0, os.SEEK_END)
            file.truncate(rng.choice((0, rng.randrange(size + 1))))
        done.append((name, "cut"))
    return done + [(name, damage(store, name, rng)) for name in ledgers if name in names]
