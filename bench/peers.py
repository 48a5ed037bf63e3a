"""Measures Quire and its peers on the same weights, in turns. Started by bench/peers.sh.

Every measurement is a process of its own, so that none inherits another's memory; rounds take turns
between programs, and each row is the median of its rounds with the least and the most.
Rows: {"part", "model", "program", "weights", "tokens", "unit",
"median", "least", "most", "rounds"}.
"""

import argparse
import glob
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
QUIRE = os.path.join(ROOT, "build/release/quire")
THREADS = os.cpu_count()
BOTH_FLASHES = 4096  # tokens; attention beside flash attention takes minutes beyond
DECODE_TOKENS = 32


def text_of(characters):
    """Real English text: the documentation of this project."""
    names = sorted(
        glob.glob(os.path.join(ROOT, "docs/*.md")) + glob.glob(os.path.join(ROOT, "*/README.md"))
    )
    text = "".join(open(name, encoding="utf-8").read() for name in names)
    while len(text) < characters:
        text += text
    return text[:characters]


# Peers, each run as `python peers.py --child PROGRAM ...`: prints one JSON object.


def llama(path, context, **more):
    import llama_cpp

    return llama_cpp.Llama(
        path,
        n_ctx=context,
        n_batch=512,
        n_ubatch=512,
        n_threads=THREADS,
        n_threads_batch=THREADS,
        verbose=False,
        **more,
    )


def child_llama(a):
    """Prefill of `tokens` tokens, then decoding behind them; flash attention as asked."""
    llm = llama(a.model, a.tokens + DECODE_TOKENS + 8, flash_attn=a.flash)
    ids = llm.tokenize(text_of(a.tokens * 8 + 64).encode(), add_bos=True)[: max(1, a.tokens)]
    llm.eval(ids[:8])
    llm.reset()
    start = time.perf_counter()
    llm.eval(ids)
    prefill = time.perf_counter() - start
    start = time.perf_counter()
    for i in range(DECODE_TOKENS):
        llm.eval([ids[i % len(ids)]])
    decode = time.perf_counter() - start
    return {"prefill_s": prefill, "decode_s": decode, "tokens": len(ids)}


def child_transformers(a):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(THREADS)
    folder, name = os.path.split(a.model)
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    ids = torch.tensor([tokenizer(text_of(a.tokens * 8 + 64))["input_ids"][: max(1, a.tokens)]])
    with torch.no_grad():
        model(ids[:, :8], logits_to_keep=1)
        start = time.perf_counter()
        out = model(ids, use_cache=True, logits_to_keep=1)
        prefill = time.perf_counter() - start
        start = time.perf_counter()
        for i in range(DECODE_TOKENS):
            step = ids[:, i % ids.shape[1]].reshape(1, 1)
            out = model(step, past_key_values=out.past_key_values, use_cache=True)
        decode = time.perf_counter() - start
    return {"prefill_s": prefill, "decode_s": decode, "tokens": ids.shape[1]}


def child_documents_llama(a):
    """Prefill until the first token over ten documents,
    by what llama.cpp keeps of the last prompt."""
    llm = llama(a.model, 8192, flash_attn=False)
    documents, question = ten_documents()
    out = {}
    for name, order in (
        ("cold", documents),
        ("same_order", documents),
        ("reversed", documents[::-1]),
    ):
        ids = llm.tokenize((prompt_of(order) + question[name]).encode(), add_bos=True)
        kept = 0
        while kept < min(len(ids) - 1, llm.n_tokens) and llm.input_ids[kept] == ids[kept]:
            kept += 1
        start = time.perf_counter()
        llm.n_tokens = kept
        llm.eval(ids[kept:])
        out[name + "_s"] = time.perf_counter() - start
        out["tokens"] = len(ids)
    return out


