"""Image classification: the class of an image from its patches (Dosovitskiy et al. 2021)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from regard.blocks.settings import Positive
from regard.data.batches import Share
from regard.data.columns import IGNORED, Batch, Column, LabelColumn, PixelColumn
from regard.data.examples import Picture, Pixels
from regard.data.images import pillow_images, read_image
from regard.data.loader import Loader
from regard.data.settings import DataSettings, Split
from regard.errors import DataError, SettingsError
from regard.models.build import Model
from regard.models.families import SequenceHead, Vision
from regard.models.settings import AnyVision, Classification, ModelSettings
from regard.settings import Settings, Table
from regard.tasks.augmentation import Augmentation, Augmented, augment
from regard.tasks.language import SmoothedSettings
from regard.tasks.losses import check_classes, classification_loss, classification_metrics
from regard.tasks.task import Task, label_of, with_head
from regard.training.settings import Train
from regard.training.step import Loss
from regard.weights.directory import load_labels, load_model
from regard.weights.location import find_model

MODES = {1: "L", 3: "RGB", 4: "RGBA"}
"""Pillow's name for images of this many channels."""
BINS = 15
"""Intervals of the expected calibration error (Guo et al. 2017)."""
BATCH = 64
"""Images that are computed together outside of training."""
Resizing = Literal["stretch", "crop"]


class Teacher(Settings):
    """A trained model whose answers the model learns too (Hinton et al. 2015; Touvron et al. 2021: DeiT)."""

    model: str
    """A run directory or a Hugging Face directory of a classifier of the same classes."""
    loss: Literal["soft", "hard"] = "hard"
    """soft: the divergence from the teacher's probabilities; hard: the cross-entropy of its most likely class."""
    weight: float = Field(default=0.5, gt=0, le=1)
    """Share of this loss; the rest is that of the labels."""
    temperature: float = Field(default=3.0, gt=0)
    """Divisor of the logits in the soft loss."""


class Image(SmoothedSettings):
    """Predicts the class of an image. Needs a model of images: vision, resnet or image-lstm."""

    kind: Literal["image"] = "image"
    augment: Augmentation = Augmentation()
    """Random changes of training images."""
    weights: Literal["balanced"] | dict[str, float] | None = None
    """Factors of the classes in the loss: by name, or balanced, so that all classes together count the same."""
    stored: tuple[Positive, Positive] | None = Field(default=None, strict=False)
    """Height and width in which images are prepared; training crops from it at random, evaluation in the middle. none:
    the model's size."""
    resize: Resizing = "stretch"
    """How images of other sizes are fitted: stretched, or resized in proportion and cropped in the middle."""
    mirror: bool = False
    """Whether evaluation and prediction average the logits of an image and its mirror image."""
    teacher: Teacher | None = None
    """A model to learn from. If the model's head is distilled, its second layer learns from it; none: no teacher."""


