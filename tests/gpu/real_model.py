#!/usr/bin/env python3
"""Asks a real model the same questions through `quire serve` on the CPU and on the GPU.

    tests/gpu/real_model.py --quire FILE --model FILE... --out DIR [--seconds S]

Every backend gets a service with an empty store. All get the same documents and the same questions
under several strategies, at temperature 0, one request at a time: first the first backend, then the
second. Their answers are compared token by token, with citations and times. Then each service
answers the questions of one strategy all at once; the second one is killed in the middle of an
answer, starts again on its store and has to repeat an answer.

Backends compute alike, not bit for bit: four-bit weights meet inputs in eight bits on a CPU, and in
bf16 or f32 on a GPU. So a difference of answers counts as a failure only where the first service
was sure of its word: by more than --margin nats, or three times as many under strategies that
choose tokens by such numbers. `--backends cpu,cpu:f32` shows what rounding alone does (the model's
card does not speak of other weights, so samkv and auto differ), and `--backends cpu,cpu --margin 0`
has to find no difference at all.

The exit status is 0 (nothing failed), 1 (something failed) or 2 (wrong use). DIR/real-model.json
is written after each step, so that it holds what is known when time runs out.
"""

import argparse
import http.client
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

# What requests say of the cache, by the name in the report. `freekv` decodes over some of the rows.
STRATEGIES = {
    "reuse": {"strategy": "reuse", "decode": "dense"},
    "recompute": {"strategy": "recompute", "decode": "dense"},
    "samkv": {"strategy": "samkv", "decode": "dense", "options": {"score": "keys"}},
    "cacheblend": {"strategy": "cacheblend", "decode": "dense"},
    "auto": {"strategy": "auto"},
    "freekv": {"strategy": "reuse", "decode": "freekv", "options": {"decode_budget": 512}},
}
DOCUMENT_CHARACTERS = 3500  # 500 to 1,200 tokens of a longer page
EXACT_STRATEGIES = ["reuse", "recompute"]  # the others choose tokens by numbers that are rounded
STOP_SECONDS = 6
ANSWER_SECONDS = 12  # one that takes longer hangs
MOST_RESTARTS = 3

# Question, documents, and a word of the right answer where the text has one. A question without
# documents is asked over those that the service finds.
QUESTIONS = [
    ("When was the borehole drilled?", ["history.md", "water.md", "tools.md"], "1998"),
    ("Who decides which strategy auto takes?", ["strategies.md", "fidelity.md"], None),
    ("How heavy was the heaviest marrow?", ["openday.md", "bees.md", "rules.md"], "41"),
    ("What becomes of a file that is empty?", ["files.md", "retrieval.md"], "skipped"),
    ("How many hives are there?", ["compost.md", "bees.md", "history.md"], "ive"),
    ("Which rows always stay?", ["compression.md", "bees.md"], None),
    ("When is the code of the lock changed?", ["rules.md", "tools.md", "fees.md"], "first"),
    ("What are the rates of a replica?", ["capacity.md", "openday.md"], None),
    (
        "How much is the yearly fee for a half plot?",
        ["bees.md", "compost.md", "fees.md", "history.md", "openday.md", "rules.md", "tools.md"],
        "46",
    ),
    ("What does quest score?", ["decode.md", "water.md"], None),
    ("Which course is needed for the shredder?", None, None),
    ("What is the text encoder good for?", ["retrieval.md", "decode.md", "files.md"], None),
]


class Failed(Exception):
    """A step that did not work, in words for the report."""


class TooLate(Exception):
    """The time of the whole program is over, or somebody ended it."""


class Clock:
    """The time that is left."""

    def __init__(self, seconds):
        self.start = time.monotonic()
        self.seconds = seconds

    def spent(self):
        return time.monotonic() - self.start

    def left(self):
        return self.seconds - self.spent()