def child_perplexity_llama(a):
    import numpy as np

    llm = llama(a.model, a.window + 8, logits_all=True, flash_attn=True)
    ids = [int(i) for i in open(a.ids).read().split()]
    total = count = 0
    for first in range(1, len(ids) - a.window + 1, a.window):
        text = [ids[0]] + ids[first : first + a.window]
        llm.reset()
        llm.eval(text[:-1])
        for row in range(a.window // 2, a.window):
            logits = llm.scores[row].astype(np.float64)
            top = logits.max()
            total += np.log(np.exp(logits - top).sum()) + top - logits[text[row + 1]]
            count += 1
    return {"nll": total / count, "tokens": count}


CHILDREN = {
    "llama": child_llama,
    "transformers": child_transformers,
    "documents_llama": child_documents_llama,
    "perplexity_llama": child_perplexity_llama,
}


def run_child(name, **options):
    command = [sys.executable, os.path.abspath(__file__), "--child", name]
    for key, value in options.items():
        if value is True:
            command.append("--" + key)
        elif value is not False and value is not None:
            command += ["--" + key, str(value)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{name} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


# Quire.


def quire_prompt(model, tokens):
    """A text of exactly `tokens` tokens for this model, found by what the tokenizer says."""
    text = text_of(tokens * 8 + 64)
    low, high = 1, len(text)
    while low < high:
        middle = (low + high) // 2
        done = subprocess.run(
            [QUIRE, "tokenize", "-m", model],
            input=text[:middle],
            capture_output=True,
            text=True,
            check=True,
        )
        if len(json.loads(done.stdout)) < tokens:
            low = middle + 1
        else:
            high = middle
    return text[:low]


def quire_run(model, weights, prompt):
    command = [
        QUIRE,
        "generate",
        "-m",
        model,
        "--weights",
        weights,
        "--json",
        "--ignore-eos",
        "-n",
        str(DECODE_TOKENS + 1),
    ]
    done = subprocess.run(command, input=prompt, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit("quire generate failed: " + done.stderr[-2000:])
    out = json.loads(done.stdout)
    return {
        "prefill_s": out["prefill_ms"] / 1e3,
        "decode_s": out["decode_ms"] / 1e3,
        "tokens": len(out["prompt_ids"]),
    }


def ten_documents():
    whole = text_of(200000)
    documents = [whole[i * 14000 : i * 14000 + 1700] for i in range(10)]
    question = {
        "cold": "\n\nQuestion: What is kept on disk?\nAnswer:",
        "same_order": "\n\nQuestion: What is a strategy?\nAnswer:",
        "reversed": "\n\nQuestion: What is kept in memory?\nAnswer:",
        "restart": "\n\nQuestion: What is a segment?\nAnswer:",
    }
    return documents, question


def prompt_of(documents):
    return "Answer the question from these documents.\n\n" + "".join(
        "Document:\n" + d + "\n\n" for d in documents
    )


def call(port, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=600) as reply:
        return json.loads(reply.read())


class Server:
    def __init__(self, model, store, port):
        self.port = port
        self.process = subprocess.Popen(
            [
                QUIRE,
                "serve",
                f"--model.path={model}",
                f"--disk.path={store}",
                f"--server.port={port}",
                "--policy.evidence=false",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for _ in range(600):
            try:
                call(port, "/readyz")
                return
            except OSError:
                time.sleep(0.1)
        raise SystemExit("quire serve did not start")

    def stop(self):
        self.process.terminate()
        self.process.wait()


def quire_documents(model):
    documents, question = ten_documents()
    ids = [f"d{i}" for i in range(10)]
    out = {}
    with tempfile.TemporaryDirectory() as store:
        server = Server(model, store, 18170)

        def ask(order, text, strategy):
            reply = call(
                server.port,
                "/v1/query",
                {
                    "query": text.strip(),
                    "document_ids": order,
                    "max_tokens": 1,
                    "cache": {"strategy": strategy},
                },
            )
            out["tokens"] = reply["usage"]["prompt_tokens"]
            return reply["timings"]["ttft_ms"] / 1e3

        for i, d in zip(ids, documents):
            call(server.port, "/v1/documents?wait=true", {"id": i, "text": d})
        out["cold_s"] = ask(ids, question["cold"], "recompute")
        out["same_order_s"] = ask(ids, question["same_order"], "reuse")
        out["reversed_s"] = ask(ids[::-1], question["reversed"], "reuse")
        server.stop()
        server = Server(model, store, 18170)
        out["restart_s"] = ask(ids, question["restart"], "reuse")
        server.stop()
    return out


# Models.


def rounded(source, kind, folder):
    """`source` rounded by llama.cpp to Q4_0, Q8_0, ... unless that is done already."""
    import llama_cpp

    path = os.path.join(folder, f"{os.path.basename(source).split('.')[0]}-{kind}.gguf")
    if not os.path.exists(path):
        parameters = llama_cpp.llama_model_quantize_default_params()
        parameters.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind}")
        parameters.allow_requantize = True
        if (
            llama_cpp.llama_model_quantize(source.encode(), (path + ".part").encode(), parameters)
            != 0
        ):
            raise SystemExit(f"llama.cpp could not round {source} to {kind}")
        os.rename(path + ".part", path)
    return path


def expanded(source, folder):
    """All tensors of a GGUF in f16, for peers and for rounding anew."""
    import gguf
    import numpy as np

    path = os.path.join(folder, "expanded-F16.gguf")
    if os.path.exists(path):
        return path
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(path + ".part", "llama")
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in (
            "general.architecture",
            "general.file_type",
        ):
            continue
        kind = field.types[0]
        writer.add_key_value(
            field.name,
            field.contents(),
            kind,
            field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None,
        )
    for t in reader.tensors:
        values = gguf.quants.dequantize(t.data, t.tensor_type)
        writer.add_tensor(t.name, values.astype(np.float32 if values.ndim == 1 else np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.rename(path + ".part", path)
    return path


def one_billion(small, folder):
    """Llama-3.2-1B's shape with random weights and SmolLM2's vocabulary, padded, in f16."""
    import gguf
    import numpy as np

    path = os.path.join(folder, "shape1b-F16.gguf")
    if os.path.exists(path):
        return path
    layers, hidden, wide, heads, kv_heads, dim, vocab = 16, 2048, 8192, 32, 8, 64, 128256
    reader = gguf.GGUFReader(small)
    writer = gguf.GGUFWriter(path + ".part", "llama")
    writer.add_block_count(layers)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(wide)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_dimension_count(dim)
    writer.add_rope_freq_base(500000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_context_length(16384)
    writer.add_vocab_size(vocab)
    for field in reader.fields.values():
        if not field.name.startswith("tokenizer."):
            continue
        value = field.contents()
        if field.name == "tokenizer.ggml.tokens":
            value = value + [f"<|unused_{i}|>" for i in range(vocab - len(value))]
        if field.name == "tokenizer.ggml.token_type":
            value = value + [1] * (vocab - len(value))
        kind = field.types[0]
        writer.add_key_value(
            field.name, value, kind, field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        )
    random = np.random.default_rng(1)

    def add(name, *shape):
        values = random.standard_normal(shape, dtype=np.float32) / np.sqrt(shape[-1])
        writer.add_tensor(name, values.astype(np.float16))

    def ones(name, n):
        writer.add_tensor(name, np.ones(n, dtype=np.float32))

    add("token_embd.weight", vocab, hidden)
    ones("output_norm.weight", hidden)
    for i in range(layers):
        ones(f"blk.{i}.attn_norm.weight", hidden)
        ones(f"blk.{i}.ffn_norm.weight", hidden)
        add(f"blk.{i}.attn_q.weight", heads * dim, hidden)
        add(f"blk.{i}.attn_k.weight", kv_heads * dim, hidden)
        add(f"blk.{i}.attn_v.weight", kv_heads * dim, hidden)
        add(f"blk.{i}.attn_output.weight", hidden, heads * dim)
        add(f"blk.{i}.ffn_gate.weight", wide, hidden)
        add(f"blk.{i}.ffn_up.weight", wide, hidden)
        add(f"blk.{i}.ffn_down.weight", hidden, wide)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.rename(path + ".part", path)
    return path


# The bench.


class Rows:
    def __init__(self):
        self.rows = []

    def add(self, values, **what):
        if not values:
            return
        row = dict(
            what,
            median=round(statistics.median(values), 4),
            least=round(min(values), 4),
            most=round(max(values), 4),
            rounds=len(values),
        )
        self.rows.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)


def speed(rows, options, name, files, transformers_file):
    """Prefill and decode rates: one process measures both behind the same context. llama.cpp runs
    with and without flash attention up to BOTH_FLASHES tokens; longer contexts take what was
    faster at the length before."""
    lengths = [1, 512] if options.quick else [int(n) for n in options.lengths.split(",")]
    faster = {kind: (False, True) for kind in files}
    for tokens in sorted(lengths):
        prompt = quire_prompt(files["Q4_0"], tokens)
        runs = {}
        for _ in range(options.rounds):
            for kind, path in files.items():
                for flash in (False, True) if tokens <= BOTH_FLASHES else faster[kind]:
                    out = run_child("llama", model=path, tokens=tokens, flash=flash)
                    runs.setdefault(
                        ("llama.cpp", kind + (", flash attention" if flash else "")), []
                    ).append(out)
            for kind in [k for k in files if k in ("Q4_0", "Q4_1")]:
                runs.setdefault(("quire", kind + " as w4"), []).append(
                    quire_run(files[kind], "w4", prompt)
                )
            if transformers_file and tokens <= 512:
                out = run_child("transformers", model=transformers_file, tokens=tokens)
                runs.setdefault(("transformers", "f32, eager"), []).append(out)
        for (program, weights), outs in runs.items():
            what = {"model": name, "program": program, "weights": weights, "unit": "tokens/s"}
            if tokens > 1:
                rows.add(
                    [o["tokens"] / o["prefill_s"] for o in outs],
                    part="prefill",
                    tokens=tokens,
                    **what,
                )
            rows.add(
                [DECODE_TOKENS / o["decode_s"] for o in outs],
                part="decode",
                tokens=0 if tokens == 1 else tokens,
                **what,
            )
        if tokens <= BOTH_FLASHES:
            for kind in files:
                plain, flash = (
                    min(o["prefill_s"] for o in runs[("llama.cpp", kind + more)])
                    for more in ("", ", flash attention")
                )
                faster[kind] = (flash < plain,)


def documents(rows, options, name, path):
    runs = {"quire": [], "llama.cpp": []}
    for _ in range(options.rounds):
        runs["quire"].append(quire_documents(path))
        runs["llama.cpp"].append(run_child("documents_llama", model=path))
    for program, outs in runs.items():
        for key in ("cold", "same_order", "reversed", "restart"):
            # llama.cpp keeps nothing beyond its process:
            # after a restart it reads everything, as when cold.
            times = [o.get(key + "_s", o["cold_s"]) for o in outs]
            rows.add(
                times,
                part="ten_documents",
                order=key,
                model=name,
                program=program,
                tokens=outs[0]["tokens"],
                unit="s to the first token",
            )


def perplexity(rows, options, folder, source):
    import llama_cpp

    text = text_of(1 << 20)
    if options.text:
        text = open(options.text, encoding="utf-8").read()
    vocabulary = llama_cpp.Llama(source, vocab_only=True, verbose=False)
    ids = vocabulary.tokenize(text.encode(), add_bos=False)[: 2049 if options.quick else 51201]
    ids_file = os.path.join(folder, "ids.txt")
    with open(ids_file, "w") as out:
        out.write(" ".join(map(str, ids)))
    window = 1024
    values = expanded(source, folder)
    bench = os.path.join(ROOT, "build/release/bench/quire_perplexity_bench")
    k_blocks = rounded(values, "Q4_K_M", folder)
    names = {values: " of f16 values", source: " of the file's blocks", k_blocks: " of Q4_K_M"}
    for path, formats in ((values, "f32,bf16,w4"), (source, "w4"), (k_blocks, "w4")):
        command = [
            bench,
            "--model",
            path,
            "--ids",
            ids_file,
            "--weights",
            formats,
            "--window",
            str(window),
        ]
        for r in json.loads(
            subprocess.run(command, capture_output=True, text=True, check=True).stdout
        )["rows"]:
            rows.add(
                [r["nll"]],
                part="perplexity",
                model="135m",
                program="quire",
                unit="nats a token",
                tokens=r["tokens"],
                weights=r["weights"] + names[path],
            )
    for kind, path in (
        ("F16", values),
        ("as stored (Q4_1, Q8_0)", source),
        ("Q4_0 of F16", rounded(values, "Q4_0", folder)),
        ("Q4_K_M of F16", k_blocks),
    ):
        out = run_child("perplexity_llama", model=path, ids=ids_file, window=window)
        rows.add(
            [out["nll"]],
            part="perplexity",
            model="135m",
            program="llama.cpp",
            unit="nats a token",
            tokens=out["tokens"],
            weights=kind,
        )


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--quick", action="store_true")
    p.add_argument("--models", default="135m,1b")
    p.add_argument("--parts", default="speed,documents,perplexity")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--lengths", default="1,512,2048,4096,8192", help="tokens of prompts")
    p.add_argument("--document-models", default="135m,1b", help="models of the part documents")
    p.add_argument("--kinds", default="Q4_0,Q8_0,Q4_1", help="types of weights llama.cpp runs with")
    p.add_argument("--transformers", action="store_true")
    p.add_argument("--text", help="a file of real text for perplexity (default: the documentation)")
    p.add_argument("--folder", default=os.path.join(ROOT, "build/peers-models"))
    p.add_argument("--child", choices=CHILDREN)
    p.add_argument("--model")
    p.add_argument("--tokens", type=int)
    p.add_argument("--flash", action="store_true")
    p.add_argument("--ids")
    p.add_argument("--window", type=int)
    options = p.parse_args()
    if options.child:
        print(json.dumps(CHILDREN[options.child](options)))
        return
    if options.quick:
        options.rounds = 1
    os.makedirs(options.folder, exist_ok=True)
    small = glob.glob(os.path.join(ROOT, "models/smollm2/*.gguf"))[0]
    parts = options.parts.split(",")
    rows = Rows()
    for model in options.models.split(","):
        source = small if model == "135m" else one_billion(small, options.folder)
        files = {k: rounded(source, k, options.folder) for k in ("Q4_0", "Q8_0")}
        if model == "135m":
            files["Q4_1"] = source
        files = {k: v for k, v in files.items() if k in options.kinds.split(",")}
        if "speed" in parts:
            speed(
                rows,
                options,
                model,
                files,
                source if options.transformers and model == "135m" else None,
            )
        if "documents" in parts and model in options.document_models.split(","):
            documents(rows, options, model, files["Q4_0"])
    if "perplexity" in parts:
        perplexity(rows, options, options.folder, small)
    print(
        json.dumps(
            {
                "settings": {
                    "threads": THREADS,
                    "decode_tokens": DECODE_TOKENS,
                    "rounds": options.rounds,
                    "llama_cpp_python": version("llama_cpp_python"),
                    "transformers": version("transformers"),
                },
                "rows": rows.rows,
            }
        )
    )


def version(package):
    from importlib.metadata import PackageNotFoundError, version as of

    try:
        return of(package)
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    main()
