#!/usr/bin/env python3
"""Damages the folder of a service's store, and looks at what its clients then find.

    damage_rounds.py --binary QUIRE --model FOLDER [--layer libquire_unsynced_layer.so]
                     [--rounds N] [--first N] [--seed N] [--keep FOLDER] [--failures N] [--json]

Clients fill a store (the writers of tests/power). A round copies it, damages one file or two
(damage.py), or the log with one or both of the files that count its writes, and starts a service on
it with one of the values of `disk.on_damage`. Damage outside the record may keep no service from
starting. Where the record is damaged a service may refuse, naming `quire store repair`, and must
start after it. Then each document must be as it was acknowledged, or what happened to it must be
said: by id in the report of the repair, by a number in `/healthz`, or by an error of the request.
Only where the log and both files that count its writes are damaged a loss may be silent, and it is
counted by that name. Text that nobody wrote, and an answer that is not that of a whole store, are
never right.

With --layer, the library of tests/power, `quire store repair --apply` is killed at calls that
change a file, in some rounds together with the power. Then either a service starts on what it left
or the repair runs again, and all is looked at as ever.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "power"))
# ruff: noqa: E402
import disk_image
from checks import Checks, Failed, Reference
from expected import Writer, question
from losses import Remembered, look_at, said, untold
from repairs import Repairs
from service import Client, Gone, Service, StartFailed, wait_for_end

from damage import LEDGERS, choose, choose_log_and, in_record

WRITERS = 4
ROUNDS_A_STORE = 10
TOGETHER = 0.2  # share of rounds that damage the log with what counts its writes
LOGS = ("check.log", "repair.log", "after.log", "again.log")
MODES = ("refuse", "salvage", "text_only")


class Rounds:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.counts, self.ends, self.deaths = Counter(), Counter(), Counter()
        self.repairs = Repairs(options, folder, self.counts, self.deaths)
        self.reference = Reference(options.binary, options.model, folder)
        self.expected = self.checks = self.service = None
        self.starts_ms = []

    def path(self, name):
        return os.path.join(self.folder, name)

    def start(self, store, log, *flags):
        """Returns whether the service is ready."""
        began = time.monotonic()
        self.service = Service(
            self.options.binary, self.options.model, store, self.path(log), flags
        )
        ready = self.service.wait_until_ready()
        if ready:
            self.starts_ms.append((time.monotonic() - began) * 1000)
        return ready

    def fill(self, number):
        """Makes the store that the next rounds damage: by one service or by two, of which the last
        one stops or is killed. All that is asked for is acknowledged before."""
        rng = random.Random(f"{self.options.seed}/store/{number // ROUNDS_A_STORE}")
        whole = self.path("whole")
        disk_image.remove_folder(whole)
        os.mkdir(whole)
        self.expected = Remembered()
        checks = self.checks = Checks(self.expected, self.reference, Counter())
        for _ in range(rng.choice((1, 2))):
            if not self.start(os.path.join(whole, "store"), "fill.log"):
                raise Failed(f"the whole store does not start: {self.service.log()[-3:]}")
            until = time.monotonic() + rng.uniform(0.5, 2)
            writers = [
                Writer(self.expected, i, rng.randrange(1 << 30), self.service.port, until)
                for i in range(WRITERS)
            ]
            for writer in writers:
                writer.start()
            for writer in writers:
                writer.join()
            wrong = checks.differences(Client(self.service.port), rng)
            if wrong:
                raise Failed(f"the whole store: {wrong}")
            self.service.stop(rng.choice((signal.SIGTERM, signal.SIGKILL)))

    def run(self, number):
        if self.expected is None or number % ROUNDS_A_STORE == 0:
            self.fill(number)
        rng = random.Random(f"{self.options.seed}/{number}")
        work = self.path("work")
        disk_image.remove_folder(work)
        disk_image.copy_folder(self.path("whole"), work)
        store = os.path.join(work, "store")
        # Of its own, so that other rounds are as they would be without these.
        together = random.Random(f"{self.options.seed}/{number}/together")
        if together.random() < TOGETHER:
            ledgers = together.choice((LEDGERS[:1], LEDGERS[1:], LEDGERS))
            damaged = choose_log_and(store, ledgers, together)
            self.counts[f"rounds of a log and {len(ledgers)} of its ledgers"] += 1
        else:
            damaged = choose(store, rng, 2 if rng.random() < 0.3 else 1)
        self.what = "; ".join(f"{kind} {name}" for name, kind in damaged)
        for name, kind in damaged:
            self.counts[f"damage: {kind}"] += 1
            self.counts["of the record" if in_record(name) else "outside the record"] += 1
        mode = rng.choice(MODES)
        if self.options.verbose:
            print(f"round {number}: {mode}: {self.what}", file=sys.stderr, flush=True)
        for log in LOGS:
            if os.path.exists(self.path(log)):
                os.remove(self.path(log))
        flag = f"--disk.on_damage={mode}"
        # Of its own, so that a round damages and starts the same without the layer.
        kills = random.Random(f"{self.options.seed}/{number}/kills") if self.options.layer else None
        if kills and any(in_record(name) for name, _ in damaged) and kills.random() < 0.4:
            self.repairs.kill(store, kills)
        ready = self.start(store, "check.log", flag)
        if not ready:
            self.refused(store, mode, damaged, kills)
            if not self.start(store, "after.log", flag):
                raise Failed(f"no start after a repair: {self.service.log()[-3:]}")
        self.check(store, rng, damaged)
        code = self.service.stop()
        if code != 0:
            raise Failed(f"the service stopped with {code}")
        if rng.random() < 0.3 and not self.start(store, "again.log"):
            raise Failed(f"no second start: {self.service.log()[-3:]}")
        self.service.stop()

    def refused(self, store, mode, damaged, kills):
        """A service that did not start: it must say why, and a repair must mend it."""
        errors = [e for e in self.service.log() if e.get("msg") == "the service cannot start"]
        if not errors:
            raise Failed(f"the service ended: {self.service.process.returncode}")
        reason = errors[0]["reason"]
        if mode != "refuse" or not any(in_record(name) for name, _ in damaged):
            raise Failed(f"no start with {mode}: {reason}")
        if "quire store repair" not in reason:
            raise Failed(f"a refusal without a way out: {reason}")
        self.ends["refused, then repaired"] += 1
        command = [self.options.binary, "store", "repair", "--path", store]
        dry = self.repair(command)
        killed = kills and kills.random() < 0.5
        if killed:
            self.repairs.kill(store, kills)
        done = self.repair([*command, "--apply"])
        # One that was killed may have replaced the record, which then is whole.
        if dry not in (0, 2) or done not in ((0, 2) if killed else (dry,)):
            raise Failed(f"repair: {dry}, then {done}: see repair.log")

    def repair(self, command):
        log = self.path("repair.log")
        with open(log, "ab") as out:
            return wait_for_end(subprocess.Popen(command, stdout=out, stderr=out), log)

    def check(self, store, rng, damaged):
        client = Client(self.service.port)
        self.checks.wait_for_jobs(client)
        named, general = said(store, client.call("GET", "/healthz")[1])
        there, wrong, unnamed = {}, [], []
        for name in sorted(self.expected.allowed):
            self.counts["documents"] += 1
            end, found, shown = look_at(self.expected, client, name)
            if end in ("gone", "older"):
                if name in named:
                    end += ", named"
                elif general:
                    unnamed.append((name, end))
                    end += ", said by " + " and ".join(sorted(general))
                elif self.ledgers_are_gone(damaged):
                    end += " silently, with both ledgers"
                else:
                    wrong.append(f"{name} is {end} without a word")
            elif end == "wrong":
                wrong.append(f"{name}: {shown}")
            self.ends[end] += 1
            if found:
                there[name] = found
        self.ends["more than the words say"] += len(untold(unnamed, general, self.expected))
        lasting = sorted(n for n, d in there.items() if not d.expires)
        for name in rng.sample(lasting, min(4, len(lasting))):
            status, reply = client.call("POST", "/v1/query", question([name]))
            document = there[name]
            right = self.reference.answer(document.number, document.title)
            if status == 200:
                self.counts["answers"] += 1
                if reply["answer"] != right:
                    wrong.append(f"answer over {name}: {reply['answer']!r} instead of {right!r}")
            else:
                self.counts[f"queries refused: {reply.get('code', reply.get('type'))}"] += 1
        status, verified = client.call("POST", "/v1/admin/cache/verify")
        if status != 200:
            wrong.append(f"verify: {status} {verified}")
        else:
            self.counts["bad after the start"] += verified["bad"]
        if wrong:
            raise Failed("; ".join(wrong))

    def ledgers_are_gone(self, damaged):
        """Whether the log and all that counts its writes are damaged, which looks as if nothing had
        been written."""
        names = {name for name, _ in damaged}
        log = any(in_record(n) and (n.endswith(".log") or "MANIFEST" in n) for n in names)
        return log and names.issuperset(LEDGERS)

    def keep(self, number):
        if not self.options.keep:
            return
        to = os.path.join(self.options.keep, str(number))
        disk_image.remove_folder(to)
        os.makedirs(to)
        for name in ("whole", "work"):
            disk_image.copy_folder(self.path(name), os.path.join(to, name))
        for log in ("fill.log", *LOGS, "repair.notes"):
            if os.path.exists(self.path(log)):
                disk_image.copy_sparse(self.path(log), os.path.join(to, log))

    def end(self):
        self.reference.stop()
        if self.service:
            self.service.stop(signal.SIGKILL)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--binary", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--layer", help="library that kills repairs")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="number of the first round")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", help="folder for what a failed round leaves")
    parser.add_argument("--failures", type=int, default=0, help="failed rounds to go on after")
    parser.add_argument("--json", action="store_true", help="print a result for bench/run")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    failures = done = 0
    with tempfile.TemporaryDirectory(prefix="quire-damage-") as folder:
        rounds = Rounds(options, os.path.realpath(folder))
        try:
            for number in range(options.first, options.first + options.rounds):
                try:
                    rounds.run(number)
                    done += 1
                except (Failed, Gone, StartFailed) as error:
                    failures += 1
                    what = getattr(rounds, "what", "")
                    print(f"round {number}, seed {options.seed}, {what}: {error}", file=sys.stderr)
                    rounds.service.stop(signal.SIGKILL)
                    rounds.keep(number)
                    if failures > options.failures:
                        break
        except KeyboardInterrupt:
            print("interrupted: the result is that of the rounds until now", file=sys.stderr)
        finally:
            rounds.end()
    starts = sorted(rounds.starts_ms)
    row = {
        "rounds": done,
        "failed_rounds": failures,
        "looked_at": dict(sorted(rounds.counts.items())),
        "documents": dict(rounds.ends.most_common()),
        "deaths": dict(sorted(rounds.deaths.items())),
        "start_ms_median": round(starts[len(starts) // 2]) if starts else None,
        "start_ms_most": round(starts[-1]) if starts else None,
    }
    if options.json:
        print(json.dumps({"settings": {"seed": options.seed}, "rows": [row]}))
    else:
        print(json.dumps(row, indent=1))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
