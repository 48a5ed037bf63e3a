"""The ways to the servers that replicas share, for cluster_rounds.py and bench/tier_faults.py:
slow, late, silent, cut, and with answers that are refused or damaged."""

import collections
import http.client
import http.server
import random
import re
import select
import socket
import threading
import time

ANSWER_S = 5  # of a server behind FaultyHttp


class FaultyHttp:
    """An HTTP proxy before a server of this machine, which answers a share of the requests with
    errors of its own and damages a share of the bodies that it passes on."""

    REFUSALS = (
        (500, "InternalError", {}),
        (503, "SlowDown", {}),
        (503, "SlowDown", {"Retry-After": "1"}),
        (429, "TooManyRequests", {}),
    )

    def __init__(self, target, seed=0):
        self.target = target
        self.refused_share = self.damaged_share = 0.0
        self.refused = self.damaged = 0
        self.rng = random.Random(seed)
        self.mu = threading.Lock()
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def handle_one_request(self):
                try:
                    super().handle_one_request()
                except OSError:  # the client has gone
                    self.close_connection = True

            def __getattr__(self, name):
                if name.startswith("do_"):
                    return lambda: proxy.serve(self)
                raise AttributeError(name)

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def happens(self, share):
        with self.mu:
            return self.rng.random() < share

    def serve(self, request):
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        if self.happens(self.refused_share):
            with self.mu:
                self.refused += 1
                status, code, headers = self.rng.choice(self.REFUSALS)
            answer = f"<Error><Code>{code}</Code><Message>refused</Message></Error>".encode()
            self.answer(request, status, headers.items(), answer)
            return
        try:
            server = http.client.HTTPConnection("127.0.0.1", self.target, timeout=ANSWER_S)
            server.request(request.command, request.path, body or None, dict(request.headers))
            reply = server.getresponse()
            answer = reply.read()
            server.close()
        except (OSError, http.client.HTTPException):
            request.close_connection = True
            return
        # The body of an answer to HEAD is not sent, but its length is told.
        if request.command == "GET" and answer and self.happens(self.damaged_share):
            answer = self.damage(answer)
        dropped = {"connection", "transfer-encoding", "date", "server"}
        headers = [(k, v) for k, v in reply.getheaders() if k.lower() not in dropped]
        self.answer(request, reply.status, headers, answer)

    def damage(self, body):
        """Returns the body with other bytes, or cut: then fewer bytes come than were told."""
        with self.mu:
            self.damaged += 1
            at = self.rng.randrange(len(body))
            if self.rng.random() < 0.5:
                return body[:at]
            return body[:at] + bytes([body[at] ^ self.rng.randrange(1, 256)]) + body[at + 1 :]

    def answer(self, request, status, headers, body):
        request.send_response(status)
        told = None
        for name, value in headers:
            request.send_header(name, value)
            told = int(value) if name.lower() == "content-length" else told
        if told is None:
            request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(body)
            request.close_connection |= told is not None and told > len(body)

    def make(self, **faults):
        """Sets members: make(refused_share=1)."""
        for name, value in faults.items():
            setattr(self, name, value)

    def heal(self):
        self.make(refused_share=0.0, damaged_share=0.0)

    def end(self):
        self.server.shutdown()
        self.server.server_close()


