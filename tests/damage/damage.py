"""Damage to files of a store."""

import os

PAGE = 4096
# The record is what is in db/, without these, which are no part of it.
OUTSIDE = ("LOCK", "IDENTITY", "OPTIONS", "LOG")


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


def choose(store, rng, count):
    """Damages so many files, those with documents twice as often as others. Returns their names,
    from the store's folder, and what was done."""
    names = files_of(store)
    weights = [2 if in_record(name) else 1 for name in names]
    done = []
    for name in rng.choices(names, weights, k=count):
        path = os.path.join(store, name)
        if not os.path.exists(path):
            continue
        if rng.random() < 0.1:
            os.remove(path)
            done.append((name, "removed"))
            continue
        with open(path, "rb") as file:
            data = bytearray(file.read())
        with open(os.path.join(store, rng.choice(files_of(store))), "rb") as file:
            other = file.read()
        kind = rng.choice(KINDS) if data else longer
        kind(data, rng, other)
        with open(path, "wb") as file:
            file.write(data)
        done.append((name, kind.__name__.replace("_", " ")))
    return done
