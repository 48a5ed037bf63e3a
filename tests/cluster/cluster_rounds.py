#!/usr/bin/env python3
"""Three services over one PostgreSQL database, a Redis cluster and an S3 store, with faults.

    cluster_rounds.py --binary QUIRE --model FOLDER [--rounds N] [--first N] [--seconds S]
                      [--seed N] [--s3 PROGRAM] [--keep FOLDER] [--json]

In a round four clients add, replace, change, pin and delete documents, each request at any of the
services, while servers are killed and paused, the network between is slow, silent or cut, values of
the shared cache are damaged, Redis runs out of memory and S3 refuses requests. A service starts
with the right clock, or with one that is a minute ahead or behind. Then everything but the clocks
is mended. After that every service must have every document as it was acknowledged last, all jobs
must have ended, and answers must be those of a service that saw no fault. A change whose answer was
lost may have been made or not, alike at all services. Meanwhile clients repeat requests that have
an Idempotency-Key at other services, and ask these for documents that they were told of a moment
ago (writers.py).

Clocks may only decide when a document runs out: a service hides it by its own clock, and the first
that does deletes it for all. Without Debian's package faketime all clocks are right, and that is
said.
"""

import argparse
import http.client
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from datetime import datetime
from email.utils import parsedate_to_datetime

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "power"))
# ruff: noqa: E402
from expected import question, text_of
from service import Client, Service, StartFailed

from backends import (
    S3,
    Postgres,
    RedisCluster,
    clock_environment,
    clock_layer,
    forget_clock,
)
from network import Network
from writers import CHECKS, ClusterExpected, ClusterWriter, code_of

SERVICES = 3
WRITERS = 4
LEASE_MS = 2000
SETTLE_S = 90
WRONG_S = 60  # by how much a clock is ahead or behind
CLOCKS = (-WRONG_S, 0, WRONG_S)
CLOCK_SLACK_S = 10  # by how much a clock may be other than it should
MID_REQUEST = "kill a service during a request"
# Faults that may do nothing by chance, and what counts that they did.
EFFECTS = {
    "damage values in Redis": "values damaged",
    "remove keys of Redis for want of memory": "keys removed for want of memory",
    "refuse writes to Redis for want of memory": "writes refused for want of memory",
    "refuse requests to S3": "requests to S3 refused",
    "damage values from S3": "values from S3 damaged",
}
# Of the shared tiers, for all services together: less than the documents of a run have.
QUOTA = '["*"]\nremote_bytes = "4MiB"\n'
# What services count of themselves since their start.
COUNTED = {
    "quire_remote_quota_removed_total": "contexts removed for a quota",
    "quire_remote_hedged_reads_total": "reads that a second source was asked for",
    "quire_remote_hedges_won_total": "reads that the second source answered first",
    'quire_remote_second_way_contexts_total{tier="redis"}': "contexts read from a replica of Redis",
}
EARLIER_REQUESTS = 20  # of earlier rounds that are repeated, too
ENOUGH_ROUNDS = 10  # after which every check must have been made


def about_clock(wrong_s):
    return f"a clock {abs(wrong_s)} s {'ahead' if wrong_s > 0 else 'behind'}" if wrong_s else (
        "the right clock")  # fmt: skip


class Failed(Exception):
    pass


