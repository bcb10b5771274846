"""All that can be shown of a model's positions, and how alike places are by how far apart they lie.

Cosines of places say something only beside others: those of any two places, since all may share a direction, and those
of random vectors, which are 0 but for a deviation of 1 / √width.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.blocks.image_positions import places_2d
from regard.blocks.recording import network_of
from regard.blocks.settings import (
    Alibi,
    NoPosition,
    Relative,
    Rotary,
    Rotary2d,
    Sinusoidal,
    Sinusoidal2d,
    TransformerXL,
)
from regard.errors import InputError
from regard.look.positions import DistanceScores, Encodings, Part, distance_scores, encodings
from regard.models.settings import EncoderDecoder, Initial, Normal, Vision
from regard.tasks.recipe import reach
from regard.use.model import Loaded

PLACES = 64
"""That are shown, unless told otherwise."""
MOST_PLACES = 256
MOST_PATCHES = 1024
"""Each is compared with each."""


class Nearness(NamedTuple):
    """Cosines of places by how far apart they lie; of patches, rounded to whole patches."""

    distances: Tensor
    """`[R]`, from 0."""
    mean: Tensor
    """`[R]`"""
    least: Tensor
    most: Tensor
    whole: float
    """The mean over each two places, however far apart."""


class Placed(NamedTuple):
    """The positions of one side of a model."""

    kind: str
    """As `position.kind` in the settings."""
    part: Part
    parts: tuple[Part, ...]
    """The sides that the model has."""
    length: int
    longest: int
    """The most places that can be shown."""
    encodings: Encodings | None
    """None where places have no vectors."""
    nearness: Nearness | None
    scores: DistanceScores | None
    """What attention adds by distance; none where it adds nothing."""
    base: float | None
    """Of sines and cosines."""
    deviation: float | None
    """By how much a cosine of random vectors of that width strays from 0."""
    untrained: float | None
    """By how much learned scores spread before training; none where none are learned."""


def placed(model: nn.Module | Loaded, length: int | None = None, part: Part | None = None) -> Placed:
    """What a model's positions are: vectors, scores by distance, both, or neither."""
    settings = network_of(model).settings
    position = settings.position
    parts: tuple[Part, ...] = ("encoder", "decoder") if isinstance(settings, EncoderDecoder) else ("encoder",)
    parts = ("decoder",) if settings.kind == "decoder" else parts
    longest = min(MOST_PLACES, reach(settings) or MOST_PLACES)
    if isinstance(settings, Vision):
        longest = math.prod(settings.grid)
        if longest > MOST_PATCHES:
            raise InputError(
                f"image {settings.image} has {longest:,} patches, and the positions of at most {MOST_PATCHES:,} are "
                "compared; larger patches would be fewer"
            )
        length = longest
    length = min(PLACES, longest) if length is None else length
    if not min(2, longest) <= length <= longest:
        raise InputError(f"length ({length}) must lie between 2 and {longest}, what can be shown; change it")
    vectors = not isinstance(position, Relative | Alibi | NoPosition)
    found = encodings(model, max(length, 2), part) if vectors else None
    adds = isinstance(position, Relative | Alibi | TransformerXL)
    return Placed(
        position.kind,
        part or parts[0],
        parts,
        length,
        longest,
        found,
        None if found is None else nearness(found),
        distance_scores(model, length, part) if adds else None,
        position.base if isinstance(position, Sinusoidal | Sinusoidal2d | Rotary | Rotary2d | TransformerXL) else None,
        None if found is None else found.matrix.shape[1] ** -0.5,
        _untrained(settings.initial, settings.width) if isinstance(position, Relative) else None,
    )


def nearness(found: Encodings) -> Nearness:
    """How alike places are, by how far apart they lie."""
    number = torch.arange(len(found.matrix))
    if found.grid is None:
        apart = (number[:, None] - number).abs()
    else:
        x, y = (place.double() for place in places_2d(found.grid))
        apart = ((x[:, None] - x).square() + (y[:, None] - y).square()).sqrt().round().long()
    cosines = found.cosines
    groups = [cosines[apart == distance] for distance in range(int(apart.max()) + 1)]
    mean, least, most = (torch.stack([getattr(group, take)() for group in groups]) for take in ("mean", "min", "max"))
    different = cosines[number[:, None] != number]
    whole = float(different.mean()) if len(different) else 1.0
    return Nearness(torch.arange(len(groups)), mean, least, most, whole)


def _untrained(initial: Initial, width: int) -> float:
    """The deviation that tables begin with."""
    return initial.deviation if isinstance(initial, Normal) else width**-0.5
