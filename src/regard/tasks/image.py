"""Image classification: the class of an image from its patches (Dosovitskiy et al. 2021)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from regard.data.batch import IGNORED, ImageBatch
from regard.errors import SettingsError
from regard.models.families import Vision
from regard.models.settings import Classification
from regard.models.settings import Vision as VisionSettings
from regard.tasks.batching import Batching
from regard.tasks.losses import cross_entropy
from regard.tasks.plain import PlainTask
from regard.tasks.settings import Image
from regard.training.task import Loss

HEAD = "label"
"""The head that is added where a model has none for this."""


class ImageTask(PlainTask):
    """Images as they are, one class for each."""

    scores = ("loss", "accuracy")

    def __init__(self, settings: Image, head: str, batching: Batching) -> None:
        super().__init__(batching)
        self.settings = settings
        self.head = head

    def loss(self, model: nn.Module, batch: ImageBatch) -> Loss:
        assert isinstance(model, Vision)
        scores = model.heads[self.head](model(to_input(batch.images, model)))
        # A class that training never saw: no score can be right, and no loss can be told.
        unseen = batch.labels >= scores.shape[-1]
        labels = torch.where(unseen, IGNORED, batch.labels)
        loss = cross_entropy(scores, labels, self.settings.smoothing, model.training)
        if not model.training:
            loss.sums["unseen"] = unseen.sum()
        return loss

    def metrics(self, total: float, weight: float, sums: Mapping[str, float]) -> dict[str, float]:
        found = super().metrics(total, weight, sums)
        if "right" in sums:
            found["accuracy"] = sums["right"] / max(weight + sums["unseen"], 1.0)
        found.pop("perplexity", None)
        return found


def to_input(images: Tensor, model: nn.Module) -> Tensor:
    """Bytes as numbers from −1 to 1, in the type of the model's weights."""
    return images.to(next(model.parameters()).dtype) / 127.5 - 1


def with_head(model: VisionSettings, classes: int) -> tuple[VisionSettings, str]:
    """The model with a head for so many classes, and the head's name."""
    for name, head in model.heads.items():
        if isinstance(head, Classification):
            return model.changed({f"heads.{name}.classes": classes}), name
    if HEAD in model.heads:
        kind = model.heads[HEAD].kind
        raise SettingsError(f"model.heads.{HEAD} is of kind {kind}, and training needs the name; name it otherwise")
    pooling = "class" if model.class_token else "mean"
    return model.changed({f"heads.{HEAD}": {"kind": "classification", "classes": classes, "pooling": pooling}}), HEAD
