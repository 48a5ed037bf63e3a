"""Runs `quire serve` for a test, with the embedded model if no other is named,
on a free port and with a store of its own."""

import json
import os
import subprocess
import tempfile
import threading
import urllib.request


class Service:
    """A service that is ready when start() returns, or only listening with `until_ready` False.
    A context manager."""

    def __init__(self, *flags, until_ready=True, model=None):
        self.flags = flags
        self.model = model or os.environ["QUIRE_MODEL"]
        self.until_ready = until_ready
        self.port = None
        self.lines = []

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="quire-clients-")
        command = [
            os.environ["QUIRE_BINARY"],
            "serve",
            "--server.port=0",
            "--model.path=" + self.model,
            "--disk.path=" + os.path.join(self.folder.name, "store"),
            "--cache.dram_bytes=67108864",
            "--model.working_cache_bytes=268435456",
            *self.flags,
        ]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._read_until("ready" if self.until_ready else "listening")
        # The log goes on; an unread pipe would stop the service.
        self.reader = threading.Thread(target=self._drain)
        self.reader.start()
        return self

    def _read_until(self, message):
        for line in self.process.stderr:
            self.lines.append(line)
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            self.port = (
                entry.get("port", self.port) if entry.get("msg") == "listening" else self.port
            )
            if entry.get("msg") == message:
                return
        self.process.wait()
        raise RuntimeError("the service did not start:\n" + "".join(self.lines))

    def _drain(self):
        for line in self.process.stderr:
            self.lines.append(line)

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        self.reader.join()
        self.process.stderr.close()
        self.folder.cleanup()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=120) as reply:
            return json.load(reply)

    def post(self, path, body):
        request = urllib.request.Request(
            self.url + path,
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as reply:
            return json.load(reply)
