"""Image classification: the class of an image from its patches (Dosovitskiy et al. 2021)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn

from regard.data.columns import Batch, Column, LabelColumn, PixelColumn
from regard.data.examples import Picture, Pixels
from regard.data.images import pillow_images, read_image
from regard.data.settings import DataSettings
from regard.errors import DataError, SettingsError
from regard.models.build import Model
from regard.models.families import ResNet, Vision
from regard.models.settings import AnyVision, Classification, ModelSettings
from regard.models.settings import ResNet as ResNetSettings
from regard.models.settings import Vision as VisionSettings
from regard.settings import Table
from regard.tasks.language import SmoothedSettings
from regard.tasks.losses import classification_loss, classification_metrics
from regard.tasks.task import Task, with_head
from regard.training.settings import Train
from regard.training.step import Loss

MODES = {1: "L", 3: "RGB", 4: "RGBA"}
"""Pillow's name for images of this many channels."""


class Image(SmoothedSettings):
    """Predicts the class of an image. Needs a vision model or a resnet."""

    kind: Literal["image"] = "image"


class ImageTask(Task):
    """Images of one size, and one class for each."""

    kind = "image"
    settings_type = Image
    family = (VisionSettings, ResNetSettings)
    example = Picture
    usage = "predict {} IMAGE.png"
    metric_names = ("loss", "accuracy")
    settings: Image
    model: AnyVision

    def limit(self, train: Train, data: DataSettings) -> int | None:
        return None

    def columns(self) -> dict[str, Column]:
        model = self.model
        if model.channels not in (1, 3):
            raise SettingsError(f"model.channels ({model.channels}) must be 1 (grey) or 3 (colour) to read images")
        return {"pixels": PixelColumn((model.channels, *model.image), model.tokens), "label": LabelColumn()}

    def encode(self, examples: Sequence[Picture]) -> Mapping[str, Any]:
        size, channels = self.model.image, self.model.channels
        return {
            "pixels": [fitted(example.pixels, size, channels) for example in examples],
            "label": [str(example.label) for example in examples],
        }

    def fit(self) -> ModelSettings:
        changes: Table = {"classes": len(self.labels["label"])}
        if not any(isinstance(head, Classification) for head in self.model.heads.values()):
            changes["pooling"] = "class" if self.model.class_token else "mean"
        model, self.head = with_head(cast(VisionSettings, self.model), Classification, "label", changes)
        return model

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        assert isinstance(model, Vision | ResNet)
        logits = model.heads[str(self.head)](model(to_input(batch.values["pixels"], model)))
        return classification_loss(logits, batch.values["label"], self.settings.smoothing, model.training)

    def metrics(self, total: float, weight: float, sums: Mapping[str, float]) -> dict[str, float]:
        return classification_metrics(total, weight, sums)

    def predict(self, model: Model, inputs: Sequence[Pixels | Path | str]) -> list[dict[str, Any]]:
        """The class of each image (a file, or an array `[height, width, channels]`), and all probabilities."""
        assert isinstance(model, Vision | ResNet)
        settings = model.settings
        mode: Literal["grey", "rgb"] = "grey" if settings.channels == 1 else "rgb"
        images = [each if isinstance(each, np.ndarray) else read_image(Path(each), mode) for each in inputs]
        pixels = np.stack([fitted(each, settings.image, settings.channels) for each in images])
        device = next(model.parameters()).device
        with torch.inference_mode():
            hidden = model(to_input(torch.from_numpy(pixels).to(device), model))
            shares = model.heads[str(self.head)](hidden).float().softmax(-1).tolist()
        names = self.labels["label"]
        return [
            {
                "label": names[max(range(len(names)), key=row.__getitem__)],
                "probabilities": {name: round(share, 6) for name, share in zip(names, row, strict=True)},
            }
            for row in shares
        ]


def to_input(images: Tensor, model: nn.Module) -> Tensor:
    """Bytes as numbers from −1 to 1, in the dtype of the model's weights."""
    return images.to(next(model.parameters()).dtype) / 127.5 - 1


def fitted(pixels: Pixels, size: tuple[int, int], channels: int) -> Pixels:
    """`[channels, height, width]` in the given size and number of channels, from `[height, width, channels]`."""
    height, width, found = pixels.shape
    if found not in MODES:
        raise DataError(f"an image has {found} channels, expected 1 (grey), 3 (colour) or 4 (with opacity)")
    if found != channels or (height, width) != size:
        pillow = pillow_images()
        image = pillow.fromarray(pixels[:, :, 0] if found == 1 else pixels).convert(MODES[channels])
        if (height, width) != size:
            image = image.resize(size[::-1], pillow.Resampling.BILINEAR)
        pixels = np.asarray(image, np.uint8).reshape(*size, channels)
    return pixels.transpose(2, 0, 1)
