"""Augmentation on fixed parameters, compared with Pillow and NumPy, and its random choices."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from regard.data.columns import IGNORED
from regard.tasks.augmentation import (
    OPERATIONS,
    Augmentation,
    Boxes,
    Operation,
    augment,
    inside,
    rand_augment,
    resized_crop,
    transformed,
)

pillow = pytest.importorskip("PIL.Image")


def pictures(count: int = 6, size: tuple[int, int] = (20, 28), channels: int = 3) -> Tensor:
    """Noise, and smooth images of few colours."""
    rng = np.random.default_rng(3)
    noise = rng.integers(0, 256, (count, channels, *size), dtype=np.uint8)
    noise[1] = noise[1] // 4 + 60
    noise[2] = 77  # one colour
    noise[3] = np.add.outer(np.arange(size[0]), np.arange(size[1])) * 4
    noise[4] = noise[4] // 128 * 200
    return torch.from_numpy(noise)


def to_pillow(image_CHW: Tensor) -> Any:
    array = image_CHW.permute(1, 2, 0).numpy()
    return pillow.fromarray(array if array.shape[2] == 3 else array[:, :, 0])


def from_pillow(image: Any) -> np.ndarray:
    array = np.asarray(image)
    return array.transpose(2, 0, 1) if array.ndim == 3 else array[None]


def reference(image: Any, operation: Operation, strength: float, fill: int) -> Any:
    """RandAugment's operations by Pillow, with the published ranges."""
    from PIL import ImageEnhance, ImageOps

    width, height = image.size
    colour = (fill,) * len(image.getbands()) if image.mode == "RGB" else fill
    affine = {
        "shear-x": (1, 0.3 * strength, 0, 0, 1, 0),
        "shear-y": (1, 0, 0, 0.3 * strength, 1, 0),
        "translate-x": (1, 0, 0.45 * strength * width, 0, 1, 0),
        "translate-y": (1, 0, 0, 0, 1, 0.45 * strength * height),
    }
    if operation in affine:
        return image.transform(image.size, pillow.Transform.AFFINE, affine[operation], fillcolor=colour)
    if operation == "rotate":
        return image.rotate(30 * strength, fillcolor=colour)
    enhance = {"brightness": "Brightness", "contrast": "Contrast", "color": "Color", "sharpness": "Sharpness"}
    if operation in enhance:
        return getattr(ImageEnhance, enhance[operation])(image).enhance(1 + 0.9 * strength)
    simple = {
        "identity": lambda: image,
        "posterize": lambda: ImageOps.posterize(image, 8 - round(4 * abs(strength))),
        "solarize": lambda: ImageOps.solarize(image, round(256 * (1 - abs(strength)))),
        "autocontrast": lambda: ImageOps.autocontrast(image),
        "equalize": lambda: ImageOps.equalize(image),
    }
    return simple[operation]()


def test_operations_equal_those_of_pillow() -> None:
    geometric = {"shear-x", "shear-y", "translate-x", "translate-y", "rotate"}
    for channels in (1, 3):
        images = pictures(channels=channels)
        for number, operation in enumerate(OPERATIONS):
            for strength in (0.9, -0.9, 0.3, -0.5):
                found = rand_augment(
                    images, torch.full((len(images),), number), torch.full((len(images),), strength), fill=99
                )
                for image, result in zip(images, found.numpy(), strict=True):
                    wanted = from_pillow(reference(to_pillow(image), operation, strength, 99))
                    apart = np.abs(result.astype(int) - wanted)
                    if operation in geometric:  # Pillow rounds places to 1/65,536 of a pixel
                        assert (apart > 0).mean() < 0.01, (operation, strength)
                    else:  # the last bit of a product can be rounded in two ways
                        assert apart.max() <= 1, (operation, strength)
                        assert (apart > 0).mean() < 0.02, (operation, strength)


def test_each_image_gets_its_own_operation() -> None:
    images = pictures()
    operations = torch.tensor([OPERATIONS.index(each) for each in ("rotate", "equalize", "color")] * 2)
    strength = torch.tensor([0.5, 0.5, 0.5, -0.5, -0.5, -0.5])
    together = rand_augment(images, operations, strength, 0)
    for row in range(len(images)):
        alone = rand_augment(images[row : row + 1], operations[row : row + 1], strength[row : row + 1], 0)
        assert torch.equal(together[row : row + 1], alone)


def test_resized_crop_equals_pillow_for_parts_that_grow() -> None:
    images = pictures()
    boxes = torch.tensor([[9, 11, 2, 3], [20, 28, 0, 0], [7, 5, 13, 23], [12, 20, 4, 8], [1, 1, 5, 5], [16, 6, 4, 22]])
    found = resized_crop(images, Boxes(*boxes.T), (24, 32))
    for image, box, result in zip(images, boxes.tolist(), found.numpy(), strict=True):
        height, width, top, left = box
        part = (
            to_pillow(image).crop((left, top, left + width, top + height)).resize((32, 24), pillow.Resampling.BILINEAR)
        )
        assert np.abs(from_pillow(part).astype(int) - result).max() <= 1


