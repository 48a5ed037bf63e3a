"""Compares two builds of quire on one machine, in turns: see bench/versions.sh."""

import argparse
import http.client
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

WORDS = (
    "river market old bridge the of and was built by a mayor in north copper guild letters "
    "harbour school known"
).split()
DOCUMENTS = 3  # in a question
RESAMPLES = 2000


class Service:
    """A service with a store of its own, as a context manager."""

    def __init__(self, binary, model, folder, more):
        self.command = [binary, "serve", "-m", model, "--server.port=0", "--log.level=info"]
        self.command += ["--log.format=json", f"--disk.path={folder}/store", *more]
        self.log = folder + "/log"

    def __enter__(self):
        self.start()
        return self

    def start(self):
        """Returns the seconds until it is ready."""
        began = time.perf_counter()
        with open(self.log, "wb") as out:
            self.process = subprocess.Popen(self.command, stdout=out, stderr=out)
        while self.process.poll() is None and time.perf_counter() < began + 120:
            with open(self.log, encoding="utf-8") as file:
                lines = [json.loads(line) for line in file if line.endswith("}\n")]
            ports = [e["port"] for e in lines if e.get("msg") == "listening"]
            if ports and any(e.get("msg") == "ready" for e in lines):
                self.connection = http.client.HTTPConnection("127.0.0.1", ports[0], timeout=120)
                return time.perf_counter() - began
            time.sleep(0.002)
        with open(self.log, encoding="utf-8") as file:
            raise SystemExit("error: a service does not start: " + file.read()[-500:])

    def stop(self):
        self.connection.close()
        self.process.terminate()
        self.process.wait()

    def __exit__(self, *_):
        self.stop()

    def call(self, method, path, body=None):
        """Returns the seconds and the reply."""
        data = None if body is None else json.dumps(body)
        began = time.perf_counter()
        self.connection.request(method, path, data, {"Content-Type": "application/json"})
        reply = self.connection.getresponse()
        text = reply.read()
        seconds = time.perf_counter() - began
        if reply.status >= 300:
            raise SystemExit(f"error: {method} {path}: {reply.status} {text[:300]!r}")
        return seconds, json.loads(text) if text else None


class Bench:
    def __init__(self, options, services):
        self.options, self.services = options, services
        self.rng = random.Random(options.seed)
        self.seconds = {}  # by measure, then by build: a list in the order of the rounds

    def both(self, measure, act):
        """Acts on both services, each time another one first."""
        order = list(self.services)
        self.rng.shuffle(order)
        for name in order:
            seconds = act(self.services[name])
            self.seconds.setdefault(measure, {}).setdefault(name, []).append(seconds)

    def text(self):
        return " ".join(self.rng.choice(WORDS) for _ in range(self.options.words)) + "."

    def run(self):
        for i in range(self.options.rounds):
            for k in range(DOCUMENTS):
                body = {"id": f"d{i}-{k}", "text": self.text()}
                self.both("post", lambda s, b=body: s.call("POST", "/v1/documents?wait=true", b)[0])
            names = [f"d{i}-{k}" for k in range(DOCUMENTS)]
            ask = {"query": f"Question {i}: what was built?", "document_ids": names}
            ask |= {"max_tokens": 1, "temperature": 0, "citations": False}
            self.both("first token", lambda s, b=ask: s.call("POST", "/v1/query", b)[0])
            old = [f"d{self.rng.randrange(i + 1)}-{k}" for k in range(DOCUMENTS)]
            ask = ask | {"query": f"Question {i}: who was known?", "document_ids": old}
            self.both("first token, older", lambda s, b=ask: s.call("POST", "/v1/query", b)[0])
            path = "/v1/documents/" + names[0]
            self.both("get", lambda s, p=path: s.call("GET", p)[0])
            self.both("list", lambda s: s.call("GET", "/v1/documents?limit=20")[0])
            self.both("change", lambda s, p=path: s.call("PATCH", p, {"pinned": False})[0])
            if i % 3 == 2:
                self.both("delete", lambda s, p=path: s.call("DELETE", p)[0])
                self.both("post again", lambda s, p=path: self.again(s, p))
        for _ in range(self.options.starts):
            for s in self.services.values():
                s.stop()
            self.both("start", lambda s: s.start())
        return [self.row(m) for m in self.seconds]

    def again(self, service, path):
        name = path.rsplit("/", 1)[1]
        body = {"id": name, "text": "The bridge " + name + " was built by the guild of letters."}
        return service.call("POST", "/v1/documents?wait=true", body)[0]

    def row(self, measure):
        before, after = (self.seconds[measure][n] for n in ("before", "after"))
        rng = random.Random(self.options.seed)

        def ratio(picks):
            a = statistics.median(after[i] for i in picks)
            return a / statistics.median(before[i] for i in picks)

        n = len(before)
        spread = sorted(ratio(rng.choices(range(n), k=n)) for _ in range(RESAMPLES))
        return {
            "measure": measure,
            "n": n,
            "before_ms": round(1000 * statistics.median(before), 3),
            "after_ms": round(1000 * statistics.median(after), 3),
            "ratio": round(ratio(range(n)), 4),
            "low": round(spread[RESAMPLES // 40], 4),
            "high": round(spread[-1 - RESAMPLES // 40], 4),
        }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--before", required=True)
    parser.add_argument("--after", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--starts", type=int, default=10)
    parser.add_argument("--words", type=int, default=300)
    parser.add_argument("--dram", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    more = [f"--cache.dram_bytes={options.dram}"] if options.dram else []
    with tempfile.TemporaryDirectory(prefix="quire-versions-") as folder:
        services = {}
        for name in ("before", "after"):
            own = os.path.join(folder, name)
            os.mkdir(own)
            services[name] = Service(getattr(options, name), options.model, own, more)
        with services["before"], services["after"]:
            rows = Bench(options, services).run()
    versions = {
        name: subprocess.run(
            [getattr(options, name), "--version"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in ("before", "after")
    }
    settings = {
        "model": os.path.basename(options.model),
        "words": options.words,
        "documents_a_question": DOCUMENTS,
        "dram_bytes": options.dram or None,
        "before": versions["before"],
        "after": versions["after"],
    }
    print(json.dumps({"settings": settings, "rows": rows}))


if __name__ == "__main__":
    sys.exit(main())
