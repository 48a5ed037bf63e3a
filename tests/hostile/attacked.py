"""A real `quire serve` under attack, with a neighbour: a client that goes on asking meanwhile."""

import hashlib
import http.client
import json
import os
import signal
import socket
import ssl
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "power"))
# ruff: noqa: E402
from service import Service

MIB = 1 << 20
KEY = "key-of-the-neighbour"
PATIENCE_S = 60
PROMPT_S = 5  # on a machine that is busy with other tests
TICKS = os.sysconf("SC_CLK_TCK")


def write_private(path, text):
    with open(
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii"
    ) as out:
        out.write(text)


def milliseconds(task):
    """Returns the time of a thread: in nanoseconds where the kernel counts them, else in ticks."""
    try:
        with open(task + "/schedstat", encoding="ascii") as file:
            return int(file.read().split()[0]) / 1e6
    except FileNotFoundError:
        with open(task + "/stat", encoding="utf-8", errors="replace") as file:
            return sum(map(int, file.read().rpartition(")")[2].split()[11:13])) * 1000 / TICKS


class Neighbour(threading.Thread):
    """Lists a document again and again over one connection, and remembers the slowest reply."""

    def __init__(self, connect):
        super().__init__(daemon=True)
        self.connect = connect
        self.mu = threading.Lock()
        self.slowest, self.replies, self.wrong = 0.0, 0, []
        self.ended = threading.Event()

    def run(self):
        connection = self.connect()
        while not self.ended.wait(0.02):
            began, wrong = time.monotonic(), None
            try:
                connection.request(
                    "GET", "/v1/documents?limit=1", headers={"Authorization": "Bearer " + KEY}
                )
                reply = connection.getresponse()
                reply.read()
                if reply.status != 200:
                    wrong = f"status {reply.status}"
            except (OSError, http.client.HTTPException) as error:
                wrong = repr(error)
                connection.close()
            with self.mu:
                self.slowest = max(self.slowest, time.monotonic() - began)
                self.replies += 1
                if wrong and not self.ended.is_set():
                    self.wrong.append(wrong)
        connection.close()

    def forget(self):
        with self.mu:
            self.slowest, self.replies = 0.0, 0


class Attacked:
    """A service with a key and a neighbour, in a folder of its own."""

    def __init__(self, flags=(), certificate=None):
        self.folder = tempfile.TemporaryDirectory(prefix="quire-hostile-")
        self.certificate = certificate
        keys = self.path("keys.toml")
        digest = hashlib.sha256(KEY.encode()).hexdigest()
        write_private(
            keys,
            f'[[keys]]\nname = "neighbour"\nsha256 = "{digest}"\nscopes = ["admin"]\n'
            'namespaces = ["default", "*"]\n',
        )
        self.service = Service(
            os.environ["QUIRE_BINARY"], os.environ["QUIRE_MODEL"], self.path("store"),
            self.path("log"), ("--auth.keys_file=" + keys, "--backup.every_hours=0", *flags),
        )  # fmt: skip
        if not self.service.wait_until_ready():
            raise RuntimeError(f"no start: {self.service.log()[-3:]}")
        self.port = self.service.port
        self.neighbour = Neighbour(self.connect)
        self.neighbour.start()

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def connect(self):
        if not self.certificate:
            return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        context = ssl.create_default_context(cafile=self.certificate)
        return http.client.HTTPSConnection(
            "localhost", self.port, timeout=PATIENCE_S, context=context
        )

    def raw(self, timeout=PATIENCE_S):
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout)

    def call(self, method, path, body=b"", kind="application/json", key=KEY, headers=()):
        """Returns status, headers and body of a reply. The body goes out even where the service
        refuses it by its head."""
        all_headers = {"Content-Type": kind, **dict(headers)}
        if key:
            all_headers["Authorization"] = "Bearer " + key
        connection = self.connect()
        try:
            connection.putrequest(method, path, skip_accept_encoding=True)
            for name, value in all_headers.items():
                connection.putheader(name, value)
            connection.putheader("Content-Length", str(len(body)))
            connection.endheaders()
            try:
                connection.send(body)
            except OSError:
                pass  # it was refused meanwhile
            reply = connection.getresponse()
            return reply.status, reply.headers, reply.read()
        finally:
            connection.close()

    def threads_ms(self):
        """Returns the milliseconds that each thread of the service has run."""
        times, tasks = {}, f"/proc/{self.service.process.pid}/task"
        for thread in os.listdir(tasks):
            try:
                times[thread] = milliseconds(f"{tasks}/{thread}")
            except OSError:
                pass  # it has ended
        return times

    def memory_mib(self, name):
        with open(f"/proc/{self.service.process.pid}/status", encoding="utf-8") as file:
            return next(int(line.split()[1]) / 1024 for line in file if line.startswith(name))

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.service.process.pid}/fd"))

    def under(self, attack):
        """Runs an attack. Returns its result and what it cost: the time of the busiest thread in
        milliseconds, the most memory above what there was and the slowest reply to the
        neighbour."""
        with open(f"/proc/{self.service.process.pid}/clear_refs", "w", encoding="ascii") as file:
            file.write("5")
        before, resident = self.threads_ms(), self.memory_mib("VmRSS:")
        self.neighbour.forget()
        result = attack()
        wanted = time.monotonic() + PATIENCE_S
        while self.neighbour.replies < 2 and time.monotonic() < wanted:
            time.sleep(0.01)
        ran = {t: used - before.get(t, 0) for t, used in self.threads_ms().items()}
        return result, {
            "thread_ms": max(ran.values(), default=0),
            "most_mib": self.memory_mib("VmHWM:") - resident,
            "neighbour_s": self.neighbour.slowest,
        }

    def expect_well(self, test):
        """Expects that the service lives and serves its neighbour."""
        test.assertIsNone(self.service.process.poll(), self.service.log()[-3:])
        test.assertEqual(self.neighbour.wrong, [])
        self.neighbour.forget()
        test.assertEqual(self.call("GET", "/readyz")[0], 200)

    def stop(self):
        """Returns the exit code."""
        self.neighbour.ended.set()
        self.neighbour.join()
        code = self.service.stop(signal.SIGTERM)
        self.folder.cleanup()
        return code


def error_of(body):
    """Returns code, message and setting or field of an error."""
    error = json.loads(body)["error"]
    return error["code"], error["message"], error.get("param")