class Network:
    """A port before another one, whose connections can be slow, late, cut, or silent. `delay_s`
    stops the way for each piece that passes, `latency_s` is how late answers come, however long
    they are. A connection ends within an answer once `cut_after` bytes of it have passed; 0: never.
    While the way is silent, connections are made and kept, and nothing passes. `names`: changes
    what answers call servers, or None. `held`, `late`, `cuts`: how many pieces waited for the end
    of a silence, and how many answers were late or cut.
    """

    def __init__(self, target, names=None):
        self.target, self.names = target, names
        self.heal()
        self.held = self.late = self.cuts = 0
        self.pairs = set()
        self.mu = threading.Lock()
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
        try:
            server = socket.create_connection(("127.0.0.1", self.target), 5)
        except OSError:
            client.close()
            return
        pair = (client, server)
        with self.mu:
            self.pairs.add(pair)
        try:
            self.carry(client, server)
        except (OSError, ValueError):
            pass
        finally:
            with self.mu:
                self.pairs.discard(pair)
            for s in pair:
                s.close()

    def carry(self, client, server):
        """Passes bytes on until one side has ended."""
        open_ends, passed, unsure = [client, server], 0, b""
        answers = collections.deque()  # when each is due, its bytes; none: the server has ended
        while True:
            wait_s = answers[0][0] - time.monotonic() if answers else 0.5
            ready, _, _ = select.select(open_ends, (), (), min(max(wait_s, 0), 0.5))
            for source in ready:
                data = source.recv(1 << 16)
                self.held += self.silent and bool(data)
                while self.silent:
                    time.sleep(0.02)
                if self.delay_s:
                    time.sleep(self.delay_s)
                if source is server:
                    ends, due = not data, time.monotonic() + self.latency_s
                    self.late += self.latency_s > 0 and not ends
                    if self.names:
                        data, unsure = self.names.change(unsure + data, ends)
                    if data:
                        answers.append((due, data))
                    if ends:
                        answers.append((due, b""))
                        open_ends.remove(server)
                elif data:
                    server.sendall(data)
                else:
                    return
            while answers and answers[0][0] <= time.monotonic():
                data = answers.popleft()[1]
                if not data:
                    return
                client.sendall(data)
                most = self.cut_after
                passed = passed + len(data) if most else 0
                if passed > most:
                    self.cuts += 1
                    return

    def make(self, **faults):
        """Sets members: make(silent=True)."""
        for name, value in faults.items():
            setattr(self, name, value)

    def cut(self):
        with self.mu:
            pairs = list(self.pairs)
        for pair in pairs:
            for s in pair:
                try:
                    s.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    def heal(self):
        self.make(delay_s=0.0, latency_s=0.0, silent=False, cut_after=0)

    def end(self):
        self.heal()
        self.server.close()
        self.cut()


class Names:
    """Other ports for those by which the nodes of a Redis cluster call each other in answers to
    CLUSTER SLOTS and in redirections. All have as many digits, so no length changes."""

    def __init__(self, ports):
        self.names = {}
        for port, other in ports.items():
            assert len(str(port)) == len(str(other)), (port, other)
            for between in (":", "\r\n:"):
                name = f"127.0.0.1{between}{port}".encode()
                self.names[name] = f"127.0.0.1{between}{other}".encode()
        self.pattern = re.compile(b"|".join(map(re.escape, self.names)))
        self.longest = max(map(len, self.names))

    def change(self, data, ends):
        """Returns data with the other ports, and what may be the beginning of a name whose rest
        is still to come. `ends`: nothing comes any more."""
        data = self.pattern.sub(lambda found: self.names[found[0]], data)
        kept = 0 if ends else next(
            (n for n in range(min(self.longest - 1, len(data)), 0, -1)
             if any(name.startswith(data[-n:]) for name in self.names)), 0)  # fmt: skip
        return data[: len(data) - kept], data[len(data) - kept :]


class RedisNetwork:
    """The way of one service to the nodes of a Redis cluster: a port before each of them."""

    def __init__(self, ports):
        self.ways = [Network(port) for port in ports]
        names = Names({way.target: way.port for way in self.ways})
        for way in self.ways:
            way.names = names

    def url(self):
        return "redis://" + ",".join(f"127.0.0.1:{way.port}" for way in self.ways)

    def make(self, **faults):
        for way in self.ways:
            way.make(**faults)

    def cut(self):
        for way in self.ways:
            way.cut()

    def heal(self):
        for way in self.ways:
            way.heal()

    def end(self):
        for way in self.ways:
            way.end()

    held = property(lambda self: sum(way.held for way in self.ways))
    late = property(lambda self: sum(way.late for way in self.ways))
    cuts = property(lambda self: sum(way.cuts for way in self.ways))
