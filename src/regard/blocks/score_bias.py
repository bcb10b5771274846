"""A score that depends on the head and on how far query and key are apart, added before the softmax.

T5's buckets and ALiBi's slopes are tables `[H, distances]`; Transformer-XL's term depends on the query as well and is
`[R, H, Q, distances]`. Held as tables by distance, all of them serve padded, packed and cached attention alike.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from regard.blocks.visibility import Visibility


@dataclass(frozen=True)
class ScoreBias:
    """`table[..., zero + d]` is the score of a key that lies d places before its query."""

    table: Tensor
    zero: int
    memo: dict[str, Tensor] = field(default_factory=dict, compare=False, repr=False)

    def column(self, distance: Tensor) -> Tensor:
        """The column of a distance; distances beyond the table (always invisible ones) take its edge."""
        return (distance + self.zero).clamp(0, self.table.shape[-1] - 1)

    def dense(self, visibility: Visibility) -> Tensor:
        """`[R or 1, H, Q, K]`: the score of every query and key."""
        if "dense" not in self.memo:
            places_q, places_k = visibility.grid_places(self.table.device)
            columns = self.column(places_q[:, :, None] - places_k[:, None, :])
            if self.table.dim() == 2:
                self.memo["dense"] = self.table[:, columns].movedim(0, 1)
            else:
                rows, heads = self.table.shape[:2]
                index = columns[:, None].expand(rows, heads, *columns.shape[1:])
                self.memo["dense"] = self.table.gather(-1, index)
        return self.memo["dense"]

    def masked(self, visibility: Visibility, dtype: torch.dtype) -> Tensor:
        """The same with −∞ where a fused kernel must not look."""
        if "masked" not in self.memo:
            dense = self.dense(visibility).to(dtype)
            fused = visibility.fused(dense.device)
            mask = fused.mask
            if fused.causal:
                mask = torch.ones(dense.shape[-2:], dtype=torch.bool, device=dense.device).tril()[None]
            self.memo["masked"] = dense if mask is None else dense.masked_fill(~mask[:, None], -torch.inf)
        return self.memo["masked"]


class Scoring(NamedTuple):
    """How scores are made of queries and keys: q·k × scale, bounded by the soft cap, plus the bias; then dropout."""

    scale: float
    bias: ScoreBias | None = None
    soft_cap: float | None = None
    dropout: float = 0.0


def distance_span(visibility: Visibility) -> tuple[int, int]:
    """The smallest and the largest distance (query's place − key's place) that can be visible."""
    longest = max(visibility.queries.longest, visibility.keys.longest)
    reach = longest if visibility.reach is None else visibility.reach
    ahead = 0 if visibility.causal and visibility.prefix is None else reach - 1
    # At least two distances: FlexAttention cannot compile the gradient of a table with one column.
    return -ahead, max(reach - 1, 1)
