"""What every load balancer of configs/ must do, for nginx_test.py and envoy_test.py."""

from __future__ import annotations

import http.client
import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from kubernetes_test import CONFIGS, PASSED, REFUSED

sys.path.insert(0, str(CONFIGS.parent / "tests" / "power"))
from service import Service  # noqa: E402


class Replica:
    """Answers every request with its number, or with 503 while it drains. One that breaks takes a
    request and closes the connection. While `go_on` is clear, questions are held."""

    def __init__(self, number: int) -> None:
        replica = self
        self.drains = self.gone = self.breaks = False
        self.broken = self.held = 0
        self.go_on = threading.Event()
        self.go_on.set()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                if replica.gone:  # connections that were kept end, too
                    self.close_connection = True
                    return
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if replica.breaks and self.path != "/readyz":
                    replica.broken += 1
                    self.close_connection = True
                    return
                if not (replica.drains or replica.go_on.is_set() or self.path == "/readyz"):
                    replica.held += 1
                    replica.go_on.wait(60)
                body = str(number).encode()
                self.send_response(503 if replica.drains else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def handle(self) -> None:
                with contextlib.suppress(OSError):  # the other side has gone
                    super().handle()

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def end(self) -> None:
        self.gone = True
        self.server.shutdown()
        self.server.server_close()


def free_port() -> int:
    """Below those that the system gives to connections, which the balancer could meet."""
    while True:
        port = random.randrange(10000, 22000)
        with contextlib.suppress(OSError), socket.socket() as s:
            s.bind(("127.0.0.1", port))
            return port


class Balancer:
    """A balancer with a file of configs/, which a subclass names and edits."""

    file: str
    refused = "documents|files|vector_stores|jobs|mcp"  # paths whose changes the file refuses

    def __init__(self, ports: list[int], refused: str, folder: Path) -> None:
        self.port = free_port()
        text = (CONFIGS / self.file).read_text()
        if self.refused not in text:
            raise AssertionError(f"{self.file} does not refuse {self.refused}")
        text = self.edited(text.replace(self.refused, refused, 1), ports)
        self.process = subprocess.Popen(
            self.command(text, folder), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        end = time.monotonic() + 30
        while not self.is_ready():
            if time.monotonic() > end or self.process.poll() is not None:
                self.end()
                raise AssertionError(f"the balancer of {self.file} does not start")
            time.sleep(0.02)

    def edited(self, text: str, ports: list[int]) -> str:
        """Returns the file with replicas at these ports of this machine, and a free port."""
        raise NotImplementedError

    def command(self, text: str, folder: Path) -> list[str]:
        raise NotImplementedError

    def is_ready(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port)):
                return True
        except OSError:
            return False

    def end(self) -> None:
        self.process.terminate()
        self.process.wait()


class BalancerCase(unittest.TestCase):
    """`balancer`: what is tested; None where this machine has no such program."""

    balancer: type[Balancer] | None = None
    refused = Balancer.refused

    @classmethod
    def setUpClass(cls) -> None:
        if cls.balancer is None:
            raise unittest.SkipTest("there is no such balancer on this machine")

    def setUp(self) -> None:
        assert self.balancer
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.running = self.balancer(self.start_replicas(), self.refused, Path(self.folder.name))
        self.addCleanup(self.running.end)

    def start_replicas(self) -> list[int]:
        raise NotImplementedError


class RoutingCase(BalancerCase):
    """Before three replicas that only say who they are."""

    def start_replicas(self) -> list[int]:
        self.replicas = [Replica(i) for i in range(3)]
        for replica in self.replicas:
            self.addCleanup(replica.end)
        return [replica.port for replica in self.replicas]

    def setUp(self) -> None:
        """Waits until the balancer's threads know of all replicas."""
        super().setUp()
        sets = [f"{i:08x}" for i in range(30)]
        last: list[str] = []
        end = time.monotonic() + 30
        while time.monotonic() < end:
            now = [self.replica_of(s) for s in sets]
            if now == last and len(set(now)) == len(self.replicas):
                break
            last = now

    def ask(
        self, affinity: str | None = None, method: str = "POST", path: str = "/v1/query"
    ) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.running.port, timeout=30)
        headers = {} if affinity is None else {"X-Quire-Affinity": affinity}
        connection.request(method, path, body="{}" if method == "POST" else None, headers=headers)
        reply = connection.getresponse()
        text = reply.read().decode()
        connection.close()
        return reply.status, text

    def replica_of(self, affinity: str | None) -> str:
        status, text = self.ask(affinity)
        self.assertEqual(status, 200, text)
        return text

    def test_one_set_of_documents_has_one_replica_and_sets_spread(self) -> None:
        sets = [f"{i * 2654435761:016x}" for i in range(60)]
        first = [self.replica_of(s) for s in sets]
        self.assertEqual([self.replica_of(s) for s in sets], first)
        self.assertTrue(all(n >= 5 for n in Counter(first).values()), first)
        self.assertEqual(set(first), {"0", "1", "2"})

    def test_questions_without_documents_go_to_all(self) -> None:
        seen = Counter(self.replica_of(None) for _ in range(60))
        self.assertEqual(set(seen), {"0", "1", "2"})

    def test_a_lost_or_draining_replica_moves_only_its_own_sets(self) -> None:
        sets = [f"{i * 2654435761:016x}" for i in range(60)]
        first = [self.replica_of(s) for s in sets]
        self.replicas[1].drains = True
        second = [self.replica_of(s) for s in sets]
        self.assertNotIn("1", second)
        for before, after in zip(first, second):
            if before != "1":
                self.assertEqual(after, before)
        self.replicas[2].end()
        # Many sets, as each looks for the one that is left from another place.
        many = [f"{i * 2654435761:016x}" for i in range(600)]
        self.assertEqual({self.replica_of(s) for s in many}, {"0"})

    def test_all_questions_of_a_draining_replica_are_asked_elsewhere(self) -> None:
        sets = [f"{i * 2654435761:016x}" for i in range(60)]
        busy = [s for s in sets if self.replica_of(s) == "1"][:12]
        others = (self.replicas[0], self.replicas[2])
        for replica in others:
            replica.go_on.clear()
            self.addCleanup(replica.go_on.set)
        self.replicas[1].drains = True
        replies: list[tuple[int, str]] = []
        asking = [threading.Thread(target=lambda s=s: replies.append(self.ask(s))) for s in busy]
        for thread in asking:
            thread.start()
        end = time.monotonic() + 20
        while sum(r.held for r in others) < len(busy) and not replies and time.monotonic() < end:
            time.sleep(0.02)
        for replica in others:
            replica.go_on.set()
        for thread in asking:
            thread.join()
        self.assertEqual([status for status, _ in replies], [200] * len(busy))

    def test_what_a_draining_replica_would_only_read_is_asked_elsewhere(self) -> None:
        sets = [f"{i * 2654435761:016x}" for i in range(60)]
        ours = [s for s in sets if self.replica_of(s) == "1"][:4]
        self.replicas[1].drains = True
        for (method, path), affinity in zip(
            [
                ("GET", "/v1/documents"),
                ("GET", "/v1/documents/a/content"),
                ("GET", "/v1/files"),
                ("POST", "/v1/vector_stores/vs_1/search"),
            ],
            ours,
            strict=True,
        ):
            self.assertEqual(self.ask(affinity, method, path)[0], 200, (method, path))

    def test_what_changes_one_replica_is_refused(self) -> None:
        shared = re.compile(r"(/v1)?/(documents|files|vector_stores|jobs|mcp)(/|$)")
        for method, path in PASSED + REFUSED:
            passes = (method, path) in PASSED or (
                self.refused != Balancer.refused and shared.match(path)
            )
            status, text = self.ask(method=method, path=path)
            self.assertEqual(status, 200 if passes else 405, (method, path))
            if not passes:
                self.assertIn("method_not_allowed", text)


