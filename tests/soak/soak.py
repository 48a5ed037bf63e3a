#!/usr/bin/env python3
"""Uses a service for hours in every way at once, and looks at whether anything grows.

    soak.py --binary QUIRE --model FOLDER [--minutes N] [--looks N] [--seed N] [--keep FOLDER]
            [--json]

Clients change documents, ask questions by every strategy, upload files, leave in the middle, and
send what no client should (traffic.py, and the writers of tests/power). From time to time all of
them rest. Then every document must be as it was acknowledged, answers must be those of a service
that did nothing else, and memory, files, threads and the size of the store are noted. Between the
middle third of these notes and the last one nothing may grow. In the end the service stops, starts
again, and must still have everything.

Exit code 1: something was wrong, or grew. SIGINT ends the traffic early; what was seen counts.
"""

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "power"))
# ruff: noqa: E402
from checks import Checks, Failed, Reference
from expected import Expected, Writer
from service import Client, Gone, Service

from traffic import Asker, Filer, Pest, Sender, Traffic, Watcher, corpus

ASKERS = 3
MIB = 1 << 20
SHOWN = 40  # problems
# By how much the median of the last third may be above that of the middle third: a share of it, or
# so much where that is more.
MAY_GROW = {
    "anonymous_mib": (0.05, 32),
    "files": (0.05, 8),
    "threads": (0.05, 4),
    "store_mib": (0.1, 32),
}
FLAGS = (
    "--disk.max_bytes=96MiB",  # KV is evicted all the time
    "--log.level=info",
)


class RestingWriter(Writer):
    """A writer of tests/power that rests with the other traffic."""

    def __init__(self, expected, number, seed, traffic):
        super().__init__(expected, number, seed, traffic.port, 0)
        self.traffic, self.daemon = traffic, True

    def run(self):
        while self.traffic.go_on():
            try:
                self.step()
                self.traffic.count("change", "done")
            except Gone as error:
                self.traffic.problem(f"the connection ended: {error}")
            finally:
                self.traffic.done()


def measured(process, store):
    """Returns what a process and its store use now."""
    status = {}
    with open(f"/proc/{process}/status", encoding="utf-8") as file:
        for line in file:
            name, _, value = line.partition(":")
            status[name] = value.split()
    blocks = files = 0
    for folder, _, names in os.walk(store):
        for name in names:
            try:
                blocks += os.lstat(os.path.join(folder, name)).st_blocks
                files += 1
            except OSError:
                pass  # deleted meanwhile
    return {
        "anonymous_mib": int(status["RssAnon"][0]) / 1024,
        "resident_mib": int(status["VmRSS"][0]) / 1024,
        "threads": int(status["Threads"][0]),
        "files": len(os.listdir(f"/proc/{process}/fd")),
        "store_mib": blocks * 512 / MIB,
        "store_files": files,
    }


def grown(notes):
    """Returns what grew between the middle third of the notes and the last one."""
    third = len(notes) // 3
    if third < 2:
        return []
    out = []
    for name, (share, least) in MAY_GROW.items():
        middle = statistics.median(n[name] for n in notes[third : 2 * third])
        last = statistics.median(n[name] for n in notes[-third:])
        if last - middle > max(share * middle, least):
            out.append(f"{name} grew from {middle:.1f} to {last:.1f}")
    return out


