"""Position encodings as matrices: what a place, or a distance, looks like to a model.

T: places, D: width, J: pairs of channels, H: heads, R: distances.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.blocks import settings
from regard.blocks.embedding import PatchEmbedding, TextEmbedding
from regard.blocks.image_positions import Grid, RotaryGridPosition, places_2d, sinusoidal_2d
from regard.blocks.layers import Stack
from regard.blocks.layout import Padded
from regard.blocks.positions import (
    RotaryPosition,
    SinusoidalPosition,
    TransformerXLPosition,
    frequencies,
    rotary_frequencies,
    shift_matrix,
    sinusoidal,
)
from regard.blocks.recording import network_of
from regard.blocks.settings import ChannelOrder
from regard.blocks.visibility import Visibility
from regard.errors import InputError
from regard.models.build import build
from regard.models.families import Decoder, EncoderDecoder, Vision
from regard.models.settings import ModelSettings
from regard.use.model import Loaded

Part: TypeAlias = Literal["encoder", "decoder"]
Described: TypeAlias = nn.Module | Loaded | ModelSettings
"""A model or, where its positions are not learned, the settings of one."""
CPU = torch.device("cpu")


class Encodings(NamedTuple):
    """A vector for each place."""

    kind: str
    """As `position.kind` in the settings."""
    matrix: Tensor
    """`[T, D]`, float64. Of rotary positions, the sine and cosine of each pair's angle: the dot product of two
    places is then the sum of the cosines of the angles between them. Of Transformer-XL, a row for each distance."""
    angles: Tensor | None = None
    """`[T, J]`, of rotary positions: by how many radians each pair of channels is turned."""
    grid: Grid | None = None
    """Rows and columns of an image's patches, which lie row by row."""
    first: int = 0
    """The place, or distance, of the first row."""
    order: ChannelOrder | None = None
    """How sines and cosines lie: in turn (`interleaved`), or all sines first (`halves`); none: there are none."""

    @property
    def dots(self) -> Tensor:
        """`[T, T]`: the dot product of each two places."""
        return self.matrix @ self.matrix.mT

    @property
    def cosines(self) -> Tensor:
        """`[T, T]`: the same of vectors of length 1."""
        units = functional.normalize(self.matrix, dim=1, eps=1e-300)
        return (units @ units.mT).clamp(-1, 1)


class DistanceScores(NamedTuple):
    """What attention adds to a score by how far a key lies before its query."""

    kind: str
    distances: Tensor
    """`[R]`: the query's place − the key's; below 0 the key follows."""
    scores: Tensor
    """`[H, R]`, float64; of Transformer-XL `[layers · H, R]`, and only the part that depends on no query."""


def encodings(model: Described, length: int = 64, part: Part | None = None) -> Encodings:
    """The vectors of the first places; of an image model those of its patches, without the class token.

    `part` chooses the side of an encoder-decoder: its encoder, unless told otherwise.
    """
    embedding, stack, kind, grid = _parts(model, length, part)
    if isinstance(embedding, PatchEmbedding):
        return _of_patches(embedding, grid, kind)
    if isinstance(stack.position, RotaryPosition):
        turns_J, factor = rotary_frequencies(stack.position.position, stack.position.channels)
        angles_TJ = torch.arange(length, dtype=torch.float64)[:, None] * turns_J
        return Encodings(kind, factor * _waves(angles_TJ), angles_TJ, order="interleaved")
    if isinstance(stack.position, TransformerXLPosition):
        distances_R = torch.arange(1 - length, length)
        matrix = sinusoidal(distances_R, stack.position.width, stack.position.base, "halves", torch.float64)
        return Encodings(kind, matrix, first=1 - length, order="halves")
    _require_weights(embedding.position, kind)
    with torch.no_grad():
        added = embedding.position.embed(Padded(1, length), _device(embedding.position), torch.float64)
    if added is None:
        remedy = "choose another model" if kind == "none" else "distance_scores(model) shows what it does"
        raise InputError(f"position.kind ({kind}) has no vectors of places; {remedy}")
    order = embedding.position.position.order if isinstance(embedding.position, SinusoidalPosition) else None
    return Encodings(kind, added.reshape(length, -1).to(CPU, torch.float64), order=order)