class Service:
    """`quire serve` on a store. `wanted` is a backend, with a type of weights after a colon."""

    def __init__(self, options, wanted, name, store, clock):
        self.options, self.name, self.store, self.clock = options, name, store, clock
        self.backend, _, self.weights = wanted.partition(":")
        self.log_path = options.out / f"{name}.log"
        self.process = None
        self.port = None
        self.started = 0.0

    def start(self):
        command = [
            str(Path(self.options.quire).resolve()),
            "serve",
            "--server.port=0",
            "--log.format=json",
            "--policy.evidence=false",  # probes in idle time would change times and `auto`
            f"--model.path={self.options.model_file}",
            f"--model.backend={self.backend}",
            f"--disk.path={self.store}",
        ]
        if self.weights:
            command.append(f"--model.weights={self.weights}")
        if self.options.threads > 0:
            command.append(f"--model.threads={self.options.threads}")
        self.port = None
        self.begin = self.log_path.stat().st_size if self.log_path.exists() else 0
        with open(self.log_path, "ab") as log:
            self.started = time.monotonic()
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def entries(self):
        """Returns what this start has logged; lines that are no JSON as texts."""
        found = []
        with open(self.log_path, encoding="utf-8", errors="replace") as log:
            log.seek(self.begin)
            for line in log:
                try:
                    found.append(json.loads(line))
                except ValueError:
                    found.append({"msg": line.rstrip()})
        return found

    def log_tail(self):
        lines = self.log_path.read_text(encoding="utf-8", errors="replace").splitlines()
        lines = [line for line in lines if '"msg":"request"' not in line]
        return "\n".join(f"    {self.name}: {line[:400]}" for line in lines[-15:])

    def wait_until_ready(self, seconds):
        """Returns the seconds from the start to the line "ready" of the log."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            ended = self.process.poll()
            for entry in self.entries():
                if entry.get("msg") == "listening":
                    self.port = entry.get("port")
                if entry.get("msg") == "ready":
                    return time.monotonic() - self.started
            if ended is not None:
                raise Failed(f"the service ended with status {ended} before it was ready")
            time.sleep(0.02)
        raise Failed(f"the service was not ready within {seconds:.0f} s")

    def call(self, method, path, body=None, seconds=30):
        """Returns the parsed reply, or its text where it is no JSON."""
        limit = min(seconds, max(self.clock.left(), 1))
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=limit)
        try:
            connection.request(
                method,
                path,
                None if body is None else json.dumps(body),
                {"Content-Type": "application/json"},
            )
            reply = connection.getresponse()
            data = reply.read()
        except (OSError, http.client.HTTPException) as error:
            ended = self.process.poll()
            state = "runs" if ended is None else f"ended with status {ended}"
            reason = f"{type(error).__name__} {error}"
            if isinstance(error, TimeoutError) and self.clock.left() > 0:
                self.kill()  # so that it starts again
                state = f"was killed, as it said nothing for {limit:.0f} s"
            raise Failed(f"{method} {path}: {reason}; the service {state}") from error
        finally:
            connection.close()
        if reply.status >= 300:
            raise Failed(f"{method} {path}: status {reply.status}, {data[:300].decode()}")
        return json.loads(data) if data[:1] in (b"{", b"[") else data.decode()

    def signal_stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)

    def stopped(self):
        """Waits for the end; returns the exit status, or a text where it had to be killed."""
        try:
            return self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            return f"killed, as it went on for {STOP_SECONDS} s after SIGTERM"

    def kill(self):
        if self.process is not None:
            if self.process.poll() is None:
                self.process.kill()
            self.process.wait()


def read_documents(folders, questions):
    """Returns the documents that the questions name, by the name of the file."""
    wanted = {name for _, names, _ in questions for name in names or []}
    texts = {}
    for folder in folders:
        for file in sorted(Path(folder).glob("*.md")):
            if file.name not in wanted or file.name in texts:
                continue
            text = file.read_text(encoding="utf-8")
            if len(text) > DOCUMENT_CHARACTERS:
                cut = text.rfind("\n\n", 0, DOCUMENT_CHARACTERS)
                text = text[: cut if cut > 0 else DOCUMENT_CHARACTERS]
            texts[file.name] = text
    missing = sorted(wanted - set(texts))
    if missing:
        raise Failed(f"these documents are in none of the folders: {', '.join(missing)}")
    return texts


def join_model(files, folder):
    """Returns the model's file. Several files are parts of one, joined in the given order."""
    if len(files) == 1:
        return Path(files[0]).resolve()
    joined = folder / "model" / "model.gguf"
    joined.parent.mkdir()
    with open(joined, "wb") as out:
        for part in files:
            with open(part, "rb") as data:
                shutil.copyfileobj(data, out, 1 << 22)
    card = Path(files[0]).parent / "quire-card.json"  # the service looks for it beside the model
    if card.exists():
        shutil.copy(card, joined.parent / card.name)
    return joined