class SharedCatalogCase(RoutingCase):
    """With what the file says of replicas with a shared catalog."""

    refused = "admin"

    def test_a_change_that_a_replica_took_is_not_made_again_elsewhere(self) -> None:
        for replica in self.replicas:
            replica.breaks = True
        for path in ("/v1/documents", "/v1/files", "/v1/vector_stores", "/mcp"):
            for replica in self.replicas:
                replica.broken = 0
            status, _ = self.ask("5", path=path)
            self.assertGreaterEqual(status, 500, path)
            # A replica that broke is left alone for a while, so the last may find none.
            taken = sum(replica.broken for replica in self.replicas)
            self.assertIn(taken, (1,) if path == "/v1/documents" else (0, 1), path)

    def test_a_question_that_a_replica_took_is_asked_again_elsewhere(self) -> None:
        self.replicas[int(self.replica_of("5"))].breaks = True
        self.assertEqual(self.ask("5")[0], 200)


HIDDEN = "GET /v1/documents/hidden HTTP/1.1\r\nHost: localhost\r\n\r\n"
START = (
    "POST /v1/query HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    "X-Quire-Affinity: 5\r\n"
)
# Requests of which two servers may see different ends.
AMBIGUOUS = [
    START + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    START + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" + HIDDEN,
    START + "Content-Length: 0\r\nContent-Length: 4\r\n\r\n" + HIDDEN,
    START + "Content-Length: 4, 4\r\n\r\nabcd" + HIDDEN,
    START + "Content-Length: +4\r\n\r\nabcd" + HIDDEN,
    START + "Content-Length : 4\r\n\r\nabcd" + HIDDEN,
    START + "Transfer-Encoding: chunked\r\n folded: x\r\n\r\n0\r\n\r\n" + HIDDEN,
    START + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    START + "Transfer-Encoding:\x0bchunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" + HIDDEN,
    START + "Transfer-Encoding: xchunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" + HIDDEN,
    START + "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + HIDDEN,
    START + "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    START + "X: a\r\n Content-Length: 0\r\n\r\n" + HIDDEN,
    START + "X: a\nContent-Length: 0\r\n\r\n" + HIDDEN,
    START + "X: a\rContent-Length: 0\r\n\r\n" + HIDDEN,
    START + "Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\n" + HIDDEN,
    START + "Transfer-Encoding: chunked\r\n\r\n0x0\r\n\r\n" + HIDDEN,
    START + "Transfer-Encoding: chunked\r\n\r\n0;a\nb\r\n\r\n" + HIDDEN,
    START + "Transfer-Encoding: chunked\r\n\r\n5\r\nabcdeX0\r\n\r\n" + HIDDEN,
    START + "Transfer-Encoding: chunked\r\n\r\n0\r\nContent-Length: 9\r\n\r\n" + HIDDEN,
    START + "Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABk\r\n"
    "Content-Length: 0\r\n\r\n" + HIDDEN,
    "GET /v1/documents/first HTTP/1.1\r\nHost: localhost\r\nContent-Length: 66\r\n\r\n" + HIDDEN,
    "GET /v1/documents/first HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    "0\r\n\r\n" + HIDDEN,
]  # fmt: skip


