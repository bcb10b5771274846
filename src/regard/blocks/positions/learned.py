"""Learned positions: one vector for each place."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from regard.blocks import settings
from regard.blocks.layout import Layout
from regard.blocks.positions.position import Position
from regard.errors import InputError


class LearnedPosition(Position):
    """Adds the vector of its place to each token; there is none beyond the last."""

    def __init__(self, position: settings.Learned, width: int) -> None:
        super().__init__()
        self.length = position.length
        self.offset = position.offset
        self.weight = nn.Parameter(torch.empty(position.offset + position.length, width))

    def embed(self, layout: Layout, device: torch.device, dtype: torch.dtype) -> Tensor:
        if layout.longest > self.length:
            raise InputError(
                f"a sequence of {layout.longest} tokens is beyond the {self.length} learned positions; shorten it, or "
                'train with a larger position.length, or choose a position.kind without an end, such as "rotary"'
            )
        return self.weight[layout.places(device).clamp(min=0) + self.offset]
