#!/usr/bin/env python3
"""Writes the golden cases of this folder: tiny random models in Hugging Face format, and what
transformers says they compute.

    python make_golden.py [CASE...]

Needs torch, transformers and safetensors; the product and its tests do not.

README.md describes the files. Runs are repeatable:
every case draws its weights and prompt from its own seed.
"""

import json
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

HERE = Path(__file__).resolve().parent
DECODE_STEPS = 32
KEPT_PROMPT_LOGITS = 16  # prompt positions whose logits are written: the last ones
MIN_DIFFERENT = 6  # and the 32 ids are at least this varied
MIN_MARGIN = (
    0.01  # the best token leads the second by at least this logit difference at every greedy step
)

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "max_position_embeddings": 2048,
}
MISTRAL = {
    "architectures": ["MistralForCausalLM"],
    "model_type": "mistral",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "max_position_embeddings": 2048,
}
QWEN2 = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "use_sliding_window": False,
    "sliding_window": 2048,
    "max_window_layers": 2,
    "max_position_embeddings": 2048,
}
QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "rope_scaling": None,
    "attention_bias": False,
    "use_sliding_window": False,
    "sliding_window": None,
    "max_window_layers": 2,
    "max_position_embeddings": 2048,
}
PHI3 = {
    "architectures": ["Phi3ForCausalLM"],
    "model_type": "phi3",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "sliding_window": None,
    "pad_token_id": 0,
    "max_position_embeddings": 2048,
}


def shape(
    hidden, heads, kv_heads, layers=2, head_dim=None, mlp=48, vocab=192, tied=False, dtype="float32"
):
    """Leaves head_dim out when it is hidden / heads, as most published configurations do."""
    out = {
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "num_hidden_layers": layers,
        "intermediate_size": mlp,
        "vocab_size": vocab,
        "tie_word_embeddings": tied,
        "torch_dtype": dtype,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if head_dim:
        out["head_dim"] = head_dim
    return out


def llama3_scaling(factor, original):
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": original,
    }


def long_rope(half, key="type"):
    """LongRoPE as published configurations spell it: one divisor for each frequency."""
    return {
        key: "longrope",
        "short_factor": [round(1.0 + 0.05 * i, 3) for i in range(half)],
        "long_factor": [round(1.0 + 0.9 * i**1.5, 3) for i in range(half)],
    }


