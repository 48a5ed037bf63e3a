"""Prefill and decode of Llama-3.1-8B's shape with random bf16 weights in PyTorch (transformers,
SDPA), for bench/gpu/run: the peer of the same run.

peer.py OUT.json [--quick] [--device N]. Writes {"name", "versions", "rows"}. Exit status 77: torch,
transformers or a device is missing.
"""

import argparse
import json
import statistics
import sys
import time


def settings():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
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


def main():
    args = settings()
    try:
        import torch
        import transformers
    except ImportError as error:
        print(f"the PyTorch peer is skipped: {error}", file=sys.stderr)
        return 77
    if not torch.cuda.is_available():
        print("the PyTorch peer is skipped: torch sees no device", file=sys.stderr)
        return 77
    torch.cuda.set_device(args.device)
    torch.set_grad_enabled(False)
    config = transformers.LlamaConfig(attn_implementation="sdpa", **shape(args.quick))
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = transformers.LlamaForCausalLM(config).eval()

    def timed(call, rounds):
        times = []
        for _ in range(rounds + 1):
            torch.cuda.synchronize()
            start = time.perf_counter()
            call()
            torch.cuda.synchronize()
            times.append(1e6 * (time.perf_counter() - start))
        return times[1:]  # the first one warms up

    def row(name, what, tokens, times):
        median = statistics.median(times)
        print(f"{name:24} {what:44} {median:10.1f} us", file=sys.stderr)
        return {
            "name": name,
            "shape": what,
            "median_us": median,
            "fastest_us": min(times),
            "p90_us": sorted(times)[len(times) * 9 // 10],
            "tokens_per_s": tokens / median * 1e6,
        }

    rows = []
    for tokens in (2048,) if args.quick else (8192, 32768):
        ids = torch.randint(100, 3000, (1, tokens), device="cuda")
        rows.append(
            row(
                "transformers prefill",
                f"{tokens} tokens",
                tokens,
                timed(lambda: model(ids, use_cache=True, logits_to_keep=1), 2),
            )
        )
    for sequences, context in ((1, 1024), (32, 1024 if args.quick else 8192)):
        try:
            cache = transformers.DynamicCache()
            for first in range(
                0, context, 1024
            ):  # in pieces: activations of all sequences at once would not fit
                model(
                    torch.randint(100, 3000, (sequences, 1024), device="cuda"),
                    past_key_values=cache,
                    use_cache=True,
                    logits_to_keep=1,
                )
            token = torch.full((sequences, 1), 100, device="cuda")
            times = timed(lambda: model(token, past_key_values=cache, use_cache=True), 32)
            rows.append(
                row(
                    "transformers decode",
                    f"{sequences} sequences of {context} tokens",
                    sequences,
                    times,
                )
            )
        except torch.cuda.OutOfMemoryError:
            print(
                f"decode of {sequences} sequences of {context} tokens is skipped: "
                "the device has no room",
                file=sys.stderr,
            )
        cache = None
        torch.cuda.empty_cache()
    with open(args.out, "w") as out:
        json.dump(
            {
                "name": "gpu-peer",
                "versions": {
                    "torch": torch.__version__,
                    "transformers": transformers.__version__,
                    "device": torch.cuda.get_device_name(),
                },
                "rows": rows,
            },
            out,
            indent=1,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
