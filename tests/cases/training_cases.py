"""Small jobs of every family over made-up examples, for tests of the loop: no tokenizer, no files but prepared ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from regard.data.columns import Examples, LabelColumn, PixelColumn, TokenColumn
from regard.data.settings import RawText, Split
from regard.data.store import Ragged, Store, StoreWriter
from regard.models import settings as models
from regard.models.build import Model, build
from regard.settings import to_table
from regard.tasks.image import Image, ImageTask
from regard.tasks.language import Language, LanguageTask
from regard.tasks.masked import Masked, MaskedColumn, MaskedTask
from regard.tasks.task import Task, TrainingData
from regard.tasks.translate import Translate, TranslateTask
from regard.training.distribution import Workers
from regard.training.loop import Trainer
from regard.training.report import Display
from regard.training.run import Run
from regard.training.settings import Train

FAMILIES = ("translate", "language", "masked", "image")
VOCABULARY = 32
SPECIAL = 4
"""Tokens 0 to 3: pad, start, end, mask."""
SHAPE = (1, 8, 8)
CLASSES = 5

SMALL: dict[str, Any] = {"width": 16, "depth": 2, "attention": {"heads": 2}, "ffn": {"kind": "dense", "hidden": 32}}


def model_settings(family: str, **changes: Any) -> models.ModelSettings:
    """A model of two narrow layers; dropout is off unless asked for."""
    if family == "experts":
        ffn = {"kind": "experts", "experts": 5, "active": 2, "hidden": 16, "bias_rate": 0.01}
        return model_settings("language", ffn=ffn, **changes)
    common = {**SMALL, "dropout": 0.0, **changes}
    if family == "translate":
        return models.EncoderDecoder(vocabulary=VOCABULARY, **common)
    if family == "language":
        return models.Decoder(vocabulary=VOCABULARY, **common)
    if family == "masked":
        return models.Encoder(vocabulary=VOCABULARY, heads={"masked": {"kind": "masked"}}, **common)
    head = {"kind": "classification", "classes": CLASSES}
    return models.Vision(image=SHAPE[1:], patch=4, channels=1, heads={"label": head}, **common)


def prepare(family: str, directory: Path, count: int, seed: int = 0, lengths: tuple[int, int] = (1, 10)) -> Store:
    """`count` random examples, whose texts have so many tokens; labels of images depend on their pixels."""
    if (directory / "about.json").exists():
        return Store(directory)
    chance = np.random.default_rng(seed)

    def text(start: bool) -> list[int]:
        body = chance.integers(SPECIAL, VOCABULARY, chance.integers(*lengths)).tolist()
        return [*([1] if start else []), *body, 2]

    if family == "image":
        pixels = chance.integers(0, 256, (count, int(np.prod(SHAPE)))).astype(np.uint8)
        labels = pixels.sum(axis=1) % CLASSES
        columns = {"pixels": pixels.tolist(), "label": labels[:, None].tolist()}
    elif family == "translate":
        columns = {"source": [text(False) for _ in range(count)], "target": [text(True) for _ in range(count)]}
    else:
        columns = {"text": [text(True) for _ in range(count)]}
    writer = StoreWriter(directory, dict.fromkeys(columns, 256 if family == "image" else VOCABULARY))
    writer.append({name: Ragged.of(rows) for name, rows in columns.items()})
    writer.finish()
    return Store(directory)


def examples(family: str, store: Store) -> Examples:
    if family == "image":
        settings = model_settings(family)
        assert isinstance(settings, models.Vision)
        return Examples(store, {"pixels": PixelColumn(SHAPE, settings.tokens), "label": LabelColumn()})
    if family == "translate":
        return Examples(store, {"source": TokenColumn(VOCABULARY), "target": TokenColumn(VOCABULARY, predict=True)})
    if family == "masked":
        return Examples(store, {"text": MaskedColumn(VOCABULARY, mask=3, special=(0, 1, 2))})
    return Examples(store, {"text": TokenColumn(VOCABULARY, predict=True)})


def task(family: str, model: models.ModelSettings) -> Task:
    if family == "image":
        return ImageTask(Image(), model, None, {"label": tuple("abcde")})
    if family == "translate":
        return TranslateTask(Translate(smoothing=0.0), model)
    return MaskedTask(Masked(), model) if family == "masked" else LanguageTask(Language(), model)


@dataclass
class Job:
    """All that a trainer needs."""

    family: str
    train: Train
    directory: Path
    examples: int = 40
    valid: int = 12
    model_changes: dict[str, Any] | None = None

    def model(self) -> Model:
        torch.manual_seed(self.train.seed)
        dtype = torch.float64 if self.train.precision == "float64" else torch.float32
        return build(model_settings(self.family, **(self.model_changes or {})), dtype=dtype)

    def task(self, workers: Workers | None = None) -> Task:
        found: dict[Split, Examples] = {
            "train": examples(self.family, prepare(self.family, self.directory / "train", self.examples))
        }
        if self.valid:
            found["valid"] = examples(self.family, prepare(self.family, self.directory / "valid", self.valid, 1))
        device = workers.device if workers else torch.device("cpu")
        made = task(self.family, model_settings(self.family, **(self.model_changes or {})))
        made.fit()
        made.data = TrainingData(RawText(), found, self.train, device)
        return made

    def trainer(self, workers: Workers | None = None, resume: bool = False, run: Path | None = None) -> Trainer:
        workers = workers or Workers(torch.device("cpu"))
        model, place = self.model(), run or self.directory / "run"
        config = {"model": to_table(model.settings), "train": to_table(self.train)}
        kept = Run.open(place) if resume else Run.create(place, config) if workers.leads else None
        workers.wait()
        trainer = Trainer(self.task(workers), model, self.train, kept or Run.open(place), workers, Display(quiet=True))
        if resume:
            trainer.resume()
        return trainer


def parameters(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
