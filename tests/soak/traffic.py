"""Clients of a service under every kind of traffic that it is made for, and some that it is not."""

import base64
import http.client
import json
import random
import socket
import threading
import time
from collections import Counter

from expected import WORDS, text_of
from service import PATIENCE_S, Gone

NAMESPACE = "soak"  # the writers of expected.py have the default one
CORPUS = 24
SETS = 10  # of documents of the corpus
QUESTIONS = ("What was built by the guild?", "Who is known in the harbour?", "Where is the bridge?")
CANCELLED = b"request_cancelled"
PROBLEMS = 200  # that are remembered


class Traffic:
    """What the clients share. Threads ask `go_on()` before each request."""

    def __init__(self, port, only=None):
        self.port, self.only = port, only  # only: kinds of requests, or None for all
        self.mu = threading.Lock()
        self.counts = Counter()  # by kind of request and status
        self.problems = []
        self.answers = {}  # what was asked -> the answer that it got first
        self.running = threading.Event()
        self.ended = False
        self.busy = 0
        self.idle = threading.Condition(self.mu)

    def wants(self, kind):
        return self.only is None or kind in self.only

    def go_on(self):
        """Waits while the traffic rests; returns whether to go on. `rest()` waits for the request
        that follows."""
        while True:
            self.running.wait()
            with self.mu:
                if self.ended:
                    return False
                if self.running.is_set():
                    self.busy += 1
                    return True

    def done(self):
        with self.mu:
            self.busy -= 1
            self.idle.notify_all()

    def rest(self):
        """Lets no further request begin and waits for those under way."""
        with self.mu:
            self.running.clear()
            if not self.idle.wait_for(lambda: self.busy == 0, timeout=10 * PATIENCE_S):
                self.problems.append(f"{self.busy} requests go on for ten minutes")

    def end(self):
        with self.mu:
            self.ended = True
        self.running.set()

    def count(self, kind, status):
        with self.mu:
            self.counts[f"{kind} {status}"] += 1

    def problem(self, text):
        with self.mu:
            self.counts["problems"] += 1
            if len(self.problems) < PROBLEMS:
                self.problems.append(text[:1000])

    def same(self, asked, answer):
        """Greedy answers over documents that stay the same must stay the same."""
        with self.mu:
            first = self.answers.setdefault(asked, answer)
        if first != answer:
            self.problem(f"{asked}: {answer!r} instead of {first!r}")


class Sender:
    """Sends requests over a connection of its own, and counts the replies."""

    def __init__(self, traffic):
        self.traffic = traffic
        self.connection = None
        self.headers = {}  # of the last reply

    def send(self, kind, method, path, body=None, good=(200, 201, 202, 204), headers=None):
        """Returns the body of a good reply, JSON parsed, else None. A reply that is neither good,
        nor a refusal which the caller may repeat (429, 503 with Retry-After), nor that of a request
        that was cancelled is a problem."""
        if self.connection is None:
            self.connection = http.client.HTTPConnection(
                "127.0.0.1", self.traffic.port, timeout=4 * PATIENCE_S
            )
        sent = {"X-Namespace": NAMESPACE, **(headers or {})}
        if isinstance(body, (dict, list)):
            body, sent["Content-Type"] = json.dumps(body), "application/json"
        try:
            self.connection.request(method, path, body, sent)
            reply = self.connection.getresponse()
            data = reply.read()
        except (OSError, http.client.HTTPException) as error:
            self.connection.close()
            if CANCELLED in getattr(error, "partial", b""):  # a stream that says so, and is cut
                self.traffic.count(kind, "cancelled")
                return None
            raise Gone(f"{kind}: {error}") from error
        self.headers = reply.headers
        self.traffic.count(kind, reply.status)
        if reply.status in good:
            if reply.headers.get("Content-Type", "").startswith("application/json"):
                return json.loads(data)
            return data
        repeatable = reply.status in (429, 503) and reply.headers.get("Retry-After")
        if not repeatable and CANCELLED not in data:
            self.traffic.problem(f"{kind}: {method} {path}: {reply.status} {data}"[:600])
        return None

    def begin(self, method, path, body):
        """Sends a request on a new connection and returns the connection, unread."""
        data = json.dumps(body).encode()
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Namespace: {NAMESPACE}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        out = socket.create_connection(("127.0.0.1", self.traffic.port), timeout=PATIENCE_S)
        out.sendall(head.encode() + data)
        return out


