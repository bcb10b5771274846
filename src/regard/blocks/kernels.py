"""The fused attention kernels. Each meets `reference` wherever `attend.refusal` does not refuse it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from regard.blocks.layout import Packed
from regard.blocks.recording import current_recorder
from regard.blocks.score_bias import Scoring
from regard.blocks.visibility import Cells, Visibility


def sdpa(q: Tensor, k: Tensor, v: Tensor, visibility: Visibility, scoring: Scoring) -> Tensor:
    """PyTorch's scaled_dot_product_attention, with a flag, a mask or a bias, whichever is the cheapest exact form."""
    fused = visibility.fused(q.device)
    mask = None if fused.mask is None else fused.mask[:, None]
    if scoring.bias is not None:
        mask = scoring.bias.masked(visibility, q.dtype)
    q_RHQE, k_RGKE, v_RGKV = (visibility.grid(x).transpose(1, 2) for x in (q, k, v))
    out_RHQV = functional.scaled_dot_product_attention(
        q_RHQE,
        k_RGKE,
        v_RGKV,
        attn_mask=mask,
        dropout_p=scoring.dropout,
        is_causal=fused.causal and scoring.bias is None,
        scale=scoring.scale,
        enable_gqa=q_RHQE.shape[1] != k_RGKE.shape[1],
    )
    out_RQHV = out_RHQV.transpose(1, 2)
    if fused.blind is not None:
        out_RQHV = out_RQHV.masked_fill(fused.blind[..., None, None], 0.0)
    return visibility.ungrid(out_RQHV)


def varlen(q: Tensor, k: Tensor, v: Tensor, visibility: Visibility, scoring: Scoring) -> Tensor:
    """Flash attention over packed sequences: no padding, no mask, only offsets."""
    # Not imported at the top: the module does not exist in every build of PyTorch.
    from torch.nn.attention.varlen import varlen_attn

    queries, keys = visibility.queries, visibility.keys
    assert isinstance(queries, Packed) and isinstance(keys, Packed)  # refusal() has seen to it
    reach = -1 if visibility.reach is None else visibility.reach - 1
    window = (reach, 0 if visibility.causal else reach)
    if q.shape[1] != k.shape[1]:
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    offsets_q, offsets_k = queries.offsets_S1, keys.offsets_S1
    out = varlen_attn(
        q, k, v, offsets_q, offsets_k, queries.longest, keys.longest, scale=scoring.scale, window_size=window
    )
    assert isinstance(out, Tensor)  # a tuple only where auxiliary results are asked for
    return out


def flex(q: Tensor, k: Tensor, v: Tensor, visibility: Visibility, scoring: Scoring) -> Tensor:
    """FlexAttention: rules and score changes compiled into the kernel, so no `[R, H, Q, K]` tensor is ever made."""
    from torch.nn.attention.flex_attention import flex_attention

    rows = visibility.rows
    # In memory of their own for every row, since the kernel indexes them by row.
    queries, keys = (
        cells.map(lambda value: value.expand(rows, -1).contiguous()) for cells in visibility.cells(q.device)
    )

    # A tensor, since a number from outside would be a symbol to the compiler, which FlexAttention cannot take.
    cap = None if scoring.soft_cap is None else torch.full((), scoring.soft_cap, device=q.device)
    bias = scoring.bias

    def score_mod(score: Tensor, row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        if cap is not None:
            score = cap * torch.tanh(score / cap)
        if bias is not None:
            column = bias.column(queries.place[row, query] - keys.place[row, key])
            by_query = bias.table.dim() == 4
            score = score + (bias.table[row, head, query, column] if by_query else bias.table[head, column])
        return score

    q_RHQE, k_RGKE, v_RGKV = (visibility.grid(x).transpose(1, 2).contiguous() for x in (q, k, v))
    attention: Any = flex_attention if torch.compiler.is_compiling() else _flex_alone()
    out_RHQV: Tensor = attention(
        q_RHQE,
        k_RGKE,
        v_RGKV,
        score_mod=None if cap is None and bias is None else score_mod,
        block_mask=_block_mask(visibility, queries, keys),
        scale=scoring.scale,
        enable_gqa=q_RHQE.shape[1] != k_RGKE.shape[1],
    )
    return visibility.ungrid(out_RHQV.transpose(1, 2))


def _block_mask(visibility: Visibility, queries: Cells, keys: Cells) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    def mask_mod(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return visibility.allows(queries.at(row, query), keys.at(row, key))

    rows, time = queries.place.shape
    return create_block_mask(mask_mod, rows, None, time, keys.place.shape[1], device=queries.place.device)


def _flex_alone() -> Callable[..., Any]:
    """FlexAttention outside a compiled model. What is recorded runs uncompiled, but the kernel is none of it."""
    flex = _compiled_flex()
    if current_recorder() is None:
        return flex
    own: Callable[..., Any] = torch.compiler.set_stance("default")(flex)
    return own


@functools.cache
def _compiled_flex() -> Callable[..., Any]:
    """Outside a compiled model FlexAttention would fall back to an unfused, slow path; so it is compiled by itself."""
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=True)
