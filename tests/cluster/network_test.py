"""Tests of what cluster_rounds.py puts between services and servers, and of its plan of faults."""

import collections
import os
import random
import socket
import sys
import threading
import time
import types
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "power"))
# ruff: noqa: E402
from backends import DAMAGES, damaged
from faults import Faults
from network import Names, Network

SHORT_S = 0.3


class Echo:
    """A server that sends back what it gets."""

    def __init__(self):
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.server.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        with client:
            while data := client.recv(1 << 16):
                client.sendall(data)

    def end(self):
        self.server.close()


class Ways(unittest.TestCase):
    def setUp(self):
        echo = Echo()
        self.way = Network(echo.port)
        self.addCleanup(echo.end)
        self.addCleanup(self.way.end)

    def connect(self):
        client = socket.create_connection(("127.0.0.1", self.way.port), 5)
        client.settimeout(5)
        self.addCleanup(client.close)
        return client

    def ask(self, client, data=b"asked"):
        client.sendall(data)
        return client.recv(1 << 16)

    def test_a_silent_way_keeps_connections_and_holds_what_is_sent(self):
        before = self.connect()
        self.assertEqual(self.ask(before), b"asked")
        self.way.make(silent=True)
        for client in (before, self.connect()):
            client.settimeout(SHORT_S)
            with self.assertRaises(TimeoutError):
                self.ask(client)
        self.way.heal()
        before.settimeout(5)
        self.assertEqual(before.recv(100), b"asked")
        self.assertGreaterEqual(self.way.held, 2)

    def test_answers_are_late_however_many_there_are(self):
        client = self.connect()
        self.way.make(latency_s=SHORT_S)
        began = time.monotonic()
        self.assertEqual(self.ask(client), b"asked")
        self.assertGreaterEqual(time.monotonic() - began, SHORT_S)
        self.assertEqual(self.way.late, 1)

    def test_an_answer_is_cut(self):
        client = self.connect()
        self.way.make(cut_after=100)
        client.sendall(bytes(50_000))
        received = 0
        while data := client.recv(1 << 16):
            received += len(data)
        self.assertGreater(received, 100)
        self.assertEqual(self.way.cuts, 1)


class ClusterNames(unittest.TestCase):
    PORTS = {10001: 40001, 10002: 40002}
    SAID = (b"*3\r\n:0\r\n:5460\r\n*4\r\n$9\r\n127.0.0.1\r\n:10001\r\n$3\r\nabc\r\n*0\r\n"
            b"-MOVED 3999 127.0.0.1:10002\r\n$7\r\n:10001\r\r\n")  # fmt: skip
    HEARD = (b"*3\r\n:0\r\n:5460\r\n*4\r\n$9\r\n127.0.0.1\r\n:40001\r\n$3\r\nabc\r\n*0\r\n"
             b"-MOVED 3999 127.0.0.1:40002\r\n$7\r\n:10001\r\r\n")  # fmt: skip

    def test_nodes_have_other_ports_wherever_an_answer_is_parted(self):
        for at in range(len(self.SAID) + 1):
            names, heard, unsure = Names(self.PORTS), b"", b""
            for part in (self.SAID[:at], self.SAID[at:]):
                passed, unsure = names.change(unsure + part, False)
                heard += passed
            self.assertEqual(heard, self.HEARD, at)
            self.assertEqual(unsure, b"")

    def test_what_is_unsure_passes_at_the_end(self):
        names = Names(self.PORTS)
        passed, unsure = names.change(b"at 127.0.0.1:1", False)
        self.assertEqual((passed, unsure), (b"at ", b"127.0.0.1:1"))
        self.assertEqual(names.change(unsure, True), (b"127.0.0.1:1", b""))


class Damages(unittest.TestCase):
    def test_each_is_another_value(self):
        value, other = bytes(range(64)), bytes(64)
        for how in DAMAGES:
            self.assertNotEqual(damaged(how, value, other, random.Random(1)), value, how)


class Plan(unittest.TestCase):
    def faults(self, seed, texts=""):
        cluster = types.SimpleNamespace(
            options=types.SimpleNamespace(seed=seed, faults=texts), wrong_s=60,
            redis=None, s3=types.SimpleNamespace(proxy=None))  # fmt: skip
        return Faults(cluster)

    def test_a_deck_has_each_kind_as_often_as_it_weighs(self):
        faults = self.faults(1)
        weights = {kind: faults.all[kind][0] for kind in faults.kinds}
        made, number = [], 0
        while len(made) < sum(weights.values()):
            number += 1
            made += faults.planned(number)
        self.assertEqual(collections.Counter(made[: sum(weights.values())]), weights)

    def test_a_round_is_the_same_again_whichever_came_before(self):
        again = self.faults(7)
        planned = [self.faults(7).planned(number) for number in range(1, 30)]
        self.assertEqual([again.planned(n) for n in range(29, 0, -1)], planned[::-1])
        self.assertNotEqual(planned, [self.faults(8).planned(n) for n in range(1, 30)])

    def test_only_faults_with_one_of_the_texts_in_their_names(self):
        kinds = self.faults(1, "silence, fail over").kinds
        self.assertEqual(
            sorted(kinds), ["fail over a primary of Redis", "silence of Redis", "silence of S3"]
        )


if __name__ == "__main__":
    unittest.main()