class Replica:
    """A service with a store of its own, its clock, and its way to the database."""

    def __init__(self, cluster, number, wrong_s):
        self.cluster, self.number = cluster, number
        self.store = os.path.join(cluster.folder, f"store{number}")
        self.starts = 0
        self.network = Network(cluster.database.port)
        self.mu = threading.RLock()  # for starts and ends
        self.service, self.wrong_s = None, 0
        self.start(wrong_s)

    def start(self, wrong_s):
        """`wrong_s`: by how many seconds its clock is ahead, or behind where negative."""
        with self.mu:
            self.start_locked(wrong_s)

    def start_locked(self, wrong_s):
        self.starts += 1
        self.wrong_s = wrong_s
        cluster = self.cluster
        cluster.started(self)
        clock = f"{wrong_s:+d}s" if wrong_s else ""
        self.log = os.path.join(cluster.folder, f"service{self.number}.{self.starts}{clock}.log")
        remote = " ".join(r.url() for r in cluster.remotes)
        self.service = Service(
            cluster.options.binary, cluster.options.model, self.store, self.log,
            ("--catalog.url=" + cluster.database.url(self.network.port),
             f"--catalog.job_lease_ms={LEASE_MS}", "--catalog.timeout_ms=2000",
             "--remote.url=" + remote, "--remote.lease_ms=1000",
             "--cache.quotas_file=" + cluster.quotas),
            {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret",
             **clock_environment(wrong_s)},
        )  # fmt: skip
        if not self.service.wait_until_ready():
            raise Failed(f"service {self.number} does not start: {self.service.log()[-5:]}")

    def is_up(self):
        return self.service.process.poll() is None

    def signal(self, number):
        if self.is_up():
            self.service.process.send_signal(number)

    def stop(self, number):
        with self.mu:
            self.service.stop(number)
            forget_clock(self.service.process.pid)

    def kill(self):
        self.stop(signal.SIGKILL)

    def restart(self, number, wrong_s):
        with self.mu:
            self.stop(number)
            self.start(wrong_s)

    def check_clock(self):
        """Fails unless the service has the clock that it was started with: a fault that does
        nothing finds nothing."""
        connection = http.client.HTTPConnection("127.0.0.1", self.service.port, timeout=SETTLE_S)
        began = time.time()
        connection.request("GET", "/healthz")
        reply = connection.getresponse()
        reply.read()
        connection.close()
        shown = parsedate_to_datetime(reply.headers["Date"]).timestamp()
        check_time(f"the clock of service {self.number}", shown, {self.wrong_s}, began, time.time())