class Worker(threading.Thread):
    """Makes requests of the kinds of a subclass, a dictionary of names and weights, at random."""

    KINDS = {}

    def __init__(self, traffic, seed):
        super().__init__(daemon=True)
        self.traffic, self.rng = traffic, random.Random(seed)
        self.sender = Sender(traffic)
        self.kinds = {k: w for k, w in self.KINDS.items() if traffic.wants(k)}

    def run(self):
        while self.kinds and self.traffic.go_on():
            kind = self.rng.choices(list(self.kinds), list(self.kinds.values()))[0]
            try:
                getattr(self, "do_" + kind.replace(" ", "_"))()
            except Gone as error:
                self.traffic.problem(f"the connection ended: {error}")
            except Exception as error:  # a reply without what it must have
                self.traffic.problem(f"{kind}: {type(error).__name__} {error}")
            finally:
                self.traffic.done()

    def documents(self):
        """Returns one of the sets that all clients ask about, in one of two orders."""
        rng = random.Random(self.rng.randrange(SETS))
        out = [f"c{i}" for i in rng.sample(range(CORPUS), rng.randint(1, 4))]
        return out if self.rng.random() < 0.5 else out[::-1]

    def words(self, count):
        return " ".join(self.rng.choice(WORDS) for _ in range(count))


def corpus(sender):
    """Posts the documents that the questions are about."""
    for i in range(CORPUS):
        body = {"id": f"c{i}", "text": text_of(3000 + i), "title": f"Report {i}"}
        sender.send("corpus", "POST", "/v1/documents?wait=true", body)


