"""A retrieval head: one attention layer's queries and keys, in the tensors of an EAGLE-3
checkpoint, that scores every cached token before the target runs (SpeContext). It is trained by
distillation to attend where the target attends.

Input at position t (embedding of token t, and the feature of the position before it,
zero at the first):
    g_t = fc [low_t; mid_t; high_t]      the residual stream entering the target's `feature_layers`
    u_t = [RMS(emb(x_t)); RMS(g_{t-1})]  each with its own weight
    q = rot(Wq u_t, t), k = rot(Wk u_t, t)

The loss. D are the tokens of the documents (without <s>). For a query position t behind the
documents and a KV head m of the target, with a[l, h, t, j] the target's attention probability in
layer l and query head h,
    W[t, m, j] = sum over l and h in group m of a[l, h, t, j], for j in D, scaled to sum to 1 over D
    P[t, m, j] = mean over the head's queries h in group m of
                 softmax over j in D of q_h[t] . k_m[j] / sqrt(d)
    loss = mean over t and m of KL(W[t, m] || P[t, m])
A layer that looks at <s> or at the question instead of the documents thereby counts little. Query
positions are those that predict answer tokens, and a sample of the question's other tokens.
"""

import dataclasses
import json
import math
import random
import types
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn

from . import mixture
from .network import attend, rms_norm, rope_table, rotate

QUESTION_SHARE = 0.25  # of the question tokens outside answers that are query positions
RECALL_SHARES = (0.05, 0.10, 0.25)  # kept shares of the documents at which recall is reported


