"""Where in the work of a service a call fell that killed it, or that failed first: told from the
notes of unsynced_layer.cc by the file, the call and the thread."""

from disk_image import CUT, read_notes

# What a file is, by a part of its path; the first one that fits.
FILES = (
    ("/backups", "backup"),
    ("/store-copy", "second copy"),
    ("/store/repair", "repair"),
    ("/damaged-", "repair"),
    ("NEW_RECORD", "repair"),
    ("RESTORING", "note of a restore"),
    ("RESTORED", "note of a restore"),
    ("LEDGER", "ledger"),
    ("LOST_WRITES", "ledger"),
    ("EDITS", "note of edits"),
    ("SEAL", "seal"),
    ("MANIFEST", "manifest"),
    ("CURRENT", "manifest"),
    ("dbtmp", "manifest"),
    ("/extents", "extents"),
    ("/prompts", "prompts"),
    (".sst", "table"),
    (".log", "log"),
)


def what(path, op, thread=""):
    """Returns the name of the work to which a call belongs. Tables are written by threads of
    RocksDB, which have names: those of high priority flush."""
    kind = next((kind for part, kind in FILES if part in path), "other")
    if kind == "log":
        return "commit" if op in "wsd" else "log made or deleted"
    if kind == "table":
        if thread.startswith("rocksdb:high"):
            return "flush"
        if thread.startswith("rocksdb:low"):
            return "compaction"
        return "table deleted" if op == "u" else "table"
    return kind


def death(notes):
    """Returns the work in which the program was killed at a call; None: it was not."""
    return first(notes, lambda op, flags: flags & CUT)


def failure(notes):
    """Returns the work in which the first call failed; None: none did."""
    return first(notes, lambda op, flags: op == "f")


def first_failed_op(notes):
    """Returns the first call that failed, as the notes name it; None: none did."""
    return next((other for op, _, _, other, *_ in read_notes(notes) if op == "f"), None)


def calls(notes):
    """Returns how many calls changed a file, or synchronized one."""
    return sum(op not in "okf" or flags & 3 > 0 for op, flags, *_ in read_notes(notes))


def first(notes, chosen):
    paths, thread = {}, ""
    for op, flags, path, other, handle, *_ in read_notes(notes):
        if op == "k":
            thread = path
        elif chosen(op, flags):
            return what(path or paths.get(handle, ""), other if op == "f" else op, thread)
        elif op == "o":
            paths[handle] = path
    return None
