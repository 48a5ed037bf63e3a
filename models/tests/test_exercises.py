"""python -m unittest discover -s models/tests   (the standard library is enough for this file)"""

import collections
import random
import re
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from quire_model import asking, exercises, prose
from quire_model.questions import NOT_STATED


def lines_of(context):
    """[(key, value, document)] of the lines "key MARK value.", whatever the mark."""
    found = []
    for document in context.documents:
        for line in document.sentences:
            places = [(line.find(mark), mark) for mark in exercises.MARKS if mark in line]
            at, mark = min(places)
            found.append((line[:at], line[at + len(mark) : -1], document))
    return found


def contexts(make, count=60, split="train"):
    for i in range(count):
        yield make(random.Random(f"{make.__name__}/{i}"), 3 + i % 20, split)


class ExercisesTest(unittest.TestCase):
    def assert_support(self, question, texts):
        """Every text stands in a supporting document, and every supporting document holds one."""
        for text in texts:
            self.assertTrue(any(text in d.text for d in question.support), (question.text, text))
        for document in question.support:
            self.assertTrue(any(text in document.text for text in texts), question.text)

    def test_cards_and_what_no_card_says(self):
        kinds = collections.Counter()
        for context in contexts(exercises.cards_or_none):
            values = {k: v for k, v, _ in lines_of(context)}
            for q in context.questions:
                kinds[q.kind] += 1
                self.assertEqual(q.answer, values.get(q.text[:-1], NOT_STATED))
                self.assertEqual(q.kind == "absent", q.answer == NOT_STATED)
                if q.kind == "card":
                    self.assert_support(q, [q.text[:-1]])
        self.assertGreater(min(kinds["card"], kinds["absent"]), 60)

    def test_chains_are_followed_to_their_end(self):
        hops = collections.Counter()
        for context in contexts(exercises.chains):
            values = {k: v for k, v, _ in lines_of(context)}
            for q in context.questions:
                start = max((k for k in values if k in q.text), key=len)
                way = [start]
                for _ in range(2 if q.kind == "two_hop" else 3):
                    way.append(values[way[-1]])
                self.assertEqual(q.answer, way[-1])
                self.assertNotIn(q.answer, values)
                self.assert_support(q, [f"{k}" for k in way[:-1]])
                hops[q.kind] += 1
        self.assertGreater(min(hops["two_hop"], hops["three_hop"]), 50)

    def test_comparisons_name_the_smaller_or_larger(self):
        digits, repeated = set(), collections.Counter()
        for context in contexts(exercises.comparisons):
            values = {k: int(v) for k, v, _ in lines_of(context)}
            digits |= {len(str(v)) for v in values.values()}
            for q in context.questions:
                pair = [k for k in values if k in q.text]
                self.assertEqual(len(pair), 2)
                hints = re.findall(r" \((\d+)\)", q.text)
                repeated[len(hints)] += 1
                for key in pair:
                    self.assertIn(f"{key} (" in q.text, (False, f"{key} ({values[key]})" in q.text))
                plain = re.sub(r" \(\d+\)", "", q.text)
                larger = any(
                    plain == wording[1].format(a=a, b=b)
                    for wording in (*asking.COMPARISONS.values(), exercises.SHORT_COMPARISON)
                    for a, b in (pair, pair[::-1])
                )
                self.assertEqual(q.answer, (max if larger else min)(pair, key=values.get))
                self.assert_support(q, pair)
        self.assertLessEqual({1, 2, 4}, digits)
        self.assertGreater(min(repeated[n] for n in (0, 1, 2)), 50)

    def test_other_names_lead_to_the_value(self):
        asked = 0
        for context in contexts(exercises.other_names):
            explained = {}
            for line in (s for d in context.documents for s in d.sentences):
                for form in prose.ALIASES:
                    before, between, after = (
                        form.replace("{n}", "\0").replace("{a}", "\0").split("\0")
                    )
                    if line.startswith(before) and line.endswith(after) and between in line:
                        first, second = line[len(before) : len(line) - len(after)].split(between)
                        name, other = (
                            (first, second)
                            if form.index("{n}") < form.index("{a}")
                            else (second, first)
                        )
                        explained[name] = other
            for q in (q for q in context.questions if q.kind == "alias"):
                other = explained[q.text[:-1]]
                self.assertTrue(
                    any(
                        line.startswith(other) and line.endswith(q.answer + ".")
                        for d in q.support
                        for line in d.sentences
                    )
                )
                self.assert_support(q, [other])
                asked += 1
        self.assertGreater(asked, 100)

    def test_groups_count_and_list_in_order(self):
        kinds = collections.Counter()
        for context in contexts(exercises.groups):
            by_value = collections.defaultdict(list)
            for k, v, _ in lines_of(context):
                by_value[v].append(k)
            for q in context.questions:
                same = [
                    keys
                    for v, keys in by_value.items()
                    if q.text == exercises.SHORT_GROUP[q.kind].format(v=v)
                    or any(
                        q.text.endswith(said.format(v=v) + "?")
                        for _, said in asking.GROUPS.values()
                    )
                ]
                self.assertEqual(len(same), 1, q.text)
                self.assertEqual(
                    q.answer, str(len(same[0])) if q.kind == "count" else ", ".join(same[0])
                )
                self.assert_support(q, same[0])
                kinds[q.kind] += 1
        self.assertGreater(min(kinds["count"], kinds["list"]), 60)

    def test_several_values_in_order(self):
        kinds = collections.Counter()
        for context in contexts(exercises.several_values):
            values = collections.defaultdict(list)
            for k, v, _ in lines_of(context):
                values[k].append(v)
            for q in context.questions:
                key = next(k for k in values if k in q.text)
                self.assertEqual(q.answer, ", ".join(values[key]))
                self.assertEqual(q.kind == "needle", len(values[key]) == 1)
                kinds[q.kind] += 1
        self.assertGreater(min(kinds["needle"], kinds["needle_multi_value"]), 50)

    def test_variables_are_assigned_before_they_are_copied(self):
        for context in contexts(exercises.variables):
            number, holders = {}, collections.defaultdict(list)
            for line in (s for d in context.documents for s in d.sentences):
                name, source = line[:-1].removeprefix("VAR ").split(" = ")
                number[name] = (
                    number[source.removeprefix("VAR ")] if source.startswith("VAR") else source
                )
                holders[number[name]].append(name)
            for q in context.questions:
                value = next(n for n in holders if n in q.text)
                self.assertEqual(q.answer, ", ".join(holders[value]))

    def test_the_same_for_the_same_seed_and_any_size(self):
        for make, _ in exercises.ALL:
            for count in (1, 2, 3, 60, 300):
                first, second = (make(random.Random(count), count, "train") for _ in range(2))
                self.assertEqual(
                    [d.text for d in first.documents], [d.text for d in second.documents]
                )
                self.assertEqual(
                    [(q.text, q.answer) for q in first.questions],
                    [(q.text, q.answer) for q in second.questions],
                )
                self.assertTrue(first.documents)

    def test_names_of_the_test_split_are_not_drilled(self):
        words = {
            split: {
                w
                for i in range(40)
                for k, _, _ in lines_of(exercises.cards(random.Random(i), 20, split))
                for w in k.split()[:1]
            }
            for split in ("train", "test")
        }
        self.assertFalse(words["train"] & words["test"])


if __name__ == "__main__":
    unittest.main()
