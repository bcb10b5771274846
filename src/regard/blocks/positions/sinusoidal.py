"""Sinusoidal positions (Vaswani et al. 2017, section 3.5).

PE(t, 2j) = sin(t / base^(2j/d)) and PE(t, 2j+1) = cos(t / base^(2j/d)). For any offset c, PE(t + c) is a rotation of
PE(t) that does not depend on t, which is why the paper hoped that attention to relative places would be easy to learn.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from regard.blocks import settings
from regard.blocks.layout import Layout, Packed
from regard.blocks.positions.position import Position, angle_dtype
from regard.blocks.settings import ChannelOrder


def frequencies(
    width: int, base: float = 10_000.0, dtype: torch.dtype = torch.float64, device: torch.device | None = None
) -> Tensor:
    """`[⌈width / 2⌉]`: radians a place by which pair j turns, base^(−2j / width).

    Worked out where it is needed: a copy to a GPU would halt it, and could not be recorded.
    """
    return base ** -(torch.arange(0, width, 2, dtype=dtype, device=device) / width)


def wavelengths(width: int, base: float = 10_000.0) -> Tensor:
    """`[⌈width / 2⌉]`: after how many places pair j repeats, 2π · base^(2j / width)."""
    return 2 * math.pi / frequencies(width, base)


def sinusoidal(
    positions: Tensor,
    width: int,
    base: float = 10_000.0,
    order: ChannelOrder = "interleaved",
    dtype: torch.dtype | None = None,
) -> Tensor:
    """`[..., width]`: the encodings of positions of any shape; of an odd width the last cosine is left out."""
    exact = angle_dtype(positions.device)
    angles = positions.to(exact)[..., None] * frequencies(width, base, exact, positions.device)
    sines, cosines = angles.sin(), angles.cos()
    if order == "halves":
        encoding = torch.cat([sines, cosines], dim=-1)
    else:
        encoding = torch.stack([sines, cosines], dim=-1).flatten(-2)
    if width % 2:
        last = encoding.shape[-1] - 1
        encoding = encoding[..., :last]
    return encoding.to(dtype or torch.get_default_dtype())


def shift_matrix(offset: float, width: int, base: float = 10_000.0) -> Tensor:
    """`[width, width]`: the matrix M with PE(t + offset) = M PE(t) for every t (interleaved order, even width)."""
    angles = offset * frequencies(width, base)
    cos, sin = angles.cos(), angles.sin()
    turns = torch.stack([torch.stack([cos, sin], dim=-1), torch.stack([-sin, cos], dim=-1)], dim=-2)
    matrix: Tensor = torch.block_diag(*turns)  # type: ignore[no-untyped-call]
    return matrix


class SinusoidalPosition(Position):
    """Adds the encoding of its place to each token."""

    def __init__(self, position: settings.Sinusoidal, width: int) -> None:
        super().__init__()
        self.position = position
        self.width = width

    def embed(self, layout: Layout, device: torch.device, dtype: torch.dtype) -> Tensor:
        places = layout.places(device).clamp(min=0)
        if isinstance(layout, Packed):
            # A packed batch has far more tokens than places, so each place is worked out once.
            return self._encode(torch.arange(layout.longest, device=device), dtype)[places]
        return self._encode(places, dtype)

    def _encode(self, places: Tensor, dtype: torch.dtype) -> Tensor:
        # Rounded to float32 first: Marian's checkpoints hold such a table, and a float64 model must agree with them.
        table = sinusoidal(places, self.width, self.position.base, self.position.order, torch.float32)
        return table.to(dtype)