class Asker(Worker):
    """Asks questions in every way and checks that equal ones have equal answers."""

    KINDS = {
        "query": 12, "stream": 4, "leave": 3, "plan": 2, "inline": 3, "chat": 5, "talk": 3,
        "completion": 2, "schema": 2, "tools": 1, "responses": 2, "messages": 2, "ollama": 2,
        "embed": 2, "rerank": 2, "retrieve": 3, "tokens": 2, "mcp": 2, "cancel": 1, "late": 1,
    }  # fmt: skip

    def __init__(self, traffic, seed, info):
        super().__init__(traffic, seed)
        self.info = info
        self.model = info["model"]["id"]
        self.history = []

    def cache(self):
        """Returns options of a query at random: any strategy, and at times any other method."""
        out = {"strategy": self.rng.choice(self.info["strategies"])}
        if self.rng.random() < 0.3:
            out["compress"] = self.rng.choice(self.info["compressors"])
        if self.rng.random() < 0.3:
            out["decode"] = self.rng.choice(self.info["retrievers"])
        if self.rng.random() < 0.1:
            out["prompt_compression"] = self.rng.choice(self.info["prompt_compressors"])
        if self.rng.random() < 0.2:
            out["keep_ratio"] = self.rng.choice((0.2, 0.5))
        return out

    def question(self, **members):
        return {
            "query": self.rng.choice(QUESTIONS),
            "document_ids": self.documents(),
            "max_tokens": self.rng.choice((1, 4, 12)),
            "temperature": 0,
            **members,
        }

    def do_query(self):
        body = self.question(cache=self.cache())
        reply = self.sender.send("query", "POST", "/v1/query", body, (200, 400, 422))
        # `auto` takes another strategy once more is cached, and so does what falls back.
        if not reply or body["cache"]["strategy"] == "auto" or reply["cache"].get("fallback"):
            return
        members = ("query", "document_ids", "max_tokens", "cache")
        self.traffic.same(json.dumps([body[m] for m in members]), reply["answer"])

    def do_stream(self):
        body = self.question(stream=True, max_tokens=16)
        reply = self.sender.send("stream", "POST", "/v1/query", body)
        if reply is not None and b"done" not in reply and CANCELLED not in reply:
            self.traffic.problem(f"stream without an end: {reply[-200:]}")

    def do_leave(self):
        """Reads a little of a long answer and goes away."""
        body = self.question(stream=True, max_tokens=400, ignore_eos=True)
        connection = self.sender.begin("POST", "/v1/query", body)
        with connection:
            connection.settimeout(self.rng.choice((0.001, 0.05, 0.3)))
            try:
                connection.recv(self.rng.choice((1, 500, 5000)))
            except OSError:
                pass
        self.traffic.count("leave", "left")

    def do_plan(self):
        self.sender.send("plan", "POST", "/v1/query/plan", self.question(), (200,))
        known = self.sender.send("queries", "GET", "/v1/queries?limit=5")
        if known and known["data"]:
            path = f"/v1/queries/{known['data'][0]['id']}/explain"
            self.sender.send("explain", "GET", path, None, (200, 404))

    def do_inline(self):
        body = self.question(documents=[{"text": text_of(self.rng.randrange(1 << 30))}])
        if self.rng.random() < 0.5:
            del body["document_ids"]
        self.sender.send("inline", "POST", "/v1/query", body)

    def do_chat(self):
        """A conversation that goes on until it is dropped."""
        turns = self.history + [{"role": "user", "content": self.words(30)}]
        body = {"messages": turns, "max_tokens": 8, "temperature": 0}
        if self.rng.random() < 0.3:
            body.update(logprobs=True, top_logprobs=3)
        if self.rng.random() < 0.2:
            body["n"] = 2
        reply = self.sender.send("chat", "POST", "/v1/chat/completions", body)
        if reply:
            said = reply["choices"][0]["message"]["content"]
            self.history = turns + [{"role": "assistant", "content": said or "-"}]
        if self.rng.random() < 0.2 or len(self.history) > 12:
            self.history = []

    def do_talk(self):
        """A conversation over documents, streamed."""
        turns = [
            {"role": "user", "content": self.words(10)},
            {"role": "assistant", "content": "So."},
        ]
        turns.append({"role": "user", "content": self.rng.choice(QUESTIONS)})
        body = {
            "messages": turns, "document_ids": self.documents(), "max_tokens": 6, "stream": True,
            "seed": self.rng.randrange(100), "temperature": 0.8, "top_p": 0.9,
        }  # fmt: skip
        self.sender.send("talk", "POST", "/v1/chat/completions", body)

    def do_completion(self):
        body = {"prompt": self.words(60), "max_tokens": 6, "stop": ["river"], "echo": False}
        self.sender.send("completion", "POST", "/v1/completions", body)

    def do_schema(self):
        """Another schema nearly every time, so that what is compiled does not stay for ever."""
        name = f"m{self.rng.randrange(1 << 30)}"
        schema = {
            "type": "object",
            "properties": {name: {"type": "integer", "minimum": 0, "maximum": 99}},
            "required": [name],
            "additionalProperties": False,
        }
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        body = self.question(response_format=form, max_tokens=80)
        self.sender.send("schema", "POST", "/v1/query", body)

    def do_tools(self):
        tool = {"name": "look", "parameters": {"type": "object", "properties": {"at": {}}}}
        body = {
            "messages": [{"role": "user", "content": "Look at the bridge."}],
            "tools": [{"type": "function", "function": tool}],
            "max_tokens": 12,
        }
        self.sender.send("tools", "POST", "/v1/chat/completions", body)

    def do_responses(self):
        body = {"input": self.words(20), "max_output_tokens": 6}
        self.sender.send("responses", "POST", "/v1/responses", body)

    def do_messages(self):
        turns = [{"role": "user", "content": self.words(20)}]
        body = {"model": self.model, "messages": turns}
        self.sender.send("messages", "POST", "/v1/messages", {**body, "max_tokens": 6})
        self.sender.send("count", "POST", "/v1/messages/count_tokens", body)

    def do_ollama(self):
        turns = [{"role": "user", "content": self.words(20)}]
        body = {"model": self.model, "messages": turns, "options": {"num_predict": 5}}
        body["stream"] = self.rng.random() < 0.5
        self.sender.send("ollama", "POST", "/api/chat", body)
        self.sender.send("tags", "GET", "/api/tags")

    def do_embed(self):
        body = {"input": [self.words(12), self.words(40)], "model": self.model}
        self.sender.send("embed", "POST", "/v1/embeddings", body)

    def do_rerank(self):
        texts = [self.words(20) for _ in range(self.rng.randint(1, 5))]
        body = {"query": self.rng.choice(QUESTIONS), "documents": texts}
        self.sender.send("rerank", "POST", "/v1/rerank", body)

    def do_retrieve(self):
        body = {"query": self.rng.choice(QUESTIONS), "k": self.rng.randint(1, 8)}
        self.sender.send("retrieve", "POST", "/v1/retrieve", body)
        if self.rng.random() < 0.5:
            body = {"query": self.rng.choice(QUESTIONS), "retrieve": {"k": 3}, "max_tokens": 4}
            self.sender.send("query retrieve", "POST", "/v1/query", body)

    def do_tokens(self):
        reply = self.sender.send("tokens", "POST", "/tokenize", {"prompt": self.words(50)})
        if reply:
            self.sender.send("tokens", "POST", "/detokenize", {"tokens": reply["tokens"]})

    def do_mcp(self):
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        headers = {"Accept": "application/json, text/event-stream"}
        self.sender.send("mcp", "POST", "/mcp", call, (200,), headers)

    def do_cancel(self):
        """Cancels a request of somebody."""
        asked = self.sender.begin(
            "POST", "/v1/query", self.question(max_tokens=300, ignore_eos=True)
        )
        with asked:
            time.sleep(0.02)
            running = self.sender.send("requests", "GET", "/v1/admin/requests")
            for request in (running or {"data": []})["data"][:1]:
                path = f"/v1/admin/requests/{request['id']}/cancel"
                self.sender.send("cancel", "POST", path, {}, (200, 202, 404, 409))

    def do_late(self):
        body = self.question(timeout_ms=self.rng.choice((1, 5, 50)), max_tokens=200)
        self.sender.send("late", "POST", "/v1/query", body, (200, 408, 504))


