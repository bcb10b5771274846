"""Image view: attention over the patches of an image, and what the model loses without the attended patches.

H: heads, T: tokens of an image (the class token is first, if there is one), N: patches, R: random draws.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from regard.errors import InputError
from regard.look.study import Study, StudyRun
from regard.look.views import heads
from regard.look.views.view import Answer, Count, PageQuestion, PageView, RunRequest, SavedPage, StoredAnswer
from regard.models.families import Vision
from regard.models.settings import Classification
from regard.models.settings import Vision as VisionSettings
from regard.tasks.image import to_input

CLASS = -1
"""The class token as a query; patches are counted from 0."""
DRAWS = 20
"""Random heads, rollouts or sets of patches of a comparison."""
BATCH = 8


class PatchQuery(NamedTuple):
    """Whose attention to show."""

    token: int | None = CLASS
    """A patch, or the class token. None: the mean over all patches."""
    layer: int = 0
    head: int = 0
    rollout: bool = False
    """The rollout of the whole stack instead of one head."""


def patch_attention(study: Study, run: StudyRun, query: PatchQuery) -> tuple[Tensor, float]:
    """The attention of a query to the patches, `[N]`, and to the class token, with the changes of the run."""
    start_T, skipped = _start(study, query)
    (group,) = study.attentions
    if query.rollout:
        row_T = start_T @ heads.rollout(study, run, "rollout.encoder")
    elif 0 <= query.layer < group.layers and 0 <= query.head < group.heads:
        row_T = start_T @ _weights(study, run, query.layer)[query.head]
    else:
        raise InputError(
            f"layer {query.layer}, head {query.head}, is not in this model: it has {group.layers} layers of "
            f"{group.heads} heads, counted from 0"
        )
    return row_T[skipped:], float(row_T[:skipped].sum())


def concentration(study: Study, run: StudyRun, query: PatchQuery, draws: int = DRAWS, seed: int = 0) -> Answer:
    """The entropy of a map over the patches, in nats (0 is a single patch), without the class token.

    `uniform` is the maximum: every patch gets the same. `chance` is the mean of random other heads, or of rollouts
    through one random head of each layer (None: there are none).
    """
    patches_N, _ = patch_attention(study, run, query)
    rows_RT = (_random_rollouts if query.rollout else _random_heads)(study, run, query, draws, seed)
    skipped = rows_RT.shape[1] - len(patches_N)
    others = [value for row_T in rows_RT if not math.isnan(value := _entropy(row_T[skipped:]))]
    return {
        "entropy": _entropy(patches_N),
        "uniform": math.log(len(patches_N)),
        "chance": sum(others) / len(others) if others else None,
        "draws": len(others),
    }


def occlude(study: Study, run: StudyRun, query: PatchQuery, count: int, draws: int = DRAWS, seed: int = 0) -> Answer:
    """The probability of the model's answer before and after patches are greyed out, with the run's changes.

    `after` is without the `count` patches that the query attends to most (`patches`), `random` without as many random
    ones: the mean over `draws`. A grey patch has the mean of the image in each channel.
    """
    settings, network = _vision_settings(study), study.network
    patches = math.prod(settings.grid)
    if not 1 <= count <= patches:
        raise InputError(f"count ({count}) must be from 1 to {patches}, the number of patches")
    name = next((name for name, head in settings.heads.items() if isinstance(head, Classification)), None)
    if name is None:
        raise InputError(f"model {study.loaded.name} has no classification head, so it has no answer to lose")
    assert run.read.pixels is not None
    assert isinstance(network, Vision)
    answer = next(each for each in run.answers if each.name == name).rows[0].candidates[0]
    attended_N, _ = patch_attention(study, run, query)
    chosen = attended_N.sort(descending=True, stable=True).indices[:count].tolist()
    draw = random.Random(seed)
    sets = [chosen, *(draw.sample(range(patches), count) for _ in range(draws))]
    images = [greyed(run.read.pixels, each, settings.patch) for each in sets]
    chances: list[float] = []
    with study.edited(run), torch.inference_mode():
        for first in range(0, len(images), BATCH):
            batch = torch.stack(images[first : first + BATCH]).to(next(network.parameters()).device)
            logits = network.heads[name](network(to_input(batch, network)))
            chances += logits.float().softmax(-1)[:, answer.id].tolist()
    return {
        "answer": answer.text,
        "before": answer.chance,
        "after": chances[0],
        "random": sum(chances[1:]) / draws,
        "draws": chances[1:],
        "patches": chosen,
    }


def greyed(image_CHW: Tensor, patches: Sequence[int], size: int) -> Tensor:
    """The image with some patches in its mean colour. Patches are counted row by row."""
    found = image_CHW.clone()
    mean_C11 = image_CHW.float().mean((1, 2), keepdim=True).round().to(image_CHW.dtype)
    columns = image_CHW.shape[2] // size
    for patch in patches:
        top, left = patch // columns * size, patch % columns * size
        found[:, top : top + size, left : left + size] = mean_C11
    return found


def _entropy(patches_N: Tensor) -> float:
    return float(heads.entropy(patches_N / patches_N.sum()))


def _weights(study: Study, run: StudyRun, layer: int) -> Tensor:
    return study.tensor(run.key, f"encoder.{layer}.attention.weights")


def _random_heads(study: Study, run: StudyRun, query: PatchQuery, draws: int, seed: int) -> Tensor:
    """`[R, T]`: the same query in random other heads, each at most once."""
    start_T, _ = _start(study, query)
    (group,) = study.attentions
    every = [(layer, head) for layer in range(group.layers) for head in range(group.heads)]
    others = [each for each in every if each != (query.layer, query.head)]
    drawn = sorted(random.Random(seed).sample(others, min(draws, len(others))))
    rows = [start_T @ _weights(study, run, layer)[head] for layer, head in drawn]
    return torch.stack(rows) if rows else start_T.new_zeros(0, len(start_T))


def _random_rollouts(study: Study, run: StudyRun, query: PatchQuery, draws: int, seed: int) -> Tensor:
    """`[R, T]`: rollouts through one random head of each layer."""
    start_T, _ = _start(study, query)
    draw = random.Random(seed)
    rows_RT = start_T.expand(draws, -1)
    for layer in reversed(range(study.attentions[0].layers)):
        weights_HTT = _weights(study, run, layer)
        chosen = [draw.randrange(len(weights_HTT)) for _ in range(draws)]
        steps = {head: heads.with_residual(weights_HTT[head]) for head in sorted(set(chosen))}
        rows_RT = torch.stack([row_T @ steps[head] for row_T, head in zip(rows_RT, chosen, strict=True)])
    return rows_RT


def _start(study: Study, query: PatchQuery) -> tuple[Tensor, int]:
    """`[T]`: 1 at the query; and the number of tokens before the patches."""
    settings = _vision_settings(study)
    skipped, patches = int(settings.class_token), math.prod(settings.grid)
    start_T = torch.zeros(skipped + patches)
    if query.token is None:
        start_T[skipped:] = 1 / patches
    elif -skipped <= query.token < patches:
        start_T[skipped + query.token] = 1
    else:
        first = "−1 (the class token)" if skipped else "0"
        raise InputError(f"patch ({query.token}) must be from {first} to {patches - 1}")
    return start_T, skipped


def _vision_settings(study: Study) -> VisionSettings:
    settings = study.loaded.settings
    if not isinstance(settings, VisionSettings):
        raise InputError(f"model {study.loaded.name} is of kind {settings.kind} and reads no images; choose another")
    return settings


class PatchesRequest(RunRequest):
    """The attention of a query over the patches."""

    query: int | None = Field(default=CLASS, ge=CLASS, le=2**31)
    """A patch, or −1 for the class token. None: the mean over all patches."""
    layer: Count = 0
    head: Count = 0
    rollout: bool = False

    def patch_query(self) -> PatchQuery:
        return PatchQuery(self.query, self.layer, self.head, self.rollout)


class OccludeRequest(PatchesRequest):
    """The effect of greying out the most attended patches."""

    count: int = Field(default=1, ge=1, le=2**16)
    seed: int = Field(default=0, ge=0, le=2**31)


def _patches_answer(study: Study, request: PatchesRequest) -> Answer:
    run, query = study.known(request.run), request.patch_query()
    patches_N, rest = patch_attention(study, run, query)
    return {"patches": patches_N.tolist(), "rest": rest, "concentration": concentration(study, run, query)}


def _occlude_answer(study: Study, request: OccludeRequest) -> Answer:
    return occlude(study, study.known(request.run), request.patch_query(), request.count, seed=request.seed)


PATCHES = PageQuestion("patches", PatchesRequest, _patches_answer)
OCCLUDE = PageQuestion("occlude", OccludeRequest, _occlude_answer)


def _stored(page: SavedPage) -> Iterator[StoredAnswer]:
    yield from heads.stored_heads(page)
    _, layer, head = page.location(0)
    query = CLASS if page.run.sides["encoder"].tokens[0].id < 0 else None
    for rollout in (False, True):
        request = PatchesRequest(run=page.run.key, query=query, layer=layer, head=head, rollout=rollout)
        yield page.ask(PATCHES, request)


IMAGE = PageView("image", (PATCHES, OCCLUDE), _stored, lambda study: study.loaded.settings.kind == "vision")
