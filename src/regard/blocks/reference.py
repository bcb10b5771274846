"""Attention as the paper writes it: softmax(Q Kᵀ · scale) V, every step spelled out: the oracle of the others."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from regard.blocks.score_bias import ScoreBias, Scoring
from regard.blocks.visibility import Visibility


def attention_weights(
    q: Tensor,
    k: Tensor,
    visibility: Visibility,
    scale: float | None = None,
    bias: ScoreBias | None = None,
    soft_cap: float | None = None,
) -> Tensor:
    """`[R, H, Q, K]`: how much each query takes from each key. A row sums to one, or to zero where it sees nothing.

    q is `[B, Q, H, E]` or `[N, H, E]`; k has G heads, each shared by H / G query heads.
    """
    scores_RHQK = attention_scores(q, k, visibility, scale, bias, soft_cap)
    return masked_softmax(scores_RHQK, visibility.visible(q.device)[:, None])


def attention_scores(
    q: Tensor,
    k: Tensor,
    visibility: Visibility,
    scale: float | None = None,
    bias: ScoreBias | None = None,
    soft_cap: float | None = None,
) -> Tensor:
    """`[R, H, Q, K]`: how well each key answers each query, whether it may be seen or not."""
    q_RQHE, k_RKHE = visibility.grid(q), visibility.grid(k)
    k_RKHE = k_RKHE.repeat_interleave(q_RQHE.shape[-2] // k_RKHE.shape[-2], dim=-2)
    scores_RHQK = torch.einsum("rqhe,rkhe->rhqk", q_RQHE, k_RKHE) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if soft_cap is not None:
        scores_RHQK = soft_cap * torch.tanh(scores_RHQK / soft_cap)
    if bias is not None:
        scores_RHQK = scores_RHQK + bias.dense(visibility).to(scores_RHQK.dtype)
    return scores_RHQK


def masked_softmax(scores: Tensor, visible: Tensor) -> Tensor:
    """Softmax over the last dimension among what is visible; exactly zero elsewhere, and in a row that sees nothing."""
    if scores.shape[-1] == 0:  # nothing to look at, as when every packed sequence is empty
        return scores
    scores = scores.masked_fill(~visible, -torch.inf)
    largest = scores.amax(-1, keepdim=True).detach().clamp(min=torch.finfo(scores.dtype).min)
    weights = (scores - largest).exp()
    return weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).tiny)


def reference(q: Tensor, k: Tensor, v: Tensor, visibility: Visibility, scoring: Scoring) -> Tensor:
    """`[B, Q, H, V]` or `[N, H, V]`: the values that each query takes."""
    weights_RHQK = attention_weights(q, k, visibility, scoring.scale, scoring.bias, scoring.soft_cap)
    weights_RHQK = functional.dropout(weights_RHQK, scoring.dropout, training=scoring.dropout > 0)
    return mix(weights_RHQK, v, visibility)


def mix(weights_RHQK: Tensor, v: Tensor, visibility: Visibility) -> Tensor:
    """`[B, Q, H, V]` or `[N, H, V]`: the values, each as far as it has weight."""
    v_RKHV = visibility.grid(v)
    v_RKHV = v_RKHV.repeat_interleave(weights_RHQK.shape[1] // v_RKHV.shape[-2], dim=-2)
    return visibility.ungrid(torch.einsum("rhqk,rkhv->rqhv", weights_RHQK, v_RKHV))
