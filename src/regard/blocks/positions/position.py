"""What a position encoding may do. Each kind does one of these; the others stay as they are here."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.blocks.layout import Layout
from regard.blocks.score_bias import ScoreBias
from regard.blocks.settings import ChannelOrder
from regard.blocks.visibility import Visibility


class Rotation(NamedTuple):
    """Angles by which pairs of a head's first channels turn: `[..., T, 1, pairs]`, ready to meet `[..., T, H, E]`."""

    cos: Tensor
    sin: Tensor
    order: ChannelOrder


class Distances(NamedTuple):
    """Encodings of distances for Transformer-XL, `[R, D]`, and the row of distance 0."""

    encoding: Tensor
    zero: int


class Signals(NamedTuple):
    """What positions tell the attention of every layer in one forward pass."""

    rotation: Rotation | None = None
    bias: ScoreBias | None = None
    distances: Distances | None = None


class Position(nn.Module):
    """No position, and the base of all others."""

    def embed(self, layout: Layout, device: torch.device, dtype: torch.dtype) -> Tensor | None:
        """What is added to the embeddings: `[B or 1, T, D]`, or `[N, D]`."""
        return None

    def signals(self, visibility: Visibility, device: torch.device, dtype: torch.dtype) -> Signals:
        """What the attention of every layer is told; queries and new keys have the same places."""
        return Signals()


def angle_dtype(device: torch.device) -> torch.dtype:
    """Angles are worked out in float64, so that far places stay exact; Apple's GPUs have none."""
    return torch.float32 if device.type == "mps" else torch.float64
