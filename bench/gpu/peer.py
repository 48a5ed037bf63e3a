"""Other programs of the field beside the GPU benchmark, on the same card and shapes.

peer.py --out DIR [--quick] [--device N]. Appends a line of JSON for each measurement, as soon as it
is there, to DIR/bench.jsonl, and one that says what is missing for each program that is not
installed: PyTorch (attention kernels, and Llama-3.1-8B's shape with random bf16 weights through
transformers), FlashInfer, vLLM. Exit status 77: no peer ran.
"""

import argparse
import importlib.util
import json
import os
import statistics
import sys
import time

HEADS, KV_HEADS, DIM, PAGE = 32, 8, 128, 16


def settings():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--device", type=int, default=0)
    return parser.parse_args()


def shape(quick):
    """Llama-3.1-8B; Llama-3.2-1B with --quick, as in bench/model_shapes.h."""
    small = dict(
        num_hidden_layers=16,
        hidden_size=2048,
        intermediate_size=8192,
        head_dim=64,
        tie_word_embeddings=True,
    )
    large = dict(
        num_hidden_layers=32,
        hidden_size=4096,
        intermediate_size=14336,
        head_dim=128,
        tie_word_embeddings=False,
    )
    return dict(
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=128256,
        max_position_embeddings=131072,
        rope_theta=500000.0,
        **(small if quick else large),
    )