class Filer(Worker):
    """Uploads files and keeps collections of them."""

    KINDS = {"file": 4, "folder": 2, "collection": 2, "events": 1, "pack": 1, "lasting": 2}

    def multipart(self, files):
        """Returns the body and its content type for files, (field, name, bytes)."""
        mark = base64.b16encode(self.rng.randbytes(12)).decode()
        parts = []
        for field, name, data in files:
            head = f'--{mark}\r\nContent-Disposition: form-data; name="{field}"'
            if name:
                head += f'; filename="{name}"'
            parts.append(head.encode() + b"\r\n\r\n" + data + b"\r\n")
        parts.append(f"--{mark}--\r\n".encode())
        return b"".join(parts), {"Content-Type": f"multipart/form-data; boundary={mark}"}

    def file(self):
        """Returns the name and bytes of a new file."""
        words = self.words(self.rng.choice((20, 100, 500)))
        kind, data = self.rng.choice((
            ("txt", words), ("md", f"# Title\n\n{words}\n\n## Part\n\n{words}"),
            ("html", f"<html><body><h1>T</h1><p>{words}</p></body></html>"),
            ("csv", "a,b\n" + "\n".join(f"{w},1" for w in words.split())),
        ))  # fmt: skip
        return f"f{self.rng.randrange(1 << 40)}.{kind}", data.encode()

    def upload(self):
        name, data = self.file()
        body, headers = self.multipart([("purpose", None, b"assistants"), ("file", name, data)])
        return self.sender.send("file", "POST", "/v1/files", body, (200, 201), headers)

    def wait_for(self, path, ended):
        """Waits until what a path shows has one of the states, or is gone."""
        end = time.monotonic() + 4 * PATIENCE_S
        while time.monotonic() < end:
            found = self.sender.send("wait", "GET", path, None, (200, 404))
            if not found or found.get("status", "gone") in ended:
                return
            time.sleep(0.05)
        self.traffic.problem(f"{path} is not ended after minutes")

    def wait_for_file(self, name):
        self.wait_for(f"/v1/files/{name}", ("processed", "error", "gone"))

    def do_file(self):
        made = self.upload()
        if not made:
            return
        self.wait_for_file(made["id"])
        self.sender.send("content", "GET", f"/v1/files/{made['id']}/content", None, (200, 404))
        self.sender.send("file", "DELETE", f"/v1/files/{made['id']}")

    def do_folder(self):
        """Several files in one form, as a job."""
        body, headers = self.multipart([("file", *self.file()) for _ in range(4)])
        reply = self.sender.send("folder", "POST", "/v1/documents", body, (202,), headers)
        if not reply:
            return
        ids = [r["id"] for r in reply["results"]] if "results" in reply else []
        if self.rng.random() < 0.3:
            path = f"/v1/jobs/{reply['job_id']}/cancel"
            self.sender.send("job cancel", "POST", path, None, (200, 202, 409))
        for job in reply["job_ids"]:
            self.wait_for(f"/v1/jobs/{job}", ("succeeded", "partial", "failed", "cancelled"))
        if ids:
            body = {"ids": ids}
            self.sender.send("delete", "POST", "/v1/documents/delete", body)

    def do_collection(self):
        made = self.upload()
        store = self.sender.send("collection", "POST", "/v1/vector_stores", {"name": "s"})
        if not made or not store:
            return
        path = f"/v1/vector_stores/{store['id']}"
        self.sender.send("attach", "POST", path + "/files", {"file_id": made["id"]})
        self.wait_for_file(made["id"])
        body = {"query": self.rng.choice(QUESTIONS)}
        self.sender.send("search", "POST", path + "/search", body)
        self.sender.send("collection", "DELETE", path)
        self.sender.send("file", "DELETE", f"/v1/files/{made['id']}")

    def do_events(self):
        body = {"id": "e", "text": text_of(self.rng.randrange(1 << 30))}
        reply = self.sender.send("later", "POST", "/v1/documents", body, (202,))
        if reply:
            self.sender.send("events", "GET", f"/v1/jobs/{reply['job_id']}/events")

    def do_pack(self):
        body = {"document_ids": self.documents()}
        pack = self.sender.send("export", "POST", "/v1/admin/cache/export", body)
        if pack:
            headers = {"Content-Type": "application/vnd.quire.pack"}
            path = "/v1/admin/cache/import"
            self.sender.send("import", "POST", path, pack, (200, 201), headers)

    def do_lasting(self):
        """Documents that nobody deletes: they run out."""
        body = {
            "id": f"t{self.rng.randrange(1 << 40)}",
            "text": self.words(self.rng.choice((20, 200, 2000))),
            "ttl_seconds": self.rng.choice((5, 60, 600)),
        }
        headers = {"Idempotency-Key": body["id"]}
        for _ in range(2):
            path = "/v1/documents"
            self.sender.send("lasting", "POST", path, body, (200, 201, 202, 409), headers)


