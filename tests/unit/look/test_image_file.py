"""A file of an image, as a model reads it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from regard.errors import InputError
from regard.look.image_file import read_image
from regard.models.settings import Vision

pillow = pytest.importorskip("PIL.Image", reason="needs the package pillow")


def test_images_are_resized(tmp_path: Path) -> None:
    pixels = np.zeros((12, 20, 3), np.uint8)
    pixels[:, 10:, 0] = 255
    pillow.fromarray(pixels).save(tmp_path / "a.png")
    found = read_image(tmp_path / "a.png", Vision(image=(4, 8), patch=4, channels=3))
    assert found.shape == (3, 4, 8)
    assert (found[0, :, :2] == 0).all()
    assert (found[0, :, -2:] == 255).all()
    assert found[1:].max() == 0
    assert read_image(tmp_path / "a.png", Vision(image=(4, 8), patch=4, channels=1)).shape == (1, 4, 8)


def test_what_is_no_image(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("no")
    for name in ("a.png", "none.png"):
        with pytest.raises(InputError, match="cannot be read as an image"):
            read_image(tmp_path / name, Vision(image=(4, 4), patch=4, channels=3))
    with pytest.raises(InputError, match=r"channels \(2\) is neither 1 nor 3"):
        read_image(tmp_path / "a.png", Vision(image=(4, 4), patch=4, channels=2))