class Soak:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.store = os.path.join(folder, "store")
        self.log = os.path.join(folder, "soak.log")
        self.expected, self.counts = Expected(), Counter()
        self.reference = Reference(options.binary, options.model, folder)
        self.checks = Checks(self.expected, self.reference, self.counts)
        self.rng = random.Random(options.seed)
        self.notes, self.wrong = [], []
        self.service = self.traffic = None
        self.stopped = threading.Event()

    def start(self):
        flags = (*FLAGS, f"--backup.path={self.folder}/backups")
        self.service = Service(self.options.binary, self.options.model, self.store, self.log, flags)
        if not self.service.wait_until_ready():
            raise Failed(f"the service does not start: {self.service.log()[-3:]}")

    def run(self):
        self.start()
        self.traffic = Traffic(self.service.port, self.options.only)
        sender = Sender(self.traffic)
        corpus(sender)
        info = sender.send("info", "GET", "/v1/info")
        seed = self.options.seed * 1000
        clients = [Asker(self.traffic, seed + i, info) for i in range(ASKERS)]
        if self.traffic.wants("change"):
            clients += [
                RestingWriter(self.expected, i, seed + 10 + i, self.traffic) for i in range(2)
            ]
        clients += [kind(self.traffic, seed + 20) for kind in (Filer, Watcher, Pest)]
        for client in clients:
            client.start()
        seconds = self.options.minutes * 60
        began = time.monotonic()
        for look in range(1, self.options.looks + 1):
            self.traffic.running.set()
            left = began + seconds * look / self.options.looks - time.monotonic()
            early = self.stopped.wait(max(1, left))
            self.traffic.rest()
            self.look(time.monotonic() - began)
            if early or self.service.process.poll() is not None:
                break
        self.traffic.end()
        for client in clients:
            client.join(30)
        self.restart()

    def look(self, seconds):
        """Looks at the service while nobody uses it."""
        client = Client(self.service.port)
        try:
            self.wrong += self.checks.differences(client, self.rng)
        except (Gone, Failed) as error:
            self.wrong.append(f"{error} {self.service.log()[-3:]}")
        self.expected.jobs = []
        with self.expected.mu:
            self.wrong += self.expected.problems
            self.expected.problems = []
        with self.traffic.mu:
            self.wrong += self.traffic.problems
            self.traffic.problems = []
            requests = sum(self.traffic.counts.values())
        if self.service.process.poll() is not None:
            self.wrong.append(f"the service ended with {self.service.process.returncode}")
            return
        client.connection.close()
        time.sleep(1)
        note = {"seconds": seconds, **measured(self.service.process.pid, self.store)}
        self.notes.append({name: round(value, 1) for name, value in note.items()})
        line = {**self.notes[-1], "requests": requests, "wrong": len(self.wrong)}
        print(json.dumps(line), file=sys.stderr, flush=True)

    def restart(self):
        """The end: a stop, and a start with everything there."""
        code = self.service.stop()
        if code != 0:
            self.wrong.append(f"the service stopped with {code}")
        self.said = Counter(
            entry["msg"]
            for entry in self.service.log()
            if entry.get("level") in ("warning", "warn", "error", "text")
        )
        self.log = os.path.join(self.folder, "restart.log")
        self.start()
        self.wrong += self.checks.differences(Client(self.service.port), self.rng)
        self.wrong += grown(self.notes)

    def end(self):
        self.reference.stop()
        if self.service:
            self.service.stop(signal.SIGKILL)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--binary", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--looks", type=int, help="how often all is looked at; default 1 a minute")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--only",
        type=lambda text: text.split(","),
        help="kinds of requests, as traffic.py names them, by commas; 'change' is that of writers",
    )
    parser.add_argument("--keep", help="folder for the logs, and the store if something is wrong")
    parser.add_argument("--json", action="store_true", help="print a result for bench/run")
    options = parser.parse_args()
    if not options.looks:
        options.looks = max(3, min(240, round(options.minutes)))
    with tempfile.TemporaryDirectory(prefix="quire-soak-") as folder:
        soak = Soak(options, os.path.realpath(folder))
        signal.signal(signal.SIGINT, lambda *_: soak.stopped.set())
        signal.signal(signal.SIGTERM, lambda *_: soak.stopped.set())
        try:
            soak.run()
        except (Gone, Failed) as error:
            soak.wrong.append(str(error))
        finally:
            soak.end()
            if options.keep:
                os.makedirs(options.keep, exist_ok=True)
                for name in ("soak.log", "restart.log"):
                    if os.path.exists(os.path.join(folder, name)):
                        shutil.copy(os.path.join(folder, name), options.keep)
                if soak.wrong and os.path.isdir(soak.store):
                    shutil.copytree(soak.store, f"{options.keep}/store", dirs_exist_ok=True)
    for text in soak.wrong[:SHOWN]:
        print(f"wrong: {text}", file=sys.stderr)
    if len(soak.wrong) > SHOWN:
        print(f"and {len(soak.wrong) - SHOWN} more", file=sys.stderr)
    row = {
        "minutes": round(soak.notes[-1]["seconds"] / 60, 1) if soak.notes else 0,
        "requests": sum(soak.traffic.counts.values()) if soak.traffic else 0,
        "looked_at": dict(sorted(soak.counts.items())),
        "acknowledged": dict(sorted(soak.expected.acknowledged.items())),
        "wrong": len(soak.wrong),
        "notes": soak.notes,
        "replies": dict(sorted(soak.traffic.counts.items())) if soak.traffic else {},
        "log": dict(getattr(soak, "said", Counter()).most_common()),
    }
    if options.json:
        print(json.dumps({"settings": {"seed": options.seed}, "rows": [row]}))
    else:
        print(json.dumps(row, indent=1))
    return 1 if soak.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
