"""Pooling: one vector for each sequence."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.blocks.layout import Layout, Packed, Padded
from regard.blocks.settings import PoolingKind


def pool(x: Tensor, layout: Layout, kind: PoolingKind) -> Tensor:
    """`[B, D]` from `[B, T, D]`, or `[S, D]` from `[N, D]`: the first token, the mean or the maximum of each sequence.

    An empty sequence gives zero.
    """
    if not x.shape[:-1].numel():  # no token at all, as when every packed sequence is empty
        return x.new_zeros(layout.count, x.shape[-1])
    return _pool_packed(x, layout, kind) if isinstance(layout, Packed) else _pool_padded(x, layout, kind)


def _pool_padded(x_BTD: Tensor, layout: Padded, kind: PoolingKind) -> Tensor:
    real = layout.real(x_BTD.device)
    real_BT1 = x_BTD.new_ones(layout.shape, dtype=torch.bool)[..., None] if real is None else real[..., None]
    if kind == "class":
        return x_BTD[:, 0] * real_BT1[:, 0]
    if kind == "mean":
        return x_BTD.masked_fill(~real_BT1, 0.0).sum(1) / real_BT1.sum(1).clamp(min=1)
    most_BD = x_BTD.masked_fill(~real_BT1, -torch.inf).amax(1)
    return most_BD.masked_fill(~real_BT1.any(1), 0.0)


def _pool_packed(x_ND: Tensor, layout: Packed, kind: PoolingKind) -> Tensor:
    lengths_S1 = layout.offsets_S1.diff()[:, None]
    sequence_ND = layout.sequences(x_ND.device)[:, None].expand_as(x_ND)
    empty_SD = x_ND.new_zeros(layout.count, x_ND.shape[-1])
    if kind == "class":
        first_S = layout.offsets_S1[:-1].clamp(max=layout.tokens - 1)
        return x_ND[first_S] * (lengths_S1 > 0)
    if kind == "mean":
        return empty_SD.scatter_add(0, sequence_ND, x_ND) / lengths_S1.clamp(min=1)
    return empty_SD.scatter_reduce(0, sequence_ND, x_ND, "amax", include_self=False)
