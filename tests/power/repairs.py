"""Kills `quire store repair --apply` at a call that changes a file, or cuts the power there."""

import os
import signal

import deaths
import disk_image
from checks import Failed
from service import run_cut

LAST_CALLS = 25


class Repairs:
    """`counts` and `fell` are of repairs, and of the calls at which they died."""

    def __init__(self, options, folder, counts, fell):
        self.options, self.folder, self.counts, self.fell = options, folder, counts, fell

    def path(self, name):
        return os.path.join(self.folder, name)

    def run(self, store, cut_at=None, with_copy=False):
        """Returns the exit code of a repair, which dies at a call; None: it is not watched; 0: it
        is, and does not die."""
        command = [self.options.binary, "store", "repair", "--apply", "--path", store]
        if with_copy:
            command += ["--copy", store + "-copy"]
        notes, log = self.path("repair.notes"), self.path("repair.log")
        with open(log, "ab") as out:
            code = run_cut(self.options.layer, command, os.path.dirname(store), notes, cut_at, out)
        if code == -signal.SIGKILL and cut_at:
            self.counts["repairs killed"] += 1
            self.fell[f"repair: {deaths.death(self.path('repair.notes'))}"] += 1
        elif code not in (0, 2):  # 2: something may be lost
            raise Failed(f"a repair ended with {code}: see repair.log")
        return code

    def calls(self, store, with_copy=False):
        """Returns how many calls a repair of a store makes, by one of a copy."""
        probe = self.path("probe")
        disk_image.remove_folder(probe)
        disk_image.copy_folder(os.path.dirname(store), probe)
        self.run(os.path.join(probe, os.path.basename(store)), 0, with_copy)
        disk_image.remove_folder(probe)
        return deaths.calls(self.path("repair.notes"))

    def kill(self, store, rng, with_copy=False):
        """Kills one repair of a store or several, each at some call. Sometimes the power fails with
        it, and what was not synchronized is lost or kept in part."""
        most = self.calls(store, with_copy)
        folder, before = os.path.dirname(store), self.path("before repair")
        for _ in range(rng.choice((1, 1, 2, 3))):
            power = rng.random() < 0.5
            disk_image.remove_folder(before)
            disk_image.copy_folder(folder, before)
            # The last calls put the new record into the place of the old one.
            least = max(1, most - LAST_CALLS) if rng.random() < 0.4 else 1
            code = self.run(store, rng.randint(least, most), with_copy)
            if not power or code != -signal.SIGKILL:
                continue
            self.counts["repairs without power"] += 1
            if wrong := disk_image.cut_power(folder, before, self.path("repair.notes"), rng):
                raise Failed(f"the notes of a repair are not what happened: {wrong}")
