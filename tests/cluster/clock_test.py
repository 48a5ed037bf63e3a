"""Tests of the wrong clocks of cluster_rounds.py: only the time of day is wrong."""

import json
import os
import subprocess
import sys
import time
import unittest

from backends import clock_environment, clock_layer, forget_clock

# Shows the time of day, then how long a wait of each kind lasts.
CHILD = """
import json, queue, select, threading, time
def lasts(wait):
    began = time.monotonic()
    wait()
    return time.monotonic() - began
def until_empty():
    try:
        queue.Queue().get(timeout=0.4)
    except queue.Empty:
        pass
shown = time.time()
print(json.dumps([shown, time.monotonic(), [lasts(w) for w in (
    lambda: threading.Event().wait(0.4), until_empty,
    lambda: select.select([], [], [], 0.4), lambda: select.epoll().poll(0.4))]]))
"""


@unittest.skipUnless(clock_layer(), "Debian's package faketime is not installed")
class WrongClock(unittest.TestCase):
    def test_only_the_time_of_day_is_wrong(self):
        for wrong_s in (-60, 0, 60):
            with self.subTest(wrong_s=wrong_s):
                began, began_monotonic = time.time(), time.monotonic()
                child = subprocess.Popen(
                    [sys.executable, "-c", CHILD],
                    stdout=subprocess.PIPE,
                    env=dict(os.environ, **clock_environment(wrong_s)),
                )
                shown, monotonic, waits = json.loads(child.communicate(timeout=60)[0])
                forget_clock(child.pid)
                self.assertLess(began - 1, shown - wrong_s)
                self.assertLess(shown - wrong_s, time.time() + 1)
                self.assertLess(began_monotonic, monotonic)
                self.assertLess(monotonic, time.monotonic())
                for wait in waits:
                    self.assertGreater(wait, 0.3)
                    self.assertLess(wait, 20)
                left = [n for n in os.listdir("/dev/shm") if n.endswith(f"_{child.pid}")]
                self.assertEqual(left, [])


if __name__ == "__main__":
    unittest.main()
