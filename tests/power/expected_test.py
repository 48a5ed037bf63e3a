"""Tests of expected.py: which of the values that clients set a document may have."""

import os
import random
import tempfile
import unittest
from datetime import datetime, timezone

import kept
from expected import Document, chosen, text_of
from losses import Remembered

NOW = 1_800_000_000.0
NUMBER = 7


def document(expires=None, pinned=False):
    return Document(NUMBER, "Title", {"n": 1}, pinned, expires)


def shown_time(when):
    """Returns a time, Unix s or None, as the service shows it."""
    if when is None:
        return None
    shown = datetime.fromtimestamp(when, timezone.utc).isoformat(timespec="milliseconds")
    return shown.replace("+00:00", "Z")


def found(expires=None, **members):
    return {
        "title": "Title",
        "metadata": {"n": 1},
        "pinned": False,
        "status": "ready",
        "expires_at": shown_time(expires),
        **members,
    }


class Chosen(unittest.TestCase):
    def choose(self, allowed, shown, asked=NOW, text=text_of(NUMBER)):
        return chosen(allowed, shown, text, asked)

    def test_of_two_that_differ_in_their_expiry_alone_the_one_that_is_there(self):
        hour = document((NOW + 3600, NOW + 3660))  # acknowledged
        soon = document((NOW + 2, NOW + 62))  # was under way when the service died
        for when in (NOW + 2.5, NOW + 3601):
            problem, value = self.choose([hour, soon], found(when))
            self.assertIsNone(problem)
            self.assertAlmostEqual(value.expires[0], when, places=3)
            self.assertEqual(value.expires[0], value.expires[1])

    def test_an_expiry_that_nobody_asked_for_is_a_problem(self):
        hour = document((NOW + 3600, NOW + 3660))
        for shown in (found(NOW + 2.5), found(NOW + 7200), found()):
            self.assertIn("expires_at", self.choose([hour], shown)[0])
        self.assertIn("expires_at", self.choose([document()], found(NOW + 3600))[0])

    def test_a_time_that_was_seen_is_kept(self):
        value = self.choose([document((NOW + 3600, NOW + 3660))], found(NOW + 3601))[1]
        self.assertIsNone(self.choose([value], found(NOW + 3601))[0])
        self.assertIn("expires_at", self.choose([value], found(NOW + 3602))[0])

    def test_a_document_that_has_expired_must_not_be_shown(self):
        soon = document((NOW + 2, NOW + 62))
        self.assertIsNone(self.choose([soon], found(NOW + 2.5), NOW + 2.4)[0])
        self.assertIn("expired", self.choose([soon], found(NOW + 2.5), NOW + 3.5)[0])

    def test_what_is_other_is_said_and_a_deleted_one_may_not_be_there(self):
        self.assertIsNone(self.choose([None, document()], found())[0])
        self.assertIn("pinned", self.choose([document()], found(pinned=True))[0])
        self.assertIn("text", self.choose([document()], found(), text="other")[0])
        self.assertIn("deleted", self.choose([None], found())[0])

    def test_what_was_refused_is_not_expected(self):
        expected = Remembered()
        old, new = document(), document(pinned=True)
        expected.begin({"d": old})
        expected.acknowledge("put", {"d": old})
        expected.begin({"d": new})
        self.assertEqual(expected.values("d"), [old, new])
        expected.refuse("pin", {"d": new})
        self.assertEqual(expected.values("d"), [old])
        self.assertEqual(expected.past["d"], [old])
        self.assertEqual(expected.refused, {"pin": 1})


class Backups(unittest.TestCase):
    def setUp(self):
        self.expected = Remembered()
        self.values = [document(pinned=n % 2 > 0) for n in range(4)]

    def put(self, value):
        self.expected.begin({"d": value})
        self.expected.acknowledge("put", {"d": value})

    def test_a_backup_holds_what_was_there_while_it_was_made(self):
        before, then, during, after = self.values
        self.put(before)
        self.put(then)
        made = self.expected.begin_backup()
        self.put(during)
        self.expected.end_backup(made, 7)
        self.put(after)
        self.assertEqual(self.expected.backups, {7: {"d": [then, during]}})

    def test_one_that_was_not_acknowledged_may_be_there(self):
        made = self.expected.begin_backup()
        self.put(self.values[0])
        self.expected.end_backup(made, None)
        self.expected.end_backup(self.expected.begin_backup(), None, refused=True)
        self.assertEqual(self.expected.backups, {})
        self.assertEqual(self.expected.unsure, [{"d": [None, self.values[0]]}])

    def test_all_of_it_is_kept_for_a_replay(self):
        self.put(self.values[0])
        self.expected.end_backup(self.expected.begin_backup(), 3)
        self.expected.end_backup(self.expected.begin_backup(), None)
        self.expected.begin({"d": None})
        copy, rng = kept.copied(self.expected), random.Random(5)
        self.put(self.values[1])
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "round.json")
            kept.save(path, {"number": 8}, copy, rng.getstate())
            settings, loaded, state = kept.load(path)
        shown = [["Title", False]]
        for values in (loaded.allowed["d"][:-1], loaded.backups[3]["d"], loaded.unsure[0]["d"]):
            self.assertEqual([[v.title, v.pinned] for v in values], shown)
        self.assertIsNone(loaded.allowed["d"][-1])
        self.assertEqual((settings, state), ({"number": 8}, rng.getstate()))


if __name__ == "__main__":
    unittest.main()