class ImageTask(Task):
    """Images of one size, and one class for each."""

    settings_type = Image
    family = get_args(AnyVision)
    example = Picture
    usage = "predict {} IMAGE.png"
    encoded_by = ("resize",)
    version = 2
    settings: Image
    model: AnyVision
    teacher: Vision | None = None
    order: list[int] | None = None
    """The teacher's number of each class."""

    @property
    def metric_names(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("loss", "accuracy", *(["top5"] if len(self.labels["label"]) > 5 else []), "calibration")

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of prepared images."""
        return self.settings.stored or self.model.image

    def limit(self, train: Train, data: DataSettings) -> int | None:
        return None

    def columns(self) -> dict[str, Column]:
        model = self.model
        if model.channels not in (1, 3):
            raise SettingsError(f"model.channels ({model.channels}) must be 1 (grey) or 3 (colour) to read images")
        if any(have < want for have, want in zip(self.size, model.image, strict=True)):
            raise SettingsError(
                f"task.stored ({list(self.size)}) is smaller than model.image ({list(model.image)}); raise it"
            )
        return {"pixels": PixelColumn((model.channels, *self.size), model.tokens), "label": LabelColumn()}

    def encode(self, examples: Sequence[Picture]) -> Mapping[str, Any]:
        channels, resize = self.model.channels, self.settings.resize
        images = [fitted(example.pixels, self.size, channels, resize) for example in examples]
        return {"pixels": images, "label": [str(example.label) for example in examples]}

    def fit(self) -> ModelSettings:
        names = self.labels["label"]
        check_classes(names, self.settings.weights)
        changes: Table = {"classes": len(names)}
        if not any(isinstance(head, Classification) for head in self.model.heads.values()):
            changes["pooling"] = "class" if self.model.class_token else "mean"
        model, self.head = with_head(self.model, Classification, "label", changes)
        return model

    def batches(self, split: Split, share: Share) -> Loader:
        if split == "train" and self.settings.teacher is not None and self.teacher is None:
            self.teacher = self._read_teacher(self.settings.teacher.model).to(self.data.device)
        return super().batches(split, share)

    def _read_teacher(self, name: str) -> Vision:
        directory, _ = find_model(name)
        model = load_model(directory)
        heads = [head for head in getattr(model.settings, "heads", {}).values() if isinstance(head, Classification)]
        channels = self.model.channels
        if not isinstance(model, Vision) or len(heads) != 1 or model.settings.channels != channels:
            raise SettingsError(
                f"task.teacher.model ({name}) must be a vision model of {channels} channels with one "
                "classification head; choose another"
            )
        names, known = self.labels["label"], load_labels(directory).get("label")
        if len(names) != heads[0].classes or (known is not None and {*known} != {*names}):
            raise SettingsError(f"task.teacher.model ({name}) has other classes than the data; choose another")
        self.order = None if known is None else [known.index(each) for each in names]
        return model.float().eval().requires_grad_(False)

    def _head(self, model: Vision) -> SequenceHead:
        head = model.heads[str(self.head)]
        assert isinstance(head, SequenceHead)
        return head

    def logits(self, model: Vision, images: Tensor) -> Tensor:
        """The logits of bytes `[B, C, height, width]` outside of training."""
        x = to_input(images, model)
        logits: Tensor = self._head(model)(model(x))
        return (logits + self._head(model)(model(x.flip(-1)))) / 2 if self.settings.mirror else logits

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        assert isinstance(model, Vision)
        images, labels, size = batch.values["pixels"], batch.values["label"], model.settings.image
        if not model.training:
            logits = self.logits(model, middle(images, size))
            loss = classification_loss(logits, labels, self.settings.smoothing, training=False)
            return loss._replace(sums={**loss.sums, **_ranking_sums(logits, labels)})
        drawn = augment(images, labels, self.settings.augment, size)
        logits, others = self._head(model).both(model(to_input(drawn.images, model)))
        weights = None if self.weights is None else logits.new_tensor(self.weights)
        loss = _mixed_loss(logits, drawn, self.settings.smoothing, weights)
        if self.teacher is None:
            return loss
        assert self.settings.teacher is not None
        share = self.settings.teacher.weight
        learned = self._distillation(logits if others is None else others, drawn, self.settings.teacher)
        sums = {**loss.sums, "plain": loss.sums.get("plain", loss.total.detach())}
        return Loss((1 - share) * loss.total + share * learned, loss.weight, sums)

    def _distillation(self, logits: Tensor, drawn: Augmented, settings: Teacher) -> Tensor:
        """The sum over the images of how far the logits are from the teacher's answers."""
        assert self.teacher is not None
        with torch.no_grad():
            images, size = drawn.images, self.teacher.settings.image
            if images.shape[-2:] != size:
                images = functional.interpolate(images.float(), size, mode="bilinear", antialias=True)
            answers = next(head for head in self.teacher.heads.values() if isinstance(head, SequenceHead))
            taught = answers(self.teacher(to_input(images, self.teacher))).float()
            taught = taught if self.order is None else taught[:, self.order]
        counted = drawn.labels != IGNORED
        if settings.loss == "hard":
            each = functional.cross_entropy(logits.float(), taught.argmax(-1), reduction="none")
        else:
            shares = (taught / settings.temperature).log_softmax(-1)
            own = (logits.float() / settings.temperature).log_softmax(-1)
            each = settings.temperature**2 * (shares.exp() * (shares - own)).sum(-1)
        return torch.where(counted, each, 0).sum()

    def metrics(self, total: float, weight: float, sums: Mapping[str, float]) -> dict[str, float]:
        found = classification_metrics(total, weight, sums)
        if "right" in sums:
            count = max(weight + sums["unseen"], 1.0)
            found |= {"top5": sums["top5"] / count} if "top5" in sums else {}
            found["calibration"] = sum(abs(sums[f"bin{number}"]) for number in range(BINS)) / count
        return found

    def details(self, model: nn.Module, split: Split) -> Table:
        """The confusion matrix: for each class, how many images of it got which class."""
        assert isinstance(model, Vision)
        names, device = self.labels["label"], next(model.parameters()).device
        counts = np.zeros((len(names), len(names)), np.int64)
        with torch.inference_mode():
            for step in self.batches(split, Share()).once():
                for batch in step.batches:
                    values = batch.to(device).values
                    logits = self.logits(model.eval(), middle(values["pixels"], model.settings.image))
                    labels = values["label"].cpu().numpy()
                    known = (labels >= 0) & (labels < len(names))
                    np.add.at(counts, (labels[known], logits.argmax(-1).cpu().numpy()[known]), 1)
        return {"confusion": {"classes": list(names), "counts": counts.tolist()}}

    def predict(self, model: Model, inputs: Sequence[Any]) -> list[dict[str, Any]]:
        """The class of each image and all probabilities.

        An image is a file, the bytes of one, a Pillow image, or an array `[height, width, channels]`.
        """
        assert isinstance(model, Vision)
        channels = model.settings.channels
        images = [fitted(to_pixels(each, channels), self.size, channels, self.settings.resize) for each in inputs]
        device = next(model.parameters()).device
        rows: list[list[float]] = []
        with torch.inference_mode():
            for start in range(0, len(images), BATCH):
                pixels = torch.from_numpy(np.stack(images[start : start + BATCH])).to(device)
                logits = self.logits(model, middle(pixels, model.settings.image))
                rows += logits.float().softmax(-1).tolist()
        files = [{"file": str(each)} if isinstance(each, str | Path) else {} for each in inputs]
        return [file | label_of(self.labels["label"], row) for file, row in zip(files, rows, strict=True)]


def _mixed_loss(logits: Tensor, drawn: Augmented, smoothing: float, weights: Tensor | None) -> Loss:
    """The loss of images with one label or, if they are mixed, with the shares of two."""
    if drawn.others is None or drawn.shares is None:
        return classification_loss(logits, drawn.labels, smoothing, True, weights)
    labels, factors = torch.cat([drawn.labels, drawn.others]), torch.cat([drawn.shares, 1 - drawn.shares])
    return classification_loss(torch.cat([logits, logits]), labels, smoothing, True, weights, factors)


def _ranking_sums(logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Labels among the five most likely classes; and for the calibration, in each interval of the confidence, how many
    more images are right than the model expects."""
    counted = labels != IGNORED
    shares = logits.float().softmax(-1)
    confidence, best = shares.max(-1)
    sums = {}
    if logits.shape[-1] > 5:
        sums["top5"] = ((shares.topk(5).indices == labels[:, None]).any(-1) & counted).sum()
    gaps = torch.where(counted, (best == labels).float() - confidence, 0)
    intervals = (confidence * BINS).ceil().long().clamp(1, BINS) - 1
    each = torch.zeros(BINS, device=gaps.device, dtype=gaps.dtype).index_add(0, intervals, gaps)
    return sums | {f"bin{number}": gap for number, gap in enumerate(each.unbind())}


def to_input(images: Tensor, model: nn.Module) -> Tensor:
    """Bytes as numbers around 0 by the model's mean and deviation, in the dtype of its weights."""
    settings, values = model.settings, images.to(next(model.parameters()).dtype)
    means: tuple[float, ...] = getattr(settings, "mean", (0.5,))
    deviations: tuple[float, ...] = getattr(settings, "deviation", (0.5,))
    count = max(len(means), len(deviations))
    means, deviations = (each * (count // len(each)) for each in (means, deviations))
    pairs = [(255 * deviation, mean / deviation) for mean, deviation in zip(means, deviations, strict=True)]
    if len(pairs) == 1:
        [(scale, start)] = pairs
        return values / scale - start
    # Channel by channel: numbers need no copy to the device, as a tensor of them would.
    scaled = [value / scale - start for value, (scale, start) in zip(values.unbind(1), pairs, strict=True)]
    return torch.stack(scaled, dim=1)


def middle(images: Tensor, size: tuple[int, int]) -> Tensor:
    """The middle of larger images."""
    top, left = ((have - want) // 2 for have, want in zip(images.shape[-2:], size, strict=True))
    return images[..., top : top + size[0], left : left + size[1]]


def to_pixels(image: Any, channels: int) -> Pixels:
    """An image of any form as `[height, width, channels]`."""
    if isinstance(image, np.ndarray):
        if image.dtype != np.uint8 or image.ndim not in (2, 3) or 0 in image.shape:
            raise DataError(
                f"an image is an array of {image.dtype} of shape {list(image.shape)}, expected uint8 of shape "
                "[height, width, channels]"
            )
        return image if image.ndim == 3 else image[:, :, None]
    return read_image(Path(image) if isinstance(image, str) else image, "grey" if channels == 1 else "rgb")


def fitted(pixels: Pixels, size: tuple[int, int], channels: int, resize: Resizing = "stretch") -> Pixels:
    """`[channels, height, width]` in the given size and number of channels, from `[height, width, channels]`."""
    height, width, found = pixels.shape
    if found not in MODES:
        raise DataError(f"an image has {found} channels, expected 1 (grey), 3 (colour) or 4 (with opacity)")
    if found != channels or (height, width) != size:
        pillow = pillow_images()
        image = pillow.fromarray(pixels[:, :, 0] if found == 1 else pixels).convert(MODES[channels])
        if (height, width) != size:
            # The largest part in the middle that has the proportions of the size.
            scale = min(height / size[0], width / size[1])
            part = (size[1] * scale, size[0] * scale) if resize == "crop" else (width, height)
            left, top = (width - part[0]) / 2, (height - part[1]) / 2
            box = (left, top, left + part[0], top + part[1])
            image = image.resize(size[::-1], pillow.Resampling.BILINEAR, box)
        pixels = np.asarray(image, np.uint8).reshape(*size, channels)
    return pixels.transpose(2, 0, 1)
