"""Positions on a grid of patches: the column x and the row y of each, counted from the top left.

A class token, if there is one, precedes the patches and has no grid position.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.blocks import settings
from regard.blocks.positions import Rotation, angle_dtype, frequencies, rotation, sinusoidal
from regard.blocks.settings import ChannelOrder

Grid = tuple[int, int]
"""Rows and columns of patches."""


def places_2d(grid: Grid, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    """`[P]` and `[P]`: column and row of each patch, row by row."""
    y, x = torch.meshgrid(torch.arange(grid[0], device=device), torch.arange(grid[1], device=device), indexing="ij")
    return x.flatten(), y.flatten()


def sinusoidal_2d(
    x: Tensor,
    y: Tensor,
    width: int,
    base: float = 10_000.0,
    order: ChannelOrder = "interleaved",
    dtype: torch.dtype | None = None,
) -> Tensor:
    """`[..., width]`: concat(PE(x), PE(y)), each of half the width."""
    return torch.cat([sinusoidal(place, width // 2, base, order, dtype) for place in (x, y)], dim=-1)


class GridPosition(nn.Module):
    """No position, and the base of the others."""

    def __init__(self, class_token: bool) -> None:
        super().__init__()
        self.class_token = class_token

    def embed(self, grid: Grid, device: torch.device, dtype: torch.dtype) -> Tensor | None:
        """`[T, D]`: the encoding to add to the class token, if there is one, and to the patches; None: nothing."""
        return None

    def rotation(self, grid: Grid, device: torch.device, dtype: torch.dtype) -> Rotation | None:
        """The rotation of queries and keys; None: no rotation."""
        return None

    def with_class_token(self, of_patches: Tensor, of_class_token: Tensor) -> Tensor:
        """`[P, ...]` after the row of the class token, if there is one."""
        return torch.cat([of_class_token[None], of_patches]) if self.class_token else of_patches


class SinusoidalGridPosition(GridPosition):
    """concat(PE(x), PE(y)); zero for the class token."""

    def __init__(self, position: settings.Sinusoidal2d, width: int, class_token: bool) -> None:
        super().__init__(class_token)
        self.position = position
        self.width = width

    def embed(self, grid: Grid, device: torch.device, dtype: torch.dtype) -> Tensor:
        x, y = places_2d(grid, device)
        encoding_PD = sinusoidal_2d(x, y, self.width, self.position.base, self.position.order, dtype)
        return self.with_class_token(encoding_PD, torch.zeros_like(encoding_PD[0]))


class LearnedGridPosition(GridPosition):
    """One learned vector for each patch of a grid; resized (bicubic) for other grids."""

    def __init__(self, grid: Grid, width: int, class_token: bool) -> None:
        super().__init__(class_token)
        self.grid = grid
        self.weight = nn.Parameter(torch.empty(grid[0] * grid[1], width))
        self.first = nn.Parameter(torch.empty(width)) if class_token else None

    def embed(self, grid: Grid, device: torch.device, dtype: torch.dtype) -> Tensor:
        weight_PD: Tensor = self.weight
        if grid != self.grid:
            image_1DYX = weight_PD.view(*self.grid, -1).permute(2, 0, 1)[None]
            resized_1DYX = functional.interpolate(image_1DYX, size=grid, mode="bicubic", align_corners=False)
            weight_PD = resized_1DYX[0].flatten(1).mT
        return weight_PD if self.first is None else self.with_class_token(weight_PD, self.first)


class RotaryGridPosition(GridPosition):
    """Rotates the first half of the pairs by the column, the second half by the row; the class token stays."""

    def __init__(self, position: settings.Rotary2d, head_size: int, class_token: bool) -> None:
        super().__init__(class_token)
        self.base = position.base
        self.head_size = head_size

    def rotation(self, grid: Grid, device: torch.device, dtype: torch.dtype) -> Rotation:
        exact = angle_dtype(device)
        turns = frequencies(self.head_size // 2, self.base).to(device, exact)
        angles_PE = torch.cat([place.to(exact)[:, None] * turns for place in places_2d(grid, device)], dim=-1)
        angles_TE = self.with_class_token(angles_PE, torch.zeros_like(angles_PE[0]))
        return rotation(angles_TE[None], dtype)


def build_grid_position(
    position: settings.ImagePosition, grid: Grid, width: int, head_size: int, class_token: bool
) -> GridPosition:
    if isinstance(position, settings.Sinusoidal2d):
        return SinusoidalGridPosition(position, width, class_token)
    if isinstance(position, settings.Learned2d):
        return LearnedGridPosition(grid, width, class_token)
    if isinstance(position, settings.Rotary2d):
        return RotaryGridPosition(position, head_size, class_token)
    return GridPosition(class_token)