def test_crops_flips_and_rectangles() -> None:
    images = pictures()
    shift = torch.eye(2, 3).repeat(6, 1, 1)
    shift[:, 0, 2], shift[:, 1, 2] = -3, 5  # x − 3, y + 5
    padded = np.pad(images.numpy(), ((0, 0), (0, 0), (8, 8), (8, 8)), constant_values=7)
    assert np.array_equal(transformed(images, shift, 7).numpy(), padded[:, :, 13:33, 5:33])
    assert np.array_equal(transformed(images, shift, 7, (10, 9)).numpy(), padded[:, :, 13:23, 5:14])
    one = images[:1]
    for settings, wanted in ((Augmentation(), one), (Augmentation(flip=0.999999), one.flip(-1))):
        assert torch.equal(augment(one, torch.zeros(1), settings, (20, 28)).images, wanted)
    mask = inside((4, 5), Boxes(*torch.tensor([[2], [3], [1], [-1]])))[0].int().tolist()
    assert mask == [[0] * 5, [1, 1, 0, 0, 0], [1, 1, 0, 0, 0], [0] * 5]
    torch.manual_seed(0)
    erased = augment(images[2:3].repeat(400, 1, 1, 1), torch.zeros(400), Augmentation(erasing=0.25), (20, 28)).images
    share = (erased != 77).any(1).float().mean((1, 2))
    assert 0.15 < (share > 0).float().mean() < 0.35
    assert share[share > 0].min() > 0.015
    assert share.max() < 0.37


def test_mixed_images_and_their_shares() -> None:
    count, size = 2_000, (8, 8)
    bright = (torch.arange(count) % 2 * 200).to(torch.uint8)[:, None, None, None].expand(-1, 1, *size)
    labels = torch.arange(count) % 2
    for name, alpha in (("mixup", 0.2), ("cutmix", 1.0)):
        torch.manual_seed(1)
        images, own, others, shares = augment(bright, labels, Augmentation(**{name: alpha}), size)
        assert others is not None
        assert shares is not None
        assert torch.equal(own, labels)
        assert torch.equal(others, labels.flip(0))
        # The mean of an image is the mean of its two values, weighted by the shares.
        wanted = shares * labels * 200 + (1 - shares) * others * 200
        torch.testing.assert_close(images.mean((1, 2, 3)), wanted, atol=1e-3, rtol=1e-5)
        assert images.unique().numel() == 2 if name == "cutmix" else images.unique().numel() > 100
        if name == "mixup":  # the moments of Beta(a, a)
            assert abs(float(shares.mean()) - 0.5) < 0.05
            assert abs(float(shares.var()) - 1 / (4 * (2 * alpha + 1))) < 0.02
    both = augment(bright, labels, Augmentation(mixup=1.0, cutmix=1.0), size).images
    flat = (both == both[..., :1, :1]).all(-1).all(-1).all(-1)
    assert 0.4 < flat.float().mean() < 0.85
    padded = augment(bright, torch.where(labels == 0, IGNORED, labels), Augmentation(mixup=1.0), size)
    assert padded.shares is not None
    assert bool((padded.shares[padded.others == IGNORED] == 1).all())


def test_random_numbers_are_those_of_the_step() -> None:
    images, labels = pictures(), torch.arange(6)
    settings = Augmentation(
        padding=2, flip=0.5, operations=2, erasing=0.5, mixup=0.5, cutmix=1.0, repeats=3, fill=0, area=0.3
    )
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(augment(images, labels, settings, (16, 16)))
    assert torch.equal(results[0].images, results[1].images)
    assert not torch.equal(results[0].images, results[2].images)
    assert results[0].images.shape == (18, 3, 16, 16)
    assert results[0].labels.tolist() == [*range(6)] * 3
    torch.manual_seed(0)
    places = [augment(images[:1], labels[:1], Augmentation(padding=4, fill=0), (20, 28)).images for _ in range(60)]
    tops = {int((each[0].sum((0, 2)) == 0).sum()) for each in places}
    assert tops == {0, 1, 2, 3, 4}  # shifts of −4 to 4 rows


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of PyTorch's compiler
def test_a_compiled_augmentation() -> None:
    settings = Augmentation(padding=2, flip=0.5, operations=2, erasing=0.5, mixup=0.5, cutmix=1.0)
    compiled = torch.compile(augment, fullgraph=True)
    images, _labels, others, shares = compiled(pictures(), torch.arange(6), settings, (20, 28))
    assert images.shape == (6, 3, 20, 28)
    assert bool(images.isfinite().all())
    assert float(shares.min()) >= 0
    assert math.isclose(float(others.sum()), 15)
