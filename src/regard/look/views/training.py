"""Training view: what one training step does with the current input, by a copy of the model.

A model that writes reads the true tokens, shifted by one (teacher forcing); an encoder reads a text with masked tokens.
The loss is the mean of the cross-entropies, without dropout and label smoothing. P: predicted places, C: vocabulary or
classes.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from regard.decoding.settings import Absolute, Rules, Sampling
from regard.errors import InputError
from regard.look import input as inputs
from regard.look.study import Study, StudyRun
from regard.look.views import view
from regard.look.views.decode import decode_steps
from regard.models.families import Decoder, EncoderDecoder
from regard.models.settings import Classification, Masked, NextSentence
from regard.training.doctor import RunHistory
from regard.training.optimizers import build_optimizers
from regard.training.run import is_run
from regard.training.settings import AdamW, Sgd

MAX_STEPS, FREE, POINTS = 20, 64, 200
"""Most updates, tokens that are written without teacher forcing, and points of a curve."""
EVERY = 7
"""One of so many tokens is masked, as 15 % in BERT."""
_PART = re.compile(r"\w+\.\d+\.(?:attention|cross|ffn)|heads\.\w+|\w+")


class TrainingRequest(view.RunRequest):
    """The loss of a run, and its change after some updates of a copy of the model."""

    steps: int = Field(default=0, ge=0, le=MAX_STEPS)
    optimizer: Literal["sgd", "adamw"] = "sgd"
    rate: float = Field(default=0.01, gt=0, le=10)
    masked: list[view.Count] = Field(default=[], max_length=4096)
    """Places of an encoder's text that are masked. None: every seventh."""
    answer: view.Count | None = None
    """The true class, for a head over the whole input. None: the model's own answer."""


@dataclass(frozen=True)
class Lesson:
    """What the model reads, and what it should answer at some places of one output."""

    read: inputs.ReadInput
    output: str
    places: list[int]
    truth: list[int]

    def losses(self, network: nn.Module) -> tuple[Tensor, Tensor]:
        """The cross-entropies, `[P]`, and the logits, `[P, C]`."""
        logits_PC = inputs.logits_of(network, self.read)[self.output][self.places].float()
        return functional.cross_entropy(logits_PC, logits_PC.new_tensor(self.truth).long(), reduction="none"), logits_PC


def training(study: Study, run: StudyRun, asked: TrainingRequest) -> view.Answer:
    """Losses before and after `asked.steps` updates of a copy of the model, each with the same input.

    Each of `rows` has the place, the true answer, and `before` and `after`: its `loss` and the model's own `guess`.
    `losses` are the means before each update and after the last, `expected` is the change that the gradient predicts.
    Each of `parts` has the norms of its gradient, its weights and its change. `free` are the tokens that the model
    writes if it reads its own. `classes` are those of a head over the whole input. `curve` is
    that of the run's log, if the model is a run.
    """
    lesson = _lesson(study, run, asked)
    with torch.inference_mode(False), torch.enable_grad():
        network: nn.Module = copy.deepcopy(study.network).float().requires_grad_()
        settings = (Sgd if asked.optimizer == "sgd" else AdamW)(rate=asked.rate)
        optimizers = build_optimizers(settings, network)
        begun, slopes = dict(study.network.named_parameters()), dict[str, Tensor]()
        means, ends = [], []
        for step in range(asked.steps + 1):
            losses_P, logits_PC = lesson.losses(network)
            means.append(float(losses_P.detach().mean()))
            if step in (0, asked.steps):
                ends.append((losses_P.detach(), logits_PC.detach()))
            optimizers.zero_grad()
            torch.autograd.backward(losses_P.mean())
            if not step:
                copied = torch.clone if asked.steps else torch.detach
                slopes = {n: copied(each.grad) for n, each in network.named_parameters() if each.grad is not None}
            for part in optimizers.parts if step < asked.steps else ():
                part.step()
    ended = dict(network.named_parameters())

    def change(name: str) -> Tensor:
        return ended[name].detach() - begun[name].detach().float()

    name_of = inputs.names_in(study.loaded, lesson.output)
    classes = 0 if study.writes or isinstance(_head(study)[1], Masked) else logits_PC.shape[1]
    rows = zip(lesson.places, lesson.truth, *(_answers(*end, name_of) for end in (ends[0], ends[-1])), strict=True)

    def norm(values: Iterable[Tensor]) -> float:
        return math.sqrt(sum(float(each.detach().double().square().sum()) for each in values))

    return {
        "output": lesson.output,
        "classes": [name_of(i) for i in range(classes)],
        "rows": [
            {"place": place, "truth": name_of(truth), "id": truth, "before": before, "after": after}
            for place, truth, before, after in rows
        ],
        "losses": means,
        "expected": sum(float((slopes[name].double() * change(name)).sum()) for name in slopes),
        "parts": [
            {
                "name": part,
                "weights": norm(begun[name] for name in names),
                "gradient": norm(slopes[name] for name in names if name in slopes),
                "change": norm(change(name) for name in names),
            }
            for part, names in _parts(network).items()
        ],
        "free": _free(study, run) if study.writes else [],
        "curve": _curve(study),
    }


