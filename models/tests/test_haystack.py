"""python -m unittest discover -s models/tests   (the standard library is enough for this file)"""

import collections
import random
import re
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from quire_model import haystack

NEEDLE = re.compile(r"One of the special magic (?:number|uuid)s for (\S+) is: (\S+)\.(?= |$)")


def contexts(make, count=80):
    for i in range(count):
        yield make(random.Random(f"{make.__name__}/{i}"), 4 + i * 3, "train")


class HaystackTest(unittest.TestCase):
    def test_answers_are_the_values_in_the_order_of_the_text(self):
        kinds = collections.Counter()
        for context in contexts(haystack.needles):
            (text,) = (d.text for d in context.documents)
            values = collections.defaultdict(list)
            for key, value in NEEDLE.findall(text):
                values[key].append(value)
            for q in context.questions:
                asked = re.search(r"s? for (.*) mentioned", q.text).group(1)
                keys = re.split(r", and |, ", asked)
                self.assertEqual(q.answer, ", ".join(v for k in keys for v in values[k]))
                self.assertEqual(q.kind == "needle_multi_query", len(keys) > 1)
                if len(keys) == 1:
                    self.assertEqual(q.kind == "needle_multi_value", len(values[asked]) > 1)
                self.assertEqual(
                    q.kind == "needle", len(values) == 1 and q.kind != "needle_multi_value"
                )
                kinds[q.kind] += 1
        self.assertGreater(
            min(
                kinds[k]
                for k in ("needle", "needle_multi_key", "needle_multi_value", "needle_multi_query")
            ),
            5,
        )

    def test_variables_that_hold_a_number(self):
        for context in contexts(haystack.assignments):
            (text,) = (d.text for d in context.documents)
            number, holders = {}, collections.defaultdict(list)
            for name, source in re.findall(r"VAR ([A-Z]{5}) = (?:VAR )?([A-Z]{5}|\d{5})", text):
                number[name] = number.get(source, source)
                holders[number[name]].append(name)
            self.assertTrue(context.questions)
            for q in context.questions:
                self.assertEqual(q.answer.split(", "), holders[re.search(r"\d{5}", q.text).group()])

    def test_the_same_for_the_same_seed_and_any_size(self):
        for make, _ in haystack.ALL:
            for lines in (1, 2, 30, 400):
                first, second = (make(random.Random(lines), lines, "train") for _ in range(2))
                self.assertEqual(first.documents[0].text, second.documents[0].text)
                self.assertEqual(
                    [(q.text, q.answer) for q in first.questions],
                    [(q.text, q.answer) for q in second.questions],
                )

    def test_names_in_keys_are_those_of_the_split(self):
        def words(split):
            found = set()
            for i in range(60):
                context = haystack.needles(random.Random(i), 60, split)
                found |= {
                    part
                    for key, _ in NEEDLE.findall(context.documents[0].text)
                    if key.count("-") < 4
                    for part in key.split("-")
                }
            return found - {
                w for k in (*haystack.ADJECTIVES, *haystack.NOUNS) for w in k.split("-")
            }

        named = {split: {w for w in words(split) if w.isalpha()} for split in ("train", "test")}
        self.assertTrue(named["train"])
        self.assertFalse(named["train"] & named["test"])


if __name__ == "__main__":
    unittest.main()