def check_time(what, shown, clocks, began, ended):
    """Fails unless one of clocks that are so wrong can have shown this time between two others."""
    first, last = began - CLOCK_SLACK_S, ended + CLOCK_SLACK_S
    if not any(first <= shown - wrong_s <= last for wrong_s in clocks):
        services = " or ".join("a service with " + about_clock(c) for c in sorted(clocks))
        raise Failed(f"{what} shows {shown}, which {services} does not between {began} and {ended}")


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
        self.s3 = S3(options.s3) if options.s3 else None
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
        self.known = {}

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

    # ---- faults ----

    def faults(self):
        faults = {
            "kill a service": 4, MID_REQUEST: 3,
            "pause a service": 2, "pause a service past its lease": 3,
            "stop a service": 1, "kill the database": 2, "pause the database": 1,
            "part a service from the database": 2, "a slow way to the database": 2,
            "cut connections to the database": 2, "kill a primary of Redis": 2,
            "pause a node of Redis": 1, "damage values in Redis": 4, "empty Redis": 1,
            "remove keys of Redis for want of memory": 2,
            "refuse writes to Redis for want of memory": 2,
            "kill S3": 1 if self.s3 else 0, "refuse requests to S3": 3 if self.s3 else 0,
            "damage values from S3": 3 if self.s3 else 0,
            "set a clock": 3 if self.wrong_s else 0,
        }  # fmt: skip
        return {k: w for k, w in faults.items() if w and self.options.faults in k}

    def fault(self, kind, rng):
        """Makes a fault that lasts until heal(), or ends by itself."""
        replica = rng.choice(self.replicas)
        if kind == "kill a service":
            replica.kill()
        elif kind == MID_REQUEST:
            end = time.monotonic() + 2
            asked = set()
            while not asked and time.monotonic() < end:
                time.sleep(0.001)
                asked = {w.client.under_way for w in self.writers} - {None}
            time.sleep(rng.uniform(0, 0.01))
            (self.replicas[min(asked)] if asked else replica).kill()
        elif kind == "stop a service":
            replica.stop(signal.SIGTERM)
        elif kind.startswith("pause a service"):
            replica.signal(signal.SIGSTOP)
            long = kind.endswith("lease")
            time.sleep(LEASE_MS / 1000 * 1.7 if long else rng.uniform(0.2, 1.5))
            replica.signal(signal.SIGCONT)
        elif kind == "kill the database":
            self.database.kill()
            time.sleep(rng.uniform(0, 1.5))
            self.database.start()
        elif kind == "pause the database":
            self.database.signal(signal.SIGSTOP)
            time.sleep(rng.uniform(0.5, 2))
            self.database.signal(signal.SIGCONT)
        elif kind == "part a service from the database":
            replica.network.silent = True
            time.sleep(rng.uniform(1, 4))
            replica.network.silent = False
            if rng.random() < 0.5:
                replica.network.cut()
        elif kind == "a slow way to the database":
            replica.network.delay_s = 0.2
        elif kind == "cut connections to the database":
            for _ in range(5):
                rng.choice(self.replicas).network.cut()
                time.sleep(rng.uniform(0.05, 0.4))
        elif kind == "kill a primary of Redis":
            self.redis.kill_primary(rng)
        elif kind == "pause a node of Redis":
            rng.choice(self.redis.nodes).signal(signal.SIGSTOP)
        elif kind == "damage values in Redis":
            self.counts["values damaged"] += self.redis.damage(rng)
        elif kind == "empty Redis":
            self.redis.empty()
        elif kind == "remove keys of Redis for want of memory":
            self.redis.limit(RedisCluster.POLICY, rng.uniform(0.5, 1))
        elif kind == "refuse writes to Redis for want of memory":
            self.redis.limit("noeviction", rng.uniform(0.5, 1))
        elif kind == "kill S3":
            self.s3.kill()
        elif kind == "refuse requests to S3":
            self.s3.proxy.refused_share = rng.choice((0.3, 1))
        elif kind == "damage values from S3":
            self.s3.proxy.damaged_share = rng.choice((0.3, 1))
        elif kind == "set a clock":
            others = [c for c in self.clocks() if c != replica.wrong_s]
            replica.restart(rng.choice((signal.SIGTERM, signal.SIGKILL)), rng.choice(others))

    def make_fault(self, kind, rng):
        try:
            self.fault(kind, rng)
        except (Failed, StartFailed) as error:
            self.expected.problem(f"{kind}: {error}")

    def heal(self, rng):
        self.database.signal(signal.SIGCONT)
        self.counts["keys removed for want of memory"] += self.redis.evicted()
        self.counts["writes refused for want of memory"] += self.redis.refused()
        self.redis.heal()
        self.redis.lift_limit()
        if self.s3:
            self.counts["requests to S3 refused"] = self.s3.proxy.refused
            self.counts["values from S3 damaged"] = self.s3.proxy.damaged
            self.s3.proxy.heal()
            if self.s3.process.poll() is not None:
                self.s3.start()
        for replica in self.replicas:
            replica.network.heal()
            replica.signal(signal.SIGCONT)
        for replica in self.replicas:
            if not replica.is_up():
                forget_clock(replica.service.process.pid)
                replica.start(rng.choice(self.clocks()))

    # ---- a round ----

    def run(self, number):
        rng = random.Random(f"{self.options.seed}/{number}")
        self.expected.jobs = []
        until = time.monotonic() + self.options.seconds
        self.writers = writers = [
            ClusterWriter(self, i, f"{self.options.seed}/{number}/{i}", until)
            for i in range(WRITERS)
        ]
        for w in writers:
            w.start()
        kinds = self.faults()
        planned = rng.choices(list(kinds), list(kinds.values()), k=rng.choice((1, 2, 2, 3)))
        if number == self.options.first:  # so that no run is without
            planned.append(MID_REQUEST)
        self.note(f"round {number}: " + ", ".join(planned))
        busy = []
        for kind in planned:
            time.sleep(rng.uniform(0.2, self.options.seconds / 3))
            self.counts[kind] += 1
            busy.append(threading.Thread(target=self.make_fault, args=(kind, rng)))
            busy[-1].start()
        for t in busy + writers:
            t.join()
        self.check_problems()
        self.heal(rng)
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
        names = sorted(n for n, v in self.expected.allowed.items() if len(v) == 1 and v[0])
        for name in rng.sample(names, min(4, len(names))):
            value = self.expected.values(name)[0]
            if value is None or value.expires:
                continue
            for i, client in enumerate(clients):
                status, reply = client.call("POST", "/v1/query", question([name]))
                if status != 200 or reply["answer"] != self.answer(value.number, value.title):
                    raise Failed(f"service {i} answers over {name}: {status} {reply}")
                self.counts["answers"] += 1

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

    def answer(self, number, title):
        key = (number, title)
        if key not in self.known:
            client = Client(self.reference.port)
            body = {"id": "d", "text": text_of(number), "title": title}
            status, reply = client.call("POST", "/v1/documents?wait=true", body)
            if status != 200:
                raise Failed(f"reference: {reply}")
            self.known[key] = client.call("POST", "/v1/query", question(["d"]))[1]["answer"]
        return self.known[key]

    def note(self, text):
        if not self.options.json:
            print(text, flush=True)

    def end(self):
        for replica in self.replicas:
            replica.signal(signal.SIGCONT)
            replica.kill()
            replica.network.end()
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
    parser.add_argument("--faults", default="", help="only those whose names have this text")
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
        never += [e for f, e in EFFECTS.items() if counts.get(f) and not counts.get(e)]
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
