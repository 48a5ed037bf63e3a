"""The services of cluster_rounds.py, each with a clock and ways to the servers of its own."""

import http.client
import os
import signal
import threading
import time
from email.utils import parsedate_to_datetime

from backends import clock_environment, forget_clock
from network import Network, RedisNetwork
from service import Service

LEASE_MS = 2000
SETTLE_S = 90
CLOCK_SLACK_S = 10  # by how much a clock may be other than it should


class Failed(Exception):
    pass


def about_clock(wrong_s):
    return f"a clock {abs(wrong_s)} s {'ahead' if wrong_s > 0 else 'behind'}" if wrong_s else (
        "the right clock")  # fmt: skip


class Replica:
    """A service with a store of its own, its clock, and its ways to the servers."""

    def __init__(self, cluster, number, wrong_s):
        self.cluster, self.number = cluster, number
        self.store = os.path.join(cluster.folder, f"store{number}")
        self.starts = 0
        self.to_database = Network(cluster.database.port)
        self.to_redis = RedisNetwork([node.port for node in cluster.redis.nodes])
        self.to_s3 = Network(cluster.s3.proxy.port) if cluster.s3 else None
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
        remote = self.to_redis.url()
        if self.to_s3:
            remote += " " + cluster.s3.url(self.to_s3.port)
        self.service = Service(
            cluster.options.binary, cluster.options.model, self.store, self.log,
            ("--catalog.url=" + cluster.database.url(self.to_database.port),
             f"--catalog.job_lease_ms={LEASE_MS}", "--catalog.timeout_ms=2000",
             "--remote.url=" + remote, "--remote.lease_ms=1000",
             "--cache.quotas_file=" + cluster.quotas),
            {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret",
             **clock_environment(wrong_s)},
        )  # fmt: skip
        if not self.service.wait_until_ready():
            raise Failed(f"service {self.number} does not start: {self.service.log()[-5:]}")

    def ways(self):
        return [self.to_database, self.to_redis] + ([self.to_s3] if self.to_s3 else [])

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