def request_of(question, strategy, tokens):
    text, documents, _ = question
    body = {
        "query": text,
        "max_tokens": tokens,
        "temperature": 0,
        "citations": True,
        "cache": STRATEGIES[strategy],
    }
    if documents is not None:
        body["document_ids"] = documents
    return body


def ask(service, question, strategy, tokens, logprobs):
    """Asks once; returns what is compared and measured of the reply."""
    body = request_of(question, strategy, tokens)
    if logprobs:
        body.update(logprobs=True, top_logprobs=5)
    begin = time.monotonic()
    reply = service.call("POST", "/v1/query", body, ANSWER_SECONDS)
    seconds = time.monotonic() - begin
    answer = reply["answer"]
    found = {
        "answer": answer,
        "citations": [
            [c["document_id"], c["start"], c["end"], c["answer_start"], c["answer_end"]]
            for c in reply.get("citations", [])
        ],
        "documents": [d["id"] for d in reply.get("documents", [])],
        "fates": reply["usage"]["cache_details"],
        "prompt_tokens": reply["usage"]["prompt_tokens"],
        "answer_tokens": reply["usage"]["completion_tokens"],
        "strategy": [reply["cache"]["strategy"], reply["cache"]["decode"]],
        "tiers": {k: v["blocks"] for k, v in reply["cache"].get("tiers", {}).items()},
        # A strategy that reuses nothing names its documents as `policy_off`.
        "misses": [m for m in reply["cache"].get("misses", []) if m["reason"] != "policy_off"],
        "ttft_ms": reply["timings"]["ttft_ms"],
        "total_ms": reply["timings"]["total_ms"],
        "client_ms": round(seconds * 1000, 2),
        "tokens_per_second": reply["timings"]["tokens_per_second"],
        "timings": reply["timings"],
        "right": question[2] is None or question[2] in answer,
    }
    if logprobs:
        found["tokens"] = tokens_of(reply)
    return found


def tokens_of(reply):
    """Returns for each token of the answer its text, its log probability and the likeliest ones."""
    content = (reply.get("logprobs") or {}).get("content") or []
    return [
        {
            "token": t["token"],
            "logprob": t["logprob"],
            "top": {o["token"]: o["logprob"] for o in t.get("top_logprobs", [])},
        }
        for t in content
    ]


def compare(first, second):
    """How two answers to one question differ; the first one is the reference."""
    a, b = first["tokens"], second["tokens"]
    common = 0
    while common < min(len(a), len(b)) and a[common]["token"] == b[common]["token"]:
        common += 1
    drift = [abs(a[i]["logprob"] - b[i]["logprob"]) for i in range(common)]
    out = {
        "same_answer": first["answer"] == second["answer"],
        "same_citations": first["citations"] == second["citations"],
        "same_fates": first["fates"] == second["fates"],
        "same_documents": first["documents"] == second["documents"],
        "same_strategy": first["strategy"] == second["strategy"],
        "first_difference": None if common == len(a) == len(b) else common,
        "largest_drift": max(drift, default=0.0),
        "mean_drift": statistics.fmean(drift) if drift else 0.0,
        "margin": None,
    }
    if common < len(a):
        # By how much the reference preferred its own word where the answers part. A word that is
        # not among its likeliest was less likely than the last of these.
        top = a[common]["top"]
        other = b[common]["token"] if common < len(b) else None
        if other in top:
            out["margin"] = a[common]["logprob"] - top[other]
        elif other is not None and top:
            out["margin"] = a[common]["logprob"] - min(top.values())
            out["margin_is_least"] = True
    return out


