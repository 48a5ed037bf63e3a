#!/usr/bin/env python3
"""Holds real_model.py to what it says, with the embedded model and without a GPU.

real_model_test.py QUIRE MODEL
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import real_model

SCRIPT = Path(real_model.__file__)
QUIRE, MODEL = "", ""


def token(text, others):
    top = dict(others)
    return {"token": text, "logprob": top[text], "top": top}


def reply(tokens, **more):
    base = {"answer": "".join(t["token"] for t in tokens), "tokens": tokens, "citations": []}
    return dict(base, fates={}, documents=[], strategy=["reuse", "dense"], **more)


class Compare(unittest.TestCase):
    def test_equal_answers_have_no_difference(self):
        answer = reply([token("a", {"a": -0.1, "b": -3}), token("b", {"b": -0.5})])
        found = real_model.compare(answer, answer)
        self.assertTrue(found["same_answer"] and found["same_citations"])
        self.assertIsNone(found["first_difference"])
        self.assertIsNone(found["margin"])
        self.assertEqual(found["largest_drift"], 0)

    def test_the_margin_is_by_how_much_the_reference_preferred_its_own_word(self):
        first = reply([token("a", {"a": -0.1}), token("b", {"b": -0.5, "c": -2.0})])
        second = reply([token("a", {"a": -0.3}), token("c", {"c": -0.6, "b": -0.7})])
        found = real_model.compare(first, second)
        self.assertFalse(found["same_answer"])
        self.assertEqual(found["first_difference"], 1)
        self.assertAlmostEqual(found["margin"], 1.5)
        self.assertAlmostEqual(found["largest_drift"], 0.2)

    def test_a_word_that_was_not_among_the_likeliest_is_at_least_as_far_as_the_last_of_these(self):
        first = reply([token("b", {"b": -0.5, "c": -4.0})])
        found = real_model.compare(first, reply([token("x", {"x": -0.1})]))
        self.assertAlmostEqual(found["margin"], 3.5)
        self.assertTrue(found["margin_is_least"])

    def test_an_answer_that_ends_earlier_differs_where_it_ends(self):
        long = reply([token("a", {"a": -0.1}), token("b", {"b": -0.5})])
        short = reply([token("a", {"a": -0.1})])
        self.assertEqual(real_model.compare(long, short)["first_difference"], 1)
        self.assertEqual(real_model.compare(short, long)["first_difference"], 1)


class Run(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.out = Path(self.folder.name)

    def tearDown(self):
        self.folder.cleanup()

    def command(self, *more):
        command = [sys.executable, str(SCRIPT), "--quire", QUIRE, "--model", MODEL]
        return command + ["--out", str(self.out), "--questions", "2", "--tokens", "8", *more]

    def run_script(self, *more):
        """Returns the exit status, standard output, and the report."""
        done = subprocess.run(
            self.command(*more),
            stdout=subprocess.PIPE,
            text=True,
            timeout=150,
            env=dict(os.environ, QUIRE_CUDA_LIBRARY="/nowhere/libquire_cuda.so"),
        )
        return done.returncode, done.stdout, json.loads((self.out / "real-model.json").read_text())

    def test_two_services_of_one_backend_answer_alike_also_after_a_kill(self):
        status, text, report = self.run_script(
            "--backends", "cpu,cpu", "--margin", "0", "--seconds", "120"
        )
        self.assertEqual(status, 0, text)
        compared = [c for line in report["table"] for c in line.get("compared", [])]
        self.assertEqual(len(compared), 2 * len(real_model.STRATEGIES))
        self.assertTrue(all(c["same_answer"] and c["same_citations"] for c in compared))
        self.assertGreater(report["killed"]["tiers"]["disk"], 0)
        self.assertEqual([s["exit_status"] for s in report["sides"].values()], [0, 0])

    def test_a_backend_that_does_not_start_shows_its_log_and_the_other_one_answers(self):
        status, text, report = self.run_script("--backends", "cpu,cuda", "--seconds", "120")
        self.assertEqual(status, 1, text)
        self.assertIn("the CUDA backend is not installed (looked for /nowhere/", text)
        self.assertEqual(report["sides"]["cpu"]["exit_status"], 0)
        self.assertEqual(len(report["answers"]), 2 * len(real_model.STRATEGIES))
        self.assertTrue(all("cpu" in row for row in report["answers"].values()))

    def test_who_ends_it_finds_a_report_and_no_service(self):
        process = subprocess.Popen(
            self.command("--backends", "cpu,cpu"),
            stdout=subprocess.PIPE,
            text=True,
            env=dict(os.environ, TMPDIR=self.folder.name),  # names the services below
        )
        for line in process.stdout:
            if "documents" in line:  # the first service has read them
                break
        process.send_signal(signal.SIGTERM)
        begin = time.monotonic()
        text, _ = process.communicate(timeout=20)
        self.assertLess(time.monotonic() - begin, 10)
        self.assertEqual(process.returncode, 1)
        self.assertIn("SIGTERM", text)
        report = json.loads((self.out / "real-model.json").read_text())
        self.assertIn("SIGTERM", report["failures"][-1])
        commands = []
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                commands.append(file.read_text(errors="replace"))
            except OSError:  # it has ended
                pass
        stores = [c for c in commands if f"--disk.path={self.folder.name}" in c]
        self.assertEqual(stores, [])


if __name__ == "__main__":
    QUIRE, MODEL = sys.argv[1], str(Path(sys.argv[2]).resolve())
    unittest.main(argv=sys.argv[:1])
