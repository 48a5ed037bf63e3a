"""Makes what a disk may hold after the power failed, from the notes of unsynced_layer.cc.

A file's bytes are durable once it is synced; a name in a folder is durable once the folder is
synced. What is not durable is lost, kept or kept in part, as a seed chooses. There are two file
systems. `ordered` behaves like ext4 with data=ordered: every sync makes all earlier names durable,
names survive in the order of their calls, and a file grows only with its bytes. `adversarial` does
what POSIX permits: names survive independently of each other as far as one does not need another,
sectors of 512 bytes survive in any order, and a file may have grown without its bytes.
"""

import os
import shutil
import struct

NOTE = struct.Struct("<ccHHHI4xQQQ")
SECTOR = 512
CUT = 8


def read_notes(path):
    """Yields (op, flags, path, other, handle, offset, bytes, data). A note that the kill tore is
    left out."""
    with open(path, "rb") as notes:
        while True:
            head = notes.read(NOTE.size)
            if len(head) < NOTE.size:
                return
            op, flags, path_bytes, other_bytes, _, handle, offset, size, data = NOTE.unpack(head)
            rest = notes.read(path_bytes + other_bytes + data)
            if len(rest) < path_bytes + other_bytes + data:
                return
            name = rest[:path_bytes].decode()
            other = rest[path_bytes : path_bytes + other_bytes].decode()
            yield (
                op.decode(),
                flags[0],
                name,
                other,
                handle,
                offset,
                size,
                rest[path_bytes + other_bytes :],
            )


class File:
    """A file: its durable bytes and the changes since its last sync, in order."""

    def __init__(self, source=None):
        self.source = source  # a file of the disk before; read when it is needed
        self.durable = None if source else bytearray()
        self.pending = []

    def load(self):
        if self.durable is None:
            with open(self.source, "rb") as file:
                self.durable = bytearray(file.read())
        return self.durable

    def sync(self):
        if self.pending:
            for change in self.pending:
                apply(self.load(), change)
            self.pending = []

    def all_bytes(self):
        out = bytearray(self.load())
        for change in self.pending:
            apply(out, change)
        return out


def apply(data, change):
    """Applies ("w", offset, bytes), ("t", size) or ("p", offset, length) to a bytearray."""
    if change[0] == "w":
        _, offset, new = change
        if len(data) < offset:
            data.extend(bytes(offset - len(data)))
        data[offset : offset + len(new)] = new
    elif change[0] == "t":
        size = change[1]
        if len(data) > size:
            del data[size:]
        else:
            data.extend(bytes(size - len(data)))
    else:
        _, offset, length = change
        end = min(offset + length, len(data))
        if end > offset:
            data[offset:end] = bytes(end - offset)


class Folder:
    def __init__(self):
        self.live = {}  # name -> File or Folder, as the program sees it
        self.durable = {}

    def keep_all(self):
        self.durable = dict(self.live)
        for node in self.live.values():
            if isinstance(node, Folder):
                node.keep_all()
            else:
                node.sync()


