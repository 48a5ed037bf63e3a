#!/usr/bin/env python3
"""Compares retrieval of Quire with rank-bm25 and sentence-transformers. Run by retrieval.sh."""

import argparse
import base64
import gzip
import itertools
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
QUIRE = ROOT / "build/release/quire"
DEPTH = 10  # results that are scored
SCORERS = {"quire bm25": "bm25", "quire encoder": "embedding", "quire hybrid": "hybrid"}
FUSION, FUSION_DEPTH = 60, 100  # of the peers' own fusion: as published, and as deep as Quire's
MOST_RECORDS = 1000  # of a set
CONTEXT_RECORDS = 250  # of a set whose records have many paragraphs


def lines_of(path):
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in itertools.islice(file, MOST_RECORDS)]


class Corpus:
    """Texts of a set, each once, and its questions with the indexes of the texts that answer."""

    def __init__(self, name):
        self.name, self.texts, self.questions, self.known = name, [], [], {}

    def add(self, title, text):
        key = (title.strip(), text.strip())
        if key not in self.known:
            self.known[key] = len(self.texts)
            self.texts.append(key)
        return self.known[key]

    def ask(self, question, gold):
        if gold:
            self.questions.append((question.strip(), set(gold)))


def with_context(name, path):
    """HotpotQA and 2WikiMultihopQA: paragraphs by title, supporting ones named."""
    corpus = Corpus(name)
    for record in lines_of(path)[:CONTEXT_RECORDS]:
        named = {title for title, _ in record["supporting_facts"]}
        places = [
            (title, corpus.add(title, " ".join(s.strip() for s in sentences)))
            for title, sentences in record["context"]
        ]
        corpus.ask(record["question"], [place for title, place in places if title in named])
    return corpus


def musique(name, path):
    corpus = Corpus(name)
    for record in lines_of(path):
        places = [
            (p["is_supporting"], corpus.add(p["title"], p["paragraph_text"]))
            for p in record["paragraphs"]
        ]
        corpus.ask(record["question"], [place for supporting, place in places if supporting])
    return corpus


def natural_questions(name, path):
    corpus = Corpus(name)
    for record in lines_of(path):
        gold = [corpus.add(c["title"], c["text"]) for c in record["ctxs"] if c["isgold"]]
        corpus.ask(record["question"], gold)
    return corpus


def squad(name, path):
    corpus = Corpus(name)
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for article in json.load(file)["data"]:
            for paragraph in article["paragraphs"]:
                place = corpus.add(article.get("title", ""), paragraph["context"])
                for qa in paragraph["qas"]:
                    corpus.ask(qa["question"], [place])
    return corpus


SETS = {
    "hotpotqa": (with_context, "hotpotqa_train100.jsonl.gz"),
    "2wikimultihop": (with_context, "2wikimultihop_train500.jsonl.gz"),
    "musique": (musique, "musique_train100.jsonl.gz"),
    "nq": (natural_questions, "nq_open_oracle2655.jsonl.gz"),
    "xquad": (squad, "xquad_en.json.gz"),
}


def scored(ranking, gold):
    """recall@5 and nDCG@10 of the first results, each a text of the corpus."""
    recall = len(gold & set(ranking[:5])) / len(gold)
    gain = sum(1 / math.log2(rank + 2) for rank, text in enumerate(ranking[:DEPTH]) if text in gold)
    best = sum(1 / math.log2(rank + 2) for rank in range(min(len(gold), DEPTH)))
    return recall, gain / best


