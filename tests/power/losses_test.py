"""Tests of losses.py: which losses of documents are told by what a service and a repair say."""

import unittest
from datetime import datetime, timezone

from losses import Remembered, untold

NOW = 1_800_000_000.0
MORE = ", and there may be more of which not even the id is left"
BACK = "; some may be back that were deleted, or in an older version"


def shown(when):
    return datetime.fromtimestamp(when, timezone.utc).isoformat(timespec="milliseconds")[:-6] + "Z"


class Untold(unittest.TestCase):
    def setUp(self):
        self.expected = Remembered()
        for name, when in (("a", 0), ("b", 10), ("c", 20)):
            self.expected.times[name] = [[NOW + when, NOW + when + 1]]

    def left(self, missing, **general):
        return [name for name, _ in untold(missing, general, self.expected)]

    def lost(self, number, first=0.0, last=20.0, before="", after=""):
        span = f"from {shown(NOW + first)} to {shown(NOW + last)}"
        return f"{before}{number} acknowledged writes, {span}{after}"

    def test_a_summary_covers_what_it_says_and_nothing_else(self):
        missing = [("a", "gone"), ("b", "older"), ("c", "gone")]
        summary = "2 documents and the KV of 1 contexts are whole"
        self.assertEqual(self.left(missing, report=summary), ["a", "b", "c"])
        self.assertEqual(self.left(missing, report=summary + MORE), ["b"])
        self.assertEqual(self.left(missing, repaired=summary + BACK), ["a", "c"])
        self.assertEqual(self.left(missing, repaired=summary + MORE + BACK), [])

    def test_a_number_covers_as_many(self):
        missing = [("a", "gone"), ("b", "older"), ("c", "gone")]
        self.assertEqual(self.left(missing, lost_writes=self.lost(3)), [])
        self.assertEqual(self.left(missing, lost_writes=self.lost(2)), ["c"])
        more = self.left(missing, lost_writes=self.lost(1), report="0 are lost" + MORE)
        self.assertEqual(more, [])

    def test_a_number_covers_what_was_changed_in_its_time(self):
        missing = [("a", "gone"), ("b", "gone"), ("c", "gone")]
        said = self.lost(5, 10, 11)
        self.assertEqual(self.left(missing, lost_writes=said), ["a", "c"])
        self.expected.times["a"].append([NOW + 3, None])  # a job, which ends later
        self.assertEqual(self.left(missing, lost_writes=said), ["c"])

    def test_at_least_so_many_may_be_any_number_until_their_last_one(self):
        missing = [("a", "gone"), ("b", "gone"), ("c", "gone")]
        said = self.lost(1, 5, 11, before="at least ")
        self.assertEqual(self.left(missing, lost_writes=said), ["c"])
        said = "at least 1 writes; LOST_WRITES in the store's folder counted them and is damaged"
        self.assertEqual(self.left(missing, lost_writes=said), [])

    def test_of_a_torn_end_only_the_acknowledged_writes_count(self):
        missing = [("a", "gone"), ("b", "gone")]
        torn = "in the torn end of the log; a power failure tears only writes that were not"
        self.assertEqual(self.left(missing, lost_writes=f"2 writes {torn}"), ["a", "b"])
        span = f"from {shown(NOW)} to {shown(NOW + 20)}"
        said = f"2 writes: 1 acknowledged ones, {span}, and 1 {torn}"
        self.assertEqual(self.left(missing, lost_writes=said), ["b"])

    def test_a_report_tells_of_as_many_as_its_log_lacks(self):
        report = "0 are lost\ndamage: 1 acknowledged writes are not in the log, the first of 5\n"
        self.assertEqual(self.left([("a", "older"), ("b", "older")], report=report), ["b"])
        anywhere = "damage: at least one page of db/000012.sst cannot be read\n"
        self.assertEqual(self.left([("a", "older")], report=anywhere), ["a"])


if __name__ == "__main__":
    unittest.main()
