#!/usr/bin/env python3
"""Cuts the power under a service again and again, and looks at what its clients then find.

    power_rounds.py --binary QUIRE --layer libquire_unsynced_layer.so --model FOLDER [--rounds N]
                    [--seed N] [--die power|kill|fail|misdirect] [--keep FOLDER] [--json]

A round starts the service on a copy of the disk. Four clients add, replace, change, pin and delete
documents until the service dies before the n-th call that changes a file, or stops. With
`--die power` the disk then holds what was synced, and of the rest what the seed chooses
(disk_image.py); with `--die kill` it holds everything that was written. A service that is started
on this disk must have every document as it was acknowledged, without half a change, and must
answer as a service that never died. The next round goes on with this disk.

With `--die fail` the service lives on while calls fail from the n-th on: one, some or all, with an
I/O error or a full disk, after half of a write or before it. In other rounds reads fail or come
from another place of the file, or the wall clock jumps. Then the service stops or is killed.

With `--die misdirect` writes go astray and nobody is told: some of one kind of file go nowhere, are
torn, or land at another place of the file or in another one. Documents may be lost then, but not
without a word: a service that refuses to start must say so and start after a repair, and each
document must be as it was acknowledged, be unreadable, or be named as lost, or the service must say
how many writes it has lost. Texts and answers that are wrong are never right.

In the first round the store is new and nothing survives that was not synced. In the second the
service stops, and of what was not synced only the seal survives. Some later ones are like these.

Some clients export documents, import them again and make backups, and sometimes the store is
repaired before it starts, and the repair killed.

A round that fails leaves the disk before it, the notes and the disk after it in --keep, and of
this round and the two before it the logs and what was expected when the service had died.
"""

import argparse
import errno
import glob
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter

import disk_image
from checks import CHATS, PATH_OF_CHAT, Checks, Failed, Reference, answer_of
from expected import Writer, chat, question
from losses import Remembered, look_at, said
from service import Client, Gone, Service, StartFailed

WRITERS = 4
LOGS = ("load", "check", "repair", "after", "expected")
# Of which files writes go astray, and which write is the last one that may be the first of these.
ASTRAY = (
    (".log", 30), (".log", 150), (".log", 500), ("MANIFEST", 12), (".sst", 12), ("LEDGER", 150),
    ("/extents/", 100), ("/prompts/", 3), ("dbtmp", 2), ("SEAL", 1), ("", 800),
)  # fmt: skip
NUMBER = re.compile(r"^(\d+) (?:acknowledged writes|writes: )")
OLD_LOGS = 2  # rounds before the last one whose logs are kept


def log_name(name, age):
    """Returns the file of a log, so many rounds ago."""
    return f"{name}.{age}.log" if age else f"{name}.log"