def _answers(losses_P: Tensor, logits_PC: Tensor, name_of: Any) -> Iterator[view.Answer]:
    shares_P, best_P = logits_PC.softmax(-1).max(-1)
    for loss, share, best in zip(losses_P.tolist(), shares_P.tolist(), best_P.tolist(), strict=True):
        yield {"loss": loss, "guess": name_of(best), "id": best, "chance": share}


def _parts(network: Any) -> dict[str, list[str]]:
    """The parameters of each part. A shared parameter has the names of all its parts: `source, target, output`."""
    found: dict[int, list[str]] = {}
    for name, each in network.named_parameters(remove_duplicate=False):
        found.setdefault(id(each), []).append(_PART.findall(name)[0])
    if isinstance(network, Decoder | EncoderDecoder) and network.output.weight is None:
        found[id(network.output.matrix)].append("output")
    parts: dict[str, list[str]] = {}
    for name, each in network.named_parameters():
        parts.setdefault(", ".join(dict.fromkeys(found[id(each)])), []).append(name)
    return parts


def _lesson(study: Study, run: StudyRun, asked: TrainingRequest) -> Lesson:
    read = run.read
    if study.writes:
        known = [(place, token) for place, token in enumerate(read.follows) if token is not None]
        if not known:
            raise InputError("text has one token, so that nothing is predicted; write a longer one")
        return Lesson(read, "output", *map(list, zip(*known, strict=True)))
    output, head, mask = _head(study)
    if not isinstance(head, Masked):
        logits_C = inputs.forward(study.loaded, read)[output][0]
        if (asked.answer or 0) >= len(logits_C):
            raise InputError(f"answer ({asked.answer}) must be less than {len(logits_C)}, the number of classes")
        return Lesson(read, output, [0], [int(logits_C.argmax()) if asked.answer is None else asked.answer])
    side = read.sides["encoder"]
    words = [i for i, token in enumerate(side.tokens) if token.span != inputs.NO_SPAN and token.id != mask]
    places = sorted({*asked.masked} & {*words}) or words[EVERY // 2 :: EVERY] or words[:1]
    if not places:
        raise InputError("text has no token that can be masked; write some words")
    hidden = inputs.InputToken(inputs.token_name(study.loaded, mask), mask, inputs.NO_SPAN)
    tokens = [hidden if i in places else token for i, token in enumerate(side.tokens)]
    masked = replace(read, sides={"encoder": inputs.InputSide(side.text, tokens)})
    return Lesson(masked, output, places, [side.ids[i] for i in places])


def _free(study: Study, run: StudyRun) -> list[view.Answer]:
    """What the model writes greedily after its first token."""
    tokens = run.read.sides["decoder"].tokens
    begun = replace(run.read, sides=run.read.sides | {"decoder": inputs.InputSide("", tokens[:1])})
    rules = Rules(longest=Absolute(tokens=min(len(tokens), FREE)))
    found = decode_steps(study, replace(run.plain or run, read=begun), Sampling(), rules)
    return [step["token"] for step in found["steps"]]


def _curve(study: Study) -> view.Answer | None:
    """Training loss (a running median) and validation loss of a run, at up to `POINTS` steps."""
    if not is_run(study.loaded.directory):
        return None
    run = RunHistory(study.loaded.directory)
    train, valid = (run.curve(kind, "loss").finite() for kind in ("train", "valid"))
    if not len(train):
        return None
    steps = np.unique(np.linspace(0, len(train) - 1, POINTS).astype(int))
    smooth = train.smoothed(max(len(train) // 40, 1))
    found = {"steps": smooth.steps[steps].tolist(), "train": smooth.values[steps].tolist(), "valid": None}
    return found | ({"valid": np.interp(found["steps"], valid.steps, valid.values).tolist()} if len(valid) else {})


def _head(study: Study) -> tuple[str, Any, int]:
    """The head that is trained, that for masked tokens or else the first over classes, and the mask token."""
    tokenizers, heads = study.loaded.tokenizers, getattr(study.loaded.settings, "heads", {})
    mask = -1 if tokenizers is None else tokenizers.source.roles.get("mask", -1)
    fits = [(*each, mask) for each in heads.items() if isinstance(each[1], Masked) and mask >= 0]
    kinds = Classification | NextSentence
    fits += [
        (*each, mask) for each in heads.items() if isinstance(each[1], kinds) and getattr(each[1], "classes", 2) > 1
    ]
    return fits[0] if fits else ("", None, mask)


QUESTION = view.PageQuestion(
    "training", TrainingRequest, lambda study, asked: training(study, study.known(asked.run), asked)
)


def _stored(page: view.SavedPage) -> Iterator[view.StoredAnswer]:
    for steps in (0, 1):
        yield page.ask(QUESTION, TrainingRequest(run=page.run.key, steps=steps), not steps)


TRAINING = view.PageView(
    "training",
    (QUESTION,),
    _stored,
    lambda study: view.is_transformer(study) and (study.writes or bool(_head(study)[0])),
)
