#!/usr/bin/env python3
"""Makes smollm2_greedy.json: what transformers computes with the weights
of SmolLM2's GGUF file, expanded to f32.

Usage: make_smollm2_golden.py MODEL.gguf [FILE]   (needs torch, transformers, gguf and tokenizers)

Per prompt: the ids of its text in the chat template (rendered by transformers), the ids of a greedy
answer of at most 40 tokens up to the end of the turn, and of the last prompt row the eight largest
logits with their ids. Logits are f32.
"""

import importlib.util
import json
import sys
from pathlib import Path

import gguf
import torch
from transformers import LlamaConfig, LlamaForCausalLM

PROMPTS = [
    "What is gravity?",
    "Name three primary colours.",
    "Write a haiku about the sea.",
    "What is the capital of France?",
    "Translate 'good morning' into Spanish.",
    "Why is the sky blue?",
    "List the planets of the solar system.",
    "What is 12 * 12?",
    "Explain photosynthesis to a child.",
    "Give me a recipe for pancakes.",
    "Who wrote Romeo and Juliet?",
    "What does a compiler do?",
    "Summarise: The quick brown fox jumps over the lazy dog near the river bank while it rains.",
    "What is the opposite of cold?",
    "Tell me a short joke.",
    "How many days has a leap year?",
    "Write a Python function that adds two numbers.",
    "What is the largest ocean?",
    "When did the Second World War end?",
    "Continue: Once upon a time, in a small village,",
]
NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def tokenizer_of(path):
    script = Path(__file__).parent.parent / "tokenizer" / "make_smollm2_golden.py"
    spec = importlib.util.spec_from_file_location("tokens", script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.build(path)


def from_interleaved(weights, heads):
    return (
        weights.reshape(heads, weights.shape[0] // heads // 2, 2, -1)
        .swapaxes(1, 2)
        .reshape(weights.shape)
    )


def model_of(reader, value):
    config = LlamaConfig(
        vocab_size=value("llama.vocab_size"),
        hidden_size=value("llama.embedding_length"),
        intermediate_size=value("llama.feed_forward_length"),
        num_hidden_layers=value("llama.block_count"),
        num_attention_heads=value("llama.attention.head_count"),
        num_key_value_heads=value("llama.attention.head_count_kv"),
        max_position_embeddings=value("llama.context_length"),
        rms_norm_eps=value("llama.attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": value("llama.rope.freq_base")},
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    model = LlamaForCausalLM(config).float().eval()
    state = {}
    for tensor in reader.tensors:
        values = torch.from_numpy(
            gguf.quants.dequantize(tensor.data, tensor.tensor_type).copy()
        ).float()
        parts = tensor.name.split(".")
        if parts[0] == "blk":
            if parts[2] in ("attn_q", "attn_k"):
                values = from_interleaved(
                    values,
                    config.num_attention_heads
                    if parts[2] == "attn_q"
                    else config.num_key_value_heads,
                )
            state[f"model.layers.{parts[1]}.{NAMES[parts[2]]}.weight"] = values
        else:
            state[
                {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}[parts[0]]
                + ".weight"
            ] = values
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    return model


def main():
    torch.set_num_threads(2)
    reader = gguf.GGUFReader(sys.argv[1])
    value = lambda key: reader.fields[key].contents()
    model, tokenizer = model_of(reader, value), tokenizer_of(sys.argv[1])
    begin, end = 1, value("tokenizer.ggml.eos_token_id")
    text = lambda t: tokenizer.encode(t, add_special_tokens=False).ids
    turn = lambda role, content: [begin] + text(role + "\n" + content) + [end] + text("\n")
    system = turn("system", "You are a helpful AI assistant named SmolLM, trained by Hugging Face")
    out = []
    for prompt in PROMPTS:
        ids = system + turn("user", prompt) + [begin] + text("assistant\n")
        answer = []
        with torch.no_grad():
            step = model(torch.tensor([ids]), use_cache=True)
            logits = step.logits[0, -1]
            top = torch.topk(logits, 8)
            margin = []
            while len(answer) < 40:
                best = torch.topk(logits, 2)
                margin.append(float(best.values[0] - best.values[1]))
                answer.append(int(best.indices[0]))
                if answer[-1] == end:
                    break
                step = model(
                    torch.tensor([answer[-1:]]),
                    past_key_values=step.past_key_values,
                    use_cache=True,
                )
                logits = step.logits[0, -1]
        print(
            prompt,
            "->",
            tokenizer.decode(answer)[:100].replace("\n", " "),
            "| smallest margin",
            min(margin),
        )
        out.append(
            {
                "prompt": prompt,
                "ids": ids,
                "answer": answer,
                "margin": min(margin),
                "top_ids": top.indices.tolist(),
                "top_logits": [float(x) for x in top.values],
            }
        )
    path = (
        Path(sys.argv[2]) if len(sys.argv) > 2 else Path(__file__).with_name("smollm2_greedy.json")
    )
    path.write_text(json.dumps(out) + "\n")


if __name__ == "__main__":
    main()
