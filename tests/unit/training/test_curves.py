"""Curves as text, read back letter by letter; and as a picture, read back pixel by pixel."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
import run_cases
from PIL import Image

from regard.errors import RunError
from regard.training.curves import Axis, terminal_curve, write_png

FALLING = [(float(step), 2 + 7 * math.exp(-step / 300)) for step in range(10, 3001, 10)]
EVALUATIONS = [(float(step), 2.5 + 7 * math.exp(-step / 300)) for step in range(300, 3001, 300)]


def dots(text: str) -> list[tuple[int, int]]:
    """Column and row, from the top left, of every dot that is set in Braille letters."""
    found = []
    for row, line in enumerate(text.splitlines()):
        for column, letter in enumerate(line):
            bits = ord(letter) - 0x2800
            if 0 < bits < 256:
                for bit, (x, y) in enumerate([(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3)]):
                    if bits >> bit & 1:
                        found.append((2 * column + x, 4 * row + y))
    return found


# ---------------------------------------------------------------------------------------------------------------- text


def test_a_straight_line_is_straight() -> None:
    text = terminal_curve({"line": [(x, float(x)) for x in range(101)]}, 60, 23)
    found = dots("\n".join(text.splitlines()[:-1]))
    left, right = min(found), max(found)
    assert (left[1], right[1]) == (79, 0)
    for x, y in found:
        assert (x - left[0]) / (right[0] - left[0]) == pytest.approx((79 - y) / 79, abs=0.03)
    assert {x for x, _ in found} == set(range(left[0], right[0] + 1)), "there are gaps"


def test_it_fits_its_space_and_is_labelled() -> None:
    for width, height in ((80, 20), (40, 10), (100, 30)):
        lines = terminal_curve({"train": FALLING, "valid": EVALUATIONS}, width, height).splitlines()
        assert len(lines) == height
        assert max(map(len, lines)) <= width
    lines = terminal_curve({"train": FALLING, "valid": EVALUATIONS}, 80, 20).splitlines()
    assert [line.split("┤")[0].strip() for line in lines if "┤" in line] == ["8", "7", "6", "5", "4", "3"]
    assert lines[-2].split("  ")[-1] == "3 k"
    assert "1 k" in lines[-2]
    assert lines[-1].strip() == "⠒⠒ train   o valid"
    assert "".join(lines[:-3]).count("o") == len(EVALUATIONS)


def test_labels_stand_where_their_values_are() -> None:
    lines = terminal_curve({"a": [(0, 0.0), (100, 10.0)]}, 80, 24).splitlines()
    rows = {line.split("┤")[0].strip(): row for row, line in enumerate(lines) if "┤" in line}
    assert rows == {str(value): 20 - 2 * value for value in range(11)}
    ruler, labels = lines[-3], lines[-2]
    place = ruler.index("└") + 1
    marks = [column - place for column, letter in enumerate(ruler) if letter == "┬"]
    names = labels.split()
    assert [round(mark / (len(ruler) - place - 1) * 100) for mark in marks] == pytest.approx(
        [int(name) for name in names], abs=1
    )


def test_plain_letters() -> None:
    text = terminal_curve({"train": FALLING, "valid": EVALUATIONS}, 70, 15, ascii_only=True)
    assert text.isascii()
    assert text.splitlines()[-1].strip() == ".. train   o valid"
    assert all(letter.isprintable() or letter == "\n" for letter in text)


def test_every_curve_has_its_own_letter() -> None:
    shifted = {name: [(x, y + index) for x, y in FALLING] for index, name in enumerate("abcd")}
    text = terminal_curve(shifted, 80, 30)
    assert text.splitlines()[-1].strip() == "⠒⠒ a   o b   x c   + d"
    body = "\n".join(text.splitlines()[:-3])
    assert all(body.count(mark) > 30 for mark in "ox+")


def test_colours_change_nothing_else() -> None:
    import re

    plain = terminal_curve({"train": FALLING, "valid": EVALUATIONS}, 80, 20)
    coloured = terminal_curve({"train": FALLING, "valid": EVALUATIONS}, 80, 20, colours=True)
    assert coloured != plain
    stripped = re.sub(r"\x1b\[\d+m", "", coloured)
    assert [line.rstrip() for line in stripped.splitlines()] == plain.splitlines()


def test_steps_on_a_logarithmic_axis() -> None:
    text = terminal_curve({"a": [(10.0**k, float(k)) for k in range(5)]}, 60, 23, log_x=True)
    found = dots("\n".join(text.splitlines()[:-1]))
    middle = min(found, key=lambda dot: abs(dot[0] - (min(found)[0] + max(found)[0]) / 2))
    assert middle[1] == pytest.approx(40, abs=2)
    assert text.splitlines()[-2].split() == ["1", "100", "10", "k"]


def test_a_wide_range_is_shown_on_a_logarithmic_axis() -> None:
    text = terminal_curve({"a": [(1, 1.0), (2, 1e6), (3, 1.0)]}, 60, 20)
    assert "1 M" in text
    assert "1 k" in text


@pytest.mark.parametrize("curve", [[], [(1.0, math.nan)], [(math.inf, 1.0)]])
def test_nothing_to_draw(curve: list[tuple[float, float]]) -> None:
    assert terminal_curve({"a": curve}, 60, 20) == "(nothing to draw)"


def test_what_is_not_finite_is_left_out() -> None:
    holes = [(x, math.nan if index % 7 == 0 else y) for index, (x, y) in enumerate(FALLING)]
    assert "nan" not in terminal_curve({"a": holes}, 60, 20)


@pytest.mark.parametrize("curve", [[(5.0, 3.0)], [(1.0, 2.0), (9.0, 2.0)], [(1.0, 0.0), (2.0, 0.0)]])
def test_one_point_and_flat_curves(curve: list[tuple[float, float]]) -> None:
    text = terminal_curve({"a": curve}, 40, 9)
    assert dots("\n".join(text.splitlines()[:-1]))
    assert len(text.splitlines()) == 9


def test_round_ticks() -> None:
    assert Axis(0.0, 1.0).ticks(5) == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert Axis(1.93, 2.18).ticks(3) == pytest.approx([2.0, 2.1])
    assert Axis(3.0, 3.0).ticks(4) == [3.0]
    assert Axis(0.5, 2000.0, logarithmic=True).ticks(10) == [1.0, 10.0, 100.0, 1000.0]


# ------------------------------------------------------------------------------------------------------------ a picture


def colours(image: Image.Image, box: tuple[int, int, int, int]) -> set[tuple[int, ...]]:
    return {colour for _, colour in image.crop(box).convert("RGB").getcolors(1 << 20)}


@pytest.mark.parametrize("log_x", [False, True])
def test_a_picture_shows_both_losses_the_rate_and_the_norm(tmp_path: Path, log_x: bool) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra `plot`")
    run = run_cases.write_run(tmp_path / "run", run_cases.healthy_log())
    write_png(run, tmp_path / "run.png", log_x)
    with Image.open(tmp_path / "run.png") as image:
        assert image.format == "PNG"
        width, height = image.size
        losses = colours(image, (0, 0, width * 2 // 3 - 20, height))
        beside = colours(image, (width * 2 // 3 + 20, 0, width, height))
    blue, orange, green = (42, 111, 187), (217, 102, 43), (90, 125, 90)
    assert {blue, orange} <= losses
    assert green not in losses
    assert green in beside
    assert not {blue, orange} & beside
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["run.png"]


def test_a_picture_of_a_run_that_has_hardly_begun(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra `plot`")
    for name, log in (("empty", []), ("one", run_cases.healthy_log(10)[:2])):
        write_png(run_cases.write_run(tmp_path / name, log), tmp_path / f"{name}.png")
        assert (tmp_path / f"{name}.png").stat().st_size > 1000


def test_without_matplotlib_the_remedy_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(RunError, match=r"matplotlib, which is not installed; run pip install 'regard\[plot\]'$"):
        write_png(tmp_path, tmp_path / "run.png")


def test_a_picture_that_cannot_be_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra `plot`")
    run = run_cases.write_run(tmp_path / "run", run_cases.healthy_log(100))
    with pytest.raises(RunError, match=r"none/run.png cannot be written \(No such file or directory\); choose another"):
        write_png(run, tmp_path / "none" / "run.png")