class Rounds:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.disk = os.path.join(folder, "disk")  # before a round
        os.mkdir(self.disk)
        self.expected = Remembered(options.die in ("fail", "misdirect"))
        self.reference = Reference(options.binary, options.model, folder)
        self.service = None  # of the round under way
        self.counts = Counter()
        self.checks = Checks(self.expected, self.reference, self.counts)
        self.said = Counter()  # warnings and errors of the services that started after a failure
        self.starts_ms = []

    def path(self, name):
        return os.path.join(self.folder, name)

    def run(self, number):
        rng = random.Random(f"{self.options.seed}/{number}")
        self.expected.jobs = []
        flags = rng.choice(((), (), ("--disk.max_bytes=100MiB",)))
        # Backups lie on another disk, which does not fail.
        flags += (f"--backup.path={self.path('backups')}", "--backup.every_hours=0")
        ordered = rng.random() < 0.4
        early = rng.random() < 0.2
        cut_at = rng.randint(1, 90) if early else rng.randint(60, 60 + rng.choice((200, 1500)))
        nth = number - self.options.first
        stop = nth == 1 or rng.random() < 0.15
        if stop:
            cut_at = rng.randint(150, 1500) if nth > 1 else 0
        worst = nth <= 1 or rng.random() < 0.1
        if worst:
            ordered = False
        if worst and not stop:
            cut_at = rng.randint(300, 600)
        if (worst and not stop) or rng.random() < 0.1:  # a store that is new
            disk_image.remove_folder(self.disk)
            os.mkdir(self.disk)
            self.expected.allowed = {}
        kind = "worst" if worst else "ordered" if ordered else "adversarial"
        self.note(f"round {number}: cut at {cut_at}, {kind}")
        work, notes, image = self.path("work"), self.path("notes"), self.path("image")
        disk_image.remove_folder(work)
        disk_image.copy_folder(self.disk, work)
        watched = {
            "LD_PRELOAD": self.options.layer,
            "QUIRE_POWER_FOLDER": work,
            "QUIRE_POWER_NOTES": notes,
            "QUIRE_POWER_CUT_AT": str(cut_at),
            "QUIRE_POWER_SYNC_US": str(rng.choice((0, 2000, 8000))),
            "QUIRE_POWER_SEED": str(rng.randrange(1 << 30)),
        }
        if self.options.die == "fail":
            watched |= self.failures(rng)
        if self.options.die == "misdirect":
            watched |= self.misdirections(rng)
            if rng.random() < 0.3:
                flags += ("--disk.record_copies=2",)
                self.counts["rounds with a second copy"] += 1
        self.age_logs()
        self.load(work, flags, watched, rng, stop)
        with open(self.path("expected.log"), "w", encoding="utf-8") as file:
            file.write("".join(line + "\n" for line in self.expected.shown()))
        disk = disk_image.Disk(self.disk, ordered)
        disk.replay(disk_image.read_notes(notes))
        if wrong := disk.check_against(work):
            raise Failed(f"the notes are not what happened: {wrong}")
        if self.options.die == "power":
            lost = disk.fail(rng, worst, ("SEAL",) if stop else ())
            self.counts["bytes lost"] += lost["bytes"]
            self.counts["names lost"] += lost["names"]
            self.note(f"  lost {lost['bytes']} bytes, {lost['names']} names")
            disk_image.remove_folder(image)
            disk.write(image)
        else:
            disk_image.remove_folder(image)
            disk_image.copy_folder(work, image)
        if self.options.die == "misdirect":
            self.check_losses(image, flags, rng)
        else:
            self.check(image, flags, rng)
        self.counts[kind] += 1
        disk_image.remove_folder(self.disk)
        os.rename(image, self.disk)

    def failures(self, rng):
        """Returns the environment of a round whose calls fail, or whose clock jumps."""
        clock = rng.random() < 0.25
        reads = not clock and rng.random() < 0.3
        at, calls = rng.randint(1, rng.choice((60, 600, 3000))), rng.choice((1, 1, 5, 60, 1 << 40))
        error = rng.choice((errno.EIO, errno.ENOSPC))
        if reads:
            calls, error = rng.choice((1, 3, 20)), rng.choice((errno.EIO, 0))
        kind = "clock" if clock else "read" if reads else errno.errorcode[error]
        self.counts[f"{kind} rounds"] += 1
        self.note(f"  {kind}: {calls} calls from {at} on")
        if clock:
            return {"QUIRE_POWER_CUT_AT": "0", "QUIRE_POWER_CLOCK_S": rng.choice(("900", "-900"))}
        name = "QUIRE_POWER_READ" if reads else "QUIRE_POWER_FAIL"
        return {
            "QUIRE_POWER_CUT_AT": "0",
            name + "_AT": str(at),
            name + "_CALLS": str(calls),
            name + "_ERRNO": str(error),
            "QUIRE_POWER_FAIL_TORN": str(rng.randrange(2)),
        }

    def misdirections(self, rng):
        """Returns the environment of a round some of whose writes go astray."""
        file, most = rng.choice(ASTRAY)
        kind = rng.choice(("lost", "torn", "moved", "other"))
        at, calls = rng.randint(1, most), rng.choice((1, 1, 1, 3, 20))
        self.note(f"  {kind}: {calls} writes of '{file}' from {at} on")
        return {
            "QUIRE_POWER_CUT_AT": "0",
            "QUIRE_POWER_MISDIRECT_AT": str(at),
            "QUIRE_POWER_MISDIRECT_CALLS": str(calls),
            "QUIRE_POWER_MISDIRECT_FILE": file,
            "QUIRE_POWER_MISDIRECT_KIND": kind,
        }

    def age_logs(self):
        """Makes room for the logs of the next round: `load.log` becomes `load.1.log`."""
        for name in LOGS:
            for age in reversed(range(OLD_LOGS)):
                newer = self.path(log_name(name, age))
                if os.path.exists(newer):
                    os.replace(newer, self.path(log_name(name, age + 1)))

    def load(self, work, flags, watched, rng, stop):
        """Runs the service and its clients until it dies. With `stop` it is told to stop after a
        while, and the power fails during that or right after it."""
        store = os.path.join(work, "store")
        service = self.service = Service(
            self.options.binary, self.options.model, store, self.path("load.log"), flags, watched
        )
        wrong = []
        seeds = [rng.randrange(1 << 30) for _ in range(WRITERS)]
        if service.wait_until_ready():
            seconds = rng.uniform(0.2, 1) if stop else self.options.seconds
            until = time.monotonic() + seconds
            writers = [
                Writer(self.expected, i, seeds[i], service.port, until) for i in range(WRITERS)
            ]
            for writer in writers:
                writer.start()
            while "QUIRE_POWER_CLOCK_S" in watched and any(w.is_alive() for w in writers):
                time.sleep(rng.uniform(0.05, 0.4))
                if service.process.poll() is None:
                    service.process.send_signal(signal.SIGRTMIN + 6)
            for writer in writers:
                writer.join()
            alive = service.process.poll() is None
            if alive and self.options.die == "misdirect":
                wrong = self.look_while_it_lives(rng)
            self.counts["deaths at a stop" if stop and alive else "deaths in work"] += 1
        else:
            self.counts["deaths in start"] += 1
        code = service.stop(signal.SIGTERM) if stop else service.cut()
        self.note("  dead")
        if self.expected.failing:
            # It may refuse to start and end with an error, but not crash. A RocksDB that is built
            # with assertions ends a process that goes on after a torn write.
            if code == -signal.SIGABRT and "rocksdb::WritableFileWriter" in str(service.log()[-1]):
                self.counts["assertions of RocksDB"] += 1
            elif code not in (0, 1, -signal.SIGKILL):
                raise Failed(f"the service ended by itself with {code}: {service.log()[-3:]}")
        elif code != -signal.SIGKILL and not (stop and code == 0):
            raise Failed(f"the service ended by itself with {code}: {service.log()[-3:]}")
        if self.options.die == "misdirect":
            self.astray = [e["msg"] for e in service.log() if "astray:" in e.get("msg", "")]
            self.counts["writes astray"] += len(self.astray)
            self.counts["rounds with writes astray"] += bool(self.astray)
        if self.expected.problems:
            raise Failed(f"refused: {self.expected.problems[:3]}")
        if wrong:
            raise Failed("; ".join(wrong))

    def repair(self, image, rng):
        """Kills a repair of the store, which is whole, at some call, or lets it end."""
        watched = {
            "LD_PRELOAD": self.options.layer,
            "QUIRE_POWER_FOLDER": image,
            "QUIRE_POWER_NOTES": self.path("notes"),
            "QUIRE_POWER_CUT_AT": str(rng.randint(1, 400)),
        }
        command = [self.options.binary, "store", "repair", "--apply", "--path"]
        done = subprocess.run(
            [*command, os.path.join(image, "store")], env=dict(os.environ, **watched),
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=60, check=False,
        )  # fmt: skip
        killed = done.returncode == -signal.SIGKILL
        self.counts["repairs killed" if killed else "repairs"] += 1
        # Exit code 2: something may be lost, as the end of a log that a failing disk tore.
        if not killed and done.returncode not in ((0, 2) if self.options.die == "fail" else (0,)):
            raise Failed(f"a repair ended with {done.returncode}: {done.stderr[-300:]}")

    def check(self, image, flags, rng):
        store = os.path.join(image, "store")
        if os.path.isdir(store) and rng.random() < 0.12:
            self.repair(image, rng)
        began = time.monotonic()
        service = self.service = Service(
            self.options.binary, self.options.model, store, self.path("check.log"), flags
        )
        try:
            if not service.wait_until_ready():
                raise Failed(f"the service does not start: {service.log()[-3:]}")
            self.starts_ms.append((time.monotonic() - began) * 1000)
            client = Client(service.port)
            wrong = self.checks.differences(client, rng)
            status, made = client.call("POST", "/v1/admin/backup")
            self.counts["backups"] += 1
            if status != 200:
                wrong.append(f"no backup: {status} {made}")
        except Gone as error:
            raise Failed(f"the service went away: {error} {service.log()[-3:]}") from error
        finally:
            clean = rng.random() < 0.5
            code = service.stop(signal.SIGTERM if clean else signal.SIGKILL)
        for entry in service.log():
            if entry.get("level") in ("warning", "warn", "error", "text"):
                self.said[entry["msg"]] += 1
        if wrong:
            raise Failed("; ".join(wrong))
        if clean and code != 0:
            raise Failed(f"the service stopped with {code}")

    def look_while_it_lives(self, rng):
        """Looks at all documents and asks over some, after the work of a round. Returns what is
        wrong: a service that lives may have lost access to documents, and nothing else."""
        client = Client(self.service.port)
        wrong, there = [], {}
        try:
            self.checks.wait_for_jobs(client)
            # Where it could not save that a job failed, a start does this job again.
            calm = not any(e.get("level") == "error" for e in self.service.log())
            for name in sorted(self.expected.allowed):
                end, found, shown = look_at(self.expected, client, name)
                self.counts[f"alive: {end}"] += 1
                if end == "as it was":
                    if calm:
                        self.expected.allowed[name] = [found]
                    if found:
                        there[name] = found
                elif end not in ("unreadable", "failed"):
                    wrong.append(f"while it lives {name} is {end}: {shown}")
            client.call("POST", "/v1/admin/cache/evict", {"tier": "dram"})
            return wrong + self.wrong_answers(client, there, rng)
        except Gone:  # its exit code says more
            return wrong

    def wrong_answers(self, client, there, rng):
        """Asks over some documents, id -> value. Returns what is wrong; an error is not."""
        wrong = []
        lasting = sorted(n for n, d in there.items() if not d.expires)
        for name in rng.sample(lasting, min(4, len(lasting))):
            status, reply = client.call("POST", "/v1/query", question([name]))
            document = there[name]
            if status != 200:
                self.counts["queries refused"] += 1
                continue
            self.counts["answers"] += 1
            if reply["answer"] != self.reference.answer(document.number, document.title):
                wrong.append(f"answer over {name}: {reply}")
        return wrong

    def start_damaged(self, store, flags, rng):
        """Starts a service on a store that may be damaged. Where it refuses to, it must say why,
        and the store is repaired by a start or by the command."""
        service = self.service = Service(
            self.options.binary, self.options.model, store, self.path("check.log"), flags
        )
        if service.wait_until_ready():
            return service
        errors = [e for e in service.log() if e.get("msg") == "the service cannot start"]
        if not errors:
            raise Failed(f"the start ended with {service.process.returncode}: {service.log()[-3:]}")
        reason = errors[0]["reason"]
        self.note(f"  refused: {reason}")
        if "quire store repair" not in reason:
            raise Failed(f"a refusal without a way out: {reason}")
        salvage = rng.random() < 0.7
        self.counts["refused, then salvaged" if salvage else "refused, then repaired"] += 1
        if salvage:
            flags += ("--disk.on_damage=salvage",)
        else:
            command = [self.options.binary, "store", "repair", "--apply", "--path", store]
            if "--disk.record_copies=2" in flags:
                command += ["--copy", store + "-copy"]
            with open(self.path("repair.log"), "wb") as out:
                code = subprocess.run(
                    command, stdout=out, stderr=out, timeout=60, check=False
                ).returncode
            if code not in (0, 2):
                raise Failed(f"repair: {code}: see repair.log")
        service = self.service = Service(
            self.options.binary, self.options.model, store, self.path("after.log"), flags
        )
        if not service.wait_until_ready():
            raise Failed(f"no start after a repair: {service.log()[-3:]}")
        return service

    def check_losses(self, image, flags, rng):
        """Starts the service on a disk on which writes went astray. What is lost must be said."""
        store = os.path.join(image, "store")
        began = time.monotonic()
        service = self.start_damaged(store, flags, rng)
        self.starts_ms.append((time.monotonic() - began) * 1000)
        try:
            unreadable = self.losses(store, Client(service.port), rng)
        except Gone as error:
            raise Failed(f"the service went away: {error} {service.log()[-3:]}") from error
        finally:
            code = service.stop(signal.SIGTERM)
        for entry in service.log():
            if entry.get("level") in ("warning", "warn", "error", "text"):
                self.said[entry["msg"]] += 1
        if code != 0:
            raise Failed(f"the service stopped with {code}")
        for kept in glob.glob(os.path.join(store, "damaged-*")):
            disk_image.remove_folder(kept)  # as an operator does who has read the report
        if unreadable:
            self.begin_anew()
            for name in os.listdir(image):  # a second copy, too
                disk_image.remove_folder(os.path.join(image, name))

    def losses(self, store, client, rng):
        """Returns the documents that cannot be read. Raises Failed for what is wrong, or lost
        without a word."""
        self.checks.wait_for_jobs(client)
        health = client.call("GET", "/healthz")[1]
        named, general = said(store, health)
        for name in general:
            self.counts[f"said: {name}"] += 1
        if general:
            self.note(f"  said: {health['checks']}")
        wrong, there, unnamed, unreadable = [], {}, [], []
        for name in sorted(self.expected.allowed):
            self.counts["documents"] += 1
            end, found, shown = look_at(self.expected, client, name)
            if end == "wrong":
                wrong.append(f"{name}: {shown}")
            elif end in ("gone", "older") and name in named:
                end += ", named"
            elif end in ("gone", "older"):
                unnamed.append(f"{name} is {end}")
                end += ", said by " + " and ".join(sorted(general)) if general else ", silently"
            elif end in ("unreadable", "failed"):
                unreadable.append(name)
            self.counts[f"found: {end}"] += 1
            self.expected.allowed[name] = [found]
            if found:
                there[name] = found
        if unnamed and not self.tells_of(unnamed, general):
            wrong.append(f"without a word in {health['checks']}: {unnamed}")
        wrong += self.wrong_answers(client, there, rng)
        number = rng.randrange(CHATS)
        status, reply = client.call("POST", PATH_OF_CHAT, chat(number))
        if status == 200 and answer_of(reply) != self.reference.chat(number):
            wrong.append(f"answer in chat {number}")
        status, listed = client.call("GET", "/v1/documents?limit=100")
        if status == 200:
            listed = {d["id"] for d in listed["data"]} - set(unreadable)
            expiring = {n for n, d in there.items() if d.expires}
            if listed - set(there) or set(there) - listed - expiring:
                wrong.append(f"the list has {sorted(listed)}, there are {sorted(there)}")
        status, verified = client.call("POST", "/v1/admin/cache/verify")
        if status != 200:
            wrong.append(f"verify: {status} {verified}")
        else:
            self.counts["bad after the start"] += verified["bad"]
        if wrong:
            raise Failed("; ".join(wrong))
        return unreadable

    def tells_of(self, unnamed, general):
        """Whether what a service or a repair says in general holds for documents that it does not
        name: that many writes are lost, or that it cannot know all of them."""
        texts = "\n".join(general.values())
        if "there may be more" in texts or "some may be back" in texts or "at least" in texts:
            return True
        number = NUMBER.match(general.get("lost_writes", ""))
        return number is not None and len(unnamed) <= int(number[1])

    def note(self, text):
        if self.options.verbose:
            print(f"{time.monotonic() % 1000:.2f} {text}", file=sys.stderr, flush=True)

    def end(self):
        self.reference.stop()
        if self.service:
            self.service.stop(signal.SIGKILL)

    def begin_anew(self):
        """Goes on with an empty disk."""
        disk_image.remove_folder(self.disk)
        os.mkdir(self.disk)
        acknowledged = self.expected.acknowledged
        self.expected = Remembered(self.expected.failing)
        self.expected.acknowledged = acknowledged
        self.checks.expected = self.expected

    def keep(self, number):
        """Copies what a failed round needs to be looked at."""
        if not self.options.keep:
            return
        folder = os.path.join(self.options.keep, str(number))
        os.makedirs(folder, exist_ok=True)
        for name in ("disk", "work", "image"):
            to = os.path.join(folder, name)
            disk_image.remove_folder(to)
            if os.path.isdir(self.path(name)):
                disk_image.copy_folder(self.path(name), to)
        logs = [log_name(name, age) for name in LOGS for age in range(OLD_LOGS + 1)]
        for name in ("notes", *logs):
            if os.path.exists(self.path(name)):
                disk_image.copy_sparse(self.path(name), os.path.join(folder, name))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--binary", required=True)
    parser.add_argument("--layer", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="number of the first round")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=0, help="begin no round after that")
    parser.add_argument("--seconds", type=float, default=3, help="longest work of a round")
    parser.add_argument("--die", choices=("power", "kill", "fail", "misdirect"), default="power")
    parser.add_argument("--keep", help="folder for what a failed round leaves")
    parser.add_argument("--failures", type=int, default=0, help="failed rounds to go on after")
    parser.add_argument("--json", action="store_true", help="print a result for bench/run")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    failures = 0
    with tempfile.TemporaryDirectory(prefix="quire-power-") as folder:
        rounds = Rounds(options, os.path.realpath(folder))
        try:
            began = time.monotonic()
            for number in range(options.first, options.first + options.rounds):
                if options.minutes and time.monotonic() > began + 60 * options.minutes:
                    break
                try:
                    rounds.run(number)
                except (Failed, Gone, StartFailed) as error:
                    failures += 1
                    print(f"round {number}, seed {options.seed}: {error}", file=sys.stderr)
                    rounds.keep(number)
                    if failures > options.failures:
                        break
                    rounds.begin_anew()
                else:
                    rounds.counts["rounds"] += 1
        except KeyboardInterrupt:
            print("interrupted: the result is that of the rounds until now", file=sys.stderr)
        finally:
            rounds.end()
    starts = sorted(rounds.starts_ms)
    row = {
        "die": options.die,
        **{name.replace(" ", "_"): count for name, count in sorted(rounds.counts.items())},
        "acknowledged": dict(sorted(rounds.expected.acknowledged.items())),
        "failed_rounds": failures,
        "start_ms_median": round(starts[len(starts) // 2]) if starts else None,
        "start_ms_most": round(starts[-1]) if starts else None,
        "log": dict(rounds.said.most_common()),
    }
    if options.json:
        print(json.dumps({"settings": {"seed": options.seed}, "rows": [row]}))
    else:
        print(json.dumps(row, indent=1))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
