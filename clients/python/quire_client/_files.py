"""Files that are whole or not there, and files in pieces."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


@contextmanager
def replacing(path: str | Path) -> Iterator[BinaryIO]:
    """A file to write that takes the place of `path` once it is complete. Until then it is called
    `path`.new, and what was there before stays; after a failure nothing of it is left. Only this
    user can read it, unless it replaces a file that others can."""
    target = os.path.realpath(path)
    there = os.path.exists(target)
    if there and not os.path.isfile(target):
        with open(target, "wb") as out:  # a pipe or a device is written to, not replaced
            yield out
        return
    new = f"{target}.new"
    with suppress(FileNotFoundError):
        os.remove(new)  # of a program that was killed: it would keep its mode
    with open(new, "wb", opener=_private) as out:
        try:
            if there:
                shutil.copymode(target, new)
            yield out
            out.close()
            os.replace(new, target)
        except BaseException:
            with suppress(OSError):
                os.remove(new)
            raise


_PIECE_BYTES = 1 << 20


def pieces_of(path: Path) -> Iterator[bytes]:
    """The bytes of a file, some at a time."""
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            yield piece


async def awaited(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """The same for an event loop, which a disk does not hold up."""
    while piece := await asyncio.to_thread(next, pieces, b""):
        yield piece
