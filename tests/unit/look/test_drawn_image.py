"""Pictures of images and rollouts are written, in each form, and refuse what does not fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from regard.errors import InputError
from regard.look.drawn_image import image_picture, rollout_picture

pytestmark = pytest.mark.slow

IMAGE = np.zeros((1, 8, 12), np.uint8)


def test_an_image_with_maps(tmp_path: Path) -> None:
    first = torch.tensor([1.0, 0, 0, 0, 0, 0])
    for name in ("a.png", "a.svg", "a.pdf"):
        image_picture(IMAGE, 4, [("one $ head", first)], tmp_path / name, "Of <b>this</b>")
        assert (tmp_path / name).stat().st_size > 1000
    svg = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert svg.startswith("<?xml")
    image_picture(IMAGE, 4, [("first", first), ("last", first.flip(0))], tmp_path / "b.png")
    pixels = np.asarray(Image.open(tmp_path / "b.png").convert("RGB")).astype(int)
    # Nothing but the maps is yellow here: the first patch of one, the last of the other.
    yellow = np.argwhere((pixels[:, :, 0] > 120) & (pixels[:, :, 1] > 120) & (pixels[:, :, 2] < 110))
    assert len(yellow) > 1000
    image_picture(np.zeros((3, 8, 12), np.uint8), 4, [], tmp_path / "c.png")
    with pytest.raises(InputError, match=r"map \(wrong\) must have a number for each of the 6 patches"):
        image_picture(IMAGE, 4, [("wrong", torch.zeros(5))], tmp_path / "d.png")


def test_a_rollout(tmp_path: Path) -> None:
    rollout_picture(torch.rand(2, 3), ["a", "$b$"], ["x", "y", "\u0007"], tmp_path / "a.png", "Rollout")
    with Image.open(tmp_path / "a.png") as drawn:
        assert drawn.size[0] > 200
    many = [str(place) for place in range(150)]
    rollout_picture(torch.rand(150, 150), many, many, tmp_path / "b.png")
    with pytest.raises(InputError, match="a row for each of 2 queries and a column for each of 1 keys"):
        rollout_picture(torch.rand(2, 3), ["a", "b"], ["x"], tmp_path / "c.png")
