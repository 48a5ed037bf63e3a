"""Tests of deaths.py: in which work of a service a call fell."""

import os
import tempfile
import unittest

import deaths
from disk_image import CUT, NOTE

CREATE = 1


def note(op, path="", other="", handle=0, data=b"", flags=0):
    names = path.encode(), other.encode()
    sizes = [len(name) for name in names]
    head = NOTE.pack(op.encode(), bytes([flags]), *sizes, 0, handle, 0, len(data), len(data))
    return head + names[0] + names[1] + data


class Deaths(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = os.path.join(self.folder.name, "notes")

    def noted(self, *notes):
        with open(self.path, "wb") as file:
            file.write(b"".join(notes))
        return self.path

    def test_a_death_is_told_by_the_file_of_the_call_and_its_thread(self):
        table = note("o", "/store/db/000012.sst", handle=3, flags=CREATE)
        last = note("w", handle=3, data=b"x", flags=CUT)
        for thread, work in (
            ("rocksdb:high", "flush"),
            ("rocksdb:low", "compaction"),
            ("quire", "table"),
        ):
            notes = self.noted(table, note("k", thread), last)
            self.assertEqual(deaths.death(notes), work)
            self.assertIsNone(deaths.failure(notes))

    def test_what_is_done_to_a_log_is_a_commit_unless_its_name_changes(self):
        log = note("o", "/store/db/000013.log", handle=1, flags=CREATE)
        made = note("o", "/store/db/000014.log", handle=2, flags=CREATE | CUT)
        self.assertEqual(deaths.death(self.noted(log, note("d", handle=1, flags=CUT))), "commit")
        self.assertEqual(deaths.death(self.noted(log, note("k"), made)), "log made or deleted")

    def test_files_of_a_backup_and_of_a_repair_are_not_those_of_the_record(self):
        self.assertEqual(deaths.what("/backups/shared_checksum/000012_s1_5.sst", "w"), "backup")
        self.assertEqual(deaths.what("/store/repair/db/000012.sst", "w"), "repair")
        self.assertEqual(deaths.what("/store/damaged-20300101T000000Z/db", "r"), "repair")
        self.assertEqual(deaths.what("/store/extents/00000001.extent", "p"), "extents")
        self.assertEqual(deaths.what("/store/STORE", "w"), "other")

    def test_the_first_call_that_failed_is_told(self):
        notes = self.noted(
            note("o", "/store/LEDGER", handle=4), note("f", handle=4, other="w"),
            note("f", "/store/db/CURRENT", "r"),
        )  # fmt: skip
        self.assertEqual(deaths.failure(notes), "ledger")
        self.assertEqual(deaths.first_failed_op(notes), "w")
        self.assertIsNone(deaths.death(notes))

    def test_calls_that_change_nothing_do_not_count(self):
        notes = self.noted(
            note("o", "/store/LEDGER", handle=4), note("o", "/store/x", handle=5, flags=CREATE),
            note("w", handle=5, data=b"x"), note("s", handle=5), note("k"),
        )  # fmt: skip
        self.assertEqual(deaths.calls(notes), 3)


if __name__ == "__main__":
    unittest.main()
