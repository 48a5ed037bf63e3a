"""python -m unittest discover -s models/tests   (the standard library is enough for this file)"""

import collections
import dataclasses
import json
import random
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import generate
from quire_model import asking, check, names, prefetch, relations
from quire_model.encyclopedia import CHARS_PER_TOKEN, KINDS, Encyclopedia, Style
from quire_model.world import Plan, World, draw_plan

LONG_DOCUMENTS = Style(filler=0.4, document_chars=(200, 4000), num_needles=(0, 8), variables=0.5)


def some_contexts(count, split="train", entities=lambda i: 2 + i % 16):
    """Articles by themselves and documents of several articles, in turn."""
    for i in range(count):
        style = LONG_DOCUMENTS if i % 2 else Style(num_needles=(0, 6), variables=0.3)
        yield Encyclopedia(random.Random(f"test/{split}/{i}"), entities(i), style, split).build()


class AnswersTest(unittest.TestCase):
    def test_every_answer_follows_from_the_statements_and_stands_in_its_supporting_documents(self):
        kinds = collections.Counter()
        for context in some_contexts(300):
            for question in context.questions:
                self.assertEqual(check.errors(context, question), [])
                kinds[question.kind] += 1
        self.assertEqual(set(kinds), set(KINDS))
        self.assertGreater(min(kinds.values()), 20, kinds)

    def test_statements_stand_in_their_documents(self):
        for context in some_contexts(100):
            for s in context.statements:
                self.assertIn(s.value, s.passage.document.text)
                spoken = (
                    context.aliases[s.subject][0] if s.subject in context.aliases else s.subject
                )
                if s.names_subject:
                    self.assertIn(spoken.lower(), s.passage.document.text.lower())

    def test_a_wrong_answer_or_a_missing_document_is_noticed(self):
        noticed = 0
        for context in some_contexts(30):
            for question in context.questions:
                wrong = dataclasses.replace(question, answer=question.answer + "x")
                self.assertTrue(check.errors(context, wrong))
                if question.kind not in ("count", "absent"):
                    self.assertTrue(
                        check.errors(context, dataclasses.replace(question, support=[]))
                    )
                    noticed += 1
        self.assertGreater(noticed, 100)

    def test_support_is_enough_and_nothing_in_it_is_superfluous_for_single_facts(self):
        for context in some_contexts(100):
            for question in context.questions:
                if question.kind == "single":
                    self.assertEqual(len(question.support), 1)
                if question.kind == "continuation":
                    self.assertEqual(len(question.support), 2)
                    order = [context.documents.index(d) for d in question.support]
                    self.assertLess(order[0], order[1])

    def test_continuation_document_does_not_name_its_subject_in_the_fact(self):
        found = 0
        for context in some_contexts(100):
            for s in context.statements:
                if not s.names_subject and s.subject not in context.aliases:
                    found += 1
                    own = [
                        t
                        for t in s.passage.sentences
                        if s.value in t and "VAR" not in t and "magic" not in t
                    ]
                    self.assertTrue(any(s.subject not in t for t in own), (s.subject, own))
        self.assertGreater(found, 200)

    def test_an_update_stands_behind_what_it_corrects(self):
        found = 0
        for context in some_contexts(150):
            for question in (q for q in context.questions if q.kind == "update"):
                found += 1
                _, subject, relation = question.query
                same = [
                    s for s in context.statements if (s.subject, s.relation) == (subject, relation)
                ]
                self.assertGreater(len(same), 1)
                places = [context.documents.index(s.passage.document) for s in same]
                self.assertEqual(places, sorted(places))
                self.assertEqual(question.answer, same[-1].value)
        self.assertGreater(found, 50)

    def test_what_is_absent_is_stated_nowhere(self):
        for context in some_contexts(100):
            stated = {(s.subject, s.relation) for s in context.statements}
            for question in (q for q in context.questions if q.kind == "absent"):
                self.assertNotIn(question.query[1:], stated)
                self.assertEqual(question.answer, "not stated")

    def test_a_chain_of_variables_is_assigned_before_it_is_copied(self):
        found = 0
        for context in some_contexts(100):
            known = set()
            for name, source, _ in context.variables:
                self.assertTrue(source.isdigit() or source in known)
                known.add(name)
                found += 1
        self.assertGreater(found, 50)