class Report:
    """What is known so far, in DIR/real-model.json."""

    def __init__(self, folder):
        self.file = folder / "real-model.json"
        self.data = {"failures": [], "notes": [], "sides": {}, "answers": {}}

    def fail(self, text, service=None):
        self.data["failures"].append(text)
        print(f"FAILED: {text}", flush=True)
        if service is not None:
            print(service.log_tail(), flush=True)
        self.write()

    def note(self, text):
        self.data["notes"].append(text)
        print(text, flush=True)

    def write(self):
        fresh = self.file.with_suffix(".new")
        fresh.write_text(json.dumps(self.data, indent=1, ensure_ascii=False), encoding="utf-8")
        fresh.replace(self.file)


def check_device(service, report):
    """Writes down what the service says of its device, and complains where it is another one."""
    side = report.data["sides"][service.name]
    info = service.call("GET", "/v1/info")
    health = service.call("GET", "/health")
    metrics = service.call("GET", "/metrics")
    side["backend"] = info["backend"]
    side["isa"] = info["isa"]
    side["fingerprint"] = info["model"]["meta"]["fingerprint"]
    side["weights"] = info["model"]["meta"]["weights"]
    side["memory_bytes"] = info["model"]["meta"]["memory_bytes"]
    side["health"] = health
    side["device_metrics"] = [
        line for line in metrics.splitlines() if line.startswith("quire_device_info")
    ]
    logged = {e.get("msg"): e for e in service.entries()}
    side["log"] = [
        e
        for e in service.entries()
        if e.get("level") in ("warning", "error")
        or str(e.get("msg", "")).startswith(("computing on", "memory of", "engine ready"))
    ]
    says = [info["backend"]["name"], logged.get("engine ready", {}).get("isa")]
    on_gpu = [info["backend"]["name"] == "cuda", info["isa"] == "cuda"]
    on_gpu += ["computing on the GPU" in logged]
    on_gpu += ['backend="cuda"' in "".join(side["device_metrics"])]
    on_gpu += [says[1] == "cuda"]
    right = all(on_gpu) if service.backend == "cuda" else not any(on_gpu)
    if health.get("status") != "ok":
        report.fail(f"{service.name}: /health says {health}")
    if not right:
        report.fail(f"{service.name}: the device is not {service.backend}: {side}")
    report.note(
        f"{service.name}: {info['backend']['device']}, isa {info['isa']}, weights "
        f"{side['weights']}, fingerprint {side['fingerprint']}, ready after "
        f"{side['ready_s']:.1f} s"
    )


def ingest(service, documents, report):
    side = report.data["sides"][service.name]
    begin = time.monotonic()
    tokens = 0
    for name, text in documents.items():
        body = {"id": name, "title": name, "text": text}
        reply = service.call("POST", "/v1/documents?wait=true", body)
        if reply["status"] != "succeeded":
            raise Failed(f"document {name}: {reply}")
        tokens += reply["usage"]["tokens"]
    seconds = time.monotonic() - begin
    side["ingest_s"], side["ingest_tokens"] = seconds, tokens
    report.note(
        f"{service.name}: {len(documents)} documents, {tokens} tokens read in {seconds:.2f} s "
        f"({tokens / seconds:.0f} a second)"
    )


def start_again(service, report):
    """Starts a service that is gone, so that the other questions are asked, too. Returns whether
    it runs."""
    if service.process.poll() is None:
        return True
    side = report.data["sides"][service.name]
    side["restarts"] = side.get("restarts", 0) + 1
    if side["restarts"] > MOST_RESTARTS:
        return False
    try:
        service.start()
        service.wait_until_ready(max(1, min(15, service.clock.left())))
    except Failed as failed:
        report.fail(f"{service.name} does not start again: {failed}", service)
        return False
    return True