class Watcher(Worker):
    """What dashboards, probes and people at a page ask for."""

    KINDS = {"probe": 4, "metrics": 3, "stats": 2, "jobs": 2, "page": 1, "config": 1, "verify": 1}

    def do_probe(self):
        for path in ("/livez", "/readyz", "/healthz"):
            self.sender.send("probe", "GET", path)
        time.sleep(self.rng.random())

    def do_metrics(self):
        self.sender.send("metrics", "GET", "/metrics")
        time.sleep(self.rng.random())

    def do_stats(self):
        self.sender.send("stats", "GET", "/v1/admin/cache/stats")
        self.sender.send("info", "GET", "/v1/info")
        self.sender.send("list", "GET", "/v1/documents?limit=50")

    def do_jobs(self):
        self.sender.send("jobs", "GET", "/v1/jobs?limit=20")

    def do_page(self):
        self.sender.send("page", "GET", "/")
        self.sender.send("openapi", "GET", "/openapi.json")

    def do_config(self):
        self.sender.send("config", "GET", "/v1/admin/config")
        self.sender.send("reload", "POST", "/v1/admin/reload", {})

    def do_verify(self):
        if self.rng.random() < 0.1:
            reply = self.sender.send("verify", "POST", "/v1/admin/cache/verify", {})
            if reply and reply["bad"]:
                self.traffic.problem(f"verify: {reply}")