class Disk:
    """The files of one folder while notes are replayed. `before` is what the disk held at first."""

    def __init__(self, before, ordered):
        self.ordered = ordered
        self.root = self._read(before)
        self.changes = []  # names that are not durable: lists of (folder, name, File or None)
        self.handles = {}
        self.cut = None  # the change during which the power failed

    def _read(self, path):
        folder = Folder()
        for entry in os.scandir(path):
            if entry.is_dir(follow_symlinks=False):
                folder.live[entry.name] = self._read(entry.path)
            else:
                folder.live[entry.name] = File(entry.path)
        folder.durable = dict(folder.live)
        return folder

    def _find(self, path):
        """Returns the folder that holds the last part of a path, and this part."""
        parts = [p for p in path.split("/") if p]
        folder = self.root
        for part in parts[:-1]:
            folder = folder.live[part]
        return folder, parts[-1] if parts else ""

    def _node(self, path):
        folder, name = self._find(path)
        return folder.live[name] if name else folder

    def _change_names(self, change, cut):
        if not cut:
            for folder, name, node in change:
                if node is None:
                    folder.live.pop(name, None)
                else:
                    folder.live[name] = node
        self.changes.append(change)

    def _commit(self, chosen):
        """Makes the chosen changes of names durable, each after those it needs."""
        needed = set()
        for i in range(len(self.changes) - 1, -1, -1):
            places = {(id(folder), name) for folder, name, _ in self.changes[i]}
            if i in chosen or places & needed:
                chosen.add(i)
                needed |= places
        for i in sorted(chosen):
            for folder, name, node in self.changes[i]:
                if node is None:
                    folder.durable.pop(name, None)
                else:
                    folder.durable[name] = node
        self.changes = [c for i, c in enumerate(self.changes) if i not in chosen]

    def _sync(self, node):
        if self.ordered:
            self._commit(set(range(len(self.changes))))
        if isinstance(node, Folder):
            self._commit({i for i, c in enumerate(self.changes) if any(f is node for f, _, _ in c)})
        else:
            node.sync()

    def replay(self, notes):
        for op, flags, path, other, handle, offset, size, data in notes:
            cut = bool(flags & CUT)
            if op == "o":
                if flags & 1:
                    folder, name = self._find(path)
                    node = File()
                    self._change_names([(folder, name, node)], cut)
                else:
                    node = self._node(path)
                if flags & 2 and isinstance(node, File):
                    self._change_bytes(node, ("t", 0), cut)
                self.handles[handle] = node
            elif op == "w":
                self._change_bytes(self.handles[handle], ("w", offset, data), cut)
            elif op == "t":
                self._change_bytes(self.handles[handle], ("t", offset), cut)
            elif op == "p":
                self._change_bytes(self.handles[handle], ("p", offset, size), cut)
            elif op in "sd":
                if not cut:
                    self._sync(self.handles[handle])
            elif op == "u":
                folder, name = self._find(path)
                if name in folder.live:
                    self._change_names([(folder, name, None)], cut)
            elif op == "m":
                folder, name = self._find(path)
                if name not in folder.live:
                    self._change_names([(folder, name, Folder())], cut)
            elif op in "rl":
                folder, name = self._find(path)
                if cut and name not in folder.live:
                    continue  # the call in which it died would have failed
                to, to_name = self._find(other)
                change = [(to, to_name, folder.live[name])]
                if op == "r":
                    change.append((folder, name, None))
                self._change_names(change, cut)
            elif op not in "kf":  # they say where it died or failed
                raise ValueError("unknown note " + op)

    def _change_bytes(self, node, change, cut):
        node.pending.append(change)
        if cut:
            self.cut = (node, change)

    def check_against(self, path):
        """Compares what the notes say with the files themselves, as the program left them.
        Returns the differences."""
        if self.cut:  # it was not carried out
            self.cut[0].pending.remove(self.cut[1])
        wrong = []
        self._compare(self.root, path, "", wrong)
        if self.cut:
            self.cut[0].pending.append(self.cut[1])
        return wrong

    def _compare(self, folder, path, name, wrong):
        there = set(os.listdir(path))
        for other in sorted(there ^ set(folder.live)):
            wrong.append(f"{name}/{other}: only {'there' if other in there else 'noted'}")
        for other in sorted(there & set(folder.live)):
            node, file = folder.live[other], os.path.join(path, other)
            if isinstance(node, Folder):
                self._compare(node, file, name + "/" + other, wrong)
            elif node.durable is not None or node.pending:
                with open(file, "rb") as opened:
                    if opened.read() != node.all_bytes():
                        wrong.append(f"{name}/{other}: other bytes")

    def fail(self, rng, nothing=False, but=()):
        """Chooses what survives of what is not durable; with `nothing`, nothing does but changes
        of the names `but`. Returns how much was lost, to be shown."""
        share = 0.0 if nothing else rng.choice((0.0, 0.2, 0.5, 0.8, 1.0))
        names = len(self.changes)
        if self.ordered:
            kept = 0 if nothing else names if share == 1 else rng.randint(0, names)
            self._commit(set(range(kept)))
        else:
            named = {i for i, c in enumerate(self.changes) if any(n in but for _, n, _ in c)}
            self._commit(named | {i for i in range(names) if rng.random() < share})
        lost = {"names": len(self.changes), "bytes": 0}
        files = []
        self._files(self.root, set(), files)
        for node in files:
            if node.pending:
                lost["bytes"] += self._fail_file(node, rng, nothing)
        return lost

    def keep_all(self):
        """Makes durable what was carried out, as where a program dies and the power stays."""
        if self.cut:
            self.cut[0].pending.remove(self.cut[1])
            self.cut = None
        self.root.keep_all()
        self.changes = []

    def _files(self, folder, seen, out):
        for name in sorted(folder.durable):
            node = folder.durable[name]
            if id(node) in seen:
                continue
            seen.add(id(node))
            if isinstance(node, Folder):
                self._files(node, seen, out)
            else:
                out.append(node)

    def _fail_file(self, node, rng, nothing):
        pending, node.pending = node.pending, []
        written = sum(len(c[2]) for c in pending if c[0] == "w")
        how = "none" if nothing else rng.choice(("none", "prefix", "sectors", "sectors", "all"))
        full = node.load()
        size_before = len(full)
        longest = max([size_before] + [c[1] + len(c[2]) for c in pending if c[0] == "w"])
        kept = 0
        share = rng.random()
        if how == "prefix":
            pending = pending[: rng.randint(0, len(pending))]
        if how == "none":
            pending = []
        for i, change in enumerate(pending):
            if change[0] != "w":
                if how == "sectors" and not self.ordered and rng.random() > share:
                    continue
                apply(full, change)
                continue
            _, offset, data = change
            if how == "all" or (how == "prefix" and i + 1 < len(pending)):
                apply(full, change)
                kept += len(data)
                continue
            if how == "prefix":  # the last one is torn
                cut = rng.randint(0, len(data))
                end = min(len(data), max(0, (offset + cut) // SECTOR * SECTOR - offset))
                apply(full, ("w", offset, data[:end]))
                kept += end
                continue
            # Sectors in any order. Where names and sizes are ordered, a file does not grow over
            # a sector that is lost.
            at, ended = 0, False
            while at < len(data) and not ended:
                end = min(len(data), (offset + at) // SECTOR * SECTOR + SECTOR - offset)
                if rng.random() < share:
                    apply(full, ("w", offset + at, data[at:end]))
                    kept += end - at
                else:
                    ended = self.ordered and offset + end > len(full)
                at = end
            if ended:
                break
        if not self.ordered and how == "sectors" and rng.random() < 0.5 and longest > len(full):
            full.extend(bytes(longest - len(full)))
        return written - kept

    def write(self, path):
        """Writes the durable files to a new folder."""
        self._write(self.root, path)

    def _write(self, folder, path):
        os.mkdir(path, 0o700)
        for name, node in folder.durable.items():
            to = os.path.join(path, name)
            if isinstance(node, Folder):
                self._write(node, to)
            elif node.durable is None:
                copy_sparse(node.source, to)
            else:
                write_sparse(to, node.durable)


def write_sparse(path, data):
    zero = bytes(4096)
    with open(path, "wb", opener=lambda p, f: os.open(p, f, 0o600)) as out:
        at = 0
        while at < len(data):
            page = data[at : at + 4096]
            if page == zero[: len(page)]:
                out.seek(len(page), os.SEEK_CUR)
            else:
                out.write(page)
            at += len(page)
        out.truncate(len(data))


def copy_sparse(source, to):
    with open(source, "rb") as file:
        write_sparse(to, file.read())


def copy_folder(source, to):
    os.mkdir(to, 0o700)
    for entry in os.scandir(source):
        target = os.path.join(to, entry.name)
        if entry.is_dir(follow_symlinks=False):
            copy_folder(entry.path, target)
        else:
            copy_sparse(entry.path, target)


def cut_power(folder, before, notes, rng):
    """Makes of a folder what a disk may hold after the power failed under a program that was
    killed, from its notes. `before`: the folder before that. Returns what is wrong with the notes,
    if anything is."""
    disk = Disk(before, rng.random() < 0.4)
    disk.replay(read_notes(notes))
    if wrong := disk.check_against(folder):
        return wrong
    disk.fail(rng)
    remove_folder(folder)
    disk.write(folder)
    return None


def remove_folder(path):
    shutil.rmtree(path, ignore_errors=True)
