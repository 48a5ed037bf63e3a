"""Whether a query is slower than computing its prompt anew while a shared tier or the catalog
misbehaves: see bench/tier_faults.sh."""

import argparse
import contextlib
import gzip
import json
import math
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
sys.path[:0] = [os.path.join(ROOT, "tests", part) for part in ("cluster", "power")]
# ruff: noqa: E402
from backends import S3, Postgres, Redis, RedisCluster, wait_for
from network import Network
from service import Client, Gone, Service, StartFailed

LIMIT = 1.5  # of the time that computing the prompt takes
LATE_S = 0.2
# What a service measured of a tier counts for 15 s, so a case begins that long after the last one.
FORGETS_S = 16
RECOVERS_S = 120
PATIENCE_S = 300  # a reply that takes longer counts as none
SETTINGS = (
    # Documents are read as a prompt begins, so that `exact` may take their KV.
    "--model.prompt_format=plain",
    "--policy.lead_in=off",
    "--retrieve.enabled=false",
    # Both services have this machine: one that idles may not probe while the other is measured.
    "--policy.evidence=false",
    # No prompt is known from the question before.
    "--model.prefix_cache_bytes=0",
    "--disk.prompt_bytes=0",
    "--cache.dram_bytes=268435456",
    "--model.working_cache_bytes=536870912",
)


class Failed(Exception):
    pass


def note(text):
    print(text, file=sys.stderr, flush=True)


class Texts:
    """Documents of paragraphs of XQuAD in random order, each with a question to one of them. No two
    of them begin alike."""

    def __init__(self, path, tokens, seed):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            articles = json.load(file)["data"]
        self.paragraphs = [p for a in articles for p in a["paragraphs"]]
        self.tokens, self.characters_per_token = tokens, 4.5
        self.rng = random.Random(seed)
        self.number = 0

    def measured(self, document, tokens):
        """A document turned out to have so many tokens, by which later ones are cut."""
        self.characters_per_token = len(document["text"]) / tokens

    def next(self):
        self.number += 1
        text, asked = f"Record {self.number}.", []
        length = int(self.tokens * self.characters_per_token)
        for paragraph in self.rng.sample(self.paragraphs, len(self.paragraphs)):
            text += "\n\n" + paragraph["context"]
            asked += paragraph["qas"]
            if len(text) > length:
                break
        question = self.rng.choice(asked)["question"]
        return {"id": f"record-{self.number}", "text": text[:length], "question": question}


