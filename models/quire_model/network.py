"""A small Llama-architecture language model (RMSNorm, RoPE, grouped queries,
SwiGLU, tied embeddings).

Parameter names and shapes are those of a Hugging Face `LlamaForCausalLM`, so that export is a plain
copy. Parameters and the residual stream are float32; matrix products and attention run in
`compute_dtype`. What a layer does to single tokens is written as functions over [tokens, size]:
compiled once, they serve every length.
"""

import dataclasses
import json
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from . import cpu_attention


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


PRESETS = {
    "demo": ModelConfig(),
    "long": ModelConfig(rope_theta=100000.0),
    "target": ModelConfig(
        hidden_size=384,
        intermediate_size=1024,
        num_hidden_layers=8,
        num_attention_heads=6,
        num_key_value_heads=2,
        rope_theta=100000.0,
    ),
    "draft": ModelConfig(
        hidden_size=192,
        intermediate_size=384,
        num_hidden_layers=3,
        num_attention_heads=3,
        num_key_value_heads=1,
        rope_theta=100000.0,
    ),
    "demo_draft": ModelConfig(
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=1,
        rope_theta=100000.0,
    ),
    "tiny": ModelConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=1,
        rope_theta=100000.0,
    ),
}


def rope_table(config, length):
    """cos and sin of shape [length, head_dim / 2], float32."""
    half = config.head_dim // 2
    inverse = config.rope_theta ** (-torch.arange(half, dtype=torch.float32) / half)
    angle = torch.arange(length, dtype=torch.float32)[:, None] * inverse
    return angle.cos(), angle.sin()


def rotate(x, cos, sin):
    """Half-split rotary embedding: x [..., head_dim], cos and sin [..., head_dim / 2]."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def rms_norm(x, weight, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def project(x, cos, sin, norm, q_weight, k_weight, v_weight, eps, head_dim, dtype):
    """x [tokens, hidden], cos and sin [tokens, head_dim / 2] -> rotated q, rotated k, v, each
    [tokens, heads, head_dim]."""
    h = rms_norm(x, norm, eps).to(dtype)
    qkv = F.linear(h, torch.cat([q_weight, k_weight, v_weight]).to(dtype)).unflatten(
        -1, (-1, head_dim)
    )
    heads = [w.shape[0] // head_dim for w in (q_weight, k_weight, v_weight)]
    q, k, v = qkv.split(heads, dim=-2)
    cos, sin = cos[:, None], sin[:, None]
    return rotate(q, cos, sin).to(dtype), rotate(k, cos, sin).to(dtype), v


def finish(x, attended, o_weight, norm, gate_weight, up_weight, down_weight, eps, dtype):
    """The rest of a layer: x [tokens, hidden],
    attended [tokens, heads * head_dim] -> the next layer's x."""
    x = x + F.linear(attended, o_weight.to(dtype)).float()
    h = rms_norm(x, norm, eps).to(dtype)
    gate, up = F.linear(h, torch.cat([gate_weight, up_weight]).to(dtype)).chunk(2, dim=-1)
    return x + F.linear(F.silu(gate) * up, down_weight.to(dtype)).float()


def attend(q, k, v, mask=None):
    """q [rows, queries, heads, d], k and v [rows, keys, kv_heads, d] -> [rows, queries, heads * d].
    Causal without a mask (which is boolean, broadcast to [rows, heads, queries, keys])."""
    group = q.shape[2] // k.shape[2]
    q = q.transpose(1, 2)
    k, v = (t.transpose(1, 2).repeat_interleave(group, 1) for t in (k, v))
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
    return y.transpose(1, 2).flatten(2)


def question_mask(segments, documents, length):
    """[rows, 1, room, length] bool: a question's token sees its row's documents
    and its own question up to itself."""
    room = segments.shape[1]
    to_documents = (
        torch.arange(length - room, device=segments.device)[None, None] < documents[:, None, None]
    )
    same = (segments[:, :, None] == segments[:, None, :]).tril()
    return torch.cat([to_documents.expand(-1, room, -1), same], 2)[:, None]


