"""Positions view: the vectors of positions, their similarity by distance, and scores that depend on distance.

Cosines of positions are compared with those of any two positions, since all may share a direction, and with those of
random vectors, which have mean 0 and deviation 1 / √width.

T: positions, D: width, J: pairs of channels, H: heads, R: distances.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, NamedTuple, TypeAlias

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from regard.blocks import positions
from regard.blocks import settings as kinds
from regard.blocks.embedding import PatchEmbedding, TextEmbedding
from regard.blocks.layers import Stack
from regard.blocks.layout import Padded
from regard.blocks.recording import network_of
from regard.blocks.visibility import Visibility
from regard.errors import InputError
from regard.look.views import view
from regard.models import settings as models
from regard.models.build import Model
from regard.use.model import Loaded
from regard.use.translator import Translator

Part: TypeAlias = Literal["encoder", "decoder"]
LENGTH = 64
MAX_LENGTH = 256
MAX_PATCHES = 1024
CPU = torch.device("cpu")


class Encodings(NamedTuple):
    """A vector for each position.

    `matrix` is `[T, D]` in float64: sine and cosine of each angle for rotary positions, whose `angles` in radians are
    `[T, J]`; a row for each distance for Transformer-XL. `grid` has the rows and columns of an image's patches, `first`
    is the position or distance of the first row, and `order` that of sines and cosines, if there are any.
    """

    matrix: Tensor
    angles: Tensor | None = None
    grid: positions.Grid | None = None
    first: int = 0
    order: kinds.ChannelOrder | None = None

    @property
    def dots(self) -> Tensor:
        """`[T, T]`: dot products."""
        return self.matrix @ self.matrix.mT

    @property
    def cosines(self) -> Tensor:
        """`[T, T]`"""
        units = functional.normalize(self.matrix, dim=1, eps=1e-300)
        return (units @ units.mT).clamp(-1, 1)


class DistanceScores(NamedTuple):
    """What attention adds to a score, `[H, R]` in float64, by the position of the query − that of the key, `[R]`.

    For Transformer-XL, `[layers · H, R]`, without the part that depends on the query.
    """

    distances: Tensor
    scores: Tensor


class CosinesByDistance(NamedTuple):
    """Cosines of positions by distance, `[R]` from 0, and (`whole`) of all different ones; for patches, rounded."""

    mean: Tensor
    least: Tensor
    most: Tensor
    whole: float


def encodings(model: nn.Module | Loaded, length: int = LENGTH, part: Part | None = None) -> Encodings:
    """The vectors of the first positions, or of an image's patches (without learned tokens).

    `part` selects a side of an encoder-decoder, by default its encoder.
    """
    embedding, stack = _side(model, length, part)
    settings, position = network_of(model).settings, stack.position
    kind, device = settings.position.kind, next(embedding.parameters()).device
    if isinstance(embedding, PatchEmbedding) and isinstance(embedding.position, positions.RotaryGridPosition):
        turns_J = positions.frequencies(settings.head_size // 2, settings.position.base)
        angles_TJ = torch.cat([each.double()[:, None] * turns_J for each in positions.places_2d(settings.grid)], dim=-1)
        return Encodings(_waves(angles_TJ), angles_TJ, settings.grid)
    if isinstance(position, positions.RotaryPosition):
        channels = settings.position.channels(position.head_size)
        turns_J, factor = positions.rotary_frequencies(settings.position, channels)
        angles_TJ = torch.arange(length, dtype=torch.float64)[:, None] * turns_J
        return Encodings(factor * _waves(angles_TJ), angles_TJ, order="interleaved")
    if isinstance(position, positions.TransformerXLPosition):
        places, base = torch.arange(1 - length, length), settings.position.base
        matrix = positions.sinusoidal(places, settings.width, base, "halves", torch.float64)
        return Encodings(matrix, first=1 - length, order="halves")
    grid, first = None, 0
    with torch.no_grad():
        if isinstance(embedding, PatchEmbedding):
            grid, first = settings.grid, embedding.position.class_token + embedding.position.registers
            added = embedding.position.embed(grid, device, torch.float64)
        else:
            added = embedding.position.embed(Padded(1, length), device, torch.float64)
    if added is None:
        raise InputError(f"position.kind ({kind}) has no vectors; distance_scores(model) shows other kinds")
    order = embedding.position.position.order if isinstance(embedding.position, positions.SinusoidalPosition) else None
    return Encodings(added.reshape(-1, added.shape[-1])[first:].to(CPU, torch.float64), grid=grid, order=order)


def distance_scores(model: nn.Module | Loaded, length: int = LENGTH, part: Part | None = None) -> DistanceScores:
    """What T5's buckets, ALiBi's slopes or Transformer-XL add to scores."""
    embedding, stack = _side(model, length, part)
    kind, layout = network_of(model).settings.position.kind, Padded(1, length)
    visibility = Visibility(layout, layout, stack.causal, max(stack.windows, key=lambda window: window or math.inf))
    with torch.no_grad():
        signals = stack.position.signals(visibility, next(embedding.parameters()).device, torch.float64)
        if signals.distances is not None:
            encoding_RD, zero = signals.distances
            scores = torch.cat([_scores_without_query(stack, layer, encoding_RD) for layer in range(len(stack))])
        elif signals.bias is not None:
            scores, zero = signals.bias.table, signals.bias.zero
        else:
            raise InputError(f"position.kind ({kind}) adds no scores by distance; encodings(model) shows other kinds")
    return DistanceScores(torch.arange(scores.shape[1]) - zero, scores.to(CPU, torch.float64))


def cosines_by_distance(found: Encodings) -> CosinesByDistance:
    """How similar positions are, by distance."""
    number_T = torch.arange(len(found.matrix))
    if found.grid is None:
        apart_TT = (number_T[:, None] - number_T).abs()
    else:
        x_T, y_T = (each.double() for each in positions.places_2d(found.grid))
        apart_TT = ((x_T[:, None] - x_T).square() + (y_T[:, None] - y_T).square()).sqrt().round().long()
    cosines_TT = found.cosines
    groups = [cosines_TT[apart_TT == distance] for distance in range(int(apart_TT.max()) + 1)]
    mean, least, most = (torch.stack([getattr(each, name)() for each in groups]) for name in ("mean", "min", "max"))
    different = cosines_TT[number_T[:, None] != number_T]
    return CosinesByDistance(mean, least, most, float(different.mean()) if len(different) else 1.0)


def _scores_without_query(stack: Stack, layer: int, encoding_RD: Tensor) -> Tensor:
    """`[H, R]`: v · (W r) × scale, which a layer of Transformer-XL adds for any query."""
    attention = stack[layer].attention
    relative = attention.relative
    assert relative is not None
    projected_RHE = relative.project(encoding_RD.to(relative.project.weight)).unflatten(-1, relative.distance.shape)
    return torch.einsum("he,rhe->hr", relative.distance, projected_RHE) * attention.scale


def _parts(network: Model) -> list[Part]:
    return [name for name in ("encoder", "decoder") if hasattr(network, name)]


def _side(model: nn.Module | Loaded, length: int, part: Part | None) -> tuple[TextEmbedding | PatchEmbedding, Stack]:
    """The embedding and the stack of a side."""
    if length < 2:
        raise InputError(f"length ({length}) must be at least 2")
    network = network_of(model)
    known = _parts(network)
    chosen = part or known[0]
    if chosen not in known:
        raise InputError(f"part ({part}) must be {' or '.join(known)}")
    embedding = ("source" if chosen == "encoder" else "target") if len(known) > 1 else "embedding"
    return getattr(network, embedding), getattr(network, chosen)


def _waves(angles_TJ: Tensor) -> Tensor:
    """`[T, 2 J]`: sine and cosine of each angle in turn."""
    return torch.stack([angles_TJ.sin(), angles_TJ.cos()], -1).flatten(1)


class PositionsRequest(view.PageRequest):
    """The positions of one side of the model."""

    part: Part | None = None
    length: int | None = Field(default=None, ge=2, le=MAX_LENGTH)


def positions_answer(model: nn.Module | Loaded, length: int | None = None, part: Part | None = None) -> view.Answer:
    """All about a model's positions: vectors, scores by distance, both, or neither."""
    network = network_of(model)
    settings, parts = network.settings, _parts(network)
    position = settings.position
    longest = min(MAX_LENGTH, models.reach(settings) or MAX_LENGTH)
    if isinstance(settings, models.Vision):
        length = longest = math.prod(settings.grid)
        if longest > MAX_PATCHES:
            raise InputError(f"an image has {longest:,} patches, and the view shows at most {MAX_PATCHES:,}")
    length = min(LENGTH, longest) if length is None else length
    if not min(2, longest) <= length <= longest:
        raise InputError(f"length ({length}) must be from 2 to {longest}")
    vectors = not isinstance(position, kinds.Relative | kinds.Alibi | kinds.NoPosition)
    found = encodings(model, max(length, 2), part) if vectors else None
    near = cosines_by_distance(found)._asdict() if found else {}
    adds = isinstance(position, kinds.Relative | kinds.Alibi | kinds.TransformerXL)
    scores = distance_scores(model, length, part) if adds else None
    initial = settings.initial
    spread = initial.deviation if isinstance(initial, kinds.Normal) else settings.width**-0.5
    return {
        "kind": position.kind,
        "part": part or parts[0],
        "parts": parts,
        "length": length,
        "longest": longest,
        "base": getattr(position, "base", None),
        # Deviation of the cosine of random vectors, and of learned scores before training.
        "deviation": None if found is None else found.matrix.shape[1] ** -0.5,
        "untrained": spread if isinstance(position, kinds.Relative) else None,
        "encodings": found
        and {
            "matrix": view.packed(found.matrix),
            "angles": None if found.angles is None else view.packed(found.angles),
            "cosines": view.packed(found.cosines),
            # For patches, cosines are enough to send.
            "dots": None if found.grid is not None else view.packed(found.dots),
            "grid": found.grid and list(found.grid),
            "first": found.first,
            "order": found.order,
            "near": {name: value.tolist() if isinstance(value, Tensor) else value for name, value in near.items()},
        },
        "scores": scores and {"distances": scores.distances.tolist(), "values": view.packed(scores.scores)},
    }


QUESTION = view.PageQuestion(
    "positions", PositionsRequest, lambda study, asked: positions_answer(study.loaded, asked.length, asked.part)
)


def _stored(page: view.SavedPage) -> Iterator[view.StoredAnswer]:
    yield page.ask(QUESTION, PositionsRequest())
    if isinstance(page.study.loaded, Translator):
        for part in _parts(page.study.network):
            yield page.ask(QUESTION, PositionsRequest(part=part), False)


POSITIONS = view.PageView("positions", (QUESTION,), _stored, view.is_transformer)
