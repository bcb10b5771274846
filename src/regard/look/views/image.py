"""Image view: attention over the patches of an image, and the answer while patches are deleted.

H: heads, T: tokens of an image (the class token is first, if there is one), N: patches, R: random draws.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence

import torch
from pydantic import Field
from torch import Tensor

from regard.blocks.recording import record
from regard.errors import InputError
from regard.look.attribution import attribute
from regard.look.input import Candidate
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
"""Random heads or rollouts of a comparison."""
BATCH = 8
TOKENS = "embedding.tokens"
POINTS = 16
"""Most points of an integrated gradient: with half of them the areas of deletion curves are the same."""
STEPS = 10
"""Points of a deletion curve after the first."""


class PatchesRequest(RunRequest):
    """The attention of a query over the patches."""

    query: int | None = Field(default=CLASS, ge=CLASS, le=2**31)
    """A patch, or −1 for the class token. None: the mean over all patches."""
    layer: Count = 0
    head: Count = 0
    rollout: bool = False
    """The rollout of the whole stack instead of one head."""
    gradient: bool = False
    """How much each patch adds to the model's answer, instead of attention; the query does not matter."""


def patch_attention(study: Study, asked: PatchesRequest) -> tuple[Tensor, float]:
    """The attention of a query to the patches, `[N]`, and to the class token, with the changes of the run.

    What a patch adds to the answer can be negative.
    """
    start_T, skipped = _start(study, asked)
    (group,) = study.attentions
    if asked.gradient:
        return relevance(study, asked.run), 0.0
    elif asked.rollout:
        row_T = start_T @ heads.rollout(study, study.known(asked.run), "rollout.encoder")
    elif asked.layer < group.layers and asked.head < group.heads:
        row_T = start_T @ study.tensor(asked.run, f"{group.at(asked.layer)}.weights")[asked.head]
    else:
        raise InputError(
            f"layer {asked.layer}, head {asked.head}, is not in this model: it has {group.layers} layers of "
            f"{group.heads} heads, counted from 0"
        )
    return row_T[skipped:], float(row_T[:skipped].sum())


def relevance(study: Study, key: str) -> Tensor:
    """`[N]`: how much each patch adds to the log-probability of the model's answer.

    Integrated gradients (Sundararajan et al. 2017) on the line from the image in its mean colour to the image. The
    vectors of the patches are linear in the pixels, so the sum over a vector is the sum over the pixels of its patch.
    """
    run, network, settings = study.known(key), study.network, _vision_settings(study)
    name, answer = _answer(study, run)
    assert isinstance(network, Vision)
    assert run.read.pixels is not None
    grey = greyed(run.read.pixels, range(math.prod(settings.grid)), settings.patch)
    device = next(network.parameters()).device
    images, empty = (to_input(each[None].to(device), network) for each in (run.read.pixels, grey))

    def value() -> Tensor:
        logits: Tensor = network.heads[name](network(images))[0]
        return logits.float().log_softmax(-1)[answer.id]

    with torch.no_grad(), record(study.loaded, TOKENS) as seen:
        network(empty)
    found = attribute(study.loaded, value, TOKENS, seen[TOKENS], most_steps=POINTS, edit=study.changes(run))
    return found.scores[0, settings.learned_tokens :]


