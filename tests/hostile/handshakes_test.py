"""TLS handshakes that are slow, half-open, garbage, too large or begun anew: each connection ends
soon and costs little, and other clients are served meanwhile."""

import os
import re
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import time
import unittest

from attacked import PROMPT_S, Attacked

HEADER_S = 1.0  # server.header_timeout_seconds, which holds for a handshake
MOST_CONNECTIONS = 64
SLACK_S = 5  # of a busy machine
HANDSHAKE, ALERT, CHANGE_CIPHER = 22, 21, 20


def record(kind, data, version=b"\x03\x01", length=None):
    return (
        bytes([kind]) + version + struct.pack(">H", len(data) if length is None else length) + data
    )


def records(data, most=16384):
    return b"".join(record(HANDSHAKE, data[at : at + most]) for at in range(0, len(data), most))


def client_hello():
    """Returns the message with which a client begins, without its record."""
    context = ssl.create_default_context()
    outgoing = ssl.MemoryBIO()
    tls = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    try:
        tls.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return outgoing.read()[5:]


def with_extension(hello, size):
    """Adds an extension that nobody knows of so many bytes to a client's first message."""
    body = bytearray(hello[4:])
    at = 2 + 32
    at += 1 + body[at]  # session
    at += 2 + struct.unpack_from(">H", body, at)[0]  # ciphers
    at += 1 + body[at]  # compressions
    extensions = bytes(body[at + 2 :]) + struct.pack(">HH", 0x5A5A, size) + b"x" * size
    body[at:] = struct.pack(">H", len(extensions)) + extensions
    return bytes([1]) + struct.pack(">I", len(body))[1:] + bytes(body)


def make_certificate(folder):
    key, certificate = (os.path.join(folder, "server." + end) for end in ("key", "pem"))
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
         "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out",
         certificate],
        check=True, capture_output=True,
    )  # fmt: skip
    return certificate, key