def ask_all(services, options, report, clock, until):
    """Asks all questions under all strategies, one service after the other for each."""
    alive = list(services)
    asked = 0
    for n, question in enumerate(QUESTIONS[: options.questions]):
        for strategy in STRATEGIES:
            if clock.spent() > until:
                report.data["cut"] = f"{asked} answers were asked for when time ran out"
                report.note(report.data["cut"])
                return alive
            row = report.data["answers"].setdefault(f"{n}/{strategy}", {"question": question[0]})
            for service in list(alive):
                try:
                    plain = ask(service, question, strategy, options.tokens, False)
                    # With log probabilities the logits come to the host and tokens are drawn
                    # there; without them a GPU draws. What is asked again is also warm.
                    spoken = ask(service, question, strategy, options.tokens, True)
                except Failed as failed:
                    report.fail(f"{service.name}, question {n}, {strategy}: {failed}", service)
                    if not start_again(service, report):
                        alive.remove(service)
                    continue
                plain["tokens"] = spoken["tokens"]
                plain["again"] = {"ttft_ms": spoken["ttft_ms"], "total_ms": spoken["total_ms"]}
                plain["same_with_logprobs"] = plain["answer"] == spoken["answer"]
                if not plain["same_with_logprobs"]:
                    report.fail(
                        f"{service.name}, question {n}, {strategy}: with log probabilities the "
                        f"answer is {spoken['answer']!r}, without {plain['answer']!r}"
                    )
                if plain["answer"] == "" or plain["misses"]:
                    report.fail(
                        f"{service.name}, question {n}, {strategy}: answer {plain['answer']!r}, "
                        f"misses {plain['misses']}"
                    )
                row[service.name] = plain
                asked += 1
        report.write()
    return alive


def ask_together(service, options, report):
    """The questions of one strategy at once: batches have to change no answer."""
    answers = report.data["answers"]
    numbers = [n for n in range(len(QUESTIONS)) if service.name in answers.get(f"{n}/reuse", {})]
    replies, errors = {}, []

    def one(n):
        try:
            replies[n] = ask(service, QUESTIONS[n], "reuse", options.tokens, False)
        except Failed as failed:
            errors.append(str(failed))

    threads = [threading.Thread(target=one, args=(n,)) for n in numbers]
    begin = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - begin
    tokens = sum(r["answer_tokens"] for r in replies.values())
    alone = {n: answers[f"{n}/reuse"][service.name]["answer"] for n in numbers}
    changed = [n for n, r in replies.items() if r["answer"] != alone[n]]
    report.data["sides"][service.name]["together"] = {
        "questions": len(numbers),
        "seconds": seconds,
        "tokens": tokens,
        "changed": changed,
        "errors": errors,
    }
    report.note(
        f"{service.name}: {len(numbers)} questions at once in {seconds:.2f} s, {tokens} tokens, "
        f"{len(changed)} answers other than alone"
    )
    for error in errors:
        report.fail(f"{service.name}, questions at once: {error}", service)
    if changed:
        report.fail(f"{service.name}: questions {changed} are answered differently in a batch")


