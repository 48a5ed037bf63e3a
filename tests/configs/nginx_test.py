"""A real nginx with configs/nginx.conf before three replicas that only say who they are."""

from __future__ import annotations

import http.client
import os
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time
import unittest
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from kubernetes_test import CONFIGS, PASSED, REFUSED

NGINX = os.environ.get("QUIRE_NGINX") or shutil.which("nginx") or shutil.which("/usr/sbin/nginx")


class Replica:
    """Answers every request with its number, or with 503 while it drains."""

    def __init__(self, number: int) -> None:
        replica = self
        self.drains = self.gone = False

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                if replica.gone:  # connections that nginx has kept end, too
                    self.close_connection = True
                    return
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                body = str(number).encode()
                self.send_response(503 if replica.drains else 200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

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
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@unittest.skipIf(NGINX is None, "there is no nginx in PATH")
class NginxTest(unittest.TestCase):
    refused = "documents|files|vector_stores|jobs"

    def setUp(self) -> None:
        self.replicas = [Replica(i) for i in range(3)]
        self.folder = tempfile.TemporaryDirectory()
        self.port = free_port()
        text = (CONFIGS / "nginx.conf").read_text()
        self.assertIn(NginxTest.refused, text)
        text = text.replace(NginxTest.refused, self.refused)
        for i, replica in enumerate(self.replicas):
            text = text.replace(f"10.0.0.1{i + 1}:8080", f"127.0.0.1:{replica.port}")
        text = text.replace("listen 8080;", f"listen 127.0.0.1:{self.port};")
        self.assertNotIn("10.0.0.", text)
        root = Path(self.folder.name)
        (root / "quire.conf").write_text(text)
        paths = "".join(
            f"{name}_temp_path {root}/{name};\n"
            for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        (root / "nginx.conf").write_text(
            f"daemon off;\npid {root}/pid;\nerror_log {root}/error.log;\nevents {{}}\n"
            f"http {{\naccess_log off;\n{paths}include {root}/quire.conf;\n}}\n"
        )
        command = [str(NGINX), "-p", str(root), "-c", str(root / "nginx.conf")]
        self.nginx = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        end = time.monotonic() + 30
        while time.monotonic() < end:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                break
            except OSError:
                time.sleep(0.02)

    def tearDown(self) -> None:
        self.nginx.terminate()
        self.nginx.wait()
        for replica in self.replicas:
            replica.end()
        self.folder.cleanup()

    def ask(
        self, affinity: str | None = None, method: str = "POST", path: str = "/v1/query"
    ) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        headers = {} if affinity is None else {"X-Quire-Affinity": affinity}
        connection.request(method, path, body="{}" if method == "POST" else None, headers=headers)
        reply = connection.getresponse()
        text = reply.read().decode()
        connection.close()
        return reply.status, text

    def replica_of(self, affinity: str | None) -> str:
        status, text = self.ask(affinity)
        self.assertEqual(status, 200)
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
        self.assertEqual({self.replica_of(s) for s in sets}, {"0"})

    def test_what_changes_one_replica_is_refused(self) -> None:
        for method, path in PASSED:
            self.assertEqual(self.ask(method=method, path=path)[0], 200, (method, path))
        for method, path in REFUSED:
            status, text = self.ask(method=method, path=path)
            self.assertEqual(status, 405, (method, path))
            self.assertIn("method_not_allowed", text)


@unittest.skipIf(NGINX is None, "there is no nginx in PATH")
class SharedCatalogTest(NginxTest):
    """The same with what the file says of replicas with a shared catalog."""

    refused = "files|vector_stores"

    def test_what_changes_one_replica_is_refused(self) -> None:
        shared = re.compile(r"(/v1)?/(documents|jobs)(/|$)")
        for method, path in PASSED + REFUSED:
            passes = (method, path) in PASSED or shared.match(path)
            status = 200 if passes else 405
            self.assertEqual(self.ask(method=method, path=path)[0], status, (method, path))


if __name__ == "__main__":
    unittest.main()
