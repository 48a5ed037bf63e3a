"""The servers that replicas share, for cluster_rounds.py and bench/tier_faults.py: a PostgreSQL
database, Redis and an S3 store, each with faults, and clocks that are wrong. The ways to them are
in network.py."""

import contextlib
import glob
import http.client
import os
import pwd
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.parse
from collections import Counter
from xml.sax.saxutils import unescape

from network import FaultyHttp

PATIENCE_S = 60
FAILOVER_S = 6
# What may become of a value that is damaged where it lies.
DAMAGES = ("overwritten", "cut", "emptied", "prolonged", "swapped", "removed")
ANSWER_S = 5  # of a node of Redis


def free_port():
    """It and the one of a cluster's bus, 10000 above, are below those that the system gives to
    connections, which could have it when a server starts again."""
    while True:
        port = random.SystemRandom().randrange(10000, 22000)
        with contextlib.suppress(OSError), socket.socket() as s:
            s.bind(("127.0.0.1", port))
            return port


def wait_for(what, condition):
    end = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError(f"{what} is not there after a minute")
        time.sleep(0.05)


def listens(port):
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    except OSError:
        return False


def clock_layer():
    """Returns libfaketime, which tells a process a wrong time of day; empty: not installed."""
    return max(glob.glob("/usr/lib/*/faketime/libfaketimeMT.so.1"), default="")


def clock_environment(wrong_s):
    """Returns the environment of a process whose clock is so many seconds ahead, or behind where
    negative. Its waits last as long as ever: only the time of day is wrong."""
    if not wrong_s:
        return {}
    return {
        "LD_PRELOAD": clock_layer(),
        "FAKETIME": f"{wrong_s:+d}s",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        # Else a wait on a pthread condition by the monotonic clock ends at once. A timerfd and a
        # clock_nanosleep until a time of the monotonic clock are wrong all the same. The service
        # has none: Boost.Asio sets a timerfd so only for timers that are due when they are set.
        "FAKETIME_FORCE_MONOTONIC_FIX": "0",
    }


