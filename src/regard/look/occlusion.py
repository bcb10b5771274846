"""Does it matter what a model looked at? The most attended patches are greyed out, and as many random ones beside."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from regard.errors import InputError
from regard.look.patches import DRAWS, Query, over_patches, vision_of
from regard.look.study import Run, Study
from regard.models.families import Vision
from regard.models.settings import Classification
from regard.tasks.image import to_input

TOGETHER = 8
"""Images that are read at once."""


@dataclass(frozen=True)
class Occlusion:
    """The probability of the model's answer, before and after patches were greyed out."""

    answer: str
    before: float
    after: float
    """Without the most attended patches."""
    random: float
    """Without as many random patches: the mean over the draws."""
    draws: list[float]
    """Of each draw."""
    patches: list[int]
    """The most attended ones, the first one most."""


def occlude(study: Study, run: Run, query: Query, count: int, draws: int = DRAWS, seed: int = 0) -> Occlusion:
    """What greying out the `count` patches does that a query looks at most, beside as many random ones.

    A grey patch has the image's mean in each channel. The run's heads are silent.
    """
    settings, network = vision_of(study), study.network
    patches = settings.grid[0] * settings.grid[1]
    if not 1 <= count <= patches:
        raise InputError(f"count ({count}) must be from 1 to {patches}, the patches of an image; choose another")
    name = next((name for name, head in settings.heads.items() if isinstance(head, Classification)), None)
    if name is None:
        raise InputError(
            f"model ({study.loaded.name}) has no head for classes, so it has no answer to lose; choose another"
        )
    assert run.read.pixels is not None
    assert isinstance(network, Vision)
    answer = next(each for each in run.answers if each.name == name).rows[0].candidates[0]
    chosen = over_patches(study, run, query).patches_N.sort(descending=True, stable=True).indices[:count].tolist()
    draw = random.Random(seed)
    sets: list[Sequence[int]] = [chosen, *(draw.sample(range(patches), count) for _ in range(draws))]
    chances: list[float] = []
    with study.edited(run), torch.inference_mode():
        for first in range(0, len(sets), TOGETHER):
            images = torch.stack(
                [greyed(run.read.pixels, some, settings.patch) for some in sets[first : first + TOGETHER]]
            )
            scores = network.heads[name](network(to_input(images.to(next(network.parameters()).device), network)))
            chances += scores.float().softmax(-1)[:, answer.id].tolist()
    return Occlusion(answer.text, answer.chance, chances[0], sum(chances[1:]) / draws, chances[1:], chosen)


def greyed(image_CHW: Tensor, patches: Sequence[int], size: int) -> Tensor:
    """The image with some patches in its mean colour; patches are counted in rows."""
    found = image_CHW.clone()
    mean_C11 = image_CHW.float().mean((1, 2), keepdim=True).round().to(image_CHW.dtype)
    columns = image_CHW.shape[2] // size
    for patch in patches:
        top, left = patch // columns * size, patch % columns * size
        found[:, top : top + size, left : left + size] = mean_C11
    return found
