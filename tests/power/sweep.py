"""Fails each call in turn that changes a file or synchronizes it, while a service carries out one
fixed script of requests on a new store."""

import errno
import os
import random
import signal
import time
from collections import Counter

import deaths
import disk_image
from checks import Checks, Failed, Reference
from expected import Document, Writer, question, text_of
from losses import Remembered
from service import Client, Gone, Service

LOGS = ("load.log", "check.log")
SEEN_AGAIN = 3  # rounds without a failing call that end a sweep: threads take turns as they like


class Script(Writer):
    """What a service is asked for. Where a call fails, the requests behind it go on."""

    def run_all(self, wait_for_jobs):
        call = self.client.call
        self.put("a", 1)
        self.put("b", 2, pinned=True)
        self.post_some("batch", ["c", "d"], 3, True)
        self.post_some("batch later", ["e", "f"], 5, False)
        wait_for_jobs()
        call("POST", "/v1/query", question(["a"]))
        call("POST", "/v1/admin/backup")
        self.patch("a", title="Changed")
        self.patch("c", pinned=True)
        self.ask("delete", "DELETE", "/v1/documents/d", None, {"d": None})
        pack = call("POST", "/v1/admin/cache/export", {"document_ids": ["b"]})[1]
        value = self.only("b")
        self.ask("delete", "DELETE", "/v1/documents/b", None, {"b": None})
        if value and isinstance(pack, bytes):
            self.ask("import", "POST", "/v1/admin/cache/import", pack, {"b": value})
        call("POST", "/v1/admin/cache/evict", {"tier": "disk"})
        call("POST", "/v1/query", question(["a"]))
        self.put("a", 7)
        call("POST", "/v1/admin/cache/flush")
        call("POST", "/v1/admin/backup")

    def only(self, name):
        values = self.expected.values(name)
        return values[0] if len(values) == 1 else None

    def document(self, number, pinned=False):
        value = Document(number, f"Title {number}", {"number": number}, pinned)
        members = ("title", "metadata", "pinned")
        return {"text": text_of(number), **{m: getattr(value, m) for m in members}}, value

    def put(self, name, number, pinned=False):
        body, value = self.document(number, pinned)
        self.ask("put", "PUT", f"/v1/documents/{name}?wait=true", body, {name: value})

    def post_some(self, kind, names, number, wait):
        bodies, changes = [], {}
        for i, name in enumerate(names):
            body, changes[name] = self.document(number + i)
            del body["pinned"]
            bodies.append({**body, "id": name})
        path = "/v1/documents" + ("?wait=true" if wait else "")
        self.ask(kind, "POST", path, {"documents": bodies}, changes, (200, 202))

    def patch(self, name, **members):
        now = self.only(name)
        if now:
            changes = {name: now.changed(**members)}
            self.ask("patch", "PATCH", "/v1/documents/" + name, members, changes)


class Sweep:
    default_rounds = 1 << 30  # until no call fails

    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.counts, self.failed, self.ends = Counter(), Counter(), Counter()
        self.reference = Reference(options.binary, options.model, folder)
        self.service = self.expected = None
        self.calls = None  # of a script none of whose calls failed
        self.without_failure = 0

    def path(self, name):
        return os.path.join(self.folder, name)

    def run(self, n):
        """Fails the n-th call. Returns whether the sweep is over."""
        failed = self.fail(n, torn=False)
        if failed is None:
            self.calls = deaths.calls(self.path("notes"))
            self.without_failure += n > 0
            return self.without_failure == SEEN_AGAIN
        self.without_failure = 0
        self.counts["calls failed"] += 1
        self.failed[failed] += 1
        if deaths.first_failed_op(self.path("notes")) == "w":  # now with half of the write
            self.fail(n, torn=True)
        return False

    def fail(self, n, torn):
        """Returns in which work of the service the n-th call failed; None: there was none."""
        work = self.path("work")
        disk_image.remove_folder(work)
        os.mkdir(work)
        self.expected = Remembered(failing=True)
        checks = Checks(self.expected, self.reference, self.counts)
        watched = {
            "LD_PRELOAD": self.options.layer,
            "QUIRE_POWER_FOLDER": work,
            "QUIRE_POWER_NOTES": self.path("notes"),
            "QUIRE_POWER_FAIL_AT": str(n),
            "QUIRE_POWER_FAIL_CALLS": "1",
            "QUIRE_POWER_FAIL_ERRNO": str(errno.EIO),
            "QUIRE_POWER_FAIL_TORN": str(int(torn)),
        }
        self.start("load.log", watched)
        if self.service.wait_until_ready():
            script = Script(self.expected, 0, 1, self.service.port, 0)
            try:
                script.run_all(lambda: checks.wait_for_jobs(script.client))
            except Gone as error:
                raise Failed(f"the service went away: {error}") from error
        else:
            self.ends["no start"] += 1
        code = self.service.stop(signal.SIGTERM)
        # As in other rounds: RocksDB with assertions may end a process after a torn write.
        if code == -signal.SIGABRT and "rocksdb::WritableFileWriter" in str(self.service.log()[-1]):
            self.ends["assertions of RocksDB"] += 1
        elif code not in (0, 1):
            raise Failed(f"the service ended with {code}: {self.service.log()[-3:]}")
        if self.expected.problems:
            raise Failed(f"refused: {self.expected.problems[:3]}")
        self.check(checks)
        failed = deaths.failure(self.path("notes"))
        if self.options.verbose:
            what = f"call {n}{', torn' if torn else ''}: {failed}"
            print(f"{time.monotonic() % 1000:.2f} {what}", flush=True)
        return failed

    def start(self, log, watched=None):
        flags = ("--backup.every_hours=0", "--backup.path=" + self.path("work/backups"))
        self.service = Service(
            self.options.binary, self.options.model, self.path("work/store"), self.path(log),
            flags, watched,
        )  # fmt: skip

    def check(self, checks):
        self.start("check.log")
        if not self.service.wait_until_ready():
            raise Failed(f"the service does not start: {self.service.log()[-3:]}")
        try:
            wrong = checks.differences(Client(self.service.port), random.Random(1))
        except Gone as error:
            raise Failed(f"the service went away: {error}") from error
        if (code := self.service.stop(signal.SIGTERM)) != 0:
            wrong.append(f"the service stopped with {code}")
        if wrong:
            raise Failed("; ".join(wrong))

    def row(self):
        return {
            "die": "sweep",
            "calls_of_the_script": self.calls,
            **{name.replace(" ", "_"): count for name, count in sorted(self.counts.items())},
            "failed_first": dict(sorted(self.failed.items())),
            "ends": dict(sorted(self.ends.items())),
        }

    def keep(self, number):
        """Copies what a failed round needs to be looked at."""
        if not self.options.keep:
            return
        self.service.stop(signal.SIGKILL)
        folder = os.path.join(self.options.keep, str(number))
        disk_image.remove_folder(folder)
        os.makedirs(folder)
        disk_image.copy_folder(self.path("work"), os.path.join(folder, "work"))
        for name in ("notes", *LOGS):
            if os.path.exists(self.path(name)):
                disk_image.copy_sparse(self.path(name), os.path.join(folder, name))

    def begin_anew(self):
        self.service.stop(signal.SIGKILL)

    def end(self):
        self.reference.stop()
        if self.service:
            self.service.stop(signal.SIGKILL)