def kill_round(service, options, report, documents):
    """Kills the service in the middle of an answer; its store has to give the same one again."""
    question = QUESTIONS[0]
    before = ask(service, question, "reuse", options.tokens, False)
    body = request_of(question, "reuse", 2000)
    body.update(stream=True, ignore_eos=True)
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=10)
    connection.request("POST", "/v1/query", json.dumps(body), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    pieces = 0
    while pieces < 4:  # the answer has begun
        line = reply.fp.readline()
        if not line:
            raise Failed("the stream ended before the service was killed")
        pieces += line.startswith(b"data:")
    service.process.send_signal(signal.SIGKILL)
    service.process.wait()
    rest = b""
    try:
        rest = reply.fp.read()
    except (OSError, http.client.HTTPException):
        pass
    connection.close()
    if b"query.result" in rest or b"[DONE]" in rest:
        raise Failed("the answer was complete before the service was killed")
    service.start()
    ready = service.wait_until_ready(max(1, min(25, service.clock.left())))
    there = service.call("GET", "/v1/documents?limit=100")["data"]
    after = ask(service, question, "reuse", options.tokens, False)
    report.data["killed"] = {
        "side": service.name,
        "ready_s": ready,
        "documents": len(there),
        "before": before["answer"],
        "after": after["answer"],
        "tiers": after["tiers"],
        "misses": after["misses"],
    }
    report.note(
        f"{service.name}: killed in the middle of an answer, ready again after {ready:.1f} s, "
        f"{len(there)} documents, {after['tiers'].get('disk')} blocks from disk, first token "
        f"after {after['ttft_ms']:.0f} ms"
    )
    if len(there) != len(documents):
        report.fail(f"{len(there)} of {len(documents)} documents are there after the kill")
    if after["answer"] != before["answer"] or after["misses"] or not after["tiers"].get("disk"):
        report.fail(f"after the kill: {report.data['killed']}")


def summarise(services, options, report):
    """Compares the answers of the second and further services with the first one's."""
    answers = report.data["answers"]
    reference = services[0].name
    table = report.data["table"] = []
    for strategy in STRATEGIES:
        rows = {k: r for k, r in answers.items() if k.endswith("/" + strategy)}
        for service in services:
            mine = [r[service.name] for r in rows.values() if service.name in r]
            if not mine:
                continue
            line = {
                "strategy": strategy,
                "side": service.name,
                "answers": len(mine),
                "right": sum(
                    r[service.name]["right"]
                    for k, r in rows.items()
                    if service.name in r and QUESTIONS[int(k.split("/")[0])][2] is not None
                ),
                "ttft_ms": statistics.median(m["ttft_ms"] for m in mine),
                "ttft_again_ms": statistics.median(m["again"]["ttft_ms"] for m in mine),
                "total_ms": statistics.median(m["total_ms"] for m in mine),
                "tokens_per_second": statistics.median(m["tokens_per_second"] for m in mine),
            }
            if service.name != reference:
                both = [
                    dict(compare(r[reference], r[service.name]), key=k)
                    for k, r in rows.items()
                    if reference in r and service.name in r
                ]
                line["compared"] = both
                line["same_answers"] = sum(c["same_answer"] for c in both)
                line["same_citations"] = sum(c["same_citations"] for c in both)
                line["largest_drift"] = max((c["largest_drift"] for c in both), default=None)
                for c in both:
                    if not c["same_documents"] or not c["same_strategy"]:
                        report.fail(f"{service.name}, {c['key']}: other documents or strategy: {c}")
                    limit = options.margin * (1 if strategy in EXACT_STRATEGIES else 3)
                    if c["margin"] is not None and c["margin"] > limit:
                        report.fail(
                            f"{service.name}, {c['key']}: token {c['first_difference']} differs "
                            f"where {reference} was sure by {c['margin']:.2f} nats"
                        )
            table.append(line)
    print(
        f"\n{'strategy':<11}{'side':<10}{'n':>3}{'right':>6}{'ttft ms':>9}{'again':>9}{'total':>9}"
        f"{'tok/s':>8}  same answers, citations, first differing tokens (nats), largest drift"
    )
    for line in table:
        text = (
            f"{line['strategy']:<11}{line['side']:<10}{line['answers']:>3}{line['right']:>6}"
            f"{line['ttft_ms']:>9.1f}{line['ttft_again_ms']:>9.1f}{line['total_ms']:>9.1f}"
            f"{line['tokens_per_second']:>8.1f}"
        )
        if "compared" in line:
            parted = " ".join(
                f"{c['first_difference']}({'-' if c['margin'] is None else round(c['margin'], 2)})"
                for c in line["compared"]
                if c["first_difference"] is not None
            )
            n = len(line["compared"])
            text += f"  {line['same_answers']}/{n} {line['same_citations']}/{n} [{parted}]"
            if line["largest_drift"] is not None:
                text += f" {line['largest_drift']:.3f}"
        print(text)


def start_all(services, report):
    """Starts all services; returns those that are ready and on the device that was asked for."""
    for service in services:
        service.start()
    ready = []
    for service in services:
        side = report.data["sides"][service.name] = {
            "asked_backend": service.backend,
            "asked_weights": service.weights,
        }
        try:
            side["ready_s"] = service.wait_until_ready(max(1, min(30, service.clock.left())))
            check_device(service, report)
            ready.append(service)
        except Failed as failed:
            side["failed"] = str(failed)
            report.fail(f"{service.name}: {failed}", service)
    return ready


def run(services, options, report, clock, documents):
    alive = start_all(services, report)
    for service in list(alive):
        try:
            ingest(service, documents, report)
        except Failed as failed:
            report.fail(f"{service.name}, ingest: {failed}", service)
            alive.remove(service)
    report.write()
    alive = ask_all(alive, options, report, clock, 0.68 * clock.seconds)
    for service in list(alive):
        if clock.left() > 0.14 * clock.seconds:
            ask_together(service, options, report)
        else:
            report.note(f"{service.name}: no time for questions at once")
    last = services[-1]
    if last in alive and clock.left() > 0.1 * clock.seconds:
        try:
            kill_round(last, options, report, documents)
        except (Failed, OSError, http.client.HTTPException) as failed:
            report.fail(f"{last.name}, kill and restart: {failed}", last)
    elif last in alive:
        report.note(f"{last.name}: no time for the kill")
    for service in services:
        service.signal_stop()
    for service in services:
        side = report.data["sides"].get(service.name, {})
        if "failed" in side:
            continue
        side["exit_status"] = service.stopped()
        if side["exit_status"] != 0:
            report.fail(f"{service.name}: exit status {side['exit_status']} at SIGTERM", service)


def parse(arguments):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quire", required=True, help="the program")
    parser.add_argument("--model", required=True, nargs="+", help="its file, or parts of it")
    parser.add_argument("--out", required=True, type=Path, help="folder of the results")
    parser.add_argument("--documents", nargs="+", help="folders of the documents")
    parser.add_argument("--backends", default="cpu,cuda", help="the first is the reference")
    parser.add_argument("--seconds", type=float, default=65, help="for everything")
    parser.add_argument("--questions", type=int, default=len(QUESTIONS), help="the first so many")
    parser.add_argument("--tokens", type=int, default=32, help="of an answer, at most")
    parser.add_argument("--threads", type=int, default=0, help="of each engine; 0: all cores")
    parser.add_argument("--margin", type=float, default=1.0, help="nats; see above")
    return parser.parse_args(arguments)


def main(arguments):
    options = parse(arguments)
    clock = Clock(options.seconds)
    options.out.mkdir(parents=True, exist_ok=True)
    for old in options.out.glob("*.log"):
        old.unlink()
    folders = options.documents
    if not folders:
        root = Path(__file__).resolve().parents[2]
        folders = [root / "examples" / "garden", root / "docs"]
    report = Report(options.out)
    report.data["cores"] = len(os.sched_getaffinity(0))
    services = []

    def too_late(number, _):
        name = signal.Signals(number).name
        raise TooLate(f"not done after {clock.spent():.0f} s ({name})")

    signal.signal(signal.SIGALRM, too_late)
    signal.signal(signal.SIGTERM, too_late)
    signal.setitimer(signal.ITIMER_REAL, options.seconds)
    with tempfile.TemporaryDirectory(prefix="quire-real-") as work:
        try:
            documents = read_documents(folders, QUESTIONS[: options.questions])
            options.model_file = join_model(options.model, Path(work))
            for n, wanted in enumerate(options.backends.split(",")):
                name = wanted.replace(":", "-")
                if any(s.name == name for s in services):
                    name += f"-{n + 1}"
                services.append(Service(options, wanted, name, Path(work) / f"store{n}", clock))
            run(services, options, report, clock, documents)
        except (Failed, TooLate, OSError) as failed:
            report.fail(str(failed))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            for service in services:
                service.kill()
            if services:
                summarise(services, options, report)
            report.data["seconds"] = clock.spent()
            report.write()
    failures = report.data["failures"]
    print(f"\n{'passed' if not failures else f'{len(failures)} failures'} in {clock.spent():.0f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
