"""Tests of disk_image.py: what a disk may hold after the power failed."""

import os
import random
import tempfile
import unittest

import disk_image
from disk_image import CUT, NOTE, Disk, File

CREATE = 1


def note(op, path="", other="", handle=0, offset=0, size=0, data=b"", flags=0):
    return (op, flags, path, other, handle, offset, size, data)


class DiskImage(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.before = os.path.join(self.folder.name, "before")
        os.mkdir(self.before)
        with open(os.path.join(self.before, "old"), "wb") as file:
            file.write(b"old bytes")

    def images(self, notes, ordered, seeds=40):
        """Returns the different disks that seeds make: path -> bytes."""
        found = []
        for seed in range(seeds):
            disk = Disk(self.before, ordered)
            disk.replay(notes)
            disk.fail(random.Random(seed))
            to = os.path.join(self.folder.name, "image")
            disk.write(to)
            files = {}
            for root, _, names in os.walk(to):
                for name in names:
                    path = os.path.join(root, name)
                    with open(path, "rb") as file:
                        files[os.path.relpath(path, to)] = file.read()
            disk_image.remove_folder(to)
            if files not in found:
                found.append(files)
        return found

    def test_what_was_synced_with_its_folder_is_there_whole(self):
        notes = [
            note("o", "/new", handle=1, flags=CREATE),
            note("w", handle=1, size=3, data=b"abc"),
            note("s", handle=1),
            note("o", "/", handle=2),
            note("s", handle=2),
        ]
        for ordered in (True, False):
            for files in self.images(notes, ordered):
                self.assertEqual(files, {"old": b"old bytes", "new": b"abc"})

    def test_a_name_is_not_durable_through_its_file_where_posix_does_not_say_so(self):
        notes = [note("o", "/new", handle=1, flags=CREATE), note("s", handle=1)]
        names = [sorted(files) for files in self.images(notes, ordered=False)]
        self.assertIn(["old"], names)
        self.assertIn(["new", "old"], names)
        for files in self.images(notes, ordered=True):
            self.assertEqual(sorted(files), ["new", "old"])

    def test_a_rename_happened_or_not(self):
        notes = [
            note("o", "/tmp", handle=1, flags=CREATE),
            note("w", handle=1, size=3, data=b"new"),
            note("s", handle=1),
            note("o", "/", handle=2),
            note("s", handle=2),
            note("r", "/tmp", "/old"),
        ]
        for ordered in (True, False):
            images = self.images(notes, ordered)
            self.assertEqual(len(images), 2)
            self.assertIn({"old": b"old bytes", "tmp": b"new"}, images)
            self.assertIn({"old": b"new"}, images)

    def test_names_survive_in_their_order_only_where_they_are_ordered(self):
        notes = [note("o", f"/{n}", handle=n, flags=CREATE) for n in (1, 2, 3)]
        for files in self.images(notes, ordered=True):
            there = [n for n in ("1", "2", "3") if n in files]
            self.assertEqual(there, ["1", "2", "3"][: len(there)])
        sets = [set(files) for files in self.images(notes, ordered=False)]
        self.assertIn({"old", "3"}, sets)

    def test_nothing_survives_but_what_is_named(self):
        notes = [note("o", f"/{n}", handle=n, flags=CREATE) for n in (1, 2)]
        notes += [note("w", handle=2, size=1, data=b"x"), note("u", "/old")]
        disk = Disk(self.before, False)
        disk.replay(notes)
        disk.fail(random.Random(1), nothing=True, but=("2",))
        self.assertEqual(sorted(disk.root.durable), ["2", "old"])
        self.assertEqual(bytes(disk.root.durable["2"].load()), b"")

    def test_bytes_are_torn_at_sectors(self):
        data = b"x" * 2000
        notes = [note("o", "/old", handle=1), note("w", handle=1, size=2000, data=data)]
        for ordered in (True, False):
            images = self.images(notes, ordered, 60)
            self.assertGreater(len(images), 3)
            for files in images:
                old = files["old"]
                self.assertTrue(old.startswith(b"old bytes") or old.startswith(b"x" * 512))
                for at in range(512, len(old), 512):
                    self.assertIn(set(old[at : at + 512]), ({0}, {120}))

    def test_a_file_has_holes_only_where_nothing_is_ordered(self):
        notes = [note("o", "/new", handle=1, flags=CREATE), note("o", "/", handle=2)]
        notes += [note("s", handle=2)]
        for n in range(4):
            notes.append(note("w", handle=1, offset=512 * n, size=512, data=b"x" * 512))
        for files in self.images(notes, ordered=True, seeds=60):
            self.assertNotIn(b"\0", files["new"])
        self.assertTrue(any(b"\0" in f["new"] for f in self.images(notes, False, 60)))

    def test_the_call_of_the_cut_is_not_carried_out(self):
        disk = Disk(self.before, True)
        disk.replay([note("o", "/old", handle=1), note("s", handle=1, flags=CUT)])
        self.assertEqual(disk.check_against(self.before), [])
        disk.replay([note("w", handle=1, size=1, data=b"N", flags=CUT)])
        self.assertEqual(disk.check_against(self.before), [])
        self.assertEqual(bytes(disk.root.live["old"].all_bytes()), b"Nld bytes")

    def test_a_call_of_the_cut_that_would_have_failed_changes_nothing(self):
        notes = [note("r", "/missing", "/other", flags=CUT)]
        self.assertEqual(self.images(notes, ordered=True), [{"old": b"old bytes"}])

    def test_where_the_power_stays_all_that_was_carried_out_is_kept(self):
        disk = Disk(self.before, False)
        notes = [note("o", "/new", handle=1, flags=CREATE), note("w", handle=1, size=1, data=b"x")]
        notes += [note("k", "thread"), note("w", handle=1, offset=1, size=1, data=b"y", flags=CUT)]
        disk.replay([*notes[:2], note("u", "/old"), *notes[2:]])
        disk.keep_all()
        to = os.path.join(self.folder.name, "image")
        disk.write(to)
        self.assertEqual(os.listdir(to), ["new"])
        with open(os.path.join(to, "new"), "rb") as file:
            self.assertEqual(file.read(), b"x")

    def test_a_difference_from_the_files_is_found(self):
        disk = Disk(self.before, True)
        disk.replay([note("o", "/old", handle=1), note("w", handle=1, size=1, data=b"N")])
        self.assertEqual(disk.check_against(self.before), ["/old: other bytes"])

    def test_a_torn_note_ends_the_notes(self):
        path = os.path.join(self.folder.name, "notes")
        with open(path, "wb") as file:
            file.write(NOTE.pack(b"m", b"\0", 2, 0, 0, 0, 0, 0, 0) + b"/a")
            file.write(NOTE.pack(b"m", b"\0", 9, 0, 0, 0, 0, 0, 0) + b"/b")
        self.assertEqual([n[2] for n in disk_image.read_notes(path)], ["/a"])

    def test_changes_of_a_file_apply_in_order(self):
        file = File()
        file.pending = [("w", 2, b"abcd"), ("p", 3, 2), ("t", 5)]
        self.assertEqual(bytes(file.all_bytes()), b"\0\0a\0\0")
        file.sync()
        self.assertEqual(bytes(file.durable), b"\0\0a\0\0")


if __name__ == "__main__":
    unittest.main()
