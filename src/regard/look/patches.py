"""Attention over the patches of an image: of one head or rolled out, and how concentrated it is beside chance.

H: heads, T: tokens of an image, the class token first where there is one, N: patches.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from regard.errors import InputError
from regard.look.heads import entropy
from regard.look.rollout import with_residual
from regard.look.study import Run, Study
from regard.models.settings import Vision

CLASS = -1
"""The class token, as a query; patches are counted from 0."""
DRAWS = 20
"""Random heads, or paths of heads, that a map is compared with."""


class Query(NamedTuple):
    """Whose attention, and which."""

    token: int | None = CLASS
    """A patch, or the class token; None: the mean over all patches."""
    layer: int = 0
    head: int = 0
    rollout: bool = False
    """The whole stack's rolled-out attention, in the place of one head's."""


class OverPatches(NamedTuple):
    """Where a query looks: shares that are 1 in all."""

    patches_N: Tensor
    rest: float
    """What goes to the class token, which is no part of the image."""


@dataclass(frozen=True)
class Concentration:
    """The entropy of a map over the patches, in nats: 0 is a single patch."""

    entropy: float
    uniform: float
    """Of a map that gives each patch the same; there is no higher one."""
    chance: float
    """The mean of random other heads of the model; of a rollout, of rollouts through one random head of each layer."""
    draws: int


def over_patches(study: Study, run: Run, query: Query) -> OverPatches:
    """The map of a query, with the run's heads silent."""
    start_T, skipped = _start(study, query)
    _require_head(study, query)
    if query.rollout:
        row_T = start_T
        for weights_HTT in _layers(study, run):
            row_T = row_T @ with_residual(weights_HTT[None])[0]
    else:
        row_T = start_T @ study.tensor(run.key, f"encoder.{query.layer}.attention.weights")[query.head]
    return OverPatches(row_T[skipped:], float(row_T[:skipped].sum()))


def concentration(study: Study, run: Run, query: Query, draws: int = DRAWS, seed: int = 0) -> Concentration:
    """How concentrated a map is, beside the uniform one and `draws` random ones; the class token has no part in it."""
    found = over_patches(study, run, query)
    rows_RT = (
        _random_rollouts(study, run, query, draws, seed)
        if query.rollout
        else _random_heads(study, run, query, draws, seed)
    )
    skipped = rows_RT.shape[1] - len(found.patches_N)
    others = [_entropy(row_T[skipped:]) for row_T in rows_RT]
    known = [other for other in others if not math.isnan(other)]
    mean = sum(known) / len(known) if known else math.nan
    return Concentration(_entropy(found.patches_N), math.log(len(found.patches_N)), mean, len(known))


def _entropy(patches_N: Tensor) -> float:
    return float(entropy(patches_N / patches_N.sum()))


def _random_heads(study: Study, run: Run, query: Query, draws: int, seed: int) -> Tensor:
    """`[R, T]`: the same query in random other heads, each at most once."""
    start_T, _ = _start(study, query)
    (place,) = study.attentions
    others = [
        (layer, head)
        for layer in range(place.layers)
        for head in range(place.heads)
        if (layer, head) != (query.layer, query.head)
    ]
    drawn = sorted(random.Random(seed).sample(others, min(draws, len(others))))
    rows = [start_T @ study.tensor(run.key, f"encoder.{layer}.attention.weights")[head] for layer, head in drawn]
    return torch.stack(rows) if rows else start_T.new_zeros(0, len(start_T))


def _random_rollouts(study: Study, run: Run, query: Query, draws: int, seed: int) -> Tensor:
    """`[R, T]`: rollouts through one random head of each layer."""
    start_T, _ = _start(study, query)
    draw = random.Random(seed)
    rows_RT = start_T.expand(draws, -1)
    for weights_HTT in _layers(study, run):
        chosen = [draw.randrange(len(weights_HTT)) for _ in range(draws)]
        steps = {head: with_residual(weights_HTT[None, head, None])[0] for head in sorted(set(chosen))}
        rows_RT = torch.stack([row_T @ steps[head] for row_T, head in zip(rows_RT, chosen, strict=True)])
    return rows_RT


def _layers(study: Study, run: Run) -> Iterator[Tensor]:
    """`[H, T, T]` of each layer, the last first: a row of the product of all needs no more than a row at a time."""
    (place,) = study.attentions
    for layer in reversed(range(place.layers)):
        yield study.tensor(run.key, f"encoder.{layer}.attention.weights")


def _start(study: Study, query: Query) -> tuple[Tensor, int]:
    """`[T]`, one where the query stands, and how many tokens come before the patches."""
    settings = vision_of(study)
    skipped, patches = int(settings.class_token), settings.grid[0] * settings.grid[1]
    start_T = torch.zeros(skipped + patches)
    if query.token is None:
        start_T[skipped:] = 1 / patches
    elif -skipped <= query.token < patches:
        start_T[skipped + query.token] = 1
    else:
        first = "−1, the class token," if skipped else "0"
        raise InputError(f"patch ({query.token}) is not there; choose one from {first} to {patches - 1}")
    return start_T, skipped


def _require_head(study: Study, query: Query) -> None:
    (place,) = study.attentions
    if not query.rollout and not (0 <= query.layer < place.layers and 0 <= query.head < place.heads):
        raise InputError(
            f"layer {query.layer}, head {query.head}, is not in this model, which has {place.layers} layers of "
            f"{place.heads} heads, counted from 0; choose another"
        )


def vision_of(study: Study) -> Vision:
    """The settings of a model that reads images."""
    settings = study.loaded.settings
    if not isinstance(settings, Vision):
        raise InputError(f"model ({study.loaded.name}) is of kind {settings.kind} and reads no images; choose another")
    return settings