class Service:
    """`quire serve` with the embedded model in a store of its own."""

    def __init__(self, *flags):
        self.folder = tempfile.TemporaryDirectory(prefix="quire-retrieval-")
        self.process = subprocess.Popen(
            [
                QUIRE,
                "serve",
                "--server.port=0",
                f"--disk.path={self.folder.name}/store",
                "--log.format=json",
                *flags,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines, self.port = [], None
        for line in self.process.stderr:
            self.lines.append(line)
            entry = json.loads(line) if line.startswith("{") else {}
            self.port = (
                entry.get("port", self.port) if entry.get("msg") == "listening" else self.port
            )
            if entry.get("msg") == "ready":
                break
        else:
            raise RuntimeError("the service did not start:\n" + "".join(self.lines))
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def call(self, method, path, body=None):
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=600) as reply:
            return json.loads(reply.read())

    def store(self, corpus):
        """Posts the texts and waits until all are indexed."""
        for begin in range(0, len(corpus.texts), 100):
            batch = [
                {"id": f"{corpus.name}-{i}", "title": title, "text": text}
                for i, (title, text) in enumerate(corpus.texts[begin : begin + 100], begin)
            ]
            for job_id in self.call("POST", "/v1/documents", {"documents": batch})["job_ids"]:
                job = self.call("GET", f"/v1/jobs/{job_id}")
                while job["status"] in ("queued", "running"):
                    time.sleep(0.05)
                    job = self.call("GET", f"/v1/jobs/{job_id}")
                if job["status"] != "succeeded":
                    raise RuntimeError(f"texts were not stored: {json.dumps(job)[:2000]}")
        while True:
            state = self.call("GET", "/v1/info")["retrieval"].get("embeddings")
            if not state:  # no encoder
                return
            if state["pending"] == 0:
                break
            time.sleep(0.2)
        if state["failed"] or state["left_out"]:
            raise RuntimeError(f"texts were not embedded: {state}")

    def rank(self, question, scorer, depth=DEPTH):
        """Texts with their scores, best first."""
        reply = self.call(
            "POST",
            "/v1/retrieve",
            {"query": question, "k": depth, "unit": "document", "scorer": scorer},
        )
        return [(int(p["document_id"].rsplit("-", 1)[1]), p["score"]) for p in reply["data"]]

    def stop(self):
        self.process.terminate()
        self.process.wait()
        self.folder.cleanup()


def fused(words_found, meaning_found, constant, weight):
    """Weighted reciprocal rank fusion."""
    sums = {}
    for ranking, share in ((words_found, 1 - weight), (meaning_found, weight)):
        for rank, (text, _) in enumerate(ranking[:FUSION_DEPTH]):
            sums[text] = sums.get(text, 0) + share / (constant + 1 + rank)
    return sorted(sums, key=lambda t: (-sums[t], t))


def scaled(ranking):
    """Scores from 0 to 1."""
    if not ranking:
        return {}
    low, high = ranking[-1][1], ranking[0][1]
    return {text: (score - low) / ((high - low) or 1) for text, score in ranking}


def mixed(words_found, meaning_found, weight):
    """A convex combination of scaled scores (Bruch, Gai and Ingber, 2023)."""
    a, b = scaled(words_found[:FUSION_DEPTH]), scaled(meaning_found[:FUSION_DEPTH])
    sums = {t: (1 - weight) * a.get(t, 0) + weight * b.get(t, 0) for t in {*a, *b}}
    return sorted(sums, key=lambda t: (-sums[t], t))


def fusions(service, questions):
    """Ways to fuse Quire's two rankings, to choose one of them."""
    out = {}
    for question in questions:
        both = [
            [(t, s) for t, s in service.rank(question, "bm25", FUSION_DEPTH) if s > 0],
            service.rank(question, "embedding", FUSION_DEPTH),
        ]
        for constant in (5, 10, 20, 40, 60):
            for weight in (0.3, 0.4, 0.5, 0.6, 0.7):
                name = f"reciprocal ranks, constant {constant}, weight {weight}"
                out.setdefault(name, []).append(fused(*both, constant, weight)[:DEPTH])
        for weight in (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8):
            name = f"scaled scores, weight {weight}"
            out.setdefault(name, []).append(mixed(*both, weight)[:DEPTH])
    return out


def words(text):
    return re.findall(r"\w+", text.lower())


def peer_rankings(corpus, questions, encoder):
    """Rankings by rank-bm25 and sentence-transformers, and by both fused as Quire fuses."""
    import numpy
    from rank_bm25 import BM25Okapi

    texts = [f"{title}\n{text}".strip() for title, text in corpus.texts]
    okapi = BM25Okapi([words(t) for t in texts])
    vectors = encoder.encode(texts, batch_size=32, normalize_embeddings=True)
    asked = encoder.encode(questions, batch_size=32, normalize_embeddings=True)
    out = {"rank-bm25": [], "sentence-transformers": [], "rank-bm25 + sentence-transformers": []}
    for question, vector in zip(questions, asked):
        both = [
            numpy.argsort(-okapi.get_scores(words(question)), kind="stable"),
            numpy.argsort(-(vectors @ vector), kind="stable"),
        ]
        sums = {}
        for ranking in both:
            for rank, text in enumerate(ranking[:FUSION_DEPTH]):
                sums[int(text)] = sums.get(int(text), 0) + 1 / (FUSION + 1 + rank)
        fused = sorted(sums, key=lambda t: (-sums[t], t))
        for name, ranking in zip(out, [*both, fused]):
            out[name].append([int(t) for t in ranking[:DEPTH]])
    return out


def quality(rows, options, service, encoder):
    totals = {}
    for name in options.sets:
        reader, file = SETS[name]
        corpus = reader(name, Path(options.data) / file)
        picked = corpus.questions[options.half == "report" :: 2][: options.questions]
        questions = [question for question, _ in picked]
        print(f"{name}: {len(corpus.texts)} texts, {len(picked)} questions", file=sys.stderr)
        service.store(corpus)
        rankings = peer_rankings(corpus, questions, encoder) if encoder else {}
        if not encoder:
            rankings.update(fusions(service, questions))
        for system, scorer in SCORERS.items():
            rankings[system] = [
                [t for t, _ in service.rank(question, scorer)] for question in questions
            ]
        service.call(
            "POST",
            "/v1/documents/delete",
            {"ids": [f"{name}-{i}" for i in range(len(corpus.texts))]},
        )
        for system, ranking in rankings.items():
            scores = [scored(found, gold) for found, (_, gold) in zip(ranking, picked)]
            recall, ndcg = (sum(column) / len(scores) for column in zip(*scores))
            rows.append(
                {
                    "set": name,
                    "system": system,
                    "texts": len(corpus.texts),
                    "questions": len(scores),
                    "recall_at_5": round(recall, 4),
                    "ndcg_at_10": round(ndcg, 4),
                }
            )
            totals.setdefault(system, []).append((recall, ndcg))
    for system, scores in totals.items():
        recall, ndcg = (sum(column) / len(scores) for column in zip(*scores))
        rows.append(
            {
                "set": "mean of sets",
                "system": system,
                "recall_at_5": round(recall, 4),
                "ndcg_at_10": round(ndcg, 4),
            }
        )


def tokens_a_second(embed, texts):
    """`embed` takes a batch and returns its tokens."""
    started = time.perf_counter()
    tokens = sum(embed(texts[i : i + 128]) for i in range(0, len(texts), 128))
    return tokens / (time.perf_counter() - started)


def speed(rows, options, encoder, services):
    """Everything on all cores, in turns, over the same paragraphs."""
    reader, file = SETS["hotpotqa"]
    texts = [text for _, text in reader("hotpotqa", Path(options.data) / file).texts][:256]
    texts = [t for t in texts if len(encoder.tokenizer(t)["input_ids"]) <= 256]

    def peer(batch):
        encoder.encode(batch, batch_size=32)
        return sum(len(ids) for ids in encoder.tokenizer(batch)["input_ids"])

    def quire(service):
        def embed(batch):
            reply = service.call(
                "POST", "/v1/embeddings", {"input": batch, "encoding_format": "base64"}
            )
            return reply["usage"]["prompt_tokens"]

        return embed

    runs = {"sentence-transformers f32": peer}
    runs.update({f"quire {weights}": quire(s) for weights, s in services.items()})
    for name, embed in runs.items():
        embed(texts[:32])
    best = dict.fromkeys(runs, 0.0)
    for _ in range(3):
        for name, embed in runs.items():
            best[name] = max(best[name], tokens_a_second(embed, texts))
    for name, value in best.items():
        rows.append(
            {"set": "speed", "system": name, "texts": len(texts), "tokens_per_second": round(value)}
        )


def difference(encoder, service):
    """The largest difference of a value between the service's vectors and the peer's."""
    import numpy

    texts = ["How many leave days carry over?", "北京 café", "a", "The cat. " * 20]
    reply = service.call("POST", "/v1/embeddings", {"input": texts, "encoding_format": "base64"})
    ours = numpy.stack(
        [numpy.frombuffer(base64.b64decode(d["embedding"]), "<f4") for d in reply["data"]]
    )
    return float(numpy.abs(ours - encoder.encode(texts, normalize_embeddings=True)).max())


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--data", required=True)
    p.add_argument("--encoder", default=str(ROOT / "models/minilm"))
    p.add_argument("--sets", type=lambda s: s.split(","), default=list(SETS))
    p.add_argument("--questions", type=int, default=500, help="most of a set")
    p.add_argument("--half", choices=("report", "choose"), default="report")
    p.add_argument("--without-speed", action="store_true")
    p.add_argument("--quick", action="store_true", help="two small sets, 20 questions each")
    options = p.parse_args()
    if options.quick:
        options.sets, options.questions = ["hotpotqa", "xquad"], 20
    import torch
    from sentence_transformers import SentenceTransformer

    cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(cores)
    encoder = SentenceTransformer(options.encoder, device="cpu")
    peers = encoder if options.half == "report" else None
    flags = [f"--retrieve.encoder={options.encoder}", f"--retrieve.encoder_threads={cores}"]
    rows = []
    service = Service(*flags)
    try:
        apart = difference(encoder, service)
        quality(rows, options, service, peers)
        if peers and not options.without_speed:
            bf16 = Service(*flags, "--retrieve.encoder_weights=bf16")
            try:
                speed(rows, options, encoder, {"f32": service, "bf16": bf16})
            finally:
                bf16.stop()
    finally:
        service.stop()
    settings = {
        "encoder": Path(options.encoder).name,
        "half": options.half,
        "threads": cores,
        "questions": options.questions,
        "largest_difference_of_a_value": round(apart, 7),
        **{name: version(name) for name in ("rank-bm25", "sentence-transformers", "torch")},
    }
    json.dump({"settings": settings, "rows": rows}, sys.stdout)


if __name__ == "__main__":
    main()
