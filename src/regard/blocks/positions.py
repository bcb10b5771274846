"""Positions of text (sinusoidal, learned, rotary; relative: T5, ALiBi, Transformer-XL), and of the patches of images.

A position encoding is either added to the embeddings (`embed`) or used inside attention (`signals`).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.nn import functional

from regard.blocks import settings
from regard.blocks.kernels import ScoreBias, distance_span
from regard.blocks.layout import Layout, Packed
from regard.blocks.settings import ChannelOrder
from regard.blocks.visibility import Visibility
from regard.errors import InputError


class Rotation(NamedTuple):
    """Rotation of pairs of channels: `[..., T, 1, pairs]`, to broadcast with `[..., T, H, E]`."""

    cos: Tensor
    sin: Tensor
    order: ChannelOrder


class Signals(NamedTuple):
    """Position inputs of the attention of every layer in one forward pass."""

    rotation: Rotation | None = None
    bias: ScoreBias | None = None
    distances: tuple[Tensor, int] | None = None
    """Encodings of distances for Transformer-XL, `[R, D]`, and the row of distance 0."""


class Position(nn.Module):
    """No position, and the base of all others."""

    def __init__(
        self, position: Any = None, width: int = 0, heads: int = 0, head_size: int = 0, causal: bool = False
    ) -> None:
        super().__init__()
        self.position, self.width, self.heads, self.head_size, self.causal = position, width, heads, head_size, causal

    def embed(self, layout: Layout, device: torch.device, dtype: torch.dtype) -> Tensor | None:
        """The encoding to add to the embeddings: `[B or 1, T, D]`, or `[N, D]`; None: nothing."""
        return None

    def signals(self, visibility: Visibility, device: torch.device, dtype: torch.dtype) -> Signals:
        """The inputs of attention; queries and new keys have the same positions."""
        return Signals()


def frequencies(width: int, base: float = 10_000.0, device: torch.device | None = None) -> Tensor:
    """`[⌈width / 2⌉]`: radians per position of pair j, base^(−2j / width); in float64, for exact large positions.

    Computed on the device: a copy to a GPU would wait for it, and cannot be part of a CUDA graph.
    """
    return base ** -(torch.arange(0, width, 2, dtype=torch.float64, device=device) / width)


def sinusoidal(
    positions: Tensor,
    width: int,
    base: float = 10_000.0,
    order: ChannelOrder = "interleaved",
    dtype: torch.dtype | None = None,
) -> Tensor:
    """`[..., width]`: the encodings of positions of any shape; an odd width drops the last cosine."""
    angles = positions[..., None] * frequencies(width, base, positions.device)
    encoding = _joined(angles.sin(), angles.cos(), order)[..., :width]
    return encoding.to(dtype or torch.get_default_dtype())


def _joined(first: Tensor, second: Tensor, order: ChannelOrder) -> Tensor:
    if order == "halves":
        return torch.cat([first, second], dim=-1)
    return torch.stack([first, second], dim=-1).flatten(-2)


class SinusoidalPosition(Position):
    """Adds the encoding of its position to each token."""

    def embed(self, layout: Layout, device: torch.device, dtype: torch.dtype) -> Tensor:
        places = layout.places(device)
        if isinstance(layout, Packed):
            # A packed batch has far more tokens than positions, so each position is encoded once.
            return self._encode(torch.arange(layout.longest, device=device), dtype)[places.clamp(min=0)]
        if not is_compiling():
            # Beams share positions by expansion; each position is encoded once and broadcast.
            for dim in range(places.dim()):
                places = places if places.stride(dim) else places.narrow(dim, 0, 1)
        return self._encode(places.clamp(min=0), dtype)

    def _encode(self, places: Tensor, dtype: torch.dtype) -> Tensor:
        # Rounded to float32 first, as the tables in Marian's checkpoints, so that a float64 model agrees with them.
        return sinusoidal(places, self.width, self.position.base, self.position.order, torch.float32).to(dtype)


class LearnedPosition(Position):
    """Adds a learned vector to each token; positions beyond the last one raise."""

    def __init__(self, position: settings.Learned, width: int) -> None:
        super().__init__(position, width)
        self.weight = nn.Parameter(torch.empty(position.offset + position.length, width))

    def embed(self, layout: Layout, device: torch.device, dtype: torch.dtype) -> Tensor:
        if layout.longest > self.position.length:
            raise InputError(
                f"a sequence of {layout.longest} tokens exceeds position.length ({self.position.length}); shorten it, "
                'train with a larger one, or choose a position.kind without a limit, such as "rotary"'
            )
        return self.weight[layout.places(device).clamp(min=0) + self.position.offset]


def rotation(angles: Tensor, dtype: torch.dtype, order: ChannelOrder = "halves", factor: float = 1.0) -> Rotation:
    """The rotation by angles `[..., T, pairs]`. At least float32, since 16 bits are too coarse for large positions."""
    kept = torch.float64 if dtype == torch.float64 else torch.float32
    cos, sin = (factor * turn[..., None, :] for turn in (angles.cos(), angles.sin()))
    return Rotation(cos.to(kept), sin.to(kept), order)


def rotate(x: Tensor, turn: Rotation) -> Tensor:
    """Rotates the first 2 × pairs channels of `[..., T, H, E]`; the others stay."""
    pairs = turn.cos.shape[-1]
    turned, rest = x[..., : 2 * pairs].to(turn.cos.dtype), x[..., 2 * pairs :]
    if turn.order == "halves":
        first, second = turned[..., :pairs], turned[..., pairs:]
    else:
        first, second = turned[..., 0::2], turned[..., 1::2]
    first, second = first * turn.cos - second * turn.sin, second * turn.cos + first * turn.sin
    return torch.cat([_joined(first, second, turn.order).to(x.dtype), rest], dim=-1)


def rotary_frequencies(
    position: settings.Rotary, channels: int, device: torch.device | None = None, length: Tensor | None = None
) -> tuple[Tensor, float]:
    """`[channels / 2]`: radians per position after scaling, and a factor for cosines and sines.

    `length` `[..., 1]` is that of the sequences, for dynamic scaling; the result is then `[..., channels / 2]`.
    """
    scaling = position.scaling
    plain = frequencies(channels, position.base, device)
    if scaling is None:
        return plain, 1.0
    if isinstance(scaling, settings.LinearScaling):
        return plain / scaling.factor, 1.0
    if isinstance(scaling, settings.DynamicScaling):
        if length is None:
            return plain, 1.0
        growth = scaling.factor * (length.double() / scaling.original_length).clamp(min=1) - (scaling.factor - 1)
        pair = torch.arange(len(plain), dtype=plain.dtype, device=device)
        return plain * growth ** (-2 * pair / max(channels - 2, 1)), 1.0
    if isinstance(scaling, settings.YarnScaling):
        return _yarn(plain, position.base, channels, scaling), 0.1 * math.log(scaling.factor) + 1.0
    return _llama3(plain, scaling), 1.0


def _yarn(plain: Tensor, base: float, channels: int, scaling: settings.YarnScaling) -> Tensor:
    """Interpolates pairs with fewer than beta_slow rotations over the original length, keeps those above beta_fast."""

    def pair_that_turns(times: float) -> float:
        return channels * math.log(scaling.original_length / (times * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(pair_that_turns(scaling.beta_fast)), 0)
    high = min(math.ceil(pair_that_turns(scaling.beta_slow)), channels - 1)
    pair = torch.arange(len(plain), dtype=plain.dtype, device=plain.device)
    stretched = ((pair - low) / max(high - low, 0.001)).clamp(0, 1)
    return plain * (1 - stretched) + plain / scaling.factor * stretched


def _llama3(plain: Tensor, scaling: settings.Llama3Scaling) -> Tensor:
    """Divides the frequency of long wavelengths by the factor, keeps short ones, and interpolates between."""
    turns = scaling.original_length * plain / (2 * math.pi)
    span = scaling.high_frequency_factor - scaling.low_frequency_factor
    kept = ((turns - scaling.low_frequency_factor) / span).clamp(0, 1)
    return plain * kept + plain / scaling.factor * (1 - kept)


class RotaryPosition(Position):
    """Rotates queries and keys in attention."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        base = self.position.window_base
        self.near = self.position if base is None else self.position.model_copy(update={"base": base, "scaling": None})
        """The settings in layers with a window."""

    def signals(self, visibility: Visibility, device: torch.device, dtype: torch.dtype) -> Signals:
        position = self.position if visibility.window is None else self.near
        queries, length = visibility.queries, None
        places = queries.places(device)
        if isinstance(position.scaling, settings.DynamicScaling):
            if isinstance(queries, Packed):
                length = queries.offsets_S1.diff()[queries.sequences(device)][:, None]
            else:
                length = places.amax(-1, keepdim=True)[..., None] + 1
        turns, factor = rotary_frequencies(position, position.channels(self.head_size), device, length)
        angles = places[..., None] * turns
        return Signals(rotation=rotation(angles, dtype, self.position.order, factor))


