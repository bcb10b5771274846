"""Positions as scores by distance: T5's buckets, ALiBi's slopes, Transformer-XL's projected sinusoids."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from regard.blocks import settings
from regard.blocks.positions.position import Distances, Position, Signals
from regard.blocks.positions.sinusoidal import sinusoidal
from regard.blocks.score_bias import ScoreBias, distance_span
from regard.blocks.visibility import Visibility


def bucket(distance: Tensor, buckets: int, longest: int, causal: bool) -> Tensor:
    """The bucket of each distance (query's place − key's place), as in T5 (Raffel et al. 2020, section 2.1).

    Half of the buckets are for one distance each, the others grow with its logarithm up to `longest`. Where keys may
    follow the query, they have the upper half of all buckets to themselves.
    """
    first = torch.zeros_like(distance)
    if causal:
        distance = distance.clamp(min=0)
    else:
        buckets //= 2
        first = (distance < 0) * buckets
        distance = distance.abs()
    single = buckets // 2
    growth = torch.log(distance.clamp(min=1).float() / single) / math.log(longest / single)
    shared = single + (growth * (buckets - single)).long()
    return first + torch.where(distance < single, distance, shared.clamp(max=buckets - 1))


def alibi_slopes(heads: int) -> Tensor:
    """`[H]`: 2^(−8/n), 2^(−16/n), … for n heads; where n is no power of two, the series of 2n fills the gaps."""
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (head + 1) / power) for head in range(power)]
    between = [2 ** (-8 * (head + 1) / (2 * power)) for head in range(0, 2 * power, 2)]
    return torch.tensor(slopes + between[: heads - power])


class RelativePosition(Position):
    """A learned score for each bucket and head, one table for all layers of a stack."""

    def __init__(self, position: settings.Relative, heads: int, causal: bool) -> None:
        super().__init__()
        self.position = position
        self.causal = causal
        self.weight = nn.Parameter(torch.empty(position.buckets, heads))

    def signals(self, visibility: Visibility, device: torch.device, dtype: torch.dtype) -> Signals:
        least, most = distance_span(visibility)
        distances_R = torch.arange(least, most + 1, device=device)
        bucket_R = bucket(distances_R, self.position.buckets, self.position.longest, self.causal)
        return Signals(bias=ScoreBias(self.weight[bucket_R].mT, zero=-least))


class AlibiPosition(Position):
    """A fixed penalty for each place of distance. Keys that follow the query are penalised alike."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def signals(self, visibility: Visibility, device: torch.device, dtype: torch.dtype) -> Signals:
        least, most = distance_span(visibility)
        distances_R = torch.arange(least, most + 1, device=device, dtype=dtype)
        slopes_H = alibi_slopes(self.heads).to(device, dtype)
        return Signals(bias=ScoreBias(-slopes_H[:, None] * distances_R.abs(), zero=-least))


class TransformerXLPosition(Position):
    """Encodes every distance; each layer projects them and scores them with its queries."""

    def __init__(self, position: settings.TransformerXL, width: int) -> None:
        super().__init__()
        self.base = position.base
        self.width = width

    def signals(self, visibility: Visibility, device: torch.device, dtype: torch.dtype) -> Signals:
        least, most = distance_span(visibility)
        distances_R = torch.arange(least, most + 1, device=device)
        encoding_RD = sinusoidal(distances_R, self.width, self.base, "halves", dtype)
        return Signals(distances=Distances(encoding_RD, zero=-least))


class RelativeScores(nn.Module):
    """One layer's share of Transformer-XL: (q + u)·k + (q + v)·(W r), with r the encoded distance (Dai et al. 2019)."""

    def __init__(self, width: int, heads: int, head_size: int) -> None:
        super().__init__()
        self.project = nn.Linear(width, heads * head_size, bias=False)
        self.content = nn.Parameter(torch.zeros(heads, head_size))
        self.distance = nn.Parameter(torch.zeros(heads, head_size))

    def forward(
        self, q: Tensor, distances: Distances, visibility: Visibility, scale: float
    ) -> tuple[Tensor, ScoreBias]:
        """The queries to compare with keys, and the scores of distances for each query."""
        distances_RHE = self.project(distances.encoding).unflatten(-1, self.distance.shape)
        table_BHQR = torch.einsum("bqhe,rhe->bhqr", visibility.grid(q + self.distance), distances_RHE) * scale
        return q + self.content, ScoreBias(table_BHQR, distances.zero)