def deletion(study: Study, asked: PatchesRequest, steps: int = STEPS, draws: int = 5, seed: int = 0) -> Answer:
    """The probability of the answer while patches are greyed out one after the other (Samek et al. 2017).

    `overlay` removes those first that the map shows strongest, `centre` those in the middle of the image, `random` is
    the mean of `draws` random orders. `area` is the area below each curve: a faithful map has a small one.
    """
    settings, run = _vision_settings(study), study.known(asked.run)
    name, answer = _answer(study, run)
    patches = math.prod(settings.grid)
    counts = sorted({round(patches * step / steps) for step in range(steps + 1)})
    rows, columns = settings.grid
    far = [(i // columns - (rows - 1) / 2) ** 2 + (i % columns - (columns - 1) / 2) ** 2 for i in range(patches)]
    draw = random.Random(seed)
    orders = [
        patch_attention(study, asked)[0].sort(descending=True, stable=True).indices.tolist(),
        sorted(range(patches), key=far.__getitem__),
        *(draw.sample(range(patches), patches) for _ in range(draws)),
    ]
    assert run.read.pixels is not None
    images = [greyed(run.read.pixels, order[:count], settings.patch) for order in orders for count in counts]
    curves = torch.tensor(_chances(study, run, name, answer.id, images)).view(len(orders), len(counts))
    shares = torch.tensor(counts) / patches
    found = {"overlay": curves[0], "centre": curves[1], "random": curves[2:].mean(0)}
    area = {which: float(torch.trapezoid(curve, shares)) for which, curve in found.items()}
    lines = {which: curve.tolist() for which, curve in found.items()}
    return {"answer": answer.text, "shares": shares.tolist(), **lines, "area": area}


def concentration(study: Study, asked: PatchesRequest, draws: int = DRAWS, seed: int = 0) -> Answer:
    """The entropy of a map over the patches, in nats (0 is a single patch), without the class token.

    `uniform` is the maximum: every patch gets the same. `chance` is the mean of random other heads, or of rollouts
    through one random head of each layer (None: there are none).
    """
    patches_N = patch_attention(study, asked)[0].clamp(min=0)
    start_T, skipped = _start(study, asked)
    (group,) = study.attentions
    draw, rows = random.Random(seed), list[Tensor]()
    layers = [study.tensor(asked.run, f"{group.at(layer)}.weights") for layer in range(group.layers)]
    if asked.gradient:
        pass  # there is one such map
    elif asked.rollout:
        for _ in range(draws):
            rows.append(start_T)
            for weights_HTT in reversed(layers):
                rows[-1] = rows[-1] @ heads.with_residual(weights_HTT[draw.randrange(group.heads)])
    else:
        every = [(layer, head) for layer in range(group.layers) for head in range(group.heads)]
        every.remove((asked.layer, asked.head))
        drawn = draw.sample(every, min(draws, len(every)))
        rows = [start_T @ layers[layer][head] for layer, head in drawn]
    others = [value for row_T in rows if not math.isnan(value := _entropy(row_T[skipped:]))]
    chance = sum(others) / len(others) if others else None
    uniform = math.log(len(patches_N))
    entropy = _entropy(patches_N) if patches_N.any() else 0.0
    return {"entropy": entropy, "uniform": uniform, "chance": chance, "draws": len(others)}


def _answer(study: Study, run: StudyRun) -> tuple[str, Candidate]:
    """The head of the model's answer, and the answer."""
    heads_of = _vision_settings(study).heads
    name = next((name for name, head in heads_of.items() if isinstance(head, Classification)), None)
    if name is None:
        raise InputError(f"model {study.loaded.name} has no classification head, so it has no answer to lose")
    return name, next(each for each in run.answers if each.name == name).rows[0].candidates[0]


def _chances(study: Study, run: StudyRun, head: str, answer: int, images: Sequence[Tensor]) -> list[float]:
    """The probability of a class for each image, with the changes of the run."""
    network, found = study.network, list[float]()
    assert isinstance(network, Vision)
    with study.edited(run), torch.inference_mode():
        for start in range(0, len(images), BATCH):
            batch = torch.stack([*images[start : start + BATCH]]).to(next(network.parameters()).device)
            logits = network.heads[head](network(to_input(batch, network)))
            found += logits.float().softmax(-1)[:, answer].tolist()
    return found


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


def _start(study: Study, asked: PatchesRequest) -> tuple[Tensor, int]:
    """`[T]`: 1 at the query; and the number of tokens before the patches."""
    settings = _vision_settings(study)
    skipped, patches = settings.learned_tokens, math.prod(settings.grid)
    start_T = torch.zeros(skipped + patches)
    if asked.query is None:
        start_T[skipped:] = 1 / patches
    elif 0 <= asked.query < patches:
        start_T[skipped + asked.query] = 1
    elif asked.query == CLASS and settings.class_token:
        start_T[0] = 1
    else:
        first = "−1 (the class token)" if settings.class_token else "0"
        raise InputError(f"patch ({asked.query}) must be from {first} to {patches - 1}")
    return start_T, skipped


def _vision_settings(study: Study) -> VisionSettings:
    settings = study.loaded.settings
    if not isinstance(settings, VisionSettings):
        raise InputError(f"model {study.loaded.name} is of kind {settings.kind} and reads no images; choose another")
    return settings


def _patches(study: Study, asked: PatchesRequest) -> Answer:
    patches_N, rest = patch_attention(study, asked)
    return {"patches": patches_N.tolist(), "rest": rest, "concentration": concentration(study, asked)}


PATCHES = PageQuestion("patches", PatchesRequest, _patches)
DELETION = PageQuestion("deletion", PatchesRequest, deletion)


def _stored(page: SavedPage) -> Iterator[StoredAnswer]:
    yield from heads.stored_heads(page)
    _, layer, head = page.location(0)
    query = CLASS if page.run.sides["encoder"].tokens[0].id < 0 else None
    kinds: list[dict[str, bool]] = [{"rollout": False}, {"rollout": True}]
    with_answer = any(isinstance(each, Classification) for each in _vision_settings(page.study).heads.values())
    for kind in [*kinds, *([{"gradient": True}] if with_answer else [])]:
        request = PatchesRequest(run=page.run.key, query=query, layer=layer, head=head, **kind)
        yield page.ask(PATCHES, request)


IMAGE = PageView("image", (PATCHES, DELETION), _stored, lambda study: study.loaded.settings.kind == "vision")