def distance_scores(model: Described, length: int = 64, part: Part | None = None) -> DistanceScores:
    """What T5's buckets, ALiBi's slopes or Transformer-XL add to scores, by distance."""
    _, stack, kind, _ = _parts(model, length, part)
    position = stack.position
    _require_weights(position, kind)
    layout = Padded(1, length)
    visibility = Visibility(layout, layout, stack.causal, stack.window)
    with torch.no_grad():
        signals = position.signals(visibility, _device(position), torch.float64)
        if signals.distances is not None:
            _require_weights(stack, kind)
            scores = torch.cat(
                [_without_query(stack, layer, signals.distances.encoding) for layer in range(len(stack))]
            )
            zero = signals.distances.zero
        elif signals.bias is not None:
            scores, zero = signals.bias.table, signals.bias.zero
        else:
            remedy = "choose another model" if kind == "none" else "encodings(model) shows what it does"
            raise InputError(f"position.kind ({kind}) adds no scores by distance; {remedy}")
    return DistanceScores(kind, torch.arange(scores.shape[1]) - zero, scores.to(CPU, torch.float64))


def _without_query(stack: Stack, layer: int, encoding_RD: Tensor) -> Tensor:
    """`[H, R]`: v · (W r) × scale, what a layer of Transformer-XL adds whatever the query is."""
    attention = stack[layer].attention
    relative = attention.relative
    assert relative is not None
    weight = relative.project.weight
    projected_RHE = relative.project(encoding_RD.to(weight)).unflatten(-1, relative.distance.shape)
    return torch.einsum("he,rhe->hr", relative.distance, projected_RHE) * attention.scale


# ------------------------------------------------------------------------------------------------------------ rotations


class Shift(NamedTuple):
    """How exactly moving all places by an offset is one rotation of their vectors."""

    offset: int | tuple[int, int]
    error: float
    """The largest |PE(t + offset) − M PE(t)| over all places and channels."""
    kept: float
    """The largest entry of |MᵀM − 1|: 0 where M keeps lengths and angles, as a rotation does."""


def shift(position: settings.Sinusoidal, width: int, offset: int, length: int = 64) -> Shift:
    """PE(t + offset) = M PE(t), with the same M for every t (Vaswani et al. 2017, section 3.5), in float64."""
    _require_even(width, 2)
    matrix = shift_matrix(offset, width, position.base)
    places = torch.arange(length)
    now, then = (sinusoidal(t, width, position.base, dtype=torch.float64) for t in (places, places + offset))
    return _shift(offset, matrix, now, then)


