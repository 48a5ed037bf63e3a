#!/usr/bin/env python3
"""Three services over one PostgreSQL database, a Redis cluster and an S3 store, with faults.

    cluster_rounds.py --binary QUIRE --model FOLDER [--rounds N] [--first N] [--seconds S]
                      [--seed N] [--s3 PROGRAM] [--keep FOLDER] [--json]

In a round four clients add, replace, change, pin and delete documents, each request at any of the
services, while servers are killed and paused, the network between is slow, silent or cut, and
values of the shared cache are damaged. Then everything is mended. After that every service must
have every document as it was acknowledged last, all jobs must have ended, and answers must be those
of a service that saw no fault. A change whose answer was lost may have been made or not, alike at
all services.
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
from collections import Counter

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "power"))
# ruff: noqa: E402
from expected import Expected, Writer, question, text_of
from service import Client, Gone, Service, StartFailed

from backends import S3, Network, Postgres, RedisCluster

SERVICES = 3
WRITERS = 4
LEASE_MS = 2000
SETTLE_S = 90


class Failed(Exception):
    pass


class Replica:
    """A service with a store of its own, and its way to the database."""

    def __init__(self, cluster, number):
        self.cluster, self.number = cluster, number
        self.store = os.path.join(cluster.folder, f"store{number}")
        self.starts = 0
        self.network = Network(cluster.database.port)
        self.service = None
        self.start()

    def start(self):
        self.starts += 1
        cluster = self.cluster
        self.log = os.path.join(cluster.folder, f"service{self.number}.{self.starts}.log")
        remote = " ".join(r.url() for r in cluster.remotes)
        self.service = Service(
            cluster.options.binary, cluster.options.model, self.store, self.log,
            ("--catalog.url=" + cluster.database.url(self.network.port),
             f"--catalog.job_lease_ms={LEASE_MS}", "--catalog.timeout_ms=2000",
             "--remote.url=" + remote, "--remote.lease_ms=1000"),
            {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"},
        )  # fmt: skip
        if not self.service.wait_until_ready():
            raise Failed(f"service {self.number} does not start: {self.service.log()[-5:]}")

    def is_up(self):
        return self.service.process.poll() is None

    def signal(self, number):
        if self.is_up():
            self.service.process.send_signal(number)

    def kill(self):
        self.service.stop(signal.SIGKILL)


class AnyClient:
    """Asks any service that runs; each writer has one."""

    def __init__(self, cluster, rng):
        self.cluster, self.rng = cluster, rng
        self.clients = {}
        self.asked = None  # number of the service that was asked last

    def call(self, method, path, body=None):
        up = [r for r in self.cluster.replicas if r.is_up()]
        if not up:
            raise Gone("no service runs")
        replica = self.rng.choice(up)
        port, self.asked = replica.service.port, replica.number
        if port not in self.clients:
            self.clients[port] = Client(port)
        try:
            return self.clients[port].call(method, path, body)
        except Gone:
            del self.clients[port]
            raise


class ClusterExpected(Expected):
    def problem(self, text):
        # A job that was taken without an answer may be at work on the document.
        if "document_not_ready" not in text:
            super().problem(text)


class ClusterWriter(Writer):
    def __init__(self, cluster, number, seed, until):
        super().__init__(cluster.expected, number, seed, 0, until)
        self.client = AnyClient(cluster, self.rng)
        self.history = cluster.history

    def ask(self, kind, method, path, body, changes, good=(200, 201)):
        said = {n: v and v.shown() for n, v in changes.items()}
        began, reply = time.time(), "no answer"
        try:
            reply = super().ask(kind, method, path, body, changes, good)
            return reply
        finally:
            told = "refused" if reply is None else reply
            if isinstance(reply, dict):
                told = "acknowledged " + reply.get("job_id", "")
            self.history.append((began, time.time(), self.client.asked, kind, said, told))

    def do_delete_some(self):
        names = self.rng.sample(self.ids, 2)
        self.expected.begin({n: None for n in names})
        status, reply = self.client.call("POST", "/v1/documents/delete", {"ids": names})
        # One that is not found may be at work at another service.
        deleted = reply["deleted"] if status == 200 else []
        self.expected.acknowledge("delete some", {n: None for n in deleted})
        self.waits -= set(deleted)
        for name in names:
            said = "deleted" if name in deleted else reply
            self.history.append((time.time(), 0, self.client.asked, "delete", {name: None}, said))

    def run(self):
        while time.monotonic() < self.until:
            try:
                self.step()
            except Gone:  # whether the change was made is not known
                time.sleep(0.05)


class Cluster:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.counts = Counter()
        self.expected = ClusterExpected()
        self.history = []  # of all changes: begin, end, service, kind, values, job or no answer
        self.database = Postgres()
        self.redis = RedisCluster()
        self.remotes = [self.redis] + ([S3(options.s3)] if options.s3 else [])
        self.replicas = []
        for number in range(SERVICES):
            self.replicas.append(Replica(self, number))
        self.reference = Service(
            options.binary, options.model, os.path.join(folder, "reference"),
            os.path.join(folder, "reference.log"))  # fmt: skip
        if not self.reference.wait_until_ready():
            raise StartFailed("the reference does not start")
        self.known = {}

    # ---- faults ----

    def faults(self):
        return {
            "kill a service": 4, "pause a service": 2, "pause a service past its lease": 3,
            "stop a service": 1, "kill the database": 2, "pause the database": 1,
            "part a service from the database": 2, "a slow way to the database": 2,
            "cut connections to the database": 2, "kill a primary of Redis": 2,
            "pause a node of Redis": 1, "damage values in Redis": 4, "empty Redis": 1,
            "kill S3": 1 if len(self.remotes) > 1 else 0,
        }  # fmt: skip

    def fault(self, kind, rng):
        """Makes a fault that lasts until heal(), or ends by itself."""
        replica = rng.choice(self.replicas)
        if kind == "kill a service":
            replica.kill()
        elif kind == "stop a service":
            replica.service.stop()
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
        elif kind == "kill S3":
            self.remotes[1].kill()

    def heal(self):
        self.database.signal(signal.SIGCONT)
        self.redis.heal()
        for remote in self.remotes[1:]:
            if remote.process.poll() is not None:
                remote.start()
        for replica in self.replicas:
            replica.network.heal()
            replica.signal(signal.SIGCONT)
        for replica in self.replicas:
            if not replica.is_up():
                replica.start()

    # ---- a round ----

    def run(self, number):
        rng = random.Random(f"{self.options.seed}/{number}")
        self.expected.jobs = []
        until = time.monotonic() + self.options.seconds
        writers = [
            ClusterWriter(self, i, f"{self.options.seed}/{number}/{i}", until)
            for i in range(WRITERS)
        ]
        for w in writers:
            w.start()
        kinds = self.faults()
        planned = rng.choices(list(kinds), list(kinds.values()), k=rng.choice((1, 2, 2, 3)))
        self.note(f"round {number}: " + ", ".join(planned))
        busy = []
        for kind in planned:
            time.sleep(rng.uniform(0.2, self.options.seconds / 3))
            self.counts[kind] += 1
            busy.append(threading.Thread(target=self.fault, args=(kind, rng)))
            busy[-1].start()
        for t in busy + writers:
            t.join()
        if self.expected.problems:
            raise Failed("; ".join(self.expected.problems[:3]))
        self.heal()
        self.settle()
        self.check(rng)
        self.counts["rounds"] += 1

    def settle(self):
        """Waits until the services follow the database and all jobs have ended."""
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
        for job in self.expected.jobs:
            for i, client in enumerate(clients):
                while True:
                    status, found = client.call("GET", "/v1/jobs/" + job)
                    if status == 200 and found["status"] not in ("queued", "running"):
                        break
                    if time.monotonic() > end:
                        raise Failed(f"the job {job} has not ended at service {i}: {found}")
                    time.sleep(0.05)
            if found["status"] == "failed":
                self.counts["jobs failed"] += 1
            self.counts["jobs"] += 1
        # Jobs that were taken without a reply may still be at work somewhere.
        for client in clients:
            while True:
                _, page = client.call("GET", "/v1/jobs?limit=100")
                if not [j for j in page["data"] if j["status"] in ("queued", "running")]:
                    break
                if time.monotonic() > end:
                    raise Failed("a job that nobody waits for does not end")
                time.sleep(0.1)

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

    @staticmethod
    def may_be(value, document, text):
        """Returns whether a document that was found is one that was set."""
        now = time.time()
        if document is None:
            return value is None or bool(value.expires and now >= value.expires[0])
        late = value and value.expires and now > value.expires[1] + 15
        return value is not None and not late and not value.differs(document, text)

    def check_document(self, clients, name):
        # Replicas follow within moments, so a difference may go away.
        end = time.monotonic() + 10
        while True:
            wrong, seen, left = [], [], self.expected.values(name)
            for i, client in enumerate(clients):
                document, text = self.found(client, name)
                values = self.expected.values(name)
                fits = [v for v in values if self.may_be(v, document, text)]
                left = [v for v in left if v in fits]
                shown = document and {k: document.get(k) for k in (
                    "title", "metadata", "pinned", "status", "version", "expires_at")}  # fmt: skip
                seen.append((shown, text and text[:40]))
                if not fits:
                    allowed = [v and v.shown() for v in values]
                    wrong.append(f"service {i} has {name} as {seen[-1]}, allowed: {allowed}")
            if not wrong and any(s != seen[0] for s in seen):
                wrong.append(f"services differ over {name}: {seen}")
            self.counts["documents"] += len(seen)
            if not wrong:
                with self.expected.mu:  # what was found is what later rounds have to find
                    self.expected.allowed[name] = left[-1:]
                return
            if time.monotonic() > end:
                for change in self.history:
                    if name in change[4]:
                        self.note(f"  {change}")
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
    parser.add_argument("--keep", help="where logs of a round that failed stay")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not Postgres.programs() or not shutil.which("redis-server"):
        print("skipped: no PostgreSQL or no Redis is installed")
        return 0
    if options.s3 and not os.path.exists(options.s3):
        options.s3 = None
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
        counts["changes acknowledged"] = sum(cluster.expected.acknowledged.values())
    result = {
        "settings": {"seed": options.seed, "first": options.first, "services": SERVICES,
                     "seconds": options.seconds, "s3": bool(options.s3)},
        "rows": [counts | {"minutes": round((time.monotonic() - began) / 60, 1)}],
    }  # fmt: skip
    print(json.dumps(result, indent=2) if options.json else counts)
    if failed:
        print(f"FAILED in {failed}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