class HostileHandshakes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.files = tempfile.TemporaryDirectory(prefix="quire-tls-")
        certificate, key = make_certificate(cls.files.name)
        cls.attacked = Attacked((
            "--server.tls_certificate=" + certificate, "--server.tls_key=" + key,
            f"--server.header_timeout_seconds={HEADER_S}",
            f"--server.max_connections={MOST_CONNECTIONS}",
        ), certificate)  # fmt: skip
        cls.attacked.call("GET", "/readyz")

    @classmethod
    def tearDownClass(cls):
        code = cls.attacked.stop()
        cls.files.cleanup()
        if code != 0:
            raise AssertionError(f"the service stopped with {code}")

    def tearDown(self):
        self.attacked.expect_well(self)

    def expect_cheap(self, cost, thread_ms):
        self.assertLess(cost["thread_ms"], thread_ms, cost)
        self.assertLess(cost["neighbour_s"], PROMPT_S, cost)

    def read_to_end(self, sock):
        """Returns what comes until the service closes. Raises TimeoutError where it does not."""
        sock.settimeout(HEADER_S + SLACK_S)
        out = b""
        try:
            while data := sock.recv(1 << 16):
                out += data
        except ConnectionError:
            pass
        return out

    def send(self, data):
        """Sends bytes in the place of a handshake, and returns what comes back until the end."""
        with self.attacked.raw() as sock:
            try:
                sock.sendall(data)
            except ConnectionError:
                pass  # it ended in between
            return self.read_to_end(sock)

    def test_garbage_ends_at_once_and_costs_little(self):
        hello = client_hello()
        whole = record(HANDSHAKE, hello)
        for name, data in (
            ("bytes", os.urandom(5000)),
            ("zeros", bytes(100000)),
            ("a megabyte of 0xff", b"\xff" * 1000000),
            ("SSL 2", b"\x80\x2e\x01\x00\x02\x00\x15\x00\x00\x00\x10" + bytes(40)),
            ("SSH", b"SSH-2.0-OpenSSH_9.2\r\n"),
            ("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
            ("a record of another kind", record(99, hello)),
            ("data before the handshake", record(23, b"x" * 16384)),
            ("a record of 65,535 bytes", record(HANDSHAKE, b"\1" * 65535)),
            ("a message of 16 MB", records(b"\1\xff\xff\xff" + hello[4:] + bytes(400000))),
            ("a message that says less", records(b"\1\0\0\4" + hello[4:])),
            ("no ciphers", records(hello[:38] + b"\0\0\0\1\0\0\0")),
            ("a first message of a server", records(b"\2" + hello[1:])),
            ("100,000 records of nothing", record(HANDSHAKE, b"") * 100000),
            ("100,000 alerts", record(ALERT, b"\1\0") * 100000),
            ("100,000 changes of cipher", record(CHANGE_CIPHER, b"\1") * 100000),
            ("the first message twice", whole * 2),
            ("the first message and garbage", whole + os.urandom(5000)),
            ("a message of a byte a record", b"".join(
                record(HANDSHAKE, hello[i : i + 1]) for i in range(len(hello))) + b"x" * 100),
        ):  # fmt: skip
            with self.subTest(name):
                began = time.monotonic()
                _, cost = self.attacked.under(lambda data=data: self.send(data))
                self.assertLess(time.monotonic() - began, HEADER_S + SLACK_S)
                self.expect_cheap(cost, 200)

    def test_a_plain_request_is_told(self):
        reply = self.send(
            b"POST /v1/query HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"
        )
        self.assertTrue(reply.startswith(b"HTTP/1.1 400 "), reply)
        self.assertIn(b"https://", reply)

    def test_a_first_message_of_60_kb_is_taken_and_a_larger_one_is_not(self):
        hello = client_hello()
        reply = {}
        for size in (1000, 16000, 60000):
            with self.attacked.raw() as sock:
                sock.sendall(records(with_extension(hello, size)))
                sock.settimeout(HEADER_S + SLACK_S)
                reply[size] = sock.recv(1)
        self.assertEqual(set(reply.values()), {bytes([HANDSHAKE])}, "the server's first message")
        # No message says more than 131,396 bytes; OpenSSL ends it by its head.
        _, cost = self.attacked.under(
            lambda: self.send(records(b"\1\2\1\0" + hello[4:] + bytes(131072)))
        )
        self.expect_cheap(cost, 200)

    def test_silent_and_slow_clients_give_their_places_back(self):
        hello = record(HANDSHAKE, client_hello())
        before = self.attacked.descriptors()

        def attack():
            # More than are allowed, in two rounds: those of the first are gone before the second.
            for _ in range(2):
                socks = []
                for i in range(MOST_CONNECTIONS - 4):
                    sock = self.attacked.raw()
                    sock.sendall(hello[: (0, 3, 5, 40, len(hello))[i % 5]])
                    socks.append(sock)
                began = time.monotonic()
                for sock in socks:
                    self.read_to_end(sock)
                    sock.close()
                self.assertLess(time.monotonic() - began, HEADER_S + SLACK_S)

        _, cost = self.attacked.under(attack)
        self.expect_cheap(cost, 1000)
        self.expect_descriptors(before)

    def test_a_handshake_of_a_byte_at_a_time_is_cut_off(self):
        hello = record(HANDSHAKE, client_hello())
        began = time.monotonic()
        with self.attacked.raw() as sock:
            sock.settimeout(0.1)
            for i in range(len(hello)):
                try:
                    sock.sendall(hello[i : i + 1])
                    if sock.recv(1) == b"":
                        break
                except TimeoutError:
                    continue
                except ConnectionError:
                    break
            else:
                self.fail("the whole message was taken, a byte each 0.1 s")
        self.assertLess(time.monotonic() - began, HEADER_S + SLACK_S)

    def test_half_of_a_request_behind_a_handshake_is_cut_off(self):
        context = ssl.create_default_context(cafile=self.attacked.certificate)
        with (
            self.attacked.raw() as sock,
            context.wrap_socket(sock, server_hostname="localhost") as tls,
        ):
            tls.sendall(b"POST /v1/query HT")
            began = time.monotonic()
            reply = self.read_to_end(tls)
            self.assertLess(time.monotonic() - began, HEADER_S + SLACK_S)
        self.assertTrue(reply.startswith(b"HTTP/1.1 408 "), reply)

    def test_clients_that_leave_in_the_handshake_leave_nothing(self):
        hello = record(HANDSHAKE, client_hello())
        before = self.attacked.descriptors()

        def attack():
            for i in range(300):
                with self.attacked.raw() as sock:
                    sock.sendall(hello[: (i * 7) % len(hello)] if i % 3 else hello)
                    if i % 2:  # a reset
                        sock.setsockopt(
                            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                        )

        _, cost = self.attacked.under(attack)
        self.expect_cheap(cost, 3000)
        self.expect_descriptors(before)

    def expect_descriptors(self, before):
        until = time.monotonic() + HEADER_S + SLACK_S
        while self.attacked.descriptors() > before + 2 and time.monotonic() < until:
            time.sleep(0.05)
        self.assertLessEqual(self.attacked.descriptors(), before + 2)

    def s_client(self, *words, lines=b""):
        """Returns what openssl's client prints while these lines are typed, one each 0.2 s."""
        process = subprocess.Popen(
            ["openssl", "s_client", "-connect", f"localhost:{self.attacked.port}", *words],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        time.sleep(0.5)  # the handshake: what is typed before is an early line
        try:
            for line in lines.splitlines(keepends=True):
                process.stdin.write(line)
                process.stdin.flush()
                time.sleep(0.02)
            return process.communicate(timeout=HEADER_S + SLACK_S)[0].decode(errors="replace")
        except BrokenPipeError:
            return process.communicate(timeout=HEADER_S + SLACK_S)[0].decode(errors="replace")
        finally:
            process.kill()

    def test_no_client_begins_anew(self):
        out, cost = self.attacked.under(lambda: self.s_client("-tls1_2", lines=b"R\n" * 20))
        self.assertIn("RENEGOTIATING", out)
        self.assertTrue(re.search("no renegotiation|unexpected|alert|closed|:error:", out), out)
        self.expect_cheap(cost, 500)

    def test_keys_that_change_all_the_time_end_the_connection(self):
        out, cost = self.attacked.under(lambda: self.s_client("-tls1_3", lines=b"K\n" * 100))
        self.assertIn("KEYUPDATE", out)
        self.expect_cheap(cost, 500)

    def test_no_old_version_is_spoken(self):
        for version in ("-tls1", "-tls1_1"):
            out = self.s_client(version, "-cipher", "ALL:@SECLEVEL=0")
            self.assertNotRegex(out, r"Cipher is [A-Z]", version)
        for version in ("-tls1_2", "-tls1_3"):
            out = self.s_client(version)
            self.assertRegex(out, r"Cipher is [A-Z]", version)


if __name__ == "__main__":
    unittest.main(verbosity=2, argv=[sys.argv[0], *sys.argv[1:]])
