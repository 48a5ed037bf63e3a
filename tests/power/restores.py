"""Restores the newest backup of a store into a folder of its own, and looks at what it holds. Some
restores are killed before, and the power cut."""

import os
import re
import signal

import deaths
import disk_image
from checks import Checks, Failed
from expected import Expected
from losses import look_at
from service import Client, Gone, Service, run_cut

RESTORED = re.compile(r"of backup (\d+) to ")
LAST_CALLS = 25
ANOTHER = re.compile(r"backup (\d+) is the newest whole one")


class Restores:
    """`strict`: what the service wrote reached the disk, so that a backup that was acknowledged is
    there and whole, and a restore that is killed leaves nothing that opens as a store, or a whole
    one. Otherwise it may be damaged, and then a restore or the start must say so. `fell` counts the
    calls at which restores died."""

    def __init__(self, options, folder, reference, counts, fell, strict):
        self.options, self.folder, self.reference = options, folder, reference
        self.counts, self.fell, self.strict = counts, fell, strict

    def path(self, name):
        return os.path.join(self.folder, name)

    @property
    def store(self):
        return os.path.join(self.path("restored"), "store")

    def check(self, backups, expected, rng):
        """Raises Failed unless the newest backup can be restored, and holds every document as it
        was while the backup was made."""
        number = self.restore(backups, expected)
        if number is None:
            return
        if self.strict and number < max(expected.backups, default=0):
            raise Failed(f"restored backup {number}, acknowledged were {sorted(expected.backups)}")
        if self.strict:
            self.kill(backups, number, rng)
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

    def kill(self, backups, number, rng):
        """Kills one restore of a backup or several, each at some call, and ends it with another
        one. Sometimes the power fails with it, and what was not synchronized is lost or kept in
        part."""
        folder, before, notes = (
            self.path(name) for name in ("restored", "before restore", "restore.notes")
        )
        same = "--backup", str(number)
        self.run(backups, *same, cut_at=0)
        most = deaths.calls(notes)
        disk_image.remove_folder(folder)
        os.mkdir(folder)
        for _ in range(rng.choice((1, 1, 2, 3))):
            power = self.options.die == "power" and rng.random() < 0.5
            disk_image.remove_folder(before)
            disk_image.copy_folder(folder, before)
            # The last calls turn what was restored into a store.
            least = max(1, most - LAST_CALLS) if rng.random() < 0.4 else 1
            code, said = self.run(backups, *same, cut_at=rng.randint(least, most), anew=False)
            if code != -signal.SIGKILL:
                if code != 0:
                    raise Failed(f"a restore behind a killed one ended with {code}: {said[-400:]}")
                return
            self.counts["restores killed"] += 1
            self.fell[f"restore: {deaths.death(notes)}"] += 1
            if power:
                self.counts["restores without power"] += 1
                if wrong := disk_image.cut_power(folder, before, notes, rng):
                    raise Failed(f"the notes of a restore are not what happened: {wrong}")
            if self.is_whole():
                self.counts["restores that were whole when killed"] += 1
                return
        code, said = self.run(backups, *same, anew=False)
        if code != 0:
            raise Failed(f"no restore behind a killed one: {code}: {said[-400:]}")

    def is_whole(self):
        """Returns whether a killed restore left a store. What only a start can mend is one, too: it
        must start."""
        code, said = self.command("stats", "--path", self.store)
        if code not in (0, 1):
            raise Failed(f"stats of what a killed restore left: {code}: {said[-400:]}")
        return code == 0 or not re.search("quire store restore|there is no store", said)

    def run(self, backups, *more, cut_at=None, anew=True):
        """Restores a backup, `anew` to a folder that is empty. Returns exit code and output."""
        if anew:
            disk_image.remove_folder(self.path("restored"))
            os.mkdir(self.path("restored"))
        return self.command("restore", backups, "--path", self.store, *more, cut_at=cut_at)

    def command(self, *words, cut_at=None):
        """Runs a command of `quire store`, which is killed at a call. Returns its exit code and
        output."""
        command = [self.options.binary, "store", *words]
        folder, notes = self.path("restored"), self.path("restore.notes")
        with open(self.path("restore.log"), "wb") as out:
            code = run_cut(self.options.layer, command, folder, notes, cut_at, out)
        with open(self.path("restore.log"), encoding="utf-8", errors="replace") as file:
            return code, file.read()

    def look(self, held, expected, number, rng):
        service = Service(
            self.options.binary, self.options.model, self.store,
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