def bucket(distance: Tensor, buckets: int, longest: int, causal: bool) -> Tensor:
    """The bucket of each distance (position of the query − of the key), as in T5 (Raffel et al. 2020, section 2.1).

    Half of the buckets hold one distance each, the others grow with the logarithm up to `longest`. Unless attention is
    causal, keys after the query use the upper half of all buckets.
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
    """`[H]`: 2^(−8/n), 2^(−16/n), … for n heads; if n is not a power of two, values of the series of 2n follow."""
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (head + 1) / power) for head in range(power)]
    between = [2 ** (-8 * (head + 1) / (2 * power)) for head in range(0, 2 * power, 2)]
    return torch.tensor(slopes + between[: heads - power])


class RelativePosition(Position):
    """A learned score for each bucket and head, one table for all layers of a stack."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.weight = nn.Parameter(torch.empty(self.position.buckets, self.heads))

    def signals(self, visibility: Visibility, device: torch.device, dtype: torch.dtype) -> Signals:
        least, most = distance_span(visibility)
        distances_R = torch.arange(least, most + 1, device=device)
        bucket_R = bucket(distances_R, self.position.buckets, self.position.longest, self.causal)
        return Signals(bias=ScoreBias(self.weight[bucket_R].mT, zero=-least))


class AlibiPosition(Position):
    """A fixed penalty, proportional to the distance in both directions."""

    def signals(self, visibility: Visibility, device: torch.device, dtype: torch.dtype) -> Signals:
        least, most = distance_span(visibility)
        distances_R = torch.arange(least, most + 1, device=device, dtype=dtype)
        slopes_H = alibi_slopes(self.heads).to(device, dtype)
        return Signals(bias=ScoreBias(-slopes_H[:, None] * distances_R.abs(), zero=-least))


