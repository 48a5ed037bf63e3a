"""Runs `quire serve` for the rounds of power_rounds.py."""

import http.client
import json
import os
import signal
import subprocess
import time

PATIENCE_S = 60


class StartFailed(Exception):
    pass


class Gone(Exception):
    """The service went away while it was asked."""


class Stuck(Gone):
    """A process did not end in time."""


def wait_for_end(process, log):
    """Waits for the end of a process and returns its exit code. Raises Stuck after a minute: the
    process is killed, and what its threads were doing is added to the log."""
    try:
        return process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        pass
    with open(log, "ab") as out:
        subprocess.run(
            ["sh", "-c", 'command -v gdb >/dev/null || { echo "no gdb, no stacks"; exit; }; '
             'exec gdb -batch -nx -p "$0" -ex "thread apply all backtrace"', str(process.pid)],
            stdout=out, stderr=out, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    process.kill()
    process.wait()
    raise Stuck(f"{' '.join(process.args[:3])} did not end within a minute: see {log}")


def run_cut(layer, command, folder, notes, cut_at, out):
    """Runs a command that writes its output to a file and returns its exit code. It is killed at
    the call `cut_at` that changes something below `folder` (0: at none), and its calls are noted;
    None: it is not watched."""
    environment = dict(os.environ)
    if cut_at is not None:
        environment |= {
            "LD_PRELOAD": layer,
            "QUIRE_POWER_FOLDER": folder,
            "QUIRE_POWER_NOTES": notes,
            "QUIRE_POWER_CUT_AT": str(cut_at),
        }
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment
    )
    return wait_for_end(process, out.name)


class Service:
    """A service on a store. `watched` holds the environment of unsynced_layer.cc, or is empty."""

    def __init__(self, binary, model, store, log, flags=(), watched=None):
        self.log_path = log
        self.port = None
        environment = dict(os.environ, OMP_WAIT_POLICY="passive", OMP_NUM_THREADS="2")
        environment.update(watched or {})
        command = [
            binary,
            "serve",
            "--server.port=0",
            "--model.path=" + model,
            "--disk.path=" + store,
            "--policy.evidence=false",
            "--cache.dram_bytes=33554432",
            "--model.working_cache_bytes=134217728",
            *flags,
        ]
        with open(log, "wb") as out:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=environment,
                start_new_session=True,  # signals of a terminal are for the caller
            )

    def log(self):
        """Returns the entries of the log."""
        entries = []
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            for line in file:
                try:
                    entries.append(json.loads(line))
                except ValueError:
                    entries.append({"level": "text", "msg": line.rstrip()})
        return entries

    def wait_until_ready(self):
        """Returns whether the service is ready; False: its process ended first."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            for entry in self.log():
                if entry.get("msg") == "listening":
                    self.port = entry.get("port", self.port)
                if entry.get("msg") == "ready":
                    return True
            if self.process.poll() is not None:
                return False
            time.sleep(0.02)
        raise StartFailed("the service is not ready after a minute")

    def stop(self, number=signal.SIGTERM):
        """Ends the process and returns its exit code. Raises Stuck."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return wait_for_end(self.process, self.log_path)

    def cut(self):
        """Ends the process at its next call that changes a file, or, where none comes within a
        second, at once. Returns its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGRTMIN + 5)
            try:
                return self.process.wait(1)
            except subprocess.TimeoutExpired:
                pass
        return self.stop(signal.SIGKILL)


class Client:
    """One kept connection. Not for several threads."""

    def __init__(self, port):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        self.headers = {}  # of the last reply

    def call(self, method, path, body=None, headers=None):
        """Sends a body as JSON, or bytes as a pack. Returns the status and the parsed body, or the
        body as bytes where it is no JSON."""
        pack = isinstance(body, bytes)
        kind = "application/vnd.quire.pack" if pack else "application/json"
        try:
            self.connection.request(
                method,
                path,
                body if pack or body is None else json.dumps(body),
                {"Content-Type": kind, **(headers or {})},
            )
            reply = self.connection.getresponse()
            data = reply.read()
        except (OSError, http.client.HTTPException) as error:
            self.connection.close()
            raise Gone(str(error)) from error
        self.headers = reply.headers
        if "json" in reply.headers.get("Content-Type", ""):
            return reply.status, json.loads(data)
        return reply.status, data
