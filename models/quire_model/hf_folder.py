"""Reading and writing model folders in Hugging Face Llama format."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from .network import LanguageModel, ModelConfig

# How documents, question and answer are joined; the server reads this to build the same prompts.
PROMPT_FORMAT = {
    "document_prefix": "<doc>",
    "question_prefix": "<q>",
    "answer_prefix": "<a>",
    "stop": ["</a>"],
    "system": False,
    "titles": False,
}


def load_model(folder, compute_dtype=torch.float32):
    """A LanguageModel with the folder's weights, as float32 parameters."""
    folder = Path(folder)
    model = LanguageModel(ModelConfig.from_folder(folder), compute_dtype)
    files = sorted(folder.glob("model-*-of-*.safetensors")) or [folder / "model.safetensors"]
    state = {
        k: v.float() for file in files for k, v in load_file(file).items() if k != "lm_head.weight"
    }
    model.load_state_dict(state)
    return model


def write_folder(folder, config, state, tokenizer_file, context_tokens, max_shard_bytes=None):
    """Writes config.json, tokenizer files and bf16 model.safetensors, or several files of about
    `max_shard_bytes` each.

    `state` maps parameter names to tensors;
    `context_tokens` is the longest length the model was trained on.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {k: v.detach().to(torch.bfloat16).contiguous() for k, v in state.items()}
    for old in list(folder.glob("model*.safetensors")) + [folder / "model.safetensors.index.json"]:
        old.unlink(missing_ok=True)
    _write_weights(folder, tensors, max_shard_bytes)
    target = folder / "tokenizer.model"
    if Path(tokenizer_file).resolve() != target.resolve():
        shutil.copyfile(tokenizer_file, target)
    _write_json(folder / "config.json", _config_json(config, context_tokens))
    _write_json(
        folder / "generation_config.json",
        {"bos_token_id": 1, "eos_token_id": [2, 7], "pad_token_id": 3, "do_sample": False},
    )
    _write_json(folder / "tokenizer_config.json", _tokenizer_json(context_tokens))


def _write_weights(folder, tensors, max_shard_bytes):
    shards, size = [{}], 0
    for name, tensor in tensors.items():
        bytes_ = tensor.numel() * tensor.element_size()
        if max_shard_bytes and shards[-1] and size + bytes_ > max_shard_bytes:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += bytes_
    names = (
        ["model.safetensors"]
        if len(shards) == 1
        else [f"model-{i:05d}-of-{len(shards):05d}.safetensors" for i in range(1, len(shards) + 1)]
    )
    for name, shard in zip(names, shards):
        save_file(shard, folder / name, metadata={"format": "pt"})
        (folder / name).chmod(0o644)
    if len(shards) > 1:
        total = sum(t.numel() * t.element_size() for t in tensors.values())
        _write_json(
            folder / "model.safetensors.index.json",
            {
                "metadata": {"total_size": total},
                "weight_map": {k: n for n, shard in zip(names, shards) for k in shard},
            },
        )


def _config_json(c, context_tokens):
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": c.vocab_size,
        "hidden_size": c.hidden_size,
        "intermediate_size": c.intermediate_size,
        "num_hidden_layers": c.num_hidden_layers,
        "num_attention_heads": c.num_attention_heads,
        "num_key_value_heads": c.num_key_value_heads,
        "head_dim": c.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": context_tokens,
        "rope_theta": c.rope_theta,
        "rope_scaling": None,
        "rms_norm_eps": c.rms_norm_eps,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": [2, 7],
        "pad_token_id": 3,
        "torch_dtype": "bfloat16",
    }


def _tokenizer_json(context_tokens):
    return {
        "tokenizer_class": "LlamaTokenizer",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "pad_token": "<pad>",
        "add_bos_token": True,
        "add_eos_token": False,
        "legacy": True,
        "model_max_length": context_tokens,
        "additional_special_tokens": ["<doc>", "<q>", "<a>", "</a>"],
        "quire_prompt": PROMPT_FORMAT,
    }


def _write_json(path, value):
    path.write_text(json.dumps(value, indent=2) + "\n")
