#!/usr/bin/env python3
"""Runs fuzz targets one after the other and keeps what they find.

    fuzz_all.py [TARGET...] [--build FOLDER] [--corpora FOLDER] [--minutes N] [--jobs N] [--fresh]

Each target runs until it has had N minutes in all, over all calls with the same corpora: a call
that is interrupted goes on where it stopped. A target's inputs that reach new code stay in
CORPORA/TARGET, the smallest set of them after each call. Inputs that crash, hang or take too much
memory go to CORPORA/found/TARGET-*, and the exit status is 1. `--fresh` forgets the minutes that
targets have had, but not their corpora: after changes of the code.
"""

import argparse
import concurrent.futures
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
SEEDS = os.path.join(ROOT, "tests", "fuzz", "seeds")
COVERAGE = re.compile(r"^#(\d+)\s.*\bcov: (\d+)")
HANG_S, MEMORY_MIB = 10, 2048
LEAST_S = 5  # a shorter rest of a target's minutes is not worth a start


class Corpora:
    """The folder of all corpora, and what each target has had."""

    def __init__(self, folder):
        self.folder, self.mu = folder, threading.Lock()
        self.found = os.path.join(folder, "found")
        os.makedirs(self.found, exist_ok=True)
        self.state = os.path.join(folder, "targets.json")
        self.targets = {}
        if os.path.exists(self.state):
            with open(self.state, encoding="utf-8") as file:
                self.targets = json.load(file)

    def of(self, target):
        folder = os.path.join(self.folder, target)
        os.makedirs(folder, exist_ok=True)
        return folder

    def seconds(self, target):
        return self.targets.get(target, {}).get("seconds", 0)

    def add(self, target, run):
        with self.mu:
            had = self.targets.setdefault(target, {"seconds": 0, "runs": 0, "found": 0})
            for name in ("seconds", "runs", "found"):
                had[name] = round(had[name] + run[name], 1)
            had["coverage"] = max(had.get("coverage", 0), run["coverage"])
            had["quiet_s"] = run["quiet_s"]
            with open(self.state + ".new", "w", encoding="utf-8") as file:
                json.dump(self.targets, file, indent=1, sort_keys=True)
            os.replace(self.state + ".new", self.state)

    def forget_minutes(self, targets):
        for target in targets:
            self.targets.pop(target, None)


class Fuzzing:
    def __init__(self, options, corpora):
        self.options, self.corpora = options, corpora
        self.running, self.mu, self.stopped = set(), threading.Lock(), False

    def program(self, target):
        return os.path.join(self.options.build, "tests", "fuzz", "fuzz_" + target)

    def stop(self):
        with self.mu:
            self.stopped = True
            for process in self.running:
                process.send_signal(signal.SIGINT)

    def start(self, command, folder):
        with self.mu:
            if self.stopped:
                return None
            process = subprocess.Popen(
                command,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,  # Ctrl-C is for this program, which then stops each
                env={**os.environ, "TMPDIR": folder},
            )
            self.running.add(process)
        return process

    def fuzz(self, target, seconds):
        """Returns what a run did; None: none was started."""
        crash = os.path.join(self.corpora.found, target + "-")
        with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="quire-fuzz-") as folder:
            began = last_new = time.monotonic()
            process = self.start(
                [self.program(target), f"-max_total_time={int(seconds)}", f"-timeout={HANG_S}"]
                + [f"-rss_limit_mb={MEMORY_MIB}", f"-artifact_prefix={crash}"]
                + [self.corpora.of(target), os.path.join(SEEDS, target)],
                folder,
            )
            if process is None:
                return None
            out = {"runs": 0, "coverage": 0, "found": 0, "end": []}
            for line in process.stderr:
                out["end"] = [*out["end"][-40:], line.rstrip()]
                match = COVERAGE.match(line)
                if not match:
                    continue
                out["runs"] = int(match[1])
                if int(match[2]) > out["coverage"]:
                    out["coverage"], last_new = int(match[2]), time.monotonic()
            failed = process.wait() not in (0, -signal.SIGINT, 72, 130)
            with self.mu:
                self.running.discard(process)
            out["found"] = int(failed)
            out["seconds"] = time.monotonic() - began
            out["quiet_s"] = round(time.monotonic() - last_new, 1)
            return out

    def shrink(self, target):
        """Keeps of a corpus only what reaches code that nothing else in it reaches."""
        folder = self.corpora.of(target)
        with tempfile.TemporaryDirectory(dir=self.corpora.folder, prefix="merge-") as small:
            process = self.start(
                [self.program(target), "-merge=1", small, folder], self.corpora.folder
            )
            if process is None:
                return
            process.communicate()
            with self.mu:
                self.running.discard(process)
            if process.returncode == 0 and os.listdir(small):
                shutil.rmtree(folder)
                shutil.copytree(small, folder)

    def whole(self, target):
        """Gives a target the rest of its minutes. Returns whether it found nothing."""
        left = 60 * self.options.minutes - self.corpora.seconds(target)
        if left < LEAST_S:
            return True
        out = self.fuzz(target, left)
        if out is None:
            return True
        self.corpora.add(target, out)
        if not out["found"]:
            self.shrink(target)
        had = self.corpora.targets[target]
        print(
            f"{target:22} {out['runs']:>11,} runs in {out['seconds']:6.0f} s, "
            f"{had['seconds'] / 60:5.1f} min in all, {len(os.listdir(self.corpora.of(target))):5} "
            f"inputs kept, {out['coverage']:6} edges, none new for {out['quiet_s']:.0f} s"
            + (", FOUND SOMETHING" if out["found"] else ""),
            flush=True,
        )
        if out["found"]:
            print("\n".join("    " + line for line in out["end"]), flush=True)
        return not out["found"]


def targets_of(build):
    folder = os.path.join(build, "tests", "fuzz")
    if not os.path.isdir(folder):
        return []
    return sorted(
        name[len("fuzz_") :]
        for name in os.listdir(folder)
        if name.startswith("fuzz_") and os.access(os.path.join(folder, name), os.X_OK)
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("targets", nargs="*", help="names without fuzz_; default: all")
    parser.add_argument("--build", default=os.path.join(ROOT, "build", "fuzz"))
    parser.add_argument("--corpora", help="default: BUILD/corpora")
    parser.add_argument("--minutes", type=float, default=1, help="of each target in all (1)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="targets at once")
    parser.add_argument("--fresh", action="store_true")
    options = parser.parse_args()
    built = targets_of(options.build)
    unknown = sorted(set(options.targets) - set(built))
    if not built or unknown:
        names = ", ".join(unknown) or "any target"
        sys.exit(f"error: {options.build} has not {names}: scripts/dev build fuzz")
    corpora = Corpora(options.corpora or os.path.join(options.build, "corpora"))
    targets = sorted(options.targets or built, key=corpora.seconds)
    if options.fresh:
        corpora.forget_minutes(targets)
    fuzzing = Fuzzing(options, corpora)
    signal.signal(signal.SIGINT, lambda *_: fuzzing.stop())
    signal.signal(signal.SIGTERM, lambda *_: fuzzing.stop())
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        clean = list(pool.map(fuzzing.whole, targets))
    if not all(clean):
        sys.exit(f"error: {clean.count(False)} targets found something: see {corpora.found}")
    if fuzzing.stopped:
        sys.exit(130)


if __name__ == "__main__":
    main()
