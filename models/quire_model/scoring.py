"""Exact match of a model under two ways of filling the KV cache.

  recompute  documents are prefilled as one causal sequence
  reuse      every document is prefilled on its own behind <s>, at the positions it has in the
             prompt; only the question and the answer attend across documents

An answer counts when every token of it, and the end mark, is the model's first choice:
what greedy decoding would print.
"""

import torch

from .network import attend

METHODS = ("recompute", "reuse")


def document_mask(num_tokens, starts):
    """[tokens, tokens] bool: causal, within the own document and <s>."""
    segment = torch.zeros(num_tokens, dtype=torch.long)
    segment[starts] = 1
    segment = segment.cumsum(0)
    mask = (segment[:, None] == segment[None, :]) & torch.ones(
        num_tokens, num_tokens, dtype=torch.bool
    ).tril()
    mask[:, 0] = True
    return mask


class Scorer:
    """Holds a model and the RoPE table, on the model's device and in its compute dtype.
    Not safe to share between threads."""

    def __init__(self, model, codec, rope):
        self._model, self._codec = model, codec
        self._device = next(model.parameters()).device
        self._cos, self._sin = (t.to(self._device) for t in rope)

    @torch.no_grad()
    def _layers(self, ids, positions, cache, attention):
        """Final hidden states [tokens, hidden] of `ids`, and every layer's k and v of them,
        [1, tokens, kv_heads, d]."""
        model = self._model
        x = model.model.embed_tokens(torch.tensor(ids, device=self._device))
        positions = torch.as_tensor(positions, device=self._device)
        cos, sin, made = self._cos[positions], self._sin[positions], []
        for i, layer in enumerate(model.model.layers):
            q, k, v = (t[None] for t in layer.project(x, cos, sin, model.compute_dtype))
            made.append((k, v))
            if cache:
                k, v = torch.cat([cache[i][0], k], 1), torch.cat([cache[i][1], v], 1)
            x = layer.finish(x, attention(q, k, v)[0], model.compute_dtype)
        return x, made

    def prefill(self, ids, starts, method):
        """Every layer's (k, v) of the documents."""
        if method == "recompute":
            return self._layers(ids, range(len(ids)), None, attend)[1]
        first = self._layers(ids[:1], [0], None, attend)[1]
        parts = [first]
        for start, end in zip(starts, starts[1:] + [len(ids)]):
            mask = torch.ones(
                end - start, end - start + 1, dtype=torch.bool, device=self._device
            ).tril(1)
            parts.append(
                self._layers(
                    ids[start:end],
                    range(start, end),
                    first,
                    lambda q, k, v, m=mask: attend(q, k, v, m),
                )[1]
            )
        return [tuple(torch.cat(t, 1) for t in zip(*layer)) for layer in zip(*parts)]

    def judge_all(self, cache, pairs):
        """For each (question ids, answer ids), each asked alone: (whether greedy decoding prints
        the answer, the probability of its least likely token)."""
        known, ids, positions, segment = cache[0][0].shape[1], [], [], []
        for number, (question, answer) in enumerate(pairs):
            ids += question + answer
            positions += range(known, known + len(question) + len(answer))
            segment += [number] * (len(question) + len(answer))
        segment = torch.tensor(segment, device=self._device)
        own = (segment[:, None] == segment[None]).tril()
        mask = torch.cat([own.new_ones(len(ids), known), own], 1)
        x, _ = self._layers(ids, positions, cache, lambda q, k, v: attend(q, k, v, mask))
        likely = self._model.logits(x).softmax(-1).cpu()
        marks, start = [], 0
        for question, answer in pairs:
            rows = likely[start + len(question) - 1 : start + len(question) + len(answer) - 1]
            weakest = float(rows[torch.arange(len(answer)), torch.tensor(answer)].min())
            marks.append((rows.argmax(-1).tolist() == answer, weakest))
            start += len(question) + len(answer)
        return marks

    def judge(self, cache, question, answer):
        return self.judge_all(cache, [(question, answer)])[0]

    def score(self, context, methods=METHODS):
        """{method: [judge() of every question of the context]},
        and the number of document tokens."""
        ids, starts = self._codec.documents(d.text for d in context.documents)
        pairs = self._codec.questions(context.questions)
        return {m: self.judge_all(self.prefill(ids, starts, m), pairs) for m in methods}, len(ids)
