"""Restores the newest backup of a store into a folder of its own, and looks at what it holds."""

import os
import re
import signal
import subprocess

import disk_image
from checks import Checks, Failed
from expected import Expected
from losses import look_at
from service import Client, Gone, Service

RESTORED = re.compile(r"of backup (\d+) to ")
ANOTHER = re.compile(r"backup (\d+) is the newest whole one")


class Restores:
    """`strict`: what the service wrote reached the disk, so that a backup that was acknowledged is
    there and whole. Otherwise it may be damaged, and then a restore or the start must say so."""

    def __init__(self, options, folder, reference, counts, strict):
        self.options, self.folder, self.reference = options, folder, reference
        self.counts, self.strict = counts, strict

    def path(self, name):
        return os.path.join(self.folder, name)

    def check(self, backups, expected, rng):
        """Raises Failed unless the newest backup can be restored, and holds every document as it
        was while the backup was made."""
        number = self.restore(backups, expected)
        if number is None:
            return
        if self.strict and number < max(expected.backups, default=0):
            raise Failed(f"restored backup {number}, acknowledged were {sorted(expected.backups)}")
        held = [expected.backups[number]] if number in expected.backups else expected.unsure
        if not held:
            raise Failed(f"restored backup {number}, which nobody asked for")
        self.counts["backups restored"] += 1
        self.counts["backups restored that were not acknowledged"] += number not in expected.backups
        self.look(one_of(held), expected, number, rng)

    def restore(self, backups, expected):
        """Returns the number of the backup that was restored; None: there is none."""
        code, said = self.run(backups)
        # The newest one may be one that was not acknowledged, and not be whole.
        if code != 0 and (another := ANOTHER.search(said)):
            self.counts["backups that were not whole"] += 1
            code, said = self.run(backups, "--backup", another[1])
        if code == 0:
            return int(RESTORED.search(said)[1])
        if self.strict and expected.backups:
            raise Failed(f"no restore: {code}: {said[-400:]}")
        if code != 1 or not said.strip():
            raise Failed(f"a restore ended with {code}: {said[-400:]}")
        self.counts["restores refused"] += 1
        return None

    def run(self, backups, *more):
        store = self.path("restored")
        disk_image.remove_folder(store)
        command = [self.options.binary, "store", "restore", backups, "--path", store, *more]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, check=False
        )
        said = done.stdout.decode(errors="replace")
        with open(self.path("restore.log"), "w", encoding="utf-8") as file:
            file.write(said)
        return done.returncode, said

    def look(self, held, expected, number, rng):
        service = Service(
            self.options.binary, self.options.model, self.path("restored"),
            self.path("restored.log"), ("--backup.every_hours=0",),
        )  # fmt: skip
        try:
            if not service.wait_until_ready():
                if self.strict or service.process.returncode != 1:
                    raise Failed(f"restored backup {number} does not start: {service.log()[-3:]}")
                self.counts["restored stores refused"] += 1
                return
            client = Client(service.port)
            checks = Checks(held, self.reference, self.counts)
            if self.strict:
                wrong = checks.differences(client, rng)
            else:
                wrong = self.half_written(checks, client, held, expected)
        except Gone as error:
            raise Failed(f"backup {number}: went away: {error} {service.log()[-3:]}") from error
        finally:
            service.stop(signal.SIGKILL)
        if wrong:
            raise Failed(f"restored backup {number}: " + "; ".join(wrong))

    def half_written(self, checks, client, held, expected):
        """Returns the documents that are there and are none that a client set."""
        checks.wait_for_jobs(client)
        held.past, held.failing = expected.past, True
        wrong = []
        for name in sorted(held.allowed):
            end, _, shown = look_at(held, client, name)
            self.counts[f"restored: {end}"] += 1
            if end == "wrong":
                wrong.append(f"{name}: {shown}")
        return wrong


def one_of(held):
    """Returns what is expected where one of several backups was restored."""
    out = Expected()
    for name in sorted({name for values in held for name in values}):
        out.allowed[name] = [v for values in held for v in values.get(name, [None])]
    return out
