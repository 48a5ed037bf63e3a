"""A real `quire serve` with the embedded model,
and a real proxy in front of it that can be told to misbehave."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[3]
MODEL = ROOT / "models" / "demo"
SAMPLE = MODEL / "sample"
#: A process that is not up by then never will be; nothing is measured with it.
START_SECONDS = 120.0


def binary() -> Path | None:
    """The `quire` program: QUIRE_BINARY, else the release build of this tree.
    None: there is none."""
    path = Path(os.environ.get("QUIRE_BINARY") or ROOT / "build" / "release" / "quire")
    return path if os.access(path, os.X_OK) else None


def smollm2() -> Path | None:
    """SmolLM2-135M-Instruct: QUIRE_SMOLLM2, or a GGUF file in models/smollm2. None: not there."""
    named = os.environ.get("QUIRE_SMOLLM2")
    if named and Path(named).exists():
        return Path(named)
    return next(iter(sorted((ROOT / "models" / "smollm2").glob("*.gguf"))), None)


class Service:
    """One running service. Its port is chosen by the system and read from its log."""

    def __init__(self, folder: Path, *flags: str, model: Path = MODEL) -> None:
        program = binary()
        assert program is not None
        self._log = folder / "service.log"
        command = [
            str(program),
            "serve",
            "--server.port=0",
            f"--disk.path={folder / 'store'}",
            f"--backup.path={folder / 'backups'}",
            "--backup.every_hours=0",
            f"--model.path={model}",
            "--policy.evidence=false",  # so that no test's auto changes while it runs
        ]
        command += ["--cache.dram_bytes=67108864", "--model.working_cache_bytes=268435456", *flags]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log
            )
        self.port = self._wait()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _wait(self) -> int:
        port = 0
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end and self._process.poll() is None:
            for line in self._log.read_text(errors="replace").splitlines():
                if '"listening"' in line and '"port":' in line:
                    port = int(json.loads(line)["port"])
            if port and self._ready(port):
                return port
            time.sleep(0.02)
        raise RuntimeError(f"the service did not start:\n{self._log.read_text(errors='replace')}")

    @staticmethod
    def _ready(port: int) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as reply:
                return bool(reply.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def kill(self) -> None:
        """As a crash: no time for good-byes."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()


@contextmanager
def running(*flags: str, model: Path = MODEL) -> Iterator[Service]:
    """A service with a store of its own."""
    with TemporaryDirectory(prefix="quire-client-test-") as folder:
        service = Service(Path(folder), *flags, model=model)
        try:
            yield service
        finally:
            service.stop()


def key_entry(
    name: str, secret: str, scopes: list[str], namespaces: list[str], extra: str = ""
) -> str:
    """One key for `auth.keys_file`."""
    digest = hashlib.sha256(secret.encode()).hexdigest()
    return (
        f"[[keys]]\nname = {json.dumps(name)}\nsha256 = {json.dumps(digest)}\n"
        f"scopes = {json.dumps(scopes)}\nnamespaces = {json.dumps(namespaces)}\n{extra}\n"
    )


class Exchange:
    """One request that came through the proxy, and what the test may do with it."""

    def __init__(self, client: socket.socket, head: bytes, body: bytes, upstream: int) -> None:
        self._client, self._upstream = client, upstream
        self.head, self.body = head.decode("latin-1"), body
        self.method, self.path = self.head.split(" ", 2)[:2]

    def header(self, name: str) -> str | None:
        """A header of the request."""
        for line in self.head.split("\r\n")[1:]:
            key, _, value = line.partition(":")
            if key.lower() == name.lower():
                return value.strip()
        return None

    def reply(self, status: int, body: bytes = b"", **headers: str) -> None:
        """Answers itself; the service never sees the request."""
        lines = [f"HTTP/1.1 {status} Proxy", f"Content-Length: {len(body)}", "Connection: close"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self._client.sendall("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    def forward(self, change: Callable[[bytes], bytes] | None = None) -> bytes:
        """Asks the service, and passes its whole reply on, after `change`.
        Returns what the service sent."""
        reply = self.ask()
        self._client.sendall(change(reply) if change else reply)
        return reply

    def ask(self) -> bytes:
        """Asks the service and keeps the reply."""
        head = "\r\n".join(
            line for line in self.head.split("\r\n") if not line.lower().startswith("connection:")
        )
        with socket.create_connection(("127.0.0.1", self._upstream)) as service:
            service.sendall(f"{head}\r\nConnection: close\r\n\r\n".encode("latin-1") + self.body)
            return b"".join(iter(lambda: service.recv(65536), b""))

    def send(self, data: bytes) -> None:
        """Sends these bytes to the client."""
        self._client.sendall(data)


class Proxy:
    """Listens on a port of its own; `behave(exchange, number)` says what becomes
    of each request, counted from 0.

    Every connection carries one request and is closed then, as by a proxy without keep-alive.
    """

    def __init__(self, upstream: int, behave: Callable[[Exchange, int], object]) -> None:
        self._upstream, self._behave = upstream, behave
        self.seen: list[Exchange] = []
        self.released = threading.Event()
        """For behaviours that hold a request until the test is over."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(client,), daemon=True)
            thread.start()
            self._threads.append(thread)

    def _serve(self, client: socket.socket) -> None:
        with client:
            data = b""
            while b"\r\n\r\n" not in data:
                piece = client.recv(65536)
                if not piece:
                    return
                data += piece
            head, _, body = data.partition(b"\r\n\r\n")
            exchange = Exchange(client, head, body, self._upstream)
            while len(exchange.body) < int(exchange.header("content-length") or 0):
                exchange.body += client.recv(65536)
            self.seen.append(exchange)
            try:
                self._behave(exchange, len(self.seen) - 1)
            except OSError:
                return  # the client left, which some tests are about

    def close(self) -> None:
        self.released.set()
        # Closing alone does not wake a thread that waits in accept().
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(30)


@contextmanager
def proxy(service: Service, behave: Callable[[Exchange, int], object]) -> Iterator[Proxy]:
    """A proxy in front of the service."""
    one = Proxy(service.port, behave)
    try:
        yield one
    finally:
        one.close()
