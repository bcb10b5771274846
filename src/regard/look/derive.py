"""Attention weights, which fused kernels do not give: worked out again, and checked against what the kernel gave.

R: rows, H: heads, Q: queries, K: keys.
"""

from __future__ import annotations

import torch
from torch import Tensor

from regard.blocks.reference import attention_scores, masked_softmax, mix
from regard.blocks.tap import Attended
from regard.errors import RecordError

TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 2e-2}
"""How far weights · values may be from what the kernel gave, as a share of the largest value in it.

In 16 bits a kernel rounds the weights and its result, so it is a few roundings more.
"""


def derived(name: str, attended: Attended, mixed: Tensor) -> tuple[Tensor, Tensor]:
    """Scores, −∞ where nothing is seen, and weights, both `[R, H, Q, K]` and in float32 (float64 where q is).

    Refuses weights that do not reproduce `mixed`: better none than those of another model.
    """
    scoring, visibility = attended.scoring, attended.visibility
    if scoring.dropout > 0:
        raise RecordError(f"{name} is random while dropout ({scoring.dropout}) is on; call model.eval() first")
    with torch.autocast(mixed.device.type, enabled=False):
        q, k = _wide(attended.q), _wide(attended.k)
        scores_RHQK = attention_scores(q, k, visibility, scoring.scale, scoring.bias, scoring.soft_cap)
        visible = visibility.visible(q.device)[:, None]
        weights_RHQK = masked_softmax(scores_RHQK, visible)
        _require_equal(name, attended, weights_RHQK.detach(), mixed.detach())
        return scores_RHQK.masked_fill(~visible, -torch.inf), weights_RHQK


def softmax(scores_RHQK: Tensor) -> Tensor:
    """Weights of scores that are −∞ where nothing is seen."""
    return masked_softmax(scores_RHQK, scores_RHQK != -torch.inf)


def mixed_by(weights_RHQK: Tensor, attended: Attended) -> Tensor:
    """What the heads take with these weights, in the precision of the values."""
    with torch.autocast(weights_RHQK.device.type, enabled=False):
        return mix(weights_RHQK, attended.v.to(weights_RHQK.dtype), attended.visibility).to(attended.v.dtype)


def _require_equal(name: str, attended: Attended, weights_RHQK: Tensor, mixed: Tensor) -> None:
    if not mixed.numel():
        return
    v, visibility = _wide(attended.v.detach()), attended.visibility
    apart = (mix(weights_RHQK, v, visibility) - mixed).abs().amax()
    most = mix(weights_RHQK, v.abs(), visibility).amax()
    share = TOLERANCE[mixed.dtype]
    if not bool(apart <= share * most):  # what is not a number is refused too
        raise RecordError(
            f"{name} cannot be shown: the weights that follow from queries, keys and visibility give values that are "
            f"{float(apart):.1e} away from the model's own (at most {share:.0e} × {float(most):.1e} is rounding); the "
            'attention kernel did something else, so compare it: regard.blocks.attend.use_backend("reference")'
        )


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