def shift_2d(position: settings.Sinusoidal2d, width: int, offset: tuple[int, int], grid: Grid = (8, 8)) -> Shift:
    """The same on a grid: `offset` is by how many columns and rows all patches move."""
    _require_even(width, 4)
    parts = [shift_matrix(by, width // 2, position.base) for by in offset]
    matrix: Tensor = torch.block_diag(*parts)  # type: ignore[no-untyped-call]
    x, y = places_2d(grid)
    now, then = (
        sinusoidal_2d(x + right, y + down, width, position.base, dtype=torch.float64)
        for right, down in ((0, 0), offset)
    )
    return _shift(offset, matrix, now, then)


def _shift(offset: int | tuple[int, int], matrix: Tensor, now: Tensor, then: Tensor) -> Shift:
    error = (then - now @ matrix.mT).abs().max()
    kept = (matrix.mT @ matrix - torch.eye(len(matrix), dtype=matrix.dtype)).abs().max()
    return Shift(offset, float(error), float(kept))


def _require_even(width: int, multiple: int) -> None:
    if width % multiple:
        raise InputError(
            f"width ({width}) must be a multiple of {multiple}, since sines and cosines turn in pairs; choose "
            f"{width + -width % multiple}"
        )


class Turned(NamedTuple):
    """How well the best rotation carries vectors of places to those of later places."""

    error: float
    """‖PE(t + offset) − R PE(t)‖ / ‖PE(t + offset)‖ over all places: 0 if places differ by a rotation alone."""
    shuffled: float
    """The same of the same vectors in random order: what any vectors would give."""


def best_rotation(matrix: Tensor, offset: int = 1, seed: int = 0) -> Turned:
    """For any encodings, learned ones too: the orthogonal matrix that fits best (Procrustes), and how well it fits."""
    if not 0 < offset < len(matrix):
        raise InputError(f"offset ({offset}) must lie between 1 and {len(matrix) - 1}, the places less one; change it")
    order = torch.randperm(len(matrix), generator=torch.Generator().manual_seed(seed))
    return Turned(_turned(matrix.double(), offset), _turned(matrix.double()[order], offset))


def _turned(matrix: Tensor, offset: int) -> float:
    now, then = matrix[:-offset], matrix[offset:]
    left, _, right = torch.linalg.svd(now.mT @ then)
    return float((then - now @ left @ right).norm() / then.norm().clamp(min=1e-300))


# -------------------------------------------------------------------------------------------------------------- reading


class _Parts(NamedTuple):
    """What holds a model's positions."""

    embedding: TextEmbedding | PatchEmbedding
    stack: Stack
    kind: str
    grid: Grid
    """Of an image model; (0, 0) elsewhere."""


def _parts(model: Described, length: int, part: Part | None) -> _Parts:
    """Those of a model or, without weights, of settings."""
    if length < 2:
        raise InputError(f"length ({length}) must be at least 2; give how many places are wanted")
    network = build(model, "meta") if isinstance(model, ModelSettings) else network_of(model)
    has: tuple[Part, ...] = ("decoder",) if isinstance(network, Decoder) else ("encoder",)
    has = ("encoder", "decoder") if isinstance(network, EncoderDecoder) else has
    chosen = part or has[0]
    if chosen not in has:
        raise InputError(f"part ({part}) is not in a model of kind {network.settings.kind}; choose {' or '.join(has)}")
    kind = network.settings.position.kind
    if isinstance(network, EncoderDecoder):
        sides = (network.source, network.encoder) if chosen == "encoder" else (network.target, network.decoder)
        return _Parts(*sides, kind, (0, 0))
    if isinstance(network, Decoder):
        return _Parts(network.embedding, network.decoder, kind, (0, 0))
    grid = network.settings.grid if isinstance(network, Vision) else (0, 0)
    return _Parts(network.embedding, network.encoder, kind, grid)


def _of_patches(embedding: PatchEmbedding, grid: Grid, kind: str) -> Encodings:
    position = embedding.position
    if isinstance(position, RotaryGridPosition):
        turns_J = frequencies(position.head_size // 2, position.base)
        angles_TJ = torch.cat([place.double()[:, None] * turns_J for place in places_2d(grid)], dim=-1)
        return Encodings(kind, _waves(angles_TJ), angles_TJ, grid)
    _require_weights(position, kind)
    with torch.no_grad():
        added = position.embed(grid, _device(position), torch.float64)
    if added is None:
        raise InputError(f"position.kind ({kind}) has no vectors of places; choose another model")
    patches = added[1:] if position.class_token else added
    return Encodings(kind, patches.to(CPU, torch.float64), grid=grid)


def _waves(angles_TJ: Tensor) -> Tensor:
    """`[T, 2 J]`: sine and cosine of each angle in turn."""
    return torch.stack([angles_TJ.sin(), angles_TJ.cos()], -1).flatten(1)


def _device(module: nn.Module) -> torch.device:
    return next((parameter.device for parameter in module.parameters()), CPU)


def _require_weights(module: nn.Module, kind: str) -> None:
    if any(parameter.is_meta for parameter in module.parameters()):
        raise InputError(f"position.kind ({kind}) is learned, and settings hold nothing learned; give a model")
