"""Augmentation of images as operations on tensors, for a whole batch at a time and on any device.

Each function takes its parameters, one for each image, as tensors; `augment` draws them. So a batch needs no loop over
images, and a compiled training step contains its augmentation. The random numbers are those of the step (see
`regard.training.step.seed_step`), so a resumed run augments as an uninterrupted one.

Images are bytes `[B, C, height, width]`. Operations on colours equal Pillow's (ImageOps, ImageEnhance).
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, TypeAlias, get_args

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from regard.blocks.settings import Positive, Rate
from regard.data.columns import IGNORED
from regard.settings import Settings

Operation: TypeAlias = Literal[
    "identity",
    "shear-x",
    "shear-y",
    "translate-x",
    "translate-y",
    "rotate",
    "brightness",
    "contrast",
    "color",
    "sharpness",
    "posterize",
    "solarize",
    "autocontrast",
    "equalize",
]
OPERATIONS: tuple[Operation, ...] = get_args(Operation)
"""The operations of RandAugment (Cubuk et al. 2020)."""
STRONGEST = 10.0
"""The largest magnitude."""
SHEAR, SHIFT, DEGREES, BLEND, BITS = 0.3, 0.45, 30.0, 0.9, 4
"""At the largest magnitude: slope, share of the size, angle, distance of the blend factor from 1, bits removed."""
ASPECTS = (3 / 4, 4 / 3)
"""The ratios of width to height of random crops (Szegedy et al. 2015)."""
ERASED, ERASED_ASPECTS = (0.02, 1 / 3), (0.3, 3.3)
"""Share and ratios of an erased rectangle (Zhong et al. 2020)."""
GREY = (19_595, 38_470, 7_471)
"""The shares of red, green and blue in grey (ITU-R BT.601), of 65,536, as Pillow rounds them."""


class Augmentation(Settings):
    """Random changes of training images. By default there are none."""

    padding: int = Field(default=0, ge=0)
    """Random crop after this many pixels were added on each side: images are shifted by at most so many."""
    area: float | None = Field(default=None, gt=0, le=1)
    """Random resized crop of at least this share of the area (0.08 in Szegedy et al. 2015); none: no such crop."""
    flip: Rate = 0.0
    """Probability of mirroring an image from left to right."""
    operations: int = Field(default=0, ge=0)
    """RandAugment: number of operations, one after the other (Cubuk et al. 2020); 0: none."""
    magnitude: float = Field(default=9.0, ge=0, le=STRONGEST)
    """RandAugment: strength of the operations, from 0 to 10."""
    choices: tuple[Operation, ...] = Field(default=OPERATIONS, min_length=1, strict=False)
    """RandAugment: the operations to choose from."""
    fill: int = Field(default=128, ge=0, le=255)
    """The value of pixels from outside of an image."""
    erasing: Rate = 0.0
    """Probability of filling a rectangle with noise (Zhong et al. 2020)."""
    mixup: float = Field(default=0.0, ge=0)
    """Two images are averaged with a weight from Beta(mixup, mixup) (Zhang et al. 2018); 0: never."""
    cutmix: float = Field(default=0.0, ge=0)
    """A rectangle of a share from Beta(cutmix, cutmix) comes from another image (Yun et al. 2019); 0: never. With mixup
    too, each image gets one of the two."""
    repeats: Positive = 1
    """Each image of a step is augmented this many times (Hoffer et al. 2020); a step costs as many times more."""


class Boxes(NamedTuple):
    """A rectangle of each image: `[B]` numbers of pixels."""

    height: Tensor
    width: Tensor
    top: Tensor
    left: Tensor


class Augmented(NamedTuple):
    """Images, their labels, and for images that are mixed the second label and the share `[B]` of the first."""

    images: Tensor
    labels: Tensor
    others: Tensor | None = None
    shares: Tensor | None = None


@torch.no_grad()
def augment(images: Tensor, labels: Tensor, settings: Augmentation, size: tuple[int, int]) -> Augmented:
    """Draws the changes of a batch. The result has the given size, in bytes, or float32 if images are mixed."""
    if settings.repeats > 1:
        images, labels = images.repeat(settings.repeats, 1, 1, 1), labels.repeat(settings.repeats)
    if settings.area is not None:
        images = resized_crop(images, _boxes(images, (settings.area, 1.0), ASPECTS), size)
    elif images.shape[-2:] != size or settings.padding:
        spare = [have - want for have, want in zip(images.shape[-2:], size, strict=True)]
        top, left = (_integers(images, -settings.padding, most + settings.padding) for most in spare)
        matrix = torch.eye(2, 3, device=images.device).repeat(len(images), 1, 1)
        matrix[:, :, 2] = torch.stack([left, top], dim=1)
        images = transformed(images, matrix, settings.fill, size)
    if settings.flip:
        images = torch.where((_uniform(images) < settings.flip)[:, None, None, None], images.flip(-1), images)
    for _ in range(settings.operations):
        images = rand_augment(images, *_operations(images, settings), settings.fill)
    if settings.erasing:
        noise = torch.randint(0, 256, images.shape, device=images.device, dtype=torch.uint8)
        chosen = (_uniform(images) < settings.erasing)[:, None, None]
        boxes = _boxes(images, ERASED, ERASED_ASPECTS)
        images = torch.where((inside(size, boxes) & chosen)[:, None], noise, images)
    if settings.mixup or settings.cutmix:
        return _mixed(images, labels, settings)
    return Augmented(images, labels)


def _uniform(images: Tensor) -> Tensor:
    """`[B]` numbers from 0 to 1."""
    return torch.rand(len(images), device=images.device)


def _integers(images: Tensor, least: int, most: int) -> Tensor:
    return torch.randint(least, most + 1, (len(images),), device=images.device)


def _boxes(images: Tensor, areas: tuple[float, float], aspects: tuple[float, float]) -> Boxes:
    """Height, width, top and left of a random rectangle of each image. Ratios are even in their logarithm."""
    rows, columns = images.shape[-2:]
    share = areas[0] + (areas[1] - areas[0]) * _uniform(images)
    first, last = map(math.log, aspects)
    aspect = (first + (last - first) * _uniform(images)).exp()
    height = (share * rows * columns / aspect).sqrt().round().clamp(1, rows).long()
    width = (share * rows * columns * aspect).sqrt().round().clamp(1, columns).long()
    top, left = ((_uniform(images) * (most - part + 1)).long() for most, part in ((rows, height), (columns, width)))
    return Boxes(height, width, top, left)


def inside(size: tuple[int, int], boxes: Boxes) -> Tensor:
    """`[B, height, width]`: whether a pixel is in the rectangle of its image."""
    height, width, top, left = boxes
    y, x = (torch.arange(each, device=top.device) for each in size)
    rows = (y >= top[:, None]) & (y < (top + height)[:, None])
    columns = (x >= left[:, None]) & (x < (left + width)[:, None])
    return rows[:, :, None] & columns[:, None, :]


def resized_crop(images: Tensor, boxes: Boxes, size: tuple[int, int]) -> Tensor:
    """The rectangle of each image in another size: bilinear, without a filter for sizes that are smaller."""

    def places(start: Tensor, part: Tensor, wanted: int, whole: int) -> Tensor:
        """Where each new pixel is: not outside of the rectangle; in units of `grid_sample`, from −1 to 1."""
        steps = (torch.arange(wanted, device=images.device) + 0.5) / wanted
        place = (steps * part[:, None] - 0.5).clamp(min=0).minimum(part[:, None] - 1.0) + start[:, None]
        return (2 * place + 1) / whole - 1

    height, width, top, left = boxes
    rows, columns = images.shape[-2:]
    y, x = places(top, height, size[0], rows), places(left, width, size[1], columns)
    grid = torch.stack([x[:, None, :].expand(-1, size[0], -1), y[:, :, None].expand(-1, -1, size[1])], dim=-1)
    with torch.autocast(images.device.type, enabled=False):
        sampled = functional.grid_sample(images.float(), grid, "bilinear", "border", align_corners=False)
    return sampled.round().to(images.dtype)


def transformed(images: Tensor, matrix: Tensor, fill: int, size: tuple[int, int] | None = None) -> Tensor:
    """Each pixel from the place `matrix · (x, y, 1)` of its image (`[B, 2, 3]`), the nearest one; `fill` outside.

    As Pillow's `Image.transform` with AFFINE and NEAREST: the middle of a pixel counts.
    """
    rows, columns = images.shape[-2:]
    y, x = (torch.arange(each, device=images.device) + 0.5 for each in size or (rows, columns))
    where = matrix.float()[:, :, :, None, None]
    place = where[:, :, 0] * x + where[:, :, 1] * y[:, None] + where[:, :, 2]
    column, row = place.floor().long().unbind(1)
    there = (column >= 0) & (column < columns) & (row >= 0) & (row < rows)
    index = (row.clamp(0, rows - 1) * columns + column.clamp(0, columns - 1)).flatten(1)
    found = images.flatten(2).gather(2, index[:, None].expand(-1, images.shape[1], -1))
    return torch.where(there[:, None], found.view(*found.shape[:2], *there.shape[1:]), fill)


def _operations(images: Tensor, settings: Augmentation) -> tuple[Tensor, Tensor]:
    """`[B]` and `[B]`: the operation of each image, as its place in `OPERATIONS`, and its strength from −1 to 1."""
    # Built from numbers: a constant tensor would have to be copied to the device.
    drawn, chosen = _integers(images, 0, len(settings.choices) - 1), _integers(images, 0, 0)
    for number, name in enumerate(settings.choices):
        chosen = torch.where(drawn == number, OPERATIONS.index(name), chosen)
    strength = settings.magnitude / STRONGEST
    return chosen, torch.where(_uniform(images) < 0.5, -strength, strength)


def rand_augment(images: Tensor, operation: Tensor, strength: Tensor, fill: int) -> Tensor:
    """One operation of RandAugment for each image; the sign of the strength is a direction.

    Every operation is a transformation of places, a table of colours, or a blend with another image, so three passes
    over the batch apply all of them.
    """

    def of(name: Operation, value: Tensor | float, other: Tensor | float) -> Tensor:
        return torch.where(operation == OPERATIONS.index(name), value, other)

    rows, columns = images.shape[-2:]
    angle = torch.deg2rad(of("rotate", strength * DEGREES, 0.0))
    cos, sin = angle.cos(), angle.sin()
    slope_x, slope_y = of("shear-x", strength * SHEAR, 0.0), of("shear-y", strength * SHEAR, 0.0)
    shift_x = of("translate-x", strength * SHIFT * columns, columns / 2 * (1 - cos) + rows / 2 * sin)
    shift_y = of("translate-y", strength * SHIFT * rows, rows / 2 * (1 - cos) - columns / 2 * sin)
    matrix = torch.stack([cos, slope_x - sin, shift_x, slope_y + sin, cos, shift_y], dim=-1)
    images = transformed(images, matrix.view(-1, 2, 3), fill)

    factor, levels = (1 + BLEND * strength)[:, None, None], strength.abs()
    level, removed = torch.arange(256, device=images.device)[None, None], (BITS * levels).round().long()[:, None, None]
    lightness = grey(images)
    table = level.expand(*images.shape[:2], -1)
    for name, made in (
        ("brightness", blended(torch.zeros_like(level), level, factor)),
        ("contrast", blended((lightness.float().mean((1, 2, 3)) + 0.5).long()[:, None, None], level, factor)),
        ("posterize", level >> removed << removed),
        ("solarize", torch.where(level < (256 * (1 - levels)).round()[:, None, None], level, 255 - level)),
        ("autocontrast", autocontrasted(images, level)),
        ("equalize", equalized(images, level)),
    ):
        table = torch.where((operation == OPERATIONS.index(name))[:, None, None], made, table)
    images = table.to(torch.uint8).gather(2, images.flatten(2).long()).view_as(images)

    color, sharpness = ((operation == OPERATIONS.index(each))[:, None, None, None] for each in ("color", "sharpness"))
    base = torch.where(color, grey(images), smoothed(images))
    return torch.where(color | sharpness, blended(base, images, factor[..., None]).to(torch.uint8), images)


def blended(base: Tensor, values: Tensor, factor: Tensor) -> Tensor:
    """base + factor · (values − base) as a byte, in int64, as Pillow's `Image.blend`."""
    start = base.float()
    return (start + factor * (values.float() - start)).clamp(0, 255).long()