class Pest(Worker):
    """Sends what no client should. Refusals are right; silence and a 5xx are not."""

    KINDS = {
        "bad json": 3, "unknown": 3, "wrong": 3, "garbage": 2, "half head": 2, "half body": 2,
        "open": 2, "long head": 1, "deep": 1, "cut upload": 1,
    }  # fmt: skip

    def refused(self, kind, method, path, body=None, headers=None):
        good = (400, 404, 405, 411, 413, 414, 415, 422, 431)
        self.sender.send(kind, method, path, body, good, headers)

    def do_bad_json(self):
        data = self.rng.choice((b"{", b'{"query": }', b"[1,2", b"\xff\xfe", b"", b'{"a":1}x'))
        headers = {"Content-Type": "application/json"}
        self.refused("bad json", "POST", "/v1/query", data, headers)

    def do_unknown(self):
        self.refused("unknown", "GET", f"/v1/nothing/{self.rng.randrange(1 << 40)}")
        self.refused("unknown", "GET", f"/v1/documents/none{self.rng.randrange(1 << 40)}")
        self.refused("unknown", "DELETE", "/v1/query")

    def do_wrong(self):
        body = self.rng.choice((
            {"query": 7}, {"query": "x", "document_ids": "c1"}, {"query": "x", "max_tokens": -1},
            {"query": "x", "document_ids": ["c1"], "cache": {"strategy": "none such"}},
            {"query": "x", "document_ids": ["gone"]}, {"query": "x", "nonsense": True},
        ))  # fmt: skip
        self.refused("wrong", "POST", "/v1/query", body)

    def raw(self, kind, data, wait_s=0.0, keep=False):
        """Sends bytes and goes away after a while."""
        out = socket.create_connection(("127.0.0.1", self.traffic.port), timeout=PATIENCE_S)
        with out:
            try:
                out.sendall(data)
                out.settimeout(max(wait_s, 0.01))
                if keep:
                    out.recv(4096)
            except OSError:
                pass
        self.traffic.count(kind, "left")

    def do_garbage(self):
        self.raw("garbage", self.rng.randbytes(self.rng.randint(1, 3000)), 0.05, keep=True)

    def do_half_head(self):
        self.raw(
            "half head", b"POST /v1/query HTTP/1.1\r\nHost: 127.0.0.1\r\nConte", 0.3, keep=True
        )

    def do_half_body(self):
        head = b"POST /v1/query HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5000\r\n\r\n{"
        self.raw("half body", head, 0.3, keep=True)

    def do_open(self):
        """Several connections that say nothing."""
        address = ("127.0.0.1", self.traffic.port)
        held = [socket.create_connection(address, timeout=PATIENCE_S) for _ in range(10)]
        time.sleep(0.2)
        for connection in held:
            connection.close()
        self.traffic.count("open", "left")

    def do_long_head(self):
        head = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Long: " + b"a" * 40000 + b"\r\n\r\n"
        self.raw("long head", head, 0.3, keep=True)

    def do_deep(self):
        data = b'{"query":' + b"[" * 5000 + b"]" * 5000 + b"}"
        headers = {"Content-Type": "application/json"}
        self.refused("deep", "POST", "/v1/query", data, headers)

    def do_cut_upload(self):
        head = (
            b"POST /v1/documents HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 900000\r\n"
            b"Content-Type: multipart/form-data; boundary=x\r\n\r\n--x\r\nContent-Disposition: "
            b'form-data; name="file"; filename="a.txt"\r\n\r\n'
        )
        self.raw("cut upload", head + b"word " * 20000, 0.05, keep=True)
