"""Whether one tenant can tell from times what another one has: see bench/tenants.sh."""

import argparse
import http.client
import json
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
PERMUTATIONS = 20000


class Service:
    """A service of its own with the embedded model, as a context manager."""

    def __init__(self, binary, model):
        self.command = [binary, "serve", "--server.port=0", "--model.path=" + model]
        self.command += ["--policy.evidence=false", "--log.level=info"]
        self.command += ["--model.working_cache_bytes=268435456"]

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="quire-tenants-")
        store, self.log = self.folder.name + "/store", self.folder.name + "/log"
        with open(self.log, "wb") as out:
            self.process = subprocess.Popen(
                self.command + ["--disk.path=" + store], stdout=out, stderr=out
            )
        end = time.monotonic() + 120
        while time.monotonic() < end and self.process.poll() is None:
            with open(self.log, encoding="utf-8") as file:
                entries = [json.loads(line) for line in file if line.endswith("}\n")]
            port = [e["port"] for e in entries if e.get("msg") == "listening"]
            if any(e.get("msg") == "ready" for e in entries):
                self.connection = http.client.HTTPConnection("127.0.0.1", port[0], timeout=120)
                return self
            time.sleep(0.05)
        raise SystemExit("error: the service does not start")

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        self.folder.cleanup()

    def call(self, path, body, tenant):
        """Returns the reply and the milliseconds until its first byte."""
        headers = {"Content-Type": "application/json", "X-Namespace": tenant}
        data = json.dumps(body)
        began = time.perf_counter()
        self.connection.request("POST", path, data, headers)
        reply = self.connection.getresponse()
        first = reply.read(1)
        took = (time.perf_counter() - began) * 1000
        text = first + reply.read()
        if reply.status not in (200, 201):
            raise SystemExit(f"error: {path}: {reply.status} {text[:300]!r}")
        return json.loads(text), took


def text(rng, words):
    return "Report. " + " ".join(rng.choice(WORDS) for _ in range(words)) + "."


def chat(service, tenant, words):
    """The time until the first token of a prompt, and how much of it was known."""
    body = {
        "messages": [{"role": "user", "content": words}],
        "max_tokens": 1,
        "temperature": 0,
    }
    reply, took = service.call("/v1/chat/completions", body, tenant)
    return took, reply["usage"]["prompt_tokens_details"]["cached_tokens"]


def post(service, tenant, words):
    """The time to store a document, and how much of its KV was there."""
    body = {"id": f"d{time.monotonic_ns()}", "text": words}
    reply, took = service.call("/v1/documents?wait=true", body, tenant)
    return took, reply["usage"]["deduplicated_tokens"]


def inline(service, tenant, words):
    """The time of a question over a text that is sent along, and how much of it was known."""
    body = {
        "query": "What was built?",
        "documents": [{"text": words}],
        "max_tokens": 1,
        "cache": {"strategy": "reuse", "write": False},
    }
    reply, took = service.call("/v1/query", body, tenant)
    return took, reply["usage"]["prompt_tokens_details"]["cached_tokens"]


def p_value(differences, rng):
    """Returns how likely a rank sum as far from zero is if each difference has either sign: a
    permutation test of pairs (Wilcoxon's statistic, random signs), two-sided."""
    order = sorted(differences, key=abs)
    ranks = [(rank + 1) * (1 if d > 0 else -1 if d < 0 else 0) for rank, d in enumerate(order)]
    seen = abs(sum(ranks))
    as_far = 0
    for _ in range(PERMUTATIONS):
        bits = rng.getrandbits(len(ranks))
        total = sum(r if bits >> i & 1 else -r for i, r in enumerate(ranks))
        as_far += abs(total) >= seen
    return (as_far + 1) / (PERMUTATIONS + 1)


def measure(service, probe, prepare, tenant, pairs, words, rng):
    """Compares texts that team-a has with texts that nobody has, in pairs in random order."""
    differences, known, times = [], 0, {True: [], False: []}
    for i in range(pairs + 3):
        seen, never = text(rng, words), text(rng, words)
        for _ in range(2):  # the second time a prompt is known
            prepare(service, "team-a", seen)
        took = {}
        for is_seen in rng.sample((True, False), 2):
            took[is_seen], tokens = probe(service, tenant, seen if is_seen else never)
            known += tokens if is_seen else 0
        if i < 3:  # warms up
            continue
        differences.append(took[True] - took[False])
        for is_seen, ms in took.items():
            times[is_seen].append(ms)
    return {
        "pairs": pairs,
        "cached_tokens": known,
        "seen_ms": round(statistics.median(times[True]), 3),
        "never_ms": round(statistics.median(times[False]), 3),
        "p": round(p_value(differences, rng), 5),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--words", type=int, default=250)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    probes = {
        "first token of a prompt": (chat, chat),
        "storing a document": (post, post),
        "question over a text sent along": (inline, post),
    }
    rows, failed = [], False
    with Service(options.binary, options.model) as service:
        for name, (probe, prepare) in probes.items():
            for tenant in ("team-b", "team-a"):
                row = {"probe": name, "asked_by": "another" if tenant == "team-b" else "the same"}
                row.update(
                    measure(service, probe, prepare, tenant, options.pairs, options.words, rng)
                )
                row["told_apart"] = row["p"] < 0.01
                # The same tenant must be told apart, or the test could not see an oracle.
                right = row["told_apart"] == (tenant == "team-a")
                right = right and (row["cached_tokens"] > 0) == (tenant == "team-a")
                row["as_it_should_be"] = right
                failed = failed or not right
                rows.append(row)
                print(json.dumps(row), file=sys.stderr)
    settings = {"pairs": options.pairs, "words": options.words, "seed": options.seed}
    settings["test"] = "signed ranks of paired differences, random signs, two-sided; p < 0.01"
    print(json.dumps({"settings": settings, "rows": rows}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