def forget_clock(pid):
    """Removes what libfaketime leaves of a process that has ended. It would end a later process
    that has the same id."""
    for name in (f"faketime_shm_{pid}", f"sem.faketime_sem_{pid}"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink("/dev/shm/" + name)


def damaged(how, value, other, rng):
    """Returns what becomes of a value, bytes, where `other` is another one; None: it goes."""
    return {
        "overwritten": lambda: rng.randbytes(len(value)),
        "cut": lambda: value[: len(value) // 2],
        "emptied": lambda: b"",
        "prolonged": lambda: value + rng.randbytes(9),
        "swapped": lambda: other,
        "removed": lambda: None,
    }[how]()


class Process:
    """A server that can be killed, paused and started again."""

    def __init__(self, command, port, user=None):
        self.command, self.port, self.user = command, port, user
        self.process = None

    def start(self):
        identity = {"user": self.user.pw_uid, "group": self.user.pw_gid} if self.user else {}
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **identity,
        )
        wait_for(self.command[0], lambda: listens(self.port))

    def signal(self, number):
        if self.process and self.process.poll() is None:
            self.process.send_signal(number)

    def kill(self):
        self.signal(signal.SIGKILL)
        if self.process:
            self.process.wait()


class Postgres(Process):
    PASSWORD = "s3cr3t"

    @staticmethod
    def programs():
        return max(glob.glob("/usr/lib/postgresql/*/bin"), default="")

    def __init__(self):
        user = None
        if os.geteuid() == 0:
            names = [u.pw_name for u in pwd.getpwall()]
            user = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
        self.folder = tempfile.mkdtemp()
        os.chmod(self.folder, 0o777)
        data, password = self.folder + "/data", self.folder + "/password"
        with open(password, "w", encoding="ascii") as file:
            file.write(self.PASSWORD + "\n")
        os.chmod(password, 0o644)
        identity = {"user": user.pw_uid, "group": user.pw_gid} if user else {}
        subprocess.run(
            [self.programs() + "/initdb", "-D", data, "-U", "quire", "--pwfile", password, "-A",
             "scram-sha-256", "--no-sync", "-E", "UTF8", "--locale=C"],
            check=True, stdout=subprocess.DEVNULL, **identity,
        )  # fmt: skip
        port = free_port()
        command = [self.programs() + "/postgres", "-D", data, "-p", str(port), "-k", self.folder,
                   "-h", "127.0.0.1", "-c", "shared_buffers=32MB"]  # fmt: skip
        super().__init__(command, port, user)
        self.start()

    def kill(self):
        """Kills every process of the server, as a loss of power would."""
        if not self.process or self.process.poll() is not None:
            return
        children = f"/proc/{self.process.pid}/task/{self.process.pid}/children"
        with open(children, encoding="ascii") as file:
            pids = [int(pid) for pid in file.read().split()]
        super().kill()
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        wait_for("the end of PostgreSQL", lambda: not any(map(alive, pids)))

    def start(self):
        super().start()
        wait_for("PostgreSQL", self.answers)

    def answers(self):
        command = [self.programs() + "/pg_isready", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode == 0

    def url(self, port):
        return f"postgresql://quire:{self.PASSWORD}@127.0.0.1:{port}/postgres"

    def end(self):
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class Redis:
    """One server, and what is common to it and a cluster. `memory`: of each node; "0": no limit."""

    NODES = 1
    POLICY = "allkeys-lru"
    MORE = ()  # options of each node

    def __init__(self, memory="64mb"):
        self.memory = memory
        self.folder = tempfile.mkdtemp()
        self.nodes = []
        for i in range(self.NODES):
            port = free_port()
            home = f"{self.folder}/{i}"
            os.mkdir(home)
            command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "",
                       "--appendonly", "no", "--dir", home, *self.MORE, "--maxmemory", self.memory,
                       "--maxmemory-policy", self.POLICY]  # fmt: skip
            node = Process(command, port)
            node.start()
            self.nodes.append(node)

    def url(self):
        return "redis://" + ",".join(f"127.0.0.1:{n.port}" for n in self.nodes)

    def ask(self, node, *command, data=None):
        """Returns the answer of a node as text; empty: it does not answer."""
        return self.ask_bytes(node, *command, data=data).decode("utf-8", "replace")

    def ask_bytes(self, node, *command, data=None):
        more = ["-x"] if data is not None else []
        try:
            done = subprocess.run(
                ["redis-cli", "-p", str(self.nodes[node].port), *more, *command],
                input=data, capture_output=True, check=False, timeout=ANSWER_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired:  # it is paused
            return b""
        return done.stdout

    def primaries(self):
        return [i for i in range(self.NODES) if "role:master" in self.ask(i, "INFO", "replication")]

    def kill_primary(self, rng):
        if nodes := self.primaries():
            self.nodes[rng.choice(nodes)].kill()

    def heal(self):
        for node in self.nodes:
            node.signal(signal.SIGCONT)
            if node.process.poll() is not None:
                node.start()

    def damage(self, rng, most=6):
        """Damages a field of so many contexts of each primary, and returns how often in which of
        DAMAGES."""
        made = Counter()
        for i in self.primaries():
            keys = sorted(self.keys(i))
            for key in rng.sample(keys, min(most, len(keys))):
                made += self.damage_one(rng, i, key, rng.choice(keys))
        return made

    def damage_all(self, rng):
        """Does so with one field of every context."""
        made = Counter()
        for i in self.primaries():
            keys = sorted(self.keys(i))
            for key in keys:
                made += self.damage_one(rng, i, key, rng.choice(keys))
        return made

    def damage_one(self, rng, node, key, other_key):
        how = rng.choice(DAMAGES)
        fields = sorted(self.ask(node, "HKEYS", key).split())
        if not fields or fields[0].startswith("WRONGTYPE"):
            return Counter()
        field = rng.choice(fields)
        if how == "removed":
            done = self.ask(node, "HDEL", key, field).strip()
        else:
            value, other = self.value(node, key, field), self.value(node, other_key, field)
            # The other context may have no such field, or be the same one.
            other = other if other not in (b"", value) else value[::-1]
            done = self.ask(node, "HSET", key, field, data=damaged(how, value, other, rng)).strip()
        return Counter([how] if done.isdigit() else [])  # else the node does not answer or is full

    def value(self, node, key, field):
        """Returns a field of a context; empty: there is none."""
        return self.ask_bytes(node, "HGET", key, field)[:-1]

    def keys(self, node):
        return self.ask(node, "KEYS", "*").split()

    def empty(self):
        for i in self.primaries():
            self.ask(i, "FLUSHALL")

    def limit(self, policy, share=1.0):
        """Leaves nodes this share of the memory that they use now, as one that is full. By
        `noeviction` they refuse what is written, by others they remove keys."""
        for i in range(self.NODES):
            used = self.statistic(i, "memory", "used_memory")
            if used:
                self.ask(i, "CONFIG", "SET", "maxmemory-policy", policy)
                self.ask(i, "CONFIG", "SET", "maxmemory", str(int(used * share)))

    def lift_limit(self):
        for i in range(self.NODES):
            self.ask(i, "CONFIG", "SET", "maxmemory", self.memory)
            self.ask(i, "CONFIG", "SET", "maxmemory-policy", self.POLICY)
            self.ask(i, "CONFIG", "RESETSTAT")

    def statistic(self, node, section, name):
        """Returns a number of INFO; 0: the node does not answer, or has none."""
        for line in self.ask(node, "INFO", section).splitlines():
            key, _, value = line.partition(":")
            if key == name:
                return int(value.removeprefix("count="))
        return 0

    def evicted(self):
        """Returns how many keys nodes removed for want of memory since lift_limit()."""
        return sum(self.statistic(i, "stats", "evicted_keys") for i in range(self.NODES))

    def refused(self):
        """Returns how many writes nodes refused for want of memory since lift_limit()."""
        return sum(self.statistic(i, "errorstats", "errorstat_OOM") for i in range(self.NODES))

    def end(self):
        for node in self.nodes:
            node.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


class RedisCluster(Redis):
    """Three primaries, each with a replica."""

    NODES = 6
    MORE = ("--cluster-enabled", "yes", "--cluster-node-timeout", "1500",
            "--cluster-announce-ip", "127.0.0.1")  # fmt: skip

    def __init__(self, memory="64mb"):
        super().__init__(memory)
        hosts = [f"127.0.0.1:{n.port}" for n in self.nodes]
        create = ["--cluster", "create", *hosts, "--cluster-replicas", "1", "--cluster-yes"]
        subprocess.run(["redis-cli", *create], check=True, stdout=subprocess.DEVNULL)
        wait_for("the Redis cluster", lambda: "cluster_state:ok" in self.ask(0, "CLUSTER", "INFO"))

    def fail_over(self, rng):
        """Kills a primary. Returns whether a replica has taken its place."""
        before = set(self.primaries())
        if not before:
            return False
        self.nodes[rng.choice(sorted(before))].kill()
        return self.is_followed(before)

    def hand_over(self, rng):
        """Lets a replica take the place of its primary, which goes on as a replica. Returns
        whether it has."""
        before = set(self.primaries())
        ready = [i for i in range(self.NODES)
                 if "master_link_status:up" in self.ask(i, "INFO", "replication")]  # fmt: skip
        if not ready:
            return False
        self.ask(rng.choice(ready), "CLUSTER", "FAILOVER")
        return self.is_followed(before)

    def is_followed(self, before):
        """Returns whether a node becomes a primary that was none before."""
        end = time.monotonic() + FAILOVER_S
        while not set(self.primaries()) - before:
            if time.monotonic() > end:
                return False
            time.sleep(0.1)
        return True

    def is_whole(self):
        """Returns whether every node says so, and every replica has what its primary has."""
        roles = [self.ask(i, "INFO", "replication") for i in range(self.NODES)]
        replicas = [r for r in roles if "role:slave" in r and "master_link_status:up" in r]
        states = [self.ask(i, "CLUSTER", "INFO") for i in range(self.NODES)]
        whole = all("cluster_state:ok" in s for s in states)
        return whole and len(replicas) == self.NODES // 2 == len(self.primaries())


class S3(Process):
    """moto's server behind a proxy that can fail; what it holds is lost when it is killed."""

    BUCKET = "/bucket"
    # moto verifies no signature, but gives objects only to those who send one.
    SIGNED = {"Authorization": "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request"}

    def __init__(self, program, seed=0):
        port = free_port()
        super().__init__([program, "-H", "127.0.0.1", "-p", str(port)], port)
        self.proxy = FaultyHttp(port, seed)
        self.start()

    def url(self, port=None):
        """`port`: another way to the proxy."""
        port = port or self.proxy.port
        return f"s3:/{self.BUCKET}/cluster?endpoint=http://127.0.0.1:{port}&region=us-east-1"

    def start(self):
        super().start()
        if self.ask("PUT", self.BUCKET) is None:
            raise RuntimeError("the S3 server makes no bucket")

    def ask(self, method, path, body=None):
        """Asks the server itself. Returns the body of its reply; None: it has none, or refuses."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_S)
        try:
            connection.request(method, path, body, self.SIGNED)
            reply = connection.getresponse()
            found = reply.read()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()
        return found if reply.status < 300 else None

    def objects(self):
        listed = self.ask("GET", self.BUCKET + "?list-type=2") or b""
        return sorted(unescape(k) for k in re.findall("<Key>([^<]*)</Key>", listed.decode()))

    def damage(self, rng, most=20):
        """Damages objects of contexts, and returns how many in which of DAMAGES."""
        made, names = Counter(), self.objects()
        for name in rng.sample(names, min(most, len(names))):
            how, other = rng.choice(DAMAGES), rng.choice(names)
            value = self.ask("GET", self.path(name))
            if value is None:
                continue  # it was deleted meanwhile
            other = self.ask("GET", self.path(other)) or b""
            other = other if other != value else value[::-1]
            left = damaged(how, value, other, rng)
            method = "DELETE" if left is None else "PUT"
            made[how] += self.ask(method, self.path(name), left) is not None
        return made

    def path(self, name):
        return f"{self.BUCKET}/{urllib.parse.quote(name)}"

    def end(self):
        self.kill()
        self.proxy.end()