class TransformerXLPosition(Position):
    """Encodes every distance; each layer projects the encodings and multiplies them with its queries."""

    def signals(self, visibility: Visibility, device: torch.device, dtype: torch.dtype) -> Signals:
        least, most = distance_span(visibility)
        distances_R = torch.arange(least, most + 1, device=device)
        encoding_RD = sinusoidal(distances_R, self.width, self.position.base, "halves", dtype)
        return Signals(distances=(encoding_RD, -least))


class RelativeScores(nn.Module):
    """Transformer-XL in one layer: (q + u)·k + (q + v)·(W r), where r is the encoded distance (Dai et al. 2019)."""

    def __init__(self, width: int, heads: int, head_size: int) -> None:
        super().__init__()
        self.project = nn.Linear(width, heads * head_size, bias=False)
        self.content = nn.Parameter(torch.zeros(heads, head_size))
        self.distance = nn.Parameter(torch.zeros(heads, head_size))

    def forward(
        self, q: Tensor, distances: tuple[Tensor, int], visibility: Visibility, scale: float
    ) -> tuple[Tensor, ScoreBias]:
        """The queries for the product with keys, and the distance scores of each query."""
        encoding_RD, zero = distances
        distances_RHE = self.project(encoding_RD).unflatten(-1, self.distance.shape)
        table_BHQR = torch.einsum("bqhe,rhe->bhqr", visibility.grid(q + self.distance), distances_RHE) * scale
        return q + self.content, ScoreBias(table_BHQR, zero)


def build_embedded(position: settings.TextPosition, width: int) -> Position:
    """The module that adds to the embeddings; an empty one if the kind is used inside attention."""
    kinds: dict[str, Any] = {"sinusoidal": SinusoidalPosition, "learned": LearnedPosition}
    built: Position = kinds.get(position.kind, Position)(position, width)
    return built


def build_attended(position: settings.TextPosition, width: int, heads: int, head_size: int, causal: bool) -> Position:
    """The module used inside attention; an empty one if the kind is added to the embeddings."""
    position = (position.relative if isinstance(position, settings.Learned) else None) or position
    kinds: dict[str, type[Position]] = {
        "rotary": RotaryPosition,
        "relative": RelativePosition,
        "alibi": AlibiPosition,
        "transformer-xl": TransformerXLPosition,
    }
    return kinds.get(position.kind, Position)(position, width, heads, head_size, causal)