@dataclasses.dataclass(frozen=True)
class HeadConfig:
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rope_theta: float
    rms_norm_eps: float
    feature_layers: tuple
    max_position_embeddings: int = 2048

    @staticmethod
    def for_target(c, max_position_embeddings=2048):
        n = c.num_hidden_layers
        return HeadConfig(
            c.hidden_size,
            c.num_attention_heads,
            c.num_key_value_heads,
            c.head_dim,
            c.rope_theta,
            c.rms_norm_eps,
            (min(2, n - 1), n // 2, max(0, n - 3)),
            max_position_embeddings,
        )


class RetrievalHead(nn.Module):
    """`target_config` only checks that the head fits the target."""

    def __init__(self, target_config, config):
        super().__init__()
        if (
            config.hidden_size != target_config.hidden_size
            or max(config.feature_layers) >= target_config.num_hidden_layers
        ):
            raise ValueError(
                f"a head of width {config.hidden_size} over layers {config.feature_layers} "
                f"does not fit a target of width {target_config.hidden_size} "
                f"with {target_config.num_hidden_layers} layers"
            )
        self.config, d = config, config.hidden_size
        self.midlayer = nn.Module()
        self.midlayer.input_layernorm = nn.Module()
        self.midlayer.hidden_norm = nn.Module()
        self.midlayer.self_attn = nn.Module()
        self.midlayer.input_layernorm.weight = nn.Parameter(torch.ones(d))
        self.midlayer.hidden_norm.weight = nn.Parameter(torch.ones(d))
        self.midlayer.self_attn.q_proj = nn.Linear(
            2 * d, config.num_attention_heads * config.head_dim, bias=False
        )
        self.midlayer.self_attn.k_proj = nn.Linear(
            2 * d, config.num_key_value_heads * config.head_dim, bias=False
        )
        self.fc = nn.Linear(3 * d, d, bias=False)
        for p in (
            self.midlayer.self_attn.q_proj.weight,
            self.midlayer.self_attn.k_proj.weight,
            self.fc.weight,
        ):
            nn.init.normal_(p, std=p.shape[1] ** -0.5)

    def project(self, embeddings, features, positions, previous=None):
        """embeddings [tokens, d], features [tokens, 3d], positions [tokens] -> q [tokens, heads,
        head_dim], k [tokens, kv_heads, head_dim], both rotated. `previous`: index of the token
        before each; the one before in order, unless given (the first token, where it is -1, has
        none)."""
        c, layer, n = self.config, self.midlayer, len(positions)
        if previous is None:
            previous = torch.arange(-1, n - 1, device=positions.device)
        g = torch.cat([self.fc(features), features.new_zeros(1, c.hidden_size)])[previous]
        u = torch.cat(
            [
                rms_norm(embeddings, layer.input_layernorm.weight, c.rms_norm_eps),
                rms_norm(g, layer.hidden_norm.weight, c.rms_norm_eps),
            ],
            -1,
        )
        half = c.head_dim // 2
        inverse = c.rope_theta ** (
            -torch.arange(half, dtype=torch.float32, device=positions.device) / half
        )
        angle = positions[:, None, None].float() * inverse
        return tuple(
            rotate(w(u).unflatten(-1, (-1, c.head_dim)), angle.cos(), angle.sin())
            for w in (layer.self_attn.q_proj, layer.self_attn.k_proj)
        )


# The target's side


def make_example(seed, length, codec, part, split="train"):
    """One packed row (mixture), without its PAD, as arrays: ids, positions and previous [tokens],
    segments [tokens behind the documents], queries; and num_document_tokens. Plain arrays pass
    cheaply between processes."""
    batch = mixture.make_batch(f"head/{seed}", 1, length, codec, part, split)
    documents, start = int(batch.documents[0]), length - batch.room
    segments = batch.segments[0]
    used = int((segments >= 0).sum())
    keep = np.concatenate([np.arange(documents), np.arange(start, start + used)])
    previous = np.arange(len(keep)) - 1
    previous[documents + np.flatnonzero(np.diff(segments[:used], prepend=-1) != 0)] = documents - 1
    picks = random.Random(f"queries/{seed}")
    answers = set(batch.wanted[: batch.num_answer].tolist())
    queries = [
        t - start + documents
        for t in range(start, start + used)
        if t in answers or picks.random() < QUESTION_SHARE
    ]
    return types.SimpleNamespace(
        ids=batch.ids[0, keep].astype(np.int64),
        positions=batch.positions[0, keep].astype(np.int64),
        previous=previous,
        segments=segments[:used].astype(np.int64),
        queries=np.array(queries),
        num_document_tokens=documents,
    )


def to_device(example, device):
    """The same as tensors, with `mask` [tokens, tokens]: what each token attends to."""
    tensors = {
        k: torch.from_numpy(v).to(device) if isinstance(v, np.ndarray) else v
        for k, v in vars(example).items()
    }
    n, segments = example.num_document_tokens, tensors["segments"]
    mask = torch.ones(len(example.ids), len(example.ids), dtype=torch.bool, device=device).tril()
    mask[n:, n:] &= segments[:, None] == segments[None, :]
    return types.SimpleNamespace(**tensors, mask=mask)


@torch.no_grad()
def target_pass(target, ids, positions, rope, feature_layers, mask=None, queries=None, num_keys=0):
    """(sum over layers of attention probabilities [queries, heads, num_keys] or None,
    features [tokens, 3d] float32)."""
    cos, sin = (t[positions] for t in rope)
    x, entering, total = target.model.embed_tokens(ids), {}, None
    for i, layer in enumerate(target.model.layers):
        entering[i] = x
        q, k, v = layer.project(x, cos, sin, target.compute_dtype)
        if queries is not None:
            group = q.shape[1] // k.shape[1]
            scores = (
                torch.einsum(
                    "qhd,khd->qhk", q[queries].float(), k.float().repeat_interleave(group, 1)
                )
                * q.shape[-1] ** -0.5
            )
            probabilities = scores.masked_fill(~mask[queries][:, None], float("-inf")).softmax(-1)[
                ..., :num_keys
            ]
            total = probabilities if total is None else total + probabilities
        y = attend(q[None], k[None], v[None], None if mask is None else mask[None, None])
        x = layer.finish(x, y[0], target.compute_dtype)
    return total, torch.cat([entering[i] for i in feature_layers], -1).float()


def _normalised(total, num_kv_heads):
    """W of the module's description, [queries, num_kv_heads, document tokens]; token 0 is <s>."""
    wanted = total.unflatten(1, (num_kv_heads, -1)).sum(2)
    wanted[..., 0] = 0.0
    return wanted / wanted.sum(-1, keepdim=True).clamp_min(1e-9)


def attention_wanted(target, example, rope, num_kv_heads):
    total, _ = target_pass(
        target,
        example.ids,
        example.positions,
        rope,
        (0,),
        example.mask,
        example.queries,
        example.num_document_tokens,
    )
    return _normalised(total, num_kv_heads)


# Training


def head_attention(head, target, example, features):
    """P of the module's description, [queries, num_kv_heads, document tokens], 0 at <s>."""
    q, k = head.project(
        target.model.embed_tokens.weight[example.ids].detach(),
        features,
        example.positions,
        example.previous,
    )
    n, kv = example.num_document_tokens, head.config.num_key_value_heads
    q = q[example.queries].unflatten(1, (kv, -1))
    scores = torch.einsum("qmgd,kmd->qmgk", q, k[1:n]) * head.config.head_dim**-0.5
    return F.pad(scores.softmax(-1).mean(2), (1, 0))


def divergence(wanted, got):
    return (wanted * (wanted.clamp_min(1e-9).log() - got.clamp_min(1e-9).log())).sum(-1).mean()


@torch.no_grad()
def measure(target, head, codec, length, part, rows=6):
    """On validation data: the loss, and the share of W that falls on the tokens the head would keep
    (the best possible share beside it), all of them means."""
    device = head.fc.weight.device
    rope = tuple(t.to(device) for t in rope_table(target.config, length + 256))
    found = {}
    for row in range(rows):
        example = to_device(
            make_example(f"measure/{row}", length, codec, part, "validation"), device
        )
        total, features = target_pass(
            target,
            example.ids,
            example.positions,
            rope,
            head.config.feature_layers,
            example.mask,
            example.queries,
            example.num_document_tokens,
        )
        wanted = _normalised(total, head.config.num_key_value_heads)
        got = head_attention(head, target, example, features)
        found.setdefault("kl", []).append(float(divergence(wanted, got)))
        for share in RECALL_SHARES:
            kept = max(1, round(share * example.num_document_tokens))
            for name, scores in (("recall", got), ("best", wanted)):
                mass = wanted.gather(-1, scores.topk(kept, -1).indices).sum(-1).mean()
                found.setdefault(f"{name}@{round(100 * share)}%", []).append(float(mass))
    return {k: round(sum(v) / len(v), 4) for k, v in found.items()}


def train(
    target,
    head,
    codec,
    steps,
    length,
    part,
    seed,
    lr=1e-3,
    rows=2,
    log=print,
    first=0,
    optimiser=None,
    save=None,
    make=None,
):
    """Steps `first` to `steps`; cosine decay. Returns the measures before and after.
    `make(step, row)` makes examples and is make_example unless given;
    `save(step, optimiser)` is called now and then."""
    device = head.fc.weight.device
    target.requires_grad_(False)
    rope = tuple(t.to(device) for t in rope_table(target.config, length + 256))
    optimiser = optimiser or torch.optim.AdamW(
        head.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.0
    )
    make = make or (lambda step, row: make_example(f"{seed}/{step}/{row}", length, codec, part))
    before = measure(target, head, codec, length, part)
    log({"step": first, **before})
    for step in range(first, steps):
        for group in optimiser.param_groups:
            group["lr"] = (
                lr * min(1.0, (step + 1) / 20) * 0.5 * (1 + math.cos(math.pi * step / steps))
            )
        losses = []
        for row in range(rows):
            example = to_device(make(step, row), device)
            total, features = target_pass(
                target,
                example.ids,
                example.positions,
                rope,
                head.config.feature_layers,
                example.mask,
                example.queries,
                example.num_document_tokens,
            )
            loss = divergence(
                _normalised(total, head.config.num_key_value_heads),
                head_attention(head, target, example, features),
            )
            (loss / rows).backward()
            losses.append(loss.detach())
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        if (step + 1) % 20 == 0:
            log({"step": step + 1, "loss": round(float(sum(losses)) / rows, 4)})
        if save and (step + 1) % 100 == 0:
            save(step + 1, optimiser)
    after = measure(target, head, codec, length, part)
    log({"step": steps, **after})
    return before, after


# Files


def write_folder(folder, head):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {k: v.detach().to(torch.bfloat16).cpu().contiguous() for k, v in head.state_dict().items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    (folder / "model.safetensors").chmod(0o644)
    config = {
        "architectures": ["RetrievalHead"],
        "model_type": "quire_retrieval_head",
        "input_mode": "feature",
        **dataclasses.asdict(head.config),
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def load_folder(folder, target_config):
    folder = Path(folder)
    raw = json.loads((folder / "config.json").read_text())
    known = {f.name for f in dataclasses.fields(HeadConfig)}
    config = HeadConfig(
        **{k: tuple(v) if isinstance(v, list) else v for k, v in raw.items() if k in known}
    )
    head = RetrievalHead(target_config, config)
    head.load_state_dict({k: v.float() for k, v in load_file(folder / "model.safetensors").items()})
    return head