class Report:
    """Lines of one file, each written when it is known."""

    def __init__(self, folder):
        self.path = os.path.join(folder, "bench.jsonl")
        self.rows = 0

    def line(self, **members):
        with open(self.path, "a") as out:
            out.write(json.dumps({"section": "peers", **members}) + "\n")

    def missing(self, peer, why):
        self.line(peer=peer, missing=str(why))
        print(f"{peer} is skipped: {why}", file=sys.stderr)

    def row(self, peer, what, shape_text, times_us, **more):
        self.rows += 1
        median = statistics.median(times_us)
        print(f"{peer} {what:24} {shape_text:40} {median:10.1f} us", file=sys.stderr)
        if "tokens" in more:
            more["tokens_per_s"] = more.pop("tokens") / median * 1e6
        self.line(
            name=f"{peer} {what}",
            shape=shape_text,
            median_us=median,
            fastest_us=min(times_us),
            p90_us=sorted(times_us)[len(times_us) * 9 // 10],
            **more,
        )


def timed(torch, call, rounds):
    """Microseconds of each call by events on the stream, after three that warm up."""
    for _ in range(3):
        call()
    times = []
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return times


def rotating(make, bytes_each):
    """Calls that take turns over enough inputs that none is found in the second-level cache."""
    turns = [make() for _ in range(max(1, min(64, int(200e6 // bytes_each) + 1)))]
    state = {"next": 0}

    def call():
        state["next"] = (state["next"] + 1) % len(turns)
        return turns[state["next"]]()

    return call


def torch_attention(torch, report, quick):
    sdpa = torch.nn.functional.scaled_dot_product_attention

    def inputs(rows, keys):
        q = torch.randn(1, HEADS, rows, DIM, device="cuda", dtype=torch.bfloat16)
        k, v = (
            torch.randn(1, KV_HEADS, keys, DIM, device="cuda", dtype=torch.bfloat16)
            for _ in range(2)
        )
        return q, k, v

    for keys in (1024, 8192):

        def make(keys=keys):
            q, k, v = inputs(1, keys)
            return lambda: sdpa(q, k, v, enable_gqa=True)

        call = rotating(make, keys * KV_HEADS * DIM * 4)
        report.row("torch", "decode_attention", f"{keys} keys", timed(torch, call, 50))
    for rows in (2048,) if quick else (2048, 8192):
        q, k, v = inputs(rows, rows)
        times = timed(torch, lambda: sdpa(q, k, v, is_causal=True, enable_gqa=True), 10)
        flops = 2 * rows * (rows + 1) * HEADS * DIM
        report.row(
            "torch",
            "prefill_attention",
            f"{rows} rows over {rows}",
            times,
            tflop_per_s=flops / statistics.median(times) / 1e6,
        )


def flashinfer_attention(torch, report):
    try:
        import flashinfer
    except Exception as error:  # an installed package may fail in its own ways
        return report.missing("flashinfer", error)
    for batch, keys in ((1, 8192), (32, 8192)):
        pages_of = [(keys + 37 * i + PAGE - 1) // PAGE for i in range(batch)]
        total = sum(pages_of)
        ends = torch.tensor([0] + pages_of).cumsum(0).int().cuda()
        indices = torch.randperm(total).int().cuda()
        last = torch.tensor([(keys + 37 * i - 1) % PAGE + 1 for i in range(batch)]).int().cuda()
        space = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
        decode = flashinfer.BatchDecodeWithPagedKVCacheWrapper(space, "HND")
        decode.plan(
            ends, indices, last, HEADS, KV_HEADS, DIM, PAGE,
            q_data_type=torch.bfloat16, kv_data_type=torch.bfloat16,
        )  # fmt: skip
        q = torch.randn(batch, HEADS, DIM, device="cuda", dtype=torch.bfloat16)
        bytes_each = total * PAGE * KV_HEADS * DIM * 4

        def make(total=total, decode=decode, q=q):
            kv = torch.randn(total, 2, KV_HEADS, PAGE, DIM, device="cuda", dtype=torch.bfloat16)
            return lambda: decode.run(q, kv)

        times = timed(torch, rotating(make, bytes_each), 50)
        report.row(
            "flashinfer",
            "decode_attention batch",
            f"{batch} sequences of {keys} keys and more",
            times,
            gb_per_s=bytes_each / statistics.median(times) / 1e3,
        )


def transformers_model(torch, report, quick):
    try:
        import transformers
    except Exception as error:
        return report.missing("transformers", error)
    config = transformers.LlamaConfig(attn_implementation="sdpa", **shape(quick))
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = transformers.LlamaForCausalLM(config).eval()
    for tokens in (2048,) if quick else (8192,):
        ids = torch.randint(100, 3000, (1, tokens), device="cuda")
        times = timed(torch, lambda: model(ids, use_cache=True, logits_to_keep=1), 3)
        report.row("transformers", "prefill", f"{tokens} tokens", times, tokens=tokens)
    for sequences, context in ((1, 1024), (32, 1024 if quick else 8192)):
        cache = transformers.DynamicCache()
        # In pieces, because activations of all sequences at once would not fit.
        for _ in range(0, context, 1024):
            ids = torch.randint(100, 3000, (sequences, 1024), device="cuda")
            model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        token = torch.full((sequences, 1), 100, device="cuda")
        times = timed(torch, lambda: model(token, past_key_values=cache, use_cache=True), 32)
        report.row(
            "transformers",
            "decode",
            f"{sequences} sequences of {context} tokens",
            times,
            tokens=sequences,
        )
        cache = None
        torch.cuda.empty_cache()


def vllm_model(report, quick):
    try:
        import vllm
    except Exception as error:
        return report.missing("vllm", error)
    import tempfile

    members = dict(
        architectures=["LlamaForCausalLM"],
        model_type="llama",
        rms_norm_eps=1e-5,
        torch_dtype="bfloat16",
        **shape(quick),
    )
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "config.json"), "w") as out:
            json.dump(members, out)
        llm = vllm.LLM(
            model=folder, load_format="dummy", skip_tokenizer_init=True, max_model_len=9216
        )
        for sequences, context in ((1, 1024), (32, 1024 if quick else 8192)):
            prompts = [
                {"prompt_token_ids": [100 + (7 * i + s) % 3000 for i in range(context)]}
                for s in range(sequences)
            ]
            times = {}
            for tokens in (1, 65):
                rule = vllm.SamplingParams(
                    temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False
                )
                start = time.perf_counter()
                llm.generate(prompts, rule, use_tqdm=False)
                times[tokens] = time.perf_counter() - start
            step_us = (times[65] - times[1]) / 64 * 1e6
            report.row(
                "vllm",
                "decode",
                f"{sequences} sequences of {context} tokens",
                [step_us],
                tokens=sequences,
            )


def main():
    args = settings()
    report = Report(args.out)
    try:
        import torch
    except Exception as error:
        for peer in ("torch", "transformers", "flashinfer", "vllm"):
            there = importlib.util.find_spec(peer) is not None
            report.missing(peer, f"it needs torch: {error}" if there else "it is not installed")
        return 77
    if not torch.cuda.is_available():
        report.missing("torch", "it sees no device")
        return 77
    torch.cuda.set_device(args.device)
    torch.set_grad_enabled(False)
    report.line(torch=torch.__version__, device=torch.cuda.get_device_name())
    failed = False
    for peer, run in (
        ("torch", lambda: torch_attention(torch, report, args.quick)),
        ("flashinfer", lambda: flashinfer_attention(torch, report)),
        ("transformers", lambda: transformers_model(torch, report, args.quick)),
        ("vllm", lambda: vllm_model(report, args.quick)),
    ):
        try:
            run()
        except Exception as error:  # one peer's failure keeps no other from being measured
            failed = True
            report.line(peer=peer, error=f"{type(error).__name__}: {error}"[:500])
            print(f"{peer} failed: {error}", file=sys.stderr)
    return 1 if failed and report.rows == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