Grid = tuple[int, int]
"""Rows and columns of patches. The place of a patch is its column x and its row y, counted from the top left.

A class token, if there is one, and registers precede the patches and have no place.
"""


def places_2d(grid: Grid, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    """`[P]` and `[P]`: column and row of each patch, row by row."""
    y, x = torch.meshgrid(torch.arange(grid[0], device=device), torch.arange(grid[1], device=device), indexing="ij")
    return x.flatten(), y.flatten()


class GridPosition(nn.Module):
    """No position, and the base of the others."""

    def __init__(self, position: Any, width: int, class_token: bool, head_size: int = 0, registers: int = 0) -> None:
        super().__init__()
        self.position, self.width, self.head_size = position, width, head_size
        self.class_token, self.registers = class_token, registers

    def embed(self, grid: Grid, device: torch.device, dtype: torch.dtype) -> Tensor | None:
        """`[T, D]`: the encoding to add to the learned tokens, if there are any, and the patches; None: nothing."""
        return None

    def rotation(self, grid: Grid, device: torch.device, dtype: torch.dtype) -> Rotation | None:
        """The rotation of queries and keys; None: no rotation."""
        return None

    def with_learned_tokens(self, of_patches: Tensor, of_class_token: Tensor) -> Tensor:
        """`[P, ...]` after the row of the class token, if there is one, and zeros for the registers."""
        first = [of_class_token[None]] if self.class_token else []
        first += [of_patches.new_zeros(self.registers, *of_patches.shape[1:])] if self.registers else []
        return torch.cat([*first, of_patches]) if first else of_patches


class SinusoidalGridPosition(GridPosition):
    """concat(PE(x), PE(y)); zero for the class token."""

    def embed(self, grid: Grid, device: torch.device, dtype: torch.dtype) -> Tensor:
        base, order = self.position.base, self.position.order
        both = [sinusoidal(place, self.width // 2, base, order, dtype) for place in places_2d(grid, device)]
        encoding_PD = torch.cat(both, dim=-1)
        return self.with_learned_tokens(encoding_PD, torch.zeros_like(encoding_PD[0]))


class LearnedGridPosition(GridPosition):
    """One learned vector for each patch of a grid; resized (bicubic) for other grids."""

    def __init__(self, grid: Grid, width: int, class_token: bool, registers: int = 0) -> None:
        super().__init__(settings.Learned2d(), width, class_token, registers=registers)
        self.grid = grid
        self.weight = nn.Parameter(torch.empty(grid[0] * grid[1], width))
        self.first = nn.Parameter(torch.empty(width)) if class_token else None

    def embed(self, grid: Grid, device: torch.device, dtype: torch.dtype) -> Tensor:
        weight_PD: Tensor = self.weight
        if grid != self.grid:
            image_1DYX = weight_PD.view(*self.grid, -1).permute(2, 0, 1)[None]
            resized_1DYX = functional.interpolate(image_1DYX, size=grid, mode="bicubic", align_corners=False)
            weight_PD = resized_1DYX[0].flatten(1).mT
        return self.with_learned_tokens(weight_PD, weight_PD[0] if self.first is None else self.first)


class RotaryGridPosition(GridPosition):
    """Rotates the first half of the pairs by the column, the second half by the row; the class token stays."""

    def rotation(self, grid: Grid, device: torch.device, dtype: torch.dtype) -> Rotation:
        turns = frequencies(self.head_size // 2, self.position.base, device)
        angles_PE = torch.cat([place[:, None] * turns for place in places_2d(grid, device)], dim=-1)
        angles_TE = self.with_learned_tokens(angles_PE, torch.zeros_like(angles_PE[0]))
        return rotation(angles_TE[None], dtype)


def build_grid_position(
    position: settings.ImagePosition, grid: Grid, width: int, head_size: int, class_token: bool, registers: int = 0
) -> GridPosition:
    if isinstance(position, settings.Learned2d):
        return LearnedGridPosition(grid, width, class_token, registers)
    kinds = {"sinusoidal-2d": SinusoidalGridPosition, "rotary-2d": RotaryGridPosition}
    return kinds.get(position.kind, GridPosition)(position, width, class_token, head_size, registers)