# name -> (config.json, options). Options: prompt (tokens), shards (safetensors files), seed.
CASES = {
    "llama2_g1": ({**LLAMA, **shape(128, 2, 2, mlp=40, vocab=128)}, {"prompt": 40}),
    "llama3_1_g4_rope": (
        {
            **LLAMA,
            **shape(48, 4, 1, head_dim=64),
            "rope_theta": 500000.0,
            "rope_scaling": llama3_scaling(8.0, 128),
            "max_position_embeddings": 1024,
        },
        {"prompt": 300},
    ),
    "llama3_2_g4_rope_tied_bf16": (
        {
            **LLAMA,
            **shape(64, 4, 1, head_dim=64, tied=True, dtype="bfloat16"),
            "rope_theta": 500000.0,
            "rope_scaling": llama3_scaling(32.0, 8192),
            "max_position_embeddings": 131072,
        },
        {"prompt": 41},
    ),
    "llama_g2_yarn": (
        {
            **LLAMA,
            **shape(64, 2, 1, head_dim=64),
            "max_position_embeddings": 512,
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 8.0,
                "original_max_position_embeddings": 64,
                "attention_factor": 1.25,
                "beta_fast": 16.0,
                "beta_slow": 2.0,
            },
        },
        {"prompt": 300},
    ),
    "mistral_g2_d128": ({**MISTRAL, **shape(48, 2, 1, head_dim=128)}, {"prompt": 40}),
    "yi_g4": (
        {**LLAMA, **shape(48, 4, 1, head_dim=64), "rope_theta": 5000000.0, "rms_norm_eps": 1e-6},
        {"prompt": 39},
    ),
    "tinyllama_g8_f16": (
        {**LLAMA, **shape(48, 8, 1, head_dim=64, dtype="float16")},
        {"prompt": 40},
    ),
    "qwen2_g7_sharded": ({**QWEN2, **shape(32, 7, 1, head_dim=64)}, {"prompt": 37, "shards": 3}),
    "qwen2_5_g2_tied_bf16": (
        {**QWEN2, **shape(128, 2, 1, tied=True, mlp=64, dtype="bfloat16")},
        {"prompt": 40},
    ),
    "qwen2_5_g4_yarn": (
        {
            **QWEN2,
            **shape(48, 4, 1, head_dim=64, tied=True),
            "max_position_embeddings": 256,
            "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        },
        {"prompt": 300},
    ),
    "qwen3_g2_d128_tied": ({**QWEN3, **shape(48, 2, 1, head_dim=128, tied=True)}, {"prompt": 40}),
    "qwen3_g1_bias": (
        {**QWEN3, **shape(64, 2, 2, head_dim=64), "attention_bias": True},
        {"prompt": 33},
    ),
    "phi3_g1": ({**PHI3, **shape(64, 4, 4)}, {"prompt": 40}),
    "phi3_g2_long_rope": (
        {
            **PHI3,
            **shape(64, 4, 2),
            "rope_scaling": long_rope(8),
            "original_max_position_embeddings": 64,
            "max_position_embeddings": 1024,
        },
        {"prompt": 300},
    ),
    "phi4_mini_g3_partial_short_rope": (
        {
            **PHI3,
            **shape(96, 6, 2, tied=True),
            "partial_rotary_factor": 0.75,
            "rope_scaling": {**long_rope(6, "rope_type"), "attention_factor": 1.2},
            "original_max_position_embeddings": 128,
            "max_position_embeddings": 128,
        },
        {"prompt": 40},
    ),
    "qwen3_g7_bf16": (
        {**QWEN3, **shape(64, 7, 1, layers=3, head_dim=64, dtype="bfloat16")},
        {"prompt": 40},
    ),
}


def randomise(model, generator, low_precision):
    """Weights wide enough that attention is not uniform and norms and biases matter.

    Cases stored in 16 bits get gentler ones, so that rounding in the computation stays well under
    the tolerance. Cases stored in float32 hold values that bfloat16 can represent: a run on
    bfloat16 weights then differs by its arithmetic alone.
    """
    sharp, plain = (0.9, 0.75) if low_precision else (1.3, 1.0)
    tied = model.config.tie_word_embeddings
    wide = 0.6 if tied else 2.0  # a wide tied embedding would only ever predict its own input
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            if "norm" in name:
                p.copy_(1.0 + 0.3 * noise)
            elif name.endswith("bias"):
                p.copy_(0.3 * noise)
            elif "embed_tokens" in name or "lm_head" in name:
                p.copy_(noise * (wide / p.shape[1] ** 0.5))
            else:
                p.copy_(
                    noise
                    * (
                        (sharp if "q_proj" in name or "k_proj" in name else plain)
                        / p.shape[1] ** 0.5
                    )
                )
            if not low_precision:
                p.copy_(p.bfloat16().float())


def write_weights(model, folder, dtype, shards, tied):
    tensors = {
        k: v.detach().to(dtype).contiguous()
        for k, v in model.state_dict().items()
        if not (tied and k == "lm_head.weight")
    }
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names, weight_map = list(tensors), {}
    for i in range(shards):
        part, file = names[i::shards], f"model-{i + 1:05d}-of-{shards:05d}.safetensors"
        save_file({n: tensors[n] for n in part}, folder / file, metadata={"format": "pt"})
        weight_map.update({n: file for n in part})
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