class AmbiguousRequestCase(BalancerCase):
    """Before a real service: whatever is sent, later questions get their own answers."""

    def start_replicas(self) -> list[int]:
        binary = os.environ.get("QUIRE_BINARY")
        if not binary:
            self.skipTest("QUIRE_BINARY names no program")
        root = Path(self.folder.name)
        model = str(CONFIGS.parent / "models" / "demo")
        flags = ("--server.allowed_hosts=*",)
        self.service = Service(binary, model, str(root / "store"), str(root / "log"), flags)
        self.addCleanup(self.service.stop, signal.SIGTERM)
        self.assertTrue(self.service.wait_until_ready())
        return [self.service.port] * 3

    def own_answer(self, name: str) -> None:
        """Asks for a document that nobody has, over connections that the balancer keeps."""
        connection = http.client.HTTPConnection("127.0.0.1", self.running.port, timeout=30)
        connection.request("GET", f"/v1/documents/{name}", headers={"X-Quire-Affinity": "5"})
        reply = connection.getresponse()
        text = reply.read()
        connection.close()
        self.assertEqual(reply.status, 404, text)
        self.assertIn(f"'{name}'", json.loads(text)["detail"])

    def test_every_question_gets_its_own_answer_after_ambiguous_requests(self) -> None:
        for number, case in enumerate(AMBIGUOUS):
            with self.subTest(case=case):
                self.own_answer(f"before-{number}")
                with socket.create_connection(("127.0.0.1", self.running.port), 10) as c:
                    c.settimeout(0.3)
                    c.sendall(case.encode("latin-1"))
                    with contextlib.suppress(OSError):  # it waits for more, or has closed
                        while c.recv(65536):
                            pass
                for i in range(4):
                    self.own_answer(f"after-{number}-{i}")
