#!/usr/bin/env python3
"""Three services over one PostgreSQL database, a Redis cluster and an S3 store, with faults.

    cluster_rounds.py --binary QUIRE --model FOLDER [--rounds N] [--first N] [--seconds S]
                      [--seed N] [--s3 PROGRAM] [--faults TEXT,TEXT...] [--keep FOLDER] [--json]

In a round four clients add, replace, change, pin and delete documents, each request at any of the
services, while servers are killed and paused, the network between is slow, silent or cut, values of
the shared cache are damaged, Redis runs out of memory and S3 refuses requests. A service starts
with the right clock, or with one that is a minute ahead or behind. Then everything but the clocks
is mended. After that every service must have every document as it was acknowledged last, all jobs
must have ended, and answers must be those of a service that saw no fault. A change whose answer was
lost may have been made or not, alike at all services. Meanwhile clients repeat requests that have
an Idempotency-Key at other services, and ask these for documents that they were told of a moment
ago (writers.py). Another one asks services that have no KV of their own for what lies in the shared
tiers (readers.py). Each answer must be right, also while servers fail (answers.py).

Clocks may only decide when a document runs out: a service hides it by its own clock, and the first
that does deletes it for all. Without Debian's package faketime all clocks are right, and that is
said.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from datetime import datetime

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "power"))
# ruff: noqa: E402
from answers import Answers
from backends import S3, Postgres, RedisCluster, clock_layer
from faults import MID_REQUEST, Faults
from readers import NAMESPACE, Readers
from replica import LEASE_MS, SETTLE_S, Failed, Replica, about_clock, check_time
from service import Client, Service, StartFailed
from writers import CHECKS, ClusterExpected, ClusterWriter, code_of

SERVICES = 3
WRITERS = 4
WRONG_S = 60  # by how much a clock is ahead or behind
CLOCKS = (-WRONG_S, 0, WRONG_S)
# Of the shared tiers, for all services together: less than the documents of a run have.
QUOTA = f'["*"]\nremote_bytes = "4MiB"\n[{NAMESPACE}]\nremote_bytes = "1GiB"\n'
# What services count of themselves since their start.
COUNTED = {
    "quire_remote_quota_removed_total": "contexts removed for a quota",
    "quire_remote_hedged_reads_total": "reads that a second source was asked for",
    "quire_remote_hedges_won_total": "reads that the second source answered first",
    'quire_remote_second_way_contexts_total{tier="redis"}': "contexts read from a replica of Redis",
}
for tier, name in (("redis", "Redis"), ("s3", "S3")):
    for outcome, what in (
        ("hit", "read from"),
        ("bad", "with wrong bytes from"),
        ("too_slow", "too late from"),
        ("failed", "that could not be read from"),
    ):
        labels = f'{{tier="{tier}",outcome="{outcome}"}}'
        COUNTED["quire_remote_contexts_total" + labels] = f"contexts {what} {name}"
EARLIER_REQUESTS = 20  # of earlier rounds that are repeated, too
ENOUGH_ROUNDS = 10  # after which every check must have been made


class Cluster:
    def __init__(self, options, folder):
        self.options, self.folder, self.lease_ms = options, folder, LEASE_MS
        self.counts = Counter()
        self.counted = {}  # (service, start, name) -> what it counted of itself
        self.quotas = os.path.join(folder, "quotas.toml")
        with open(self.quotas, "w", encoding="utf-8") as file:
            file.write(QUOTA)
        self.mu = threading.Lock()  # for counts of the writers
        self.expected = ClusterExpected()
        # Of all changes: begin, end, service, kind, values, job or no answer. Of starts: no values.
        self.history = []
        # job -> begin and end of its request, how wrong the clocks of the asked services are
        self.taken = {}
        self.answered = []  # requests with an Idempotency-Key whose replies are remembered
        self.writers = []
        self.wrong_s = WRONG_S if clock_layer() else 0  # at most
        self.database = Postgres()
        self.redis = RedisCluster()
        self.s3 = S3(options.s3, options.seed) if options.s3 else None
        self.remotes = [self.redis] + ([self.s3] if self.s3 else [])
        self.replicas = []
        # Each clock once, so that no run is without wrong ones.
        clocks = list(self.clocks())
        random.Random(f"{options.seed}/clocks/{options.first}").shuffle(clocks)
        for number in range(SERVICES):
            self.replicas.append(Replica(self, number, clocks[number % len(clocks)]))
        self.reference = Service(
            options.binary, options.model, os.path.join(folder, "reference"),
            os.path.join(folder, "reference.log"))  # fmt: skip
        if not self.reference.wait_until_ready():
            raise StartFailed("the reference does not start")
        self.answers = Answers(self)
        self.faults = Faults(self)
        self.readers = Readers(self)

    def note_crash(self, crash):
        """Receives what ended a thread: a client that stopped early would find less."""
        shown = "".join(traceback.format_exception(crash.exc_value))
        self.expected.problem(f"a thread of the rounds ended with {shown}")

    def count(self, what, number=1):
        with self.mu:
            self.counts[what] += number

    # ---- clocks ----

    def clocks(self):
        """Returns by how much clocks of services may be wrong."""
        return CLOCKS if self.wrong_s else (0,)

    def started(self, replica):
        """Notes a start of a service."""
        wrong_s = replica.wrong_s
        clock = about_clock(wrong_s)
        self.history.append((time.time(), 0, replica.number, "start with " + clock, {}, ""))
        self.note(f"  service {replica.number} starts with {clock}")
        if wrong_s:
            self.counts["starts with a clock " + ("ahead" if wrong_s > 0 else "behind")] += 1

    # ---- a round ----

    def run(self, number):
        rng = random.Random(f"{self.options.seed}/{number}")
        self.expected.begin_round()
        self.readers.begin_round(number, rng)
        self.check_problems()
        until = time.monotonic() + self.options.seconds
        self.writers = writers = [
            ClusterWriter(self, i, f"{self.options.seed}/{number}/{i}", until)
            for i in range(WRITERS)
        ]
        reader = self.readers.reader(f"{self.options.seed}/{number}/reader", until)
        for w in [*writers, reader]:
            w.start()
        planned = self.faults.planned(number)
        if number == self.options.first or number % 5 == 1:  # so that no run has too few
            planned.append(MID_REQUEST)
        self.note(f"round {number}: " + ", ".join(planned))
        busy = []
        for i, kind in enumerate(planned):
            time.sleep(rng.uniform(0.2, self.options.seconds / 3))
            self.count(kind)
            own = random.Random(f"{self.options.seed}/{number}/fault {i}")
            busy.append(threading.Thread(target=self.faults.make, args=(kind, own)))
            busy[-1].start()
        for t in [*busy, *writers, reader]:
            t.join()
        self.check_problems()
        self.faults.heal(rng)
        self.wait_for_catalog()
        for w in writers:
            w.finish()
        self.check_problems()
        self.settle()
        self.check_repetitions(rng)
        self.check(rng)
        self.read_counts()
        self.counts["rounds"] += 1

    def read_counts(self):
        for replica in self.replicas:
            status, text = Client(replica.service.port).call("GET", "/metrics")
            if status != 200:
                raise Failed(f"service {replica.number} has no metrics: {status}")
            for line in text.decode().splitlines():
                name, _, value = line.rpartition(" ")
                if name in COUNTED:
                    self.counted[replica.number, replica.starts, name] = float(value)
        for name, what in COUNTED.items():
            self.counts[what] = int(sum(v for k, v in self.counted.items() if k[2] == name))

    def check_problems(self):
        if self.expected.problems:
            raise Failed("; ".join(self.expected.problems[:3]))

    def wait_for_catalog(self):
        """Waits until the services follow the database."""
        end = time.monotonic() + SETTLE_S
        clients = [Client(r.service.port) for r in self.replicas]
        for client, replica in zip(clients, self.replicas, strict=True):
            while True:
                status, health = client.call("GET", "/healthz")
                if status == 200 and health["checks"].get("catalog") == "ok":
                    break
                if time.monotonic() > end:
                    raise Failed(f"service {replica.number} does not recover: {health}")
                time.sleep(0.05)
        for replica in self.replicas:
            replica.check_clock()
            self.counts["clocks read"] += 1

    def settle(self):
        """Waits until all jobs have ended."""
        end = time.monotonic() + SETTLE_S
        clients = [Client(r.service.port) for r in self.replicas]
        for job in self.expected.jobs:
            for i, client in enumerate(clients):
                while True:
                    status, found = client.call("GET", "/v1/jobs/" + job)
                    if status == 200 and found["status"] not in ("queued", "running"):
                        break
                    if time.monotonic() > end:
                        raise Failed(f"the job {job} has not ended at service {i}: {found}")
                    time.sleep(0.05)
            began, ended, clocks = self.taken[job]
            made = datetime.fromisoformat(found["created_at"].replace("Z", "+00:00")).timestamp()
            check_time(f"the job {job}", made, clocks, began, ended)
            if found["status"] == "failed":
                self.counts["jobs failed"] += 1
            self.counts["jobs"] += 1
        # Jobs that were taken without a reply may still be at work somewhere.
        for client in clients:
            while True:
                pages = [client.call("GET", "/v1/jobs?status=" + s) for s in ("queued", "running")]
                if all(status == 200 and not page["data"] for status, page in pages):
                    break
                if time.monotonic() > end:
                    raise Failed("a job that nobody waits for does not end")
                time.sleep(0.1)

    def check_repetitions(self, rng):
        """Repeats requests that were answered: every service must give the first reply."""
        clients = [Client(r.service.port) for r in self.replicas]
        for request in self.answered:
            for client, replica in zip(clients, self.replicas, strict=True):
                # What could not be told to the database is told when it is followed again.
                end = time.monotonic() + 10
                said = request.send(client)
                while code_of(said) == "idempotency_in_progress" and time.monotonic() < end:
                    self.counts["repetitions that waited after all was mended"] += 1
                    time.sleep(0.1)
                    said = request.send(client)
                if not request.is_first_reply(said, client):
                    self.show_history(request.names)
                    raise Failed(
                        f"service {replica.number} says to a repetition of {request.shown()} "
                        f"{said} instead of {request.replies}"
                    )
                self.counts["repetitions after all was mended"] += 1
                if replica.starts > request.starts[replica.number]:
                    self.counts["repetitions at a service started since"] += 1
        once = [r for r in self.answered if len(r.replies) == 1]
        self.answered = rng.sample(once, min(EARLIER_REQUESTS, len(once)))

    def show_history(self, names):
        """Shows changes of any of the documents, and starts."""
        for change in self.history:
            if not change[4] or any(name in change[4] for name in names):
                self.note(f"  {change}")

    def found(self, client, name):
        """Returns the document and its text as a service has it; (None, None): it has none."""
        status, document = client.call("GET", f"/v1/documents/{name}")
        if status == 404:
            return None, None
        if status != 200:
            raise Failed(f"{name}: {status} {document}")
        status, text = client.call("GET", f"/v1/documents/{name}/content")
        if status == 404:
            return None, None
        return document, text.decode()

    def check(self, rng):
        clients = [Client(r.service.port) for r in self.replicas]
        for name in sorted(self.expected.allowed):
            self.check_document(clients, name)
        self.readers.check_after(rng)
        self.check_problems()
        self.answers.check()
        self.answers.check_after(rng)

    def may_be(self, value, document, text, wrong_s):
        """Returns whether a document that was found is one that was set. `wrong_s`: how wrong the
        clock of the service is that has it."""
        now = time.time()
        if document is None:  # another service, whose clock is ahead, may have deleted it
            gone = value and value.expires and now + self.wrong_s >= value.expires[0]
            return value is None or bool(gone)
        late = value and value.expires and now + wrong_s > value.expires[1] + 15
        return value is not None and not late and not value.differs(document, text)

    def check_document(self, clients, name):
        # Replicas follow within moments, so a difference may go away.
        end = time.monotonic() + 10
        while True:
            wrong, seen, left = [], [], self.expected.values(name)
            for i, client in enumerate(clients):
                document, text = self.found(client, name)
                values = self.expected.values(name)
                wrong_s = self.replicas[i].wrong_s
                fits = [v for v in values if self.may_be(v, document, text, wrong_s)]
                left = [v for v in left if v in fits]
                shown = document and {k: document.get(k) for k in (
                    "title", "metadata", "pinned", "status", "version", "expires_at")}  # fmt: skip
                seen.append((shown, text and text[:40]))
                if not fits:
                    allowed = [v and v.shown() for v in values]
                    wrong.append(f"service {i} has {name} as {seen[-1]}, allowed: {allowed}")
            # By one clock a document may have run out, and by another not yet.
            runs_out = self.wrong_s and any(v and v.expires for v in left)
            alike = [s for s in seen if s[0] or not runs_out]
            if not wrong and any(s != alike[0] for s in alike):
                wrong.append(f"services differ over {name}: {seen}")
            self.counts["documents"] += len(seen)
            if not wrong:
                self.counts["documents that ran out at some"] += 0 < len(alike) < len(seen)
                with self.expected.mu:  # what was found is what later rounds have to find
                    self.expected.allowed[name] = left[-1:]
                return
            if time.monotonic() > end:
                self.show_history([name])
                raise Failed(wrong[0])
            time.sleep(0.1)

    def note(self, text):
        if not self.options.json:
            print(text, flush=True)

    def end(self):
        for replica in self.replicas:
            replica.signal(signal.SIGCONT)
            replica.kill()
            for way in replica.ways():
                way.end()
        self.reference.stop(signal.SIGKILL)
        self.database.end()
        for remote in self.remotes:
            remote.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--binary", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--s3", help="moto_server; without it there is no S3")
    parser.add_argument(
        "--faults", default="", help="TEXT[,TEXT...]: only those that have one in their names"
    )
    parser.add_argument("--keep", help="where logs of a round that failed stay")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not Postgres.programs() or not shutil.which("redis-server"):
        print("skipped: no PostgreSQL or no Redis is installed")
        return 0
    if options.s3 and not os.path.exists(options.s3):
        options.s3 = None
    if not clock_layer():
        print("Debian's package faketime is not installed: all clocks are right", file=sys.stderr)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends the servers, too
    began = time.monotonic()
    failed = None
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(options, folder)
        threading.excepthook = cluster.note_crash
        try:
            for number in range(options.first, options.first + options.rounds):
                cluster.run(number)
        except Failed as error:
            failed = f"round {number}, seed {options.seed}: {error}"
            if options.keep:
                cluster.end()
                shutil.copytree(folder, options.keep, dirs_exist_ok=True)
        finally:
            cluster.end()
        counts = dict(sorted(cluster.counts.items()))
        never = [c for c in CHECKS if not options.faults and not counts.get(c)]
        # Whether a source is silent for long enough to be hedged is a matter of chance.
        quota = COUNTED["quire_remote_quota_removed_total"]
        never += [quota] if not options.faults and not counts.get(quota) else []
        never += cluster.faults.without_effect()
        if not failed and never and counts["rounds"] >= ENOUGH_ROUNDS:
            failed = f"{counts['rounds']} rounds, none with: {', '.join(never)}"
        counts["changes acknowledged"] = sum(cluster.expected.acknowledged.values())
    result = {
        "settings": {"seed": options.seed, "first": options.first, "services": SERVICES,
                     "seconds": options.seconds, "s3": bool(options.s3),
                     "clocks_wrong_by_s": cluster.wrong_s},
        "rows": [counts | {"minutes": round((time.monotonic() - began) / 60, 1)}],
    }  # fmt: skip
    print(json.dumps(result, indent=2) if options.json else counts)
    if failed:
        print(f"FAILED in {failed}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