@torch.no_grad()
def decode_greedily(model, prompt):
    """(prompt logits [P, V], the ids fed [DECODE_STEPS], logits after each
    [DECODE_STEPS, V], smallest margin)."""
    result = model(torch.tensor([prompt]), use_cache=True)
    prompt_logits, cache = result.logits[0], result.past_key_values
    fed, logits, margin = [], [], float("inf")
    last = prompt_logits[-1]
    for _ in range(DECODE_STEPS):
        best = last.topk(2).values
        margin = min(margin, float(best[0] - best[1]))
        fed.append(int(last.argmax()))
        result = model(torch.tensor([[fed[-1]]]), past_key_values=cache, use_cache=True)
        last, cache = result.logits[0, -1], result.past_key_values
        logits.append(last)
    return prompt_logits, fed, torch.stack(logits), margin


def load(folder, dtype):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager"
    )
    return model.eval()


def write_case(name):
    config, options = CASES[name]
    stored = getattr(torch, config["torch_dtype"])
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    for attempt in range(
        200
    ):  # a greedy step that is nearly a tie would make the ids depend on rounding
        generator = torch.Generator().manual_seed(1000 * sorted(CASES).index(name) + attempt)
        model = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.from_pretrained(folder), dtype=torch.float32
        )
        randomise(model, generator, stored != torch.float32)
        write_weights(
            model, folder, stored, options.get("shards", 1), config["tie_word_embeddings"]
        )
        prompt = torch.randint(
            3, config["vocab_size"], (options["prompt"],), generator=generator
        ).tolist()
        model = load(folder, torch.float32)
        prompt_logits, fed, logits, margin = decode_greedily(model, prompt)
        if margin >= MIN_MARGIN and len(set(fed)) >= MIN_DIFFERENT:
            break
    else:
        sys.exit(f"{name}: no seed gives clear and varied greedy steps")
    write_expectation(folder, name, config, prompt, prompt_logits, fed, logits, margin)


def write_expectation(folder, name, config, prompt, prompt_logits, fed, logits, margin):
    first = max(0, len(prompt) - KEPT_PROMPT_LOGITS)
    tensors = {"prompt_logits": prompt_logits[first:], "decode_logits": logits}
    about = {
        "case": name,
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "attention": "eager",
        "stored_dtype": config["torch_dtype"],
        "compute_dtype": "float32",
        "prompt_ids": prompt,
        "prompt_logits_from": first,
        "decode_ids": fed,
        "smallest_margin": round(margin, 4),
        "tolerance": {"float32_max_relative": 1e-4, "bfloat16_relative_frobenius": 2e-2},
    }
    if config["torch_dtype"] != "float32":
        low = load(folder, getattr(torch, config["torch_dtype"]))
        with torch.no_grad():
            all_logits = low(torch.tensor([prompt + fed])).logits[0].float()
        tensors["low_prompt_logits"] = all_logits[first : len(prompt)]
        tensors["low_decode_logits"] = all_logits[len(prompt) :]
        about["low_compute_dtype"] = config["torch_dtype"]
        about["low_relative_frobenius"] = round(
            float((tensors["low_decode_logits"] - logits).norm() / logits.norm()), 5
        )
    save_file({k: v.contiguous() for k, v in tensors.items()}, folder / "expected.safetensors")
    (folder / "expected.json").write_text(json.dumps(about) + "\n")
    for file in folder.iterdir():
        file.chmod(0o644)
    size = sum(f.stat().st_size for f in folder.iterdir())
    print(
        f"{name:28s} {size / 1024:7.0f} KiB  margin {margin:.3f}  different ids {len(set(fed))}  "
        f"low error {about.get('low_relative_frobenius', '-')}  "
        f"rms {float(logits.pow(2).mean().sqrt()):.2f}",
        flush=True,
    )


def main():
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    wanted = sys.argv[1:] or list(CASES)
    for name in wanted:
        if name not in CASES:
            sys.exit(f"unknown case {name}; known: {', '.join(CASES)}")
        write_case(name)


if __name__ == "__main__":
    main()