class Replica:
    """A service with a store of its own."""

    def __init__(self, options, name, catalog, remote, *flags):
        self.name = name
        self.service = Service(
            options.binary, options.model, os.path.join(options.work, f"store-{name}"),
            os.path.join(options.work, f"{name}.log"),
            (*SETTINGS, "--catalog.url=" + catalog, "--remote.url=" + remote, *flags),
            {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"},
        )  # fmt: skip

    def wait_until_ready(self):
        if not self.service.wait_until_ready():
            raise Failed(f"service {self.name} does not start: {self.service.log()[-5:]}")
        self.client = Client(self.service.port)
        self.client.connection.timeout = PATIENCE_S

    def call(self, method, path, body=None):
        """Returns status and reply; 0 and what happened where there is none."""
        try:
            return self.client.call(method, path, body)
        except Gone as error:
            return 0, str(error)

    def post(self, document):
        body = {"id": document["id"], "text": document["text"]}
        return self.call("POST", "/v1/documents?wait=true", body)

    def ask(self, document, strategy):
        """Returns the reply with `seconds`, how long it took; `error` where it is none."""
        body = {
            "query": document["question"],
            "document_ids": [document["id"]],
            "max_tokens": 1,
            "temperature": 0,
            "cache": {"strategy": strategy},
        }
        began = time.monotonic()
        status, reply = self.call("POST", "/v1/query", body)
        seconds = time.monotonic() - began
        if status != 200:
            return {"error": f"{status} {reply}", "seconds": seconds}
        return reply | {"seconds": seconds}

    def is_well(self):
        """Returns whether it has all of its tiers and the catalog. Posts a short document, because
        a tier that was left alone is only tried again when it is needed."""
        document = {"id": f"probe-{self.name}", "text": f"Probe {time.monotonic_ns()}."}
        if self.post(document)[0] != 200:
            return False
        status, health = self.call("GET", "/healthz")
        return status == 200 and all(
            health["checks"].get(what) == "ok" for what in ("remote", "catalog")
        )

    def end(self):
        self.service.stop(signal.SIGKILL)


class Setup:
    """Services A and B, and what they share. A takes the documents and shares their KV, B is asked.
    Servers fail, or the ways from B to them."""

    REDIS = Redis

    def __init__(self, options, texts, stack):
        self.options, self.texts, self.rng = options, texts, random.Random(options.seed)
        self.healed_at = -math.inf
        self.kv_bytes = 0  # of a document
        self.networks = []

        def started(part):
            stack.callback(part.end)
            return part

        def way(port):
            self.networks.append(started(Network(port)))
            return self.networks[-1]

        self.redis = started(self.REDIS(memory="0"))
        self.database = started(Postgres())
        self.s3 = started(S3(options.s3, options.seed)) if options.s3 else None
        self.to_catalog = way(self.database.port)
        self.to_redis = way(self.redis.nodes[0].port)
        self.to_s3 = way(self.s3.proxy.port) if self.s3 else None
        one_node = self.redis.NODES == 1
        remote_a = self.redis.url()
        remote_b = f"redis://127.0.0.1:{self.to_redis.port}" if one_node else remote_a
        if self.s3:
            remote_a += " " + self.s3.url()
            remote_b += " " + self.s3.url(self.to_s3.port)

        def service(letter, *settings):
            name = letter if one_node else letter + "-cluster"
            replica = started(Replica(options, name, *settings))
            replica.wait_until_ready()
            return replica

        through = "--remote.write=through"
        self.a = service("a", self.database.url(self.database.port), remote_a, through)
        self.b = service("b", self.database.url(self.to_catalog.port), remote_b)
        self.warm_up()

    # ---- documents ----

    def share(self):
        """Gives A a document, and returns it once its KV is shared and B knows of it."""
        document = self.texts.next()
        status, reply = self.a.post(document)
        if status != 200 or reply["results"][0]["status"] != "ready":
            raise Failed(f"service A takes no document: {status} {reply}")
        found = self.a.call("GET", f"/v1/documents/{document['id']}")[1]
        document["blocks"] = found["cache"]["blocks"]
        self.texts.measured(document, found["tokens"])
        if found["cache"]["tiers"]["remote"] != document["blocks"]:
            raise Failed(f"the KV of a document is not shared: {found}")

        def is_at_b():
            status, at_b = self.b.call("GET", f"/v1/documents/{document['id']}")
            return status == 200 and at_b["status"] == "ready"

        wait_for("a document of A", is_at_b)
        return document

    def forget(self, documents):
        for document in documents:
            status, reply = self.a.call("DELETE", f"/v1/documents/{document['id']}")
            if status not in (200, 204):
                raise Failed(f"service A does not delete a document: {status} {reply}")

    def warm_up(self):
        """Lets B measure how fast it computes and reads, and measures the size of documents."""
        documents = [self.share() for _ in range(2)]
        for document in documents:
            self.b.ask(document, "recompute")
            reply = self.b.ask(document, "exact")
            if "error" in reply:
                raise Failed(f"service B does not answer: {reply['error']}")
            self.kv_bytes = reply["cache"]["tiers"]["remote"]["bytes"]
        if not self.kv_bytes:
            raise Failed(f"service B takes nothing from the shared tiers: {reply['cache']}")
        self.forget(documents)

    # ---- faults ----

    def cases(self):
        """Returns what makes the fault of each case."""
        database, redis, s3 = self.database, self.redis, self.s3
        to_redis, to_s3, to_catalog = self.to_redis, self.to_s3, self.to_catalog
        in_redis = {
            "no fault, KV in Redis": lambda: None,
            "Redis answers 200 ms late": lambda: to_redis.make(latency_s=LATE_S),
            "Redis is silent": lambda: to_redis.make(silent=True),
            "Redis cuts transfers": lambda: to_redis.make(cut_after=self.kv_bytes // 2),
            "Redis is killed": lambda: redis.nodes[0].kill(),
            "values in Redis are damaged": lambda: redis.damage_all(self.rng),
        }
        in_s3 = {
            "no fault, KV in S3": lambda: None,
            "S3 refuses with 500, 503 and 429": lambda: s3.proxy.make(refused_share=1),
            "S3 damages or cuts all that it sends": lambda: s3.proxy.make(damaged_share=1),
            "S3 damages or cuts a third of it": lambda: s3.proxy.make(damaged_share=0.33),
            "S3 answers 200 ms late": lambda: to_s3.make(latency_s=LATE_S),
            "S3 is silent": lambda: to_s3.make(silent=True),
            "S3 is killed": lambda: s3.kill(),
        }
        in_s3 = {case: self.without_redis(fault) for case, fault in in_s3.items()}
        of_catalog = {
            "the catalog answers 200 ms late": lambda: to_catalog.make(latency_s=LATE_S),
            "the catalog is silent": lambda: to_catalog.make(silent=True),
            "the catalog is killed": lambda: database.kill(),
        }
        return in_redis | (in_s3 if s3 else {}) | of_catalog

    def without_redis(self, fault):
        return lambda: (self.redis.empty(), fault())

    def heal(self):
        for part in self.networks + ([self.s3.proxy] if self.s3 else []):
            part.heal()
        self.redis.heal()
        for server in [self.database] + ([self.s3] if self.s3 else []):
            if server.process.poll() is not None:
                server.start()
        self.healed_at = time.monotonic()

    def recover(self):
        """Waits until both services have all of their tiers and the catalog."""
        self.heal()
        end = time.monotonic() + RECOVERS_S
        while not (self.a.is_well() and self.b.is_well()):
            if time.monotonic() > end:
                raise Failed("a service does not recover: " + str(self.b.call("GET", "/healthz")))
            time.sleep(0.5)

    def be_quiet(self):
        time.sleep(max(0, self.healed_at + FORGETS_S - time.monotonic()))

    # ---- a case ----

    def run(self, case, fault):
        documents = [self.share() for _ in range(self.options.samples)]
        asked = self.ask_all(documents, fault)
        for document, one in zip(documents, asked, strict=True):
            one["healed"] = self.b.ask(document, "recompute")
        self.forget(documents)
        self.redis.empty()
        return row_of(case, documents, asked)

    def ask_all(self, documents, fault):
        """Asks about each document while the fault lasts."""
        self.recover()
        self.be_quiet()
        fault()
        asked = [self.ask(document) for document in documents]
        self.recover()
        return asked

    def ask(self, document):
        reply = self.b.ask(document, "exact")
        own = [self.b.ask(document, "recompute") for _ in range(2)]
        tiers = reply.get("cache", {}).get("tiers", {})
        if any(use["blocks"] for tier, use in tiers.items() if tier != "remote"):
            raise Failed(f"service B had KV of a document that it never read: {tiers}")
        return {"reply": reply, "own": own}


class ClusterSetup(Setup):
    """The same with a Redis cluster. Its nodes name each other, so no network stands before it."""

    REDIS = RedisCluster

    def share(self):
        before = self.keys()
        document = super().share()
        document["keys"] = {k for k in self.keys() - before if ":lease:" not in k}
        return document

    def keys(self):
        return {key for node in self.redis.primaries() for key in self.redis.keys(node)}

    def cases(self):
        return {"the primary of Redis with the KV is paused": self.pause_holder}

    def pause_holder(self, document):
        holds = {
            node: len(document["keys"] & set(self.redis.keys(node)))
            for node in self.redis.primaries()
        }
        node = max(holds, key=holds.get)
        if not holds[node]:
            raise Failed(f"no primary has the KV of {document['id']}")
        self.redis.nodes[node].signal(signal.SIGSTOP)

    def recover(self):
        self.heal()
        wait_for("the whole Redis cluster", self.redis.is_whole)
        super().recover()

    def ask_all(self, documents, fault):
        """Another node takes the place of a primary that is paused, so each document has a fault of
        its own."""
        return [super(ClusterSetup, self).ask_all([d], lambda d=d: fault(d))[0] for d in documents]


def p90(values):
    return sorted(values)[math.ceil(0.9 * len(values)) - 1]


def row_of(case, documents, asked):
    """Returns what the samples of a case say. Times are compared with the mean of the two
    recomputations that followed, `max_healed` with the one after the fault. `recompute_spread`: by
    how much one of the two took longer than the other at most, which is what the machine adds."""
    errors, mismatches, misses, ratios = 0, 0, Counter(), []
    totals, healed_ratios, recompute_ms, spreads, first = [], [], [], [], None
    for one in asked:
        reply, own, healed = one["reply"], one["own"], one["healed"]
        failed = [r["error"] for r in (reply, *own, healed) if "error" in r]
        errors += len(failed)
        for error in failed:
            note(f"  error in place of an answer: {error[:500]}")
        if failed:
            continue
        answers = {r["answer"] for r in (*own, healed)}
        if answers != {reply["answer"]}:
            mismatches += 1
            note(f"  another answer: {reply['answer']!r}, recomputed {answers}")
        misses.update(m["reason"] for m in reply["cache"]["misses"])
        ttft_ms = reply["timings"]["ttft_ms"]
        times_ms = [r["timings"]["ttft_ms"] for r in own]
        mean_ms = statistics.mean(times_ms)
        recompute_ms.append(mean_ms)
        ratios.append(ttft_ms / mean_ms)
        spreads.append(max(times_ms) / min(times_ms))
        if ratios[-1] > LIMIT:
            note(f"  {ratios[-1]:.2f} times {times_ms} ms: {reply['timings']} {reply['cache']}")
        totals.append(reply["seconds"] / statistics.mean(r["seconds"] for r in own))
        healed_ratios.append(ttft_ms / healed["timings"]["ttft_ms"])
        if one is asked[0]:
            first = round(ratios[0], 3)
    remote = [one["reply"]["cache"]["tiers"]["remote"]["blocks"] for one in asked
              if "error" not in one["reply"]]  # fmt: skip
    row = {"case": case, "n": len(ratios), "first": first}
    if ratios:
        row |= {
            "median": round(statistics.median(ratios), 3),
            "p90": round(p90(ratios), 3),
            "max": round(max(ratios), 3),
            "max_total": round(max(totals), 3),
            "max_healed": round(max(healed_ratios), 3),
            "recompute_ms_median": round(statistics.median(recompute_ms), 1),
            "recompute_spread": round(max(spreads), 3),
        }
    return row | {
        "slower": sum(r > LIMIT for r in ratios),
        "from_remote": sum(remote),
        "blocks": sum(d["blocks"] for d in documents),
        "misses": dict(misses),
        "mismatches": mismatches,
        "errors": errors,
    }


def end_children():
    """Ends servers whose start was interrupted."""
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
        for pid in file.read().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True, help="the folder with xquad_en.json.gz")
    parser.add_argument("--work", required=True, help="a folder for stores and logs")
    parser.add_argument("--s3", help="moto_server; without it there is no S3")
    parser.add_argument("--samples", type=int, default=10, help="of each case")
    parser.add_argument("--tokens", type=int, default=1500, help="of a document, about")
    parser.add_argument("--cases", default="", help="only those whose names have this text")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.samples < 1:
        parser.error("--samples must be at least 1")
    if not Postgres.programs() or not shutil.which("redis-server"):
        raise SystemExit("error: PostgreSQL and Redis must be installed")
    if options.s3 and not os.path.exists(options.s3):
        options.s3 = None
    if not options.s3:
        note("skipped: there is no moto_server, so no case has its KV in S3")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))  # ends the servers, too
    options.work = tempfile.mkdtemp(dir=options.work)  # stores belong to one database
    texts = Texts(os.path.join(options.data, "xquad_en.json.gz"), options.tokens, options.seed)
    rows, kv_bytes = [], 0
    try:
        for kind in (Setup, ClusterSetup):
            with contextlib.ExitStack() as stack:
                setup = kind(options, texts, stack)
                kv_bytes = setup.kv_bytes
                for case, fault in setup.cases().items():
                    if options.cases in case:
                        rows.append(setup.run(case, fault))
                        note(json.dumps(rows[-1]))
    except (Failed, StartFailed, RuntimeError) as error:
        raise SystemExit(f"error: {error}") from error
    finally:
        end_children()
    worst = max((r for r in rows if r["n"]), key=lambda r: r["max"], default=None)
    settings = {
        "model": os.path.basename(os.path.normpath(options.model)), "strategy": "exact",
        "samples": options.samples, "tokens": options.tokens, "kv_bytes": kv_bytes,
        "seed": options.seed, "s3": bool(options.s3), "limit": LIMIT,
    }  # fmt: skip
    print(json.dumps({
        "settings": settings, "rows": rows,
        "worst": worst and {"case": worst["case"], "ratio": worst["max"]},
    }))  # fmt: skip
    return 1 if any(r["mismatches"] or r["errors"] for r in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
