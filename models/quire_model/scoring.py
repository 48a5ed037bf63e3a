"""Exact match of a model under two ways of filling the KV cache.

  recompute  documents are prefilled as one causal sequence
  reuse      every document is prefilled on its own behind <s>, at the positions it has in the prompt; only the question
             and the answer attend across documents

An answer counts when every token of it, and the end mark, is the model's first choice: what greedy decoding would print.
"""
import torch

METHODS = ("recompute", "reuse")


def document_mask(num_tokens, starts):
    """[tokens, tokens] bool: causal, within the own document and <s>."""
    segment = torch.zeros(num_tokens, dtype=torch.long)
    segment[starts] = 1
    segment = segment.cumsum(0)
    mask = (segment[:, None] == segment[None, :]) & torch.ones(num_tokens, num_tokens, dtype=torch.bool).tril()
    mask[:, 0] = True
    return mask


class Scorer:
    """Holds a float32 model and the RoPE table. One question at a time; not safe to share between threads."""

    def __init__(self, model, codec, rope):
        self._model, self._codec = model, codec
        self._cos, self._sin = rope

    @torch.no_grad()
    def _run(self, ids, offset, cache, mask):
        """Hidden states of `ids` at positions offset.., and the cache extended by them."""
        x = self._model.model.embed_tokens(torch.tensor([ids]))
        cos, sin = self._cos[offset:offset + len(ids)], self._sin[offset:offset + len(ids)]
        extended = []
        for i, layer in enumerate(self._model.model.layers):
            q, k, v = layer.self_attn.project(layer.input_layernorm(x), cos, sin)
            if cache:
                k, v = torch.cat([cache[i][0], k], 2), torch.cat([cache[i][1], v], 2)
            extended.append((k, v))
            x = x + layer.self_attn.attend(q, k, v, mask)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return x, extended

    def prefill(self, ids, starts, method):
        mask = document_mask(len(ids), starts) if method == "reuse" else None
        return self._run(ids, 0, None, mask)[1]

    @torch.no_grad()
    def judge(self, cache, question, answer):
        """(whether greedy decoding prints the answer, the probability of its least likely token)."""
        known, ids = cache[0][0].shape[2], question + answer
        mask = torch.ones(len(ids), known + len(ids), dtype=torch.bool).tril(known)
        x, _ = self._run(ids, known, cache, mask)
        x = self._model.model.norm(x[0, len(question) - 1:-1])
        likely = (x @ self._model.model.embed_tokens.weight.T).softmax(-1)
        weakest = float(likely[torch.arange(len(answer)), torch.tensor(answer)].min())
        return likely.argmax(-1).tolist() == answer, weakest

    def score(self, context, methods=METHODS):
        """{method: [judge() of every question of the context]}, and the number of document tokens."""
        ids, starts = self._codec.documents(d.text for d in context.documents)
        pairs = self._codec.questions(context.questions)
        result = {}
        for method in methods:
            cache = self.prefill(ids, starts, method)
            result[method] = [self.judge(cache, q, a) for q, a in pairs]
        return result, len(ids)
