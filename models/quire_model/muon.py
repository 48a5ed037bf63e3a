"""Muon: momentum, then orthogonalised updates for weight matrices;
AdamW for the embedding and the norms.

Newton-Schulz iteration and its coefficients: K. Jordan et al.,
"Muon: an optimizer for hidden layers" (2024).
"""

import torch

STEPS, A, B, C = 5, 3.4445, -4.7750, 2.0315


def orthogonalised(gradients):
    """[..., rows, columns]: each matrix close to the nearest one with orthonormal rows or columns;
    bfloat16 inside."""
    x = gradients.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT.contiguous()
    x = (x / (x.float().norm(dim=(-2, -1), keepdim=True) + 1e-7)).bfloat16()
    for _ in range(STEPS):
        gram = x @ x.mT
        x = A * x + (B * gram + C * (gram @ gram)) @ x
    return (x.mT if tall else x).float()


class Muon:
    """Steps all parameters of a model. `scale` in step() multiplies both learning rates."""

    def __init__(self, model, matrix_lr, other_lr, weight_decay=0.01):
        self._matrices = {
            n: p for n, p in model.named_parameters() if p.ndim == 2 and "embed_tokens" not in n
        }
        self._others = [p for n, p in model.named_parameters() if n not in self._matrices]
        self._lr, self._other_lr, self._decay = matrix_lr, other_lr, weight_decay
        self._momentum = {n: torch.zeros_like(p) for n, p in self._matrices.items()}
        self._adam = torch.optim.AdamW(
            self._others, lr=other_lr, betas=(0.9, 0.95), eps=1e-10, weight_decay=0.0
        )
        self._shapes = {}  # shape -> names: matrices of one shape are orthogonalised together
        for name, p in self._matrices.items():
            self._shapes.setdefault(tuple(p.shape), []).append(name)
        self._steps = 0

    @torch.no_grad()
    def step(self, scale):
        torch.nn.utils.clip_grad_norm_(self._others, 1.0)
        self._adam.param_groups[0]["lr"] = self._other_lr * scale
        self._adam.step()
        momentum = min(0.95, 0.85 + 0.1 * self._steps / 300)
        lr = self._lr * scale
        for shape, names in self._shapes.items():
            aspect = max(1.0, shape[0] / shape[1]) ** 0.5
            gradients = [self._matrices[n].grad for n in names]
            averages = [self._momentum[n].lerp_(g, 1 - momentum) for n, g in zip(names, gradients)]
            updates = orthogonalised(
                torch.stack([g.lerp(a, momentum) for g, a in zip(gradients, averages)])
            )
            for name, update in zip(names, updates):
                self._matrices[name].mul_(1 - lr * self._decay).add_(update, alpha=-lr * aspect)
        self._steps += 1

    def state(self):
        return {"adam": self._adam.state_dict(), "momentum": self._momentum, "steps": self._steps}

    def load_state(self, state):
        self._adam.load_state_dict(state["adam"])
        for name, value in state["momentum"].items():
            self._momentum[name].copy_(value)
        self._steps = state["steps"]