class WorldTest(unittest.TestCase):
    def test_same_seed_same_context(self):
        a, b = (Encyclopedia(random.Random(5), 6, LONG_DOCUMENTS).build() for _ in range(2))
        self.assertEqual([d.text for d in a.documents], [d.text for d in b.documents])
        self.assertEqual(
            [(q.text, q.answer) for q in a.questions], [(q.text, q.answer) for q in b.questions]
        )

    def test_names_of_different_splits_share_no_word(self):
        def words(split):
            namer = names.Namer(random.Random(1), split)
            return {
                w.lower()
                for _ in range(2000)
                for w in (namer.person(True) + " " + namer.city() + " " + namer.alias()).split()
            }

        train, validation, test = (words(s) for s in names.SPLITS)
        self.assertFalse(train & validation or train & test or validation & test)

    def test_a_linked_world_follows_its_path(self):
        rng = random.Random(3)
        linked = total = 0
        for _ in range(50):
            plan = draw_plan(rng, "linked", (1, 3))
            world = World(rng, 12, plan)
            for type_, relation in plan.path:
                for entity in world.by_type.get(type_, ()):
                    total += 1
                    linked += entity.facts[relation] in world.by_name
        self.assertGreater(linked / total, 0.5)

    def test_every_relation_can_be_said_and_asked(self):
        for type_, table in relations.RELATIONS.items():
            self.assertIn(type_, relations.DESCRIPTION | {"person": ""})
            for relation in table.values():
                self.assertGreaterEqual(len(relation.statements), 3)
                self.assertTrue(all("{v}" in s for s in relation.statements))
                self.assertTrue(all("{e}" in q for q in relation.questions))
                self.assertGreaterEqual(len(relation.questions), 2)
        for known in (asking.PHRASES, asking.COMPARISONS, asking.GROUPS):
            for type_, relation in known:
                self.assertIn(relation, relations.RELATIONS[type_])
        for (type_, relation), (_, value) in asking.PHRASES.items():
            self.assertEqual(relations.RELATIONS[type_][relation].value, value)

    def test_mixed_plan_has_no_path(self):
        self.assertEqual(Plan("mixed").path, ())


class RecordsTest(unittest.TestCase):
    def written(self, *arguments):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "out.jsonl"
            old, sys.argv = sys.argv, ["generate.py", "--out", str(path), *arguments]
            try:
                generate.main()
            finally:
                sys.argv = old
            return path.read_text()

    def test_records_have_the_documents_asked_for_and_ids_that_exist(self):
        lines = self.written(
            "--seed", "7", "--documents", "6", "--questions", "40", "--check"
        ).splitlines()
        self.assertEqual(len(lines), 40)
        for line in map(json.loads, lines):
            self.assertEqual(set(line), {"documents", "question", "answers", "kind", "supporting"})
            self.assertEqual(len(line["documents"]), 6)
            self.assertLessEqual(set(line["supporting"]), {d["id"] for d in line["documents"]})
            self.assertTrue(line["kind"] == "absent" or line["supporting"])

    def test_the_number_of_workers_does_not_matter(self):
        arguments = ("--seed", "2", "--documents", "5", "--questions", "120")
        self.assertEqual(self.written(*arguments), self.written(*arguments, "--workers", "3"))

    def test_ruler_like_tasks_at_a_chosen_length(self):
        kinds = "needle_multi_key,needle_multi_value,needle_multi_query,variable_tracking"
        lines = self.written(
            "--seed",
            "1",
            "--context-tokens",
            "9000",
            "--document-tokens",
            "60:2000",
            "--questions",
            "12",
            "--kinds",
            kinds,
        ).splitlines()
        for line in map(json.loads, lines):
            self.assertIn(line["kind"], kinds.split(","))
            self.assertAlmostEqual(
                sum(len(d["text"]) for d in line["documents"]) / CHARS_PER_TOKEN / 9000,
                0.9,
                delta=0.11,
            )

    def test_arguments_that_make_no_sense_are_refused(self):
        for bad in (
            ["--documents", "1"],
            ["--kinds", "nothing"],
            ["--document-tokens", "90:60"],
            ["--questions", "0"],
        ):
            with self.assertRaises(SystemExit), open("/dev/null", "w") as quiet:
                error, sys.stderr = sys.stderr, quiet
                try:
                    generate.parse(["--seed", "1", "--questions", "5", "--out", "x", *bad])
                finally:
                    sys.stderr = error


def square(step):
    if step == 11:
        raise ValueError("step 11")
    return step * step


class PrefetchTest(unittest.TestCase):
    def test_order_does_not_depend_on_the_number_of_workers(self):
        for workers in (0, 1, 3):
            batches = prefetch.Prefetcher(square, 4, workers)
            self.assertEqual([batches.next() for _ in range(7)], [s * s for s in range(4, 11)])
            batches.close()

    def test_an_error_in_a_worker_reaches_the_caller(self):
        batches = prefetch.Prefetcher(square, 10, 2)
        self.assertEqual(batches.next(), 100)
        with self.assertRaises(ValueError):
            batches.next()
        batches.close()


if __name__ == "__main__":
    unittest.main()
