"""Curves of a run, and their picture, read pixel by pixel."""

from __future__ import annotations

import random
import statistics
import sys
from pathlib import Path

import numpy as np
import pytest
import run_cases
from PIL import Image

from regard.errors import RunError
from regard.training.doctor import Curve, draw_curves


def test_smoothing_takes_medians_and_values_are_interpolated() -> None:
    for window in (1, 3, 5, 50):
        for number in (1, 2, 7, 30):
            values = [random.Random(number).random() + index for index in range(number)]
            curve = Curve(np.arange(number, dtype=float), np.array(values)).smoothed(window)
            for i, value in enumerate(curve.values):
                near = min(window // 2, i, number - 1 - i)
                assert value == pytest.approx(statistics.median(values[i - near : i + near + 1]))
    curve = Curve(np.array([10.0, 1000.0]), np.array([4.0, 2.0]))
    assert (curve.at(1), curve.at(5000)) == (4.0, 2.0)
    assert curve.at(100) == pytest.approx(3.0), "over the logarithm of the step"


def colours(image: Image.Image, box: tuple[int, int, int, int]) -> set[tuple[int, ...]]:
    return {colour for _, colour in image.crop(box).convert("RGB").getcolors(1 << 20)}


def test_the_picture_shows_losses_rate_and_norm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra `plot`")
    run = run_cases.write_run(tmp_path / "run", run_cases.healthy_log())
    draw_curves(run, tmp_path / "run.png")
    with Image.open(tmp_path / "run.png") as image:
        width, height = image.size
        losses = colours(image, (0, 0, width * 2 // 3 - 20, height))
        others = colours(image, (width * 2 // 3 + 20, 0, width, height))
    blue, orange, green = (42, 111, 187), (217, 102, 43), (90, 125, 90)
    assert {blue, orange} <= losses
    assert green not in losses
    assert green in others
    assert not {blue, orange} & others
    for name, log in (("empty", []), ("one", run_cases.healthy_log(10)[:2])):  # a run that has just started
        draw_curves(run_cases.write_run(tmp_path / name, log), tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").stat().st_size > 1000
    with pytest.raises(RunError, match=r"none/run.png cannot be written"):
        draw_curves(run, tmp_path / "none" / "run.png")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(RunError, match=r"matplotlib; run pip install 'regard\[plot\]'"):
        draw_curves(run, tmp_path / "run.png")
