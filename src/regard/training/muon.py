"""Muon with matrices of one shape taken together.

PyTorch's own takes one matrix after the other, 15 small products each: on a GPU a model of 60 matrices then waits for
a thousand launches at every step. Everything but that, settings and memory included, is PyTorch's.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class Muon(torch.optim.Muon):
    """Jordan et al. (2024): the momentum of each matrix, made orthogonal, is its step."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        assert closure is None, "the loop works gradients out before"
        for group in self.param_groups:
            parameters: list[Tensor] = []
            gradients: list[Tensor] = []
            momenta: list[Tensor] = []
            self._init_group(group, parameters, gradients, momenta)
            if not parameters:
                continue
            torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
            updates = torch._foreach_lerp(gradients, momenta, group["momentum"])
            torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
            for rows in _alike(parameters).values():
                found = orthogonal(
                    torch.stack([updates[row] for row in rows]),
                    group["ns_coefficients"],
                    group["ns_steps"],
                    group["eps"],
                )
                rate = group["lr"] * _factor(group["adjust_lr_fn"], *found.shape[1:])
                torch._foreach_add_(
                    [parameters[row] for row in rows], list(found.to(parameters[rows[0]].dtype).unbind()), alpha=-rate
                )


def _alike(parameters: list[Tensor]) -> dict[torch.Size, list[int]]:
    """Which of them have the same shape."""
    found: dict[torch.Size, list[int]] = defaultdict(list)
    for number, parameter in enumerate(parameters):
        found[parameter.shape].append(number)
    return found


def orthogonal(x_NRC: Tensor, coefficients: tuple[float, float, float], iterations: int, eps: float) -> Tensor:
    """The nearest matrices of which all singular values are about 1, by Newton–Schulz iterations.

    In 16 bits, which is enough for a direction.
    """
    a, b, c = coefficients
    tall = x_NRC.shape[1] > x_NRC.shape[2]
    x = x_NRC.bfloat16()
    x = x.mT if tall else x
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=eps)
    for _ in range(iterations):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


def _factor(adjust: str, rows: int, columns: int) -> float:
    """What the rate is multiplied by for matrices of this shape."""
    return math.sqrt(max(1.0, rows / columns)) if adjust == "original" else 0.2 * math.sqrt(max(rows, columns))