def grey(images: Tensor) -> Tensor:
    """`[B, 1, height, width]`: the lightness of the pixels."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.int().unbind(1)
    return ((red * GREY[0] + green * GREY[1] + blue * GREY[2] + 0x8000) >> 16).to(images.dtype)[:, None]


def smoothed(images: Tensor) -> Tensor:
    """Pillow's filter SMOOTH: the mean of 3 × 3 pixels, the middle one five times; the edge stays."""
    padded = functional.pad(images.float(), (1, 1, 1, 1))
    rows, columns = images.shape[-2:]
    windows = [padded[..., y : y + rows, x : x + columns] for y in range(3) for x in range(3)]
    mean = ((sum(windows) + 4 * padded[..., 1:-1, 1:-1]) / 13 + 0.5).floor()
    y, x = (torch.arange(each, device=images.device) for each in (rows, columns))
    edge = ((y == 0) | (y == rows - 1))[:, None] | (x == 0) | (x == columns - 1)
    return torch.where(edge, images, mean.to(images.dtype))


def autocontrasted(images: Tensor, level: Tensor) -> Tensor:
    """`[B, C, 256]`: new values, where the darkest of a channel becomes 0 and the lightest 255."""
    low, high = images.flatten(2).aminmax(dim=2, keepdim=True)
    spread = high.long() - low
    # Rounded as by Pillow, where 255 can become 254; `255 / tensor` would multiply by the inverse.
    scale = torch.full_like(spread, 255).double() / spread.clamp(min=1)
    return torch.where(spread > 0, (level * scale + -low.double() * scale).clamp(0, 255).long(), level)


