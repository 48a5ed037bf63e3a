#!/usr/bin/env python3
"""Cuts the power under a service again and again, and looks at what its clients then find.

    power_rounds.py --binary QUIRE --layer libquire_unsynced_layer.so --model FOLDER [--rounds N]
                    [--seed N] [--die power|kill|fail|misdirect] [--keep FOLDER] [--json]
                    [--replay FOLDER | --sweep]

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
repaired before it starts, and the repair killed. Backups lie beside the store, on the disk that
dies or fails. The newest one is restored now and then: it must hold documents as they were while it
was made, and be the last one that was acknowledged, or a later one. With `--die power` and `--die
kill` restores are killed before, with the power or without: what they leave opens as a whole store
or not at all, and another restore ends it.

The result counts in which work of the service the call fell at which it died (deaths.py), and what
its clients were waiting for.

A round that fails leaves the disk before it, the notes and the disk after it in --keep, and of
this round and the two before it the logs and what was expected when the service had died. With
--replay FOLDER, which is one such round, the disk is made anew from its notes, and only the start
on it and the checks run.

With --sweep one call fails in each round, the first one, the second one and so on until a fixed
script of requests (sweep.py) makes no further one. --first, --step and --rounds choose some of
them.
"""

import argparse
import errno
import glob
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter

import deaths
import disk_image
import kept
from checks import CHATS, PATH_OF_CHAT, Checks, Failed, Reference, answer_of
from conditional import ConditionalWriter
from expected import chat, question
from losses import Remembered, look_at, said, untold
from repairs import Repairs
from restores import Restores
from service import Client, Gone, Service, StartFailed
from sweep import Sweep

WRITERS = 4
LOGS = ("load", "check", "repair", "after", "restore", "restored", "expected")
# Of which files writes go astray, and which write is the last one that may be the first of these.
ASTRAY = (
    (".log", 30), (".log", 150), (".log", 500), ("MANIFEST", 12), (".sst", 12), ("LEDGER", 150),
    ("/extents/", 100), ("/prompts/", 3), ("dbtmp", 2), ("SEAL", 1), ("", 800),
)  # fmt: skip
BACKUPS = 3  # that are kept
RESTORED = 0.25  # share of rounds
OLD_LOGS = 2  # rounds before the last one whose logs are kept


def log_name(name, age):
    """Returns the file of a log, so many rounds ago."""
    return f"{name}.{age}.log" if age else f"{name}.log"


