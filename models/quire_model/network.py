"""A small Llama-architecture language model (RMSNorm, RoPE, grouped queries, SwiGLU, tied embeddings).

Parameter names and shapes are those of a Hugging Face `LlamaForCausalLM`, so that export is a plain copy.
Parameters are float32; matrix products run in bfloat16 when `compute_dtype` says so.
"""
import dataclasses
import json
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    vocab_size: int = 4096
    hidden_size: int = 256
    intermediate_size: int = 512
    num_hidden_layers: int = 6
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5

    @staticmethod
    def from_folder(folder):
        """Reads the fields it knows from a Hugging Face config.json."""
        raw = json.loads((Path(folder) / "config.json").read_text())
        known = {f.name for f in dataclasses.fields(ModelConfig)}
        return ModelConfig(**{k: v for k, v in raw.items() if k in known})


def rope_table(config, length):
    """cos and sin of shape [length, head_dim / 2], float32."""
    half = config.head_dim // 2
    inverse = config.rope_theta ** (-torch.arange(half, dtype=torch.float32) / half)
    angle = torch.arange(length, dtype=torch.float32)[:, None] * inverse
    return angle.cos(), angle.sin()


def rotate(x, cos, sin):
    """Half-split rotary embedding: x [..., tokens, head_dim], cos and sin [tokens, head_dim / 2]."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class RmsNorm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = c.num_attention_heads, c.num_key_value_heads, c.head_dim
        self.q_proj = nn.Linear(c.hidden_size, self.heads * c.head_dim, bias=False)
        self.k_proj = nn.Linear(c.hidden_size, self.kv_heads * c.head_dim, bias=False)
        self.v_proj = nn.Linear(c.hidden_size, self.kv_heads * c.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * c.head_dim, c.hidden_size, bias=False)

    def project(self, x, cos, sin):
        """x [batch, tokens, hidden] -> rotated q, rotated k, v as [batch, heads, tokens, head_dim]."""
        weight = torch.cat([self.q_proj.weight, self.k_proj.weight, self.v_proj.weight]).to(x.dtype)
        qkv = F.linear(x, weight).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        q, k, v = qkv.split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        return rotate(q, cos, sin).to(x.dtype), rotate(k, cos, sin).to(x.dtype), v

    def attend(self, q, k, v, mask=None):
        """Scaled dot-product attention; causal when no boolean mask [queries, keys] is given."""
        group = self.heads // self.kv_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return F.linear(y.transpose(1, 2).flatten(2), self.o_proj.weight.to(q.dtype))


class FeedForward(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.up_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.down_proj = nn.Linear(c.intermediate_size, c.hidden_size, bias=False)

    def forward(self, x):
        weight = torch.cat([self.gate_proj.weight, self.up_proj.weight]).to(x.dtype)
        gate, up = F.linear(x, weight).chunk(2, dim=-1)
        return F.linear(F.silu(gate) * up, self.down_proj.weight.to(x.dtype))


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.self_attn, self.mlp = Attention(c), FeedForward(c)
        self.input_layernorm = RmsNorm(c.hidden_size, c.rms_norm_eps)
        self.post_attention_layernorm = RmsNorm(c.hidden_size, c.rms_norm_eps)

    def forward(self, x, cos, sin, compute_dtype):
        q, k, v = self.self_attn.project(self.input_layernorm(x).to(compute_dtype), cos, sin)
        x = x + self.self_attn.attend(q, k, v)
        return x + self.mlp(self.post_attention_layernorm(x).to(compute_dtype))


class Decoder(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.num_hidden_layers))
        self.norm = RmsNorm(c.hidden_size, c.rms_norm_eps)


class LanguageModel(nn.Module):
    """Tied-embedding causal model. `forward` returns logits at chosen flat positions only."""

    def __init__(self, config, compute_dtype=torch.float32):
        super().__init__()
        self.config, self.compute_dtype = config, compute_dtype
        self.model = Decoder(config)
        self._initialise()

    def _initialise(self):
        c = self.config
        residual = 1.0 / math.sqrt(2 * c.num_hidden_layers)
        for name, p in self.named_parameters():
            if p.ndim < 2:
                continue
            if "embed_tokens" in name:
                nn.init.normal_(p, std=0.02)
            else:
                scale = residual if "o_proj" in name or "down_proj" in name else 0.8
                nn.init.normal_(p, std=scale * p.shape[1] ** -0.5)

    def forward(self, ids, positions_wanted, cos, sin):
        """ids [batch, tokens] -> float32 logits [len(positions_wanted), vocab] at flat positions of ids."""
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x, cos, sin, self.compute_dtype)
        x = self.model.norm(x.flatten(0, 1)[positions_wanted]).to(self.compute_dtype)
        return F.linear(x, self.model.embed_tokens.weight.to(self.compute_dtype)).float()