def equalized(images: Tensor, level: Tensor) -> Tensor:
    """`[B, C, 256]`: new values, which are as frequent as each other."""
    values = images.flatten(2).long()
    counts = torch.zeros(*values.shape[:2], 256, dtype=torch.long, device=images.device)
    counts = counts.scatter_add(2, values, torch.ones_like(values))
    last = counts.gather(2, values.amax(2, keepdim=True))
    step = (values.shape[2] - last) // 255
    before = counts.cumsum(2) - counts
    return torch.where(step > 0, ((step // 2 + before) // step.clamp(min=1)).clamp(max=255), level)


def _mixed(images: Tensor, labels: Tensor, settings: Augmentation) -> Augmented:
    """Pairs of the first image with the last, and so on."""
    size: tuple[int, int] = (images.shape[-2], images.shape[-1])
    cuts = _uniform(images) < (0.5 if settings.mixup else 1.0) if settings.cutmix else _uniform(images) < 0
    alphas = torch.where(cuts, settings.cutmix, settings.mixup)
    # A share from Beta(a, a) is the share of one of two numbers from Gamma(a).
    first, second = torch._standard_gamma(alphas), torch._standard_gamma(alphas)
    share = torch.where(first + second > 0, first / (first + second), 1.0)
    others = labels.flip(0)
    share = torch.where(others == IGNORED, 1.0, share)  # padding is mixed into nothing
    side = (1 - share).sqrt()
    height, width = ((side * each).long() for each in size)
    top, left = ((_uniform(images) * each).long() - part // 2 for each, part in zip(size, (height, width), strict=True))
    box = inside(size, Boxes(height, width, top, left))
    share = torch.where(cuts, 1 - box.float().mean((1, 2)), share)
    weights = torch.where(cuts[:, None, None], (~box).float(), share[:, None, None])[:, None]
    return Augmented(weights * images + (1 - weights) * images.flip(0), labels, others, share)