class Rounds:
    default_rounds = 10

    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.disk = os.path.join(folder, "disk")  # before a round
        os.mkdir(self.disk)
        self.expected = Remembered(options.die in ("fail", "misdirect"))
        self.reference = Reference(options.binary, options.model, folder)
        self.service = None  # of the round under way
        self.counts = Counter()
        self.deaths, self.failed_first, self.waited_for = Counter(), Counter(), Counter()
        self.checks = Checks(self.expected, self.reference, self.counts)
        self.repairs = Repairs(options, folder, self.counts, self.deaths)
        strict = options.die in ("power", "kill")
        self.restores = Restores(options, folder, self.reference, self.counts, self.deaths, strict)
        self.state = None  # what a round needs to be replayed, once the service has died
        self.said = Counter()  # warnings and errors of the services that started after a failure
        self.starts_ms = []

    def path(self, name):
        return os.path.join(self.folder, name)

    def service_on(self, store, log, flags, watched=None):
        """Returns a service whose backups lie beside its store."""
        flags = (*flags, "--backup.path=" + os.path.join(os.path.dirname(store), "backups"))
        self.service = Service(
            self.options.binary, self.options.model, store, self.path(log), flags, watched
        )
        return self.service

    def run(self, number):
        self.state = None
        rng = random.Random(f"{self.options.seed}/{number}")
        self.expected.jobs = []
        flags = rng.choice(((), (), ("--disk.max_bytes=100MiB",)))
        flags += ("--backup.every_hours=0", f"--backup.keep={BACKUPS}")
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
            self.expected.allowed, self.expected.backups = {}, {}
        kind = "worst" if worst else "ordered" if ordered else "adversarial"
        self.note(f"round {number}: cut at {cut_at}, {kind}")
        work, notes = self.path("work"), self.path("notes")
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
        settings = {
            "number": number, "die": self.options.die, "ordered": ordered, "worst": worst,
            "stop": stop, "flags": flags,
        }  # fmt: skip
        self.state = (settings, kept.copied(self.expected), rng.getstate())
        self.end_round(self.disk, work, notes, settings, rng)
        disk_image.remove_folder(self.disk)
        os.rename(self.path("image"), self.disk)

    def end_round(self, before, work, notes, settings, rng):
        """Makes the disk that a round left from its notes, starts a service on it and looks at
        it. `work` is what the service left, which the notes must say."""
        disk = disk_image.Disk(before, settings["ordered"])
        disk.replay(disk_image.read_notes(notes))
        if wrong := disk.check_against(work):
            raise Failed(f"the notes are not what happened: {wrong}")
        worst, ordered = settings["worst"], settings["ordered"]
        if self.options.die == "power":
            lost = disk.fail(rng, worst, ("SEAL",) if settings["stop"] else ())
            self.counts["bytes lost"] += lost["bytes"]
            self.counts["names lost"] += lost["names"]
            self.note(f"  lost {lost['bytes']} bytes, {lost['names']} names")
        else:
            disk.keep_all()
        image = self.path("image")
        disk_image.remove_folder(image)
        disk.write(image)
        if self.options.die == "misdirect":
            self.check_losses(image, settings["flags"], rng)
        else:
            self.check(image, settings["flags"], rng)
        self.counts["worst" if worst else "ordered" if ordered else "adversarial"] += 1

    def replay(self, folder):
        """Repeats the end of a round that --keep stored."""
        settings, self.expected, state = kept.load(os.path.join(folder, "round.json"))
        self.checks.expected = self.expected
        self.note(f"round {settings['number']}, {settings['die']}")
        rng = random.Random()
        rng.setstate(state)
        settings["flags"] = tuple(settings["flags"])
        names = (os.path.join(folder, name) for name in ("disk", "work", "notes"))
        self.end_round(*names, settings, rng)

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
        service = self.service_on(store, "load.log", flags, watched)
        wrong, writers, phase = [], [], "work"
        seeds = [rng.randrange(1 << 30) for _ in range(WRITERS)]
        if service.wait_until_ready():
            seconds = rng.uniform(0.2, 1) if stop else self.options.seconds
            until = time.monotonic() + seconds
            writers = [
                ConditionalWriter(self.expected, i, seeds[i], service.port, until)
                for i in range(WRITERS)
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
            if stop and alive:
                phase = "stop"
        else:
            phase = "start"
        self.counts[f"deaths in {phase}"] += 1
        code = service.stop(signal.SIGTERM) if stop else service.cut()
        self.count_death(phase, writers)
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

    def count_death(self, phase, writers):
        """Counts where a service died, and what its clients then waited for."""
        fell = deaths.death(self.path("notes")) or "no call"
        self.deaths[f"{phase}: {fell}"] += 1
        if failed := deaths.failure(self.path("notes")):
            self.failed_first[failed] += 1
        waited_for = [w.cut_off for w in writers if w.cut_off]
        self.waited_for.update(waited_for)
        self.note(f"  dead at {phase}: {fell}; under way: {', '.join(waited_for) or 'nothing'}")

    def repair(self, image, rng):
        """Kills a repair of the store, which is whole, at some call, or lets it end."""
        code = self.repairs.run(os.path.join(image, "store"), rng.randint(1, 400))
        if code != -signal.SIGKILL:
            self.counts["repairs"] += 1
        # Exit code 2: something may be lost, as the end of a log that a failing disk tore.
        if code == 2 and self.options.die != "fail":
            raise Failed("a repair of a whole store may have lost something: see repair.log")

    def restore(self, image, rng):
        """Looks at the newest backup now and then, and where one was under way."""
        backups = os.path.join(image, "backups")
        if os.path.isdir(backups) and (rng.random() < RESTORED or self.expected.unsure):
            self.restores.check(backups, self.expected, rng)

    def check(self, image, flags, rng):
        store = os.path.join(image, "store")
        self.restore(image, rng)
        if os.path.isdir(store) and rng.random() < 0.12:
            self.repair(image, rng)
        began = time.monotonic()
        service = self.service_on(store, "check.log", flags)
        try:
            if not service.wait_until_ready():
                raise Failed(f"the service does not start: {service.log()[-3:]}")
            self.starts_ms.append((time.monotonic() - began) * 1000)
            client = Client(service.port)
            wrong = self.checks.differences(client, rng)
            made = self.expected.begin_backup()
            status, reply = client.call("POST", "/v1/admin/backup")
            self.counts["backups"] += 1
            if status == 200:
                self.expected.end_backup(made, reply["number"])
                self.expected.unsure = []  # they are older
            else:
                wrong.append(f"no backup: {status} {reply}")
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
        service = self.service_on(store, "check.log", flags)
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
            with_copy = "--disk.record_copies=2" in flags
            if rng.random() < 0.5:
                self.repairs.kill(store, rng, with_copy)
            self.repairs.run(store, with_copy=with_copy)
        service = self.service_on(store, "after.log", flags)
        if not service.wait_until_ready():
            raise Failed(f"no start after a repair: {service.log()[-3:]}")
        return service

    def check_losses(self, image, flags, rng):
        """Starts the service on a disk on which writes went astray. What is lost must be said."""
        store = os.path.join(image, "store")
        self.restore(image, rng)
        self.expected.unsure = []
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
        for aside in glob.glob(os.path.join(store, "damaged-*")):
            disk_image.remove_folder(aside)  # as an operator does who has read the report
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
                unnamed.append((name, end))
                end += ", said by " + " and ".join(sorted(general)) if general else ", silently"
            elif end in ("unreadable", "failed"):
                unreadable.append(name)
            self.counts[f"found: {end}"] += 1
            self.expected.allowed[name] = [found]
            if found:
                there[name] = found
        if left := untold(unnamed, general, self.expected):
            wrong.append(f"without a word in {general}: {left} of {unnamed}")
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

    def row(self):
        """Returns the result of all rounds."""
        starts = sorted(self.starts_ms)
        return {
            "die": self.options.die,
            **{name.replace(" ", "_"): count for name, count in sorted(self.counts.items())},
            "deaths": dict(sorted(self.deaths.items())),
            "under_way_at_deaths": dict(sorted(self.waited_for.items())),
            "failed_first": dict(sorted(self.failed_first.items())),
            "acknowledged": dict(sorted(self.expected.acknowledged.items())),
            "refused": dict(sorted(self.expected.refused.items())),
            "start_ms_median": round(starts[len(starts) // 2]) if starts else None,
            "start_ms_most": round(starts[-1]) if starts else None,
            "log": dict(self.said.most_common()),
        }

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
        counts = self.expected.acknowledged, self.expected.refused
        self.expected = Remembered(self.expected.failing)
        self.expected.acknowledged, self.expected.refused = counts
        self.checks.expected = self.expected

    def keep(self, number):
        """Copies what a failed round needs to be looked at."""
        if not self.options.keep:
            return
        folder = os.path.join(self.options.keep, str(number))
        os.makedirs(folder, exist_ok=True)
        for name in ("disk", "work", "image", "restored"):
            to = os.path.join(folder, name)
            disk_image.remove_folder(to)
            if os.path.isdir(self.path(name)):
                disk_image.copy_folder(self.path(name), to)
        logs = [log_name(name, age) for name in LOGS for age in range(OLD_LOGS + 1)]
        for name in ("notes", "repair.notes", "restore.notes", *logs):
            if os.path.exists(self.path(name)):
                disk_image.copy_sparse(self.path(name), os.path.join(folder, name))
        if self.state:
            kept.save(os.path.join(folder, "round.json"), *self.state)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--binary", required=True)
    parser.add_argument("--layer", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--rounds", type=int, help="10 by default, with --sweep all")
    parser.add_argument("--first", type=int, default=0, help="number of the first round")
    parser.add_argument("--step", type=int, default=1, help="from one round's number to the next")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=0, help="begin no round after that")
    parser.add_argument("--seconds", type=float, default=3, help="longest work of a round")
    parser.add_argument("--die", choices=("power", "kill", "fail", "misdirect"), default="power")
    parser.add_argument("--keep", help="folder for what a failed round leaves")
    parser.add_argument("--replay", help="folder of one round that --keep stored")
    parser.add_argument("--sweep", action="store_true", help="fail each call of a script in turn")
    parser.add_argument("--failures", type=int, default=0, help="failed rounds to go on after")
    parser.add_argument("--json", action="store_true", help="print a result for bench/run")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if options.replay:
        with open(os.path.join(options.replay, "round.json"), encoding="utf-8") as file:
            options.die = json.load(file)["settings"]["die"]
    with tempfile.TemporaryDirectory(prefix="quire-power-") as folder:
        rounds = (Sweep if options.sweep else Rounds)(options, os.path.realpath(folder))
        try:
            failures = replay(rounds) if options.replay else run_all(rounds)
        finally:
            rounds.end()
    row = {**rounds.row(), "failed_rounds": failures}
    if options.json:
        print(json.dumps({"settings": {"seed": options.seed}, "rows": [row]}))
    else:
        print(json.dumps(row, indent=1))
    return 1 if failures else 0


def replay(rounds):
    """Returns how many rounds failed: one or none."""
    try:
        rounds.replay(rounds.options.replay)
    except (Failed, Gone, StartFailed) as error:
        print(f"{rounds.options.replay}: {error}", file=sys.stderr)
        return 1
    rounds.counts["rounds"] += 1
    return 0


def run_all(rounds):
    """Returns how many rounds failed."""
    options, failures, began = rounds.options, 0, time.monotonic()
    most = options.rounds or rounds.default_rounds
    try:
        for number in range(options.first, options.first + most * options.step, options.step):
            if options.minutes and time.monotonic() > began + 60 * options.minutes:
                break
            try:
                if rounds.run(number):
                    break
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
    return failures


if __name__ == "__main__":
    sys.exit(main())
