"""How well plan-capacity predicts what replicas do: see bench/capacity.sh."""

import argparse
import bisect
import concurrent.futures
import http.client
import itertools
import json
import math
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time

WORDS = (
    "river market old bridge the of and was built by a mayor in north copper guild letters "
    "harbour school known"
).split()
MASK = (1 << 64) - 1
POINTS = 160  # of a replica on the ring, as in server/capacity/router.cc
DRAM_DOCUMENTS = 6.5  # so many lie in memory, the last one in part
DISK_DOCUMENTS = 20.5  # about so many lie on disk
DISK_BESIDE = 32 << 20  # what a small store takes besides them, before it is measured
LEAST_DISK = 96 << 20
PROBES = 8  # documents that tell how fast the machine is before and after each run
STEADY = 1.2  # a run counts if questions before it and after it differ by less than this
WARMUP = 0.25  # this first part of the trace fills the tiers and is not compared
QUESTION_TOKENS = 20  # about; the trace has what the replies say
STRATEGY = "reuse"
BUSY = 0.25  # of one replica that has the machine to itself


def mix(bits):
    """The mixing of server/capacity/trace.cc."""
    bits = (bits + 0x9E3779B97F4A7C15) & MASK
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & MASK
    return bits ^ (bits >> 31)


class Router:
    """The load balancer; with affinity, the ring that the simulation has, too."""

    def __init__(self, routing, replicas):
        self.next = itertools.cycle(range(replicas))
        self.ring = []
        if routing == "affinity":
            self.ring = sorted((mix(mix(i)), i // POINTS) for i in range(replicas * POINTS))

    def pick(self, affinity):
        if not self.ring:
            return next(self.next)
        # The simulation mixes the affinity of a trace twice: by its copy and for the ring.
        at = bisect.bisect_left(self.ring, (mix(mix(affinity)), -1))
        return self.ring[at % len(self.ring)][1]


class Redis:
    """A redis-server of its own, without files, as a context manager."""

    def __enter__(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.process = subprocess.Popen(
            ["redis-server", "--port", str(self.port), "--save", "", "--appendonly", "no"]
            + ["--maxmemory-policy", "allkeys-lru", "--maxmemory", "2gb", "--bind", "127.0.0.1"],
            stdout=subprocess.DEVNULL,
        )
        for _ in range(200):
            try:
                self.command("PING")
                return self
            except OSError:
                time.sleep(0.02)
        raise SystemExit("error: redis-server does not start")

    def command(self, text):
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as s:
            s.sendall(text.encode() + b"\r\n")
            return s.recv(4096)

    def sent(self):
        """Returns the bytes that Redis has sent since its start."""
        info = self.command("INFO stats").decode()
        return int(info.split("total_net_output_bytes:")[1].split()[0])

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()


class Service:
    """A replica, as a context manager."""

    def __init__(self, options, redis, dram, disk=0):
        self.command = [options.binary, "serve", "--server.port=0", "--model.path=" + options.model]
        self.command += ["--policy.evidence=false", "--log.level=info", "--log.format=json"]
        self.command += ["--model.working_cache_bytes=536870912", "--retrieve.enabled=false"]
        self.command += [f"--cache.dram_bytes={dram}", f"--disk.max_bytes={disk}"]
        self.command += [f"--remote.url=redis://127.0.0.1:{redis.port}"]
        self.command += ["--disk.prompt_bytes=0", "--model.prefix_cache_bytes=0"]

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="quire-capacity-")
        log = self.folder.name + "/log"
        with open(log, "wb") as out:
            self.process = subprocess.Popen(
                self.command + ["--disk.path=" + self.folder.name + "/store"],
                stdout=out,
                stderr=out,
            )
        end = time.monotonic() + 120
        while time.monotonic() < end and self.process.poll() is None:
            with open(log, encoding="utf-8") as file:
                entries = [json.loads(line) for line in file if line.endswith("}\n")]
            port = [e["port"] for e in entries if e.get("msg") == "listening"]
            if any(e.get("msg") == "ready" for e in entries):
                self.port = port[0]
                return self
            time.sleep(0.05)
        with open(log, encoding="utf-8") as file:
            raise SystemExit("error: a replica does not start: " + file.read()[-500:])

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        self.folder.cleanup()

    def call(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {"Content-Type": "application/json"})
        reply = connection.getresponse()
        text = reply.read()
        connection.close()
        if reply.status not in (200, 201, 204):
            raise SystemExit(f"error: {path}: {reply.status} {text[:300]!r}")
        return json.loads(text) if text else None

    def post(self, name, text):
        """Stores a text without computing it; returns its tokens."""
        body = {"id": name, "text": text, "kv": "lazy", "chunking": {"strategy": "none"}}
        self.call("POST", "/v1/documents?wait=true", body)
        return self.call("GET", "/v1/documents/" + name)["tokens"]

    def wait_stored(self, name):
        """Waits until the KV that a question has computed is in the store."""
        end = time.monotonic() + 60
        while self.call("GET", "/v1/documents/" + name)["cache"]["state"] != "resident":
            if time.monotonic() > end:
                raise SystemExit(f"error: the KV of {name} is not stored")
            time.sleep(0.01)

    def ask(self, names, question, tokens):
        """Returns seconds until the first token, and the reply's last event."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        body = {
            "query": question,
            "document_ids": names,
            "max_tokens": tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "citations": False,
            "cache": {"strategy": STRATEGY},
        }
        began = time.perf_counter()
        connection.request(
            "POST", "/v1/query", json.dumps(body), {"Content-Type": "application/json"}
        )
        reply = connection.getresponse()
        first, event = None, ""
        for line in reply:
            if line.startswith(b"event: "):
                event = line[7:].strip().decode()
            elif line.startswith(b"data: "):
                if event == "delta" and first is None:
                    first = time.perf_counter() - began
                if event in ("done", "error"):
                    end = json.loads(line[6:])
                    connection.close()
                    if event == "error":
                        raise SystemExit("error: a question failed: " + json.dumps(end)[:300])
                    return first or time.perf_counter() - began, end
        raise SystemExit("error: an answer ended early")


def text(rng, words):
    return "Report. " + " ".join(rng.choice(WORDS) for _ in range(words)) + "."


def run(command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit("error: " + done.stderr.strip())
    return done.stdout


class Bench:
    def __init__(self, options):
        self.options = options
        self.state = {}
        if options.state and os.path.exists(options.state):
            with open(options.state, encoding="utf-8") as file:
                self.state = json.load(file)

    def save(self):
        if not self.options.state:
            return
        with open(self.options.state + ".new", "w", encoding="utf-8") as file:
            json.dump(self.state, file)
        os.replace(self.options.state + ".new", self.options.state)

    def measure_rates(self):
        """Rates with as many replicas as there will be; none of their documents is asked later.

        They belong to one run: on a virtual machine, what a pause costs changes within an hour.
        """
        o = self.options
        most = max(o.replicas)
        with tempfile.TemporaryDirectory() as folder, Redis() as redis:
            services = [Service(o, redis, 1 << 30) for _ in range(most)]
            for s in services:
                s.__enter__()
            try:
                urls = [f"http://127.0.0.1:{s.port}" for s in services]
                command = [o.binary, "bench", "rates", "--server", urls[0], "-s", STRATEGY]
                command += ["--words", ",".join(str(o.words * k // 4) for k in (1, 2, 4, 6))]
                command += ["--out", folder + "/rates", "--answers", "1,2,4,8"]
                if most > 1:
                    command += ["--beside", ",".join(urls[1:])]
                run(command)
            finally:
                for s in services:
                    s.__exit__()
            with open(folder + "/rates", encoding="utf-8") as file:
                rates = json.load(file)
        if "disk" not in self.state:
            mean = rates["prefill"][2]["tokens"] * rates["stored_bytes_per_token"]
            self.state["disk"] = max(LEAST_DISK, int(DISK_BESIDE + DISK_DOCUMENTS * mean))
            self.state["disk_beside"] = self.measure_disk(rates)
        rates["disk_bytes_beside"] = self.state["disk_beside"]
        return rates

    def measure_disk(self, rates):
        """What a full disk takes besides KV: fills one with documents that are not asked later."""
        o = self.options
        rng = random.Random(o.seed + 1)
        with Redis() as redis, Service(o, redis, 1 << 28, self.state["disk"]) as service:
            held, per = 0, 0
            for i in range(2000):
                tokens = service.post(f"f{i}", text(rng, o.words))
                service.ask([f"f{i}"], "What was built?", 1)
                per = tokens * rates["stored_bytes_per_token"]
                per += rates["stored_bytes_per_context"]
                service.wait_stored(f"f{i}")
                segments = service.call("GET", "/v1/admin/cache/stats")["segments"]
                if segments <= held:  # it is full, and one went for the last
                    return max(0, self.state["disk"] - per * (held + 0.5))
                held = segments
        raise SystemExit("error: the disk's budget is too large for this benchmark")

    def make_trace(self, service):
        """Questions over one to three documents each, by Zipf's law, as a Poisson process."""
        o = self.options
        rng = random.Random(o.seed)
        texts = [text(rng, o.words * rng.randint(2, 6) // 4) for _ in range(o.documents)]
        tokens = [service.post(f"d{i}", t) for i, t in enumerate(texts)]
        weights = [1 / (i + 1) ** 0.7 for i in range(o.documents)]
        at, trace = 0.0, []
        for i in range(o.requests):
            at += rng.expovariate(1)
            wanted, names = rng.choice([1, 1, 2, 3]), []
            while len(names) < wanted:
                d = rng.choices(range(o.documents), weights)[0]
                if d not in names:
                    names.append(d)
            trace.append(
                {
                    "time": at,
                    "documents": [{"key": f"{d + 1:016x}", "tokens": tokens[d]} for d in names],
                    "question_tokens": QUESTION_TOKENS,
                    "answer_tokens": rng.choice([4, 8, 16, 32]),
                    "affinity": f"{mix(sum(1 << d for d in names)):016x}",
                }
            )
        return texts, trace

    def slower(self, service, rates):
        """How many times as long questions take now as by the rates, over other documents.

        The machine may do other work. The documents are deleted, so that the tiers are as before.
        """
        ratios = []
        rng = random.Random(self.options.seed + 2)
        for i in range(PROBES):
            tokens = service.post("probe", text(rng, self.options.words))
            for kind in ("computed", "dram", "dram"):
                seconds, end = service.ask(["probe"], self.question(i), 1)
                own = end["usage"]["prompt_tokens"] - tokens
                ms = rates["request_ms"] + rates["question_ms_per_token"] * own
                if kind == "dram":
                    ms += rates["dram"]["ms_per_context"] + rates["dram"]["ms_per_token"] * tokens
                else:
                    ms += prefill_ms(rates, tokens)
                    service.wait_stored("probe")
                ratios.append(1000 * seconds / ms)
            service.call("DELETE", "/v1/documents/probe")
        return statistics.median(ratios)

    def plan(self, rates, trace, replicas, routing, speed, warmup_share=WARMUP):
        o = self.options
        warmup = warmup_share * (trace[-1]["time"] - trace[0]["time"]) / speed
        with tempfile.TemporaryDirectory() as folder:
            with open(folder + "/trace", "w", encoding="utf-8") as file:
                for question in trace:
                    file.write(json.dumps(question) + "\n")
            with open(folder + "/rates", "w", encoding="utf-8") as file:
                json.dump(rates, file)
            command = [o.binary, "plan-capacity", "--trace", folder + "/trace", "--json"]
            command += ["--rates", folder + "/rates", "--replicas", str(replicas)]
            command += ["--per-host", str(replicas), "--routing", routing, "--speed", repr(speed)]
            command += ["--dram", str(self.state["dram"]), "--disk", str(self.state["disk"])]
            command += ["--remote", "unlimited", "--warmup", repr(warmup)]
            return json.loads(run(command))["rows"][0]

    def choose_speed(self, trace):
        """The speed at which one replica is busy half of the time, by the prediction alone."""
        low, high = 1e-3, 1e3
        for _ in range(40):
            middle = math.sqrt(low * high)
            plan = self.plan(self.state["rates"], trace, 1, "affinity", middle)
            busy = plan["utilisation"]["mean"]
            low, high = (middle, high) if busy < BUSY else (low, middle)
        return math.sqrt(low * high)

    def prepare(self):
        o = self.options
        if "rates" not in self.state:
            self.state["rates"] = self.measure_rates()
            self.save()
        if "trace" not in self.state:
            with Redis() as redis, Service(o, redis, 1 << 28) as service:
                texts, trace = self.make_trace(service)
                asked = service.ask(["d0"], self.question(0), 1)[1]
            question = asked["usage"]["prompt_tokens"] - service_tokens(trace, "d0")
            for q in trace:
                q["question_tokens"] = question
            mean = statistics.mean(d["tokens"] for q in trace for d in q["documents"])
            self.state["dram"] = int(
                DRAM_DOCUMENTS * mean * self.state["rates"]["stored_bytes_per_token"]
            )
            self.state["texts"], self.state["trace"] = texts, trace
            self.state["speed"] = self.choose_speed(trace)
            self.state["runs"] = {}
            self.save()

    @staticmethod
    def question(i):
        return f"Number {i}: what was built by the guild of letters?"

    def replay(self, replicas, routing):
        """Asks the trace's questions at their times; returns what was measured."""
        o, trace = self.options, self.state["trace"]
        rates = self.measure_rates()
        with Redis() as redis:
            services = [
                Service(o, redis, self.state["dram"], self.state["disk"]) for _ in range(replicas)
            ]
            for s in services:
                s.__enter__()
            try:
                for s in services:
                    for i, t in enumerate(self.state["texts"]):
                        s.post(f"d{i}", t)
                before = self.slower(services[0], rates)
                sent = redis.sent()
                router = Router(routing, replicas)
                began = time.perf_counter() + 0.5

                def ask(i, service):
                    q = trace[i]
                    at = began + (q["time"] - trace[0]["time"]) / self.state["speed"]
                    time.sleep(max(0, at - time.perf_counter()))
                    late = time.perf_counter() - at
                    names = [f"d{int(d['key'], 16) - 1}" for d in q["documents"]]
                    ttft, end = service.ask(names, self.question(i), q["answer_tokens"])
                    return ttft, late, end["cache"]["tiers"]

                with concurrent.futures.ThreadPoolExecutor(len(trace)) as pool:
                    picks = [router.pick(int(q["affinity"], 16)) for q in trace]
                    answers = list(pool.map(ask, range(len(trace)), [services[p] for p in picks]))
                sent = redis.sent() - sent
                after = self.slower(services[0], rates)
            finally:
                for s in services:
                    s.__exit__()
        first = bisect.bisect_left(
            [q["time"] - trace[0]["time"] for q in trace],
            WARMUP * (trace[-1]["time"] - trace[0]["time"]),
        )
        trace, answers = trace[first:], answers[first:]
        total = sum(d["tokens"] for q in trace for d in q["documents"])
        found = {
            tier: sum(a[2].get(tier, {}).get("tokens", 0) for a in answers)
            for tier in ("dram", "disk", "remote")
        }
        hits = {tier: n / total for tier, n in found.items()}
        return {
            "hits": {**hits, "computed": 1 - sum(hits.values())},
            "ttft": sorted(a[0] for a in answers),
            "late_p95": percentile(sorted(a[1] for a in answers), 0.95),
            "sent": sent,
            "slower": [before, after],
            "rates": rates,
        }

    def compare(self, replicas, routing, run):
        """Returns what was measured in a run and what is predicted for it."""
        slower = statistics.mean(run["slower"])
        rates = scaled(run["rates"], slower)
        args = (rates, self.state["trace"], replicas, routing, self.state["speed"])
        plan = self.plan(*args)
        # Redis counts all that it sends, from the first question on.
        whole = self.plan(*args, warmup_share=0)
        measured = {
            "ttft_p50_ms": 1000 * percentile(run["ttft"], 0.5),
            "ttft_p95_ms": 1000 * percentile(run["ttft"], 0.95),
            "remote_read_bytes": run["sent"],
        }
        predicted = {
            "ttft_p50_ms": 1000 * plan["ttft_seconds"]["p50"],
            "ttft_p95_ms": 1000 * plan["ttft_seconds"]["p95"],
            "remote_read_bytes": whole["bytes"]["remote_read"],
            "busy": plan["utilisation"]["mean"],
        }
        for tier in ("dram", "disk", "remote", "computed"):
            measured["hit_" + tier] = run["hits"][tier]
            predicted["hit_" + tier] = plan["hits"][tier]
        return measured, predicted

    def row(self, replicas, routing, runs):
        row = {"replicas": replicas, "routing": routing, "runs": len(runs)}
        row["slower"] = [round(x, 3) for r in runs for x in r["slower"]]
        steady = [r for r in runs if max(r["slower"]) <= STEADY * min(r["slower"])]
        row["steady_runs"] = len(steady)
        runs = steady or runs
        pairs = [self.compare(replicas, routing, r) for r in runs]
        row["pause_ms"] = [[p["ms"] for p in r["rates"]["idle"]] for r in runs]
        row["late_p95_ms"] = round(1000 * max(r["late_p95"] for r in runs), 1)
        row["predicted_busy"] = round(statistics.median(p["busy"] for _, p in pairs), 3)
        for name in pairs[0][0]:
            row[name] = round(statistics.median(m[name] for m, _ in pairs), 4)
            row["predicted_" + name] = round(statistics.median(p[name] for _, p in pairs), 4)
            ratios = [p[name] / m[name] for m, p in pairs if m[name]]
            row["ratio_" + name] = round(statistics.median(ratios), 3) if ratios else None
            row["ratios_" + name] = [round(r, 3) for r in ratios]
        return row

    def rows(self):
        o = self.options
        self.prepare()
        cases = [(n, r) for n in o.replicas for r in ("affinity", "round-robin")]
        cases = [c for c in cases if c != (1, "round-robin")]
        left = o.runs
        for repeat in range(o.repeats):
            for replicas, routing in cases:
                runs = self.state["runs"].setdefault(f"{replicas} {routing}", [])
                if len(runs) > repeat or left == 0:
                    continue
                print(f"{replicas} replicas, {routing}, run {repeat + 1}", file=sys.stderr)
                runs.append(self.replay(replicas, routing))
                self.save()
                left -= 1
        out = []
        for replicas, routing in cases:
            runs = self.state["runs"].get(f"{replicas} {routing}", [])
            if runs:
                out.append(self.row(replicas, routing, runs))
        return out


def service_tokens(trace, name):
    key = f"{int(name[1:]) + 1:016x}"
    return next(d["tokens"] for q in trace for d in q["documents"] if d["key"] == key)


def prefill_ms(rates, tokens):
    """As Rates::prefill_ms (server/capacity/rates.cc)."""
    points = rates["prefill"]
    if tokens <= points[0]["tokens"]:
        return points[0]["ms"] * tokens / points[0]["tokens"]
    for a, b in zip(points, points[1:]):
        if tokens <= b["tokens"]:
            break
    return a["ms"] + (b["ms"] - a["ms"]) * (tokens - a["tokens"]) / (b["tokens"] - a["tokens"])


def scaled(rates, slower):
    """Returns the rates of a machine on which everything takes so many times as long."""
    out = json.loads(json.dumps(rates))
    for name in ("request_ms", "question_ms_per_token"):
        out[name] *= slower
    for point in out["prefill"] + out["decode"] + out["idle"]:
        point["ms"] *= slower
    for tier in ("dram", "disk", "remote"):
        for name in out[tier]:
            out[tier][name] *= slower
    return out


def percentile(values, share):
    return values[max(0, math.ceil(share * len(values)) - 1)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--replicas", default="1,2,4")
    parser.add_argument("--requests", type=int, default=150)
    parser.add_argument("--documents", type=int, default=60)
    parser.add_argument("--words", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--state")
    parser.add_argument("--runs", type=int, default=-1)
    options = parser.parse_args()
    options.replicas = sorted(int(n) for n in options.replicas.split(","))
    bench = Bench(options)
    rows = bench.rows()
    settings = {
        "model": os.path.basename(options.model),
        "strategy": STRATEGY,
        "requests": options.requests,
        "documents": options.documents,
        "words": options.words,
        "dram_bytes": bench.state["dram"],
        "disk_bytes": bench.state["disk"],
        "seconds": round(
            (bench.state["trace"][-1]["time"] - bench.state["trace"][0]["time"])
            / bench.state["speed"],
            1,
        ),
        "rates": bench.state["rates"],
    }
    print(json.dumps({"settings": settings, "rows": rows}))


if __name__ == "__main__":
    main()