class RmsNorm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        return rms_norm(x, self.weight, self.eps)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.q_proj = nn.Linear(c.hidden_size, c.num_attention_heads * c.head_dim, bias=False)
        self.k_proj = nn.Linear(c.hidden_size, c.num_key_value_heads * c.head_dim, bias=False)
        self.v_proj = nn.Linear(c.hidden_size, c.num_key_value_heads * c.head_dim, bias=False)
        self.o_proj = nn.Linear(c.num_attention_heads * c.head_dim, c.hidden_size, bias=False)


class FeedForward(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.up_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.down_proj = nn.Linear(c.intermediate_size, c.hidden_size, bias=False)


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.head_dim = c.head_dim
        self.self_attn, self.mlp = Attention(c), FeedForward(c)
        self.input_layernorm = RmsNorm(c.hidden_size, c.rms_norm_eps)
        self.post_attention_layernorm = RmsNorm(c.hidden_size, c.rms_norm_eps)

    def project(self, x, cos, sin, dtype, function=project):
        a, norm = self.self_attn, self.input_layernorm
        return function(
            x,
            cos,
            sin,
            norm.weight,
            a.q_proj.weight,
            a.k_proj.weight,
            a.v_proj.weight,
            norm.eps,
            self.head_dim,
            dtype,
        )

    def finish(self, x, attended, dtype, function=finish):
        m, norm = self.mlp, self.post_attention_layernorm
        return function(
            x,
            attended,
            self.self_attn.o_proj.weight,
            norm.weight,
            m.gate_proj.weight,
            m.up_proj.weight,
            m.down_proj.weight,
            norm.eps,
            dtype,
        )


class Decoder(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.num_hidden_layers))
        self.norm = RmsNorm(c.hidden_size, c.rms_norm_eps)


class LanguageModel(nn.Module):
    """Tied-embedding causal model over rows of documents and questions (mixture.Batch)."""

    def __init__(self, config, compute_dtype=torch.float32):
        super().__init__()
        self.config, self.compute_dtype = config, compute_dtype
        self.model = Decoder(config)
        self._compiled = (project, finish)
        self._initialise()

    def compile(self):
        """Compiles what layers do to single tokens, for training mode; one compilation per number
        of tokens in a batch. Where compiling fails, things run as they are."""
        torch._dynamo.config.suppress_errors = True
        self._compiled = tuple(torch.compile(f, dynamic=False) for f in (project, finish))

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

    def forward(self, ids, positions, segments, documents, wanted, cos, sin):
        """ids, positions [rows, length]; segments [rows, room]; documents [rows]; cos and sin:
        rope_table of any length. Returns float32 logits [len(wanted), vocab] at flat positions of
        ids."""
        rows, length = ids.shape
        cos, sin = cos[positions.flatten()], sin[positions.flatten()]
        split = length - segments.shape[1]
        mask = None
        before, after = self._compiled if self.training else (project, finish)
        x = self.model.embed_tokens(ids).flatten(0, 1)
        for layer in self.model.layers:
            q, k, v = (
                t.unflatten(0, (rows, length))
                for t in layer.project(x, cos, sin, self.compute_dtype, before)
            )
            if self.training and cpu_attention.available(q):
                y = cpu_attention.attend_rows(q, k, v, segments, documents)
            else:
                mask = question_mask(segments, documents, length) if mask is None else mask
                y = torch.cat(
                    [
                        attend(q[:, :split], k[:, :split], v[:, :split]),
                        attend(q[:, split:], k, v, mask),
                    ],
                    1,
                )
            x = layer.finish(x, y.flatten(0, 1), self.compute_dtype, after)
        return self.logits(x[wanted])

    def logits(self, x):
        x = self.model.norm(x).to(self.compute_dtype)
        return F.linear(x, self.model.embed_tokens.weight.to(self.compute_dtype)).float()
