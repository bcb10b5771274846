"""Alignments as text and as pictures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from regard.errors import InputError
from regard.look.drawn_alignment import SHADES, picture, shade, terminal
from regard.use.translation import Alignment, Block

WEIGHTS = np.array([[1.0, 0.0, 0.0], [0.0, 0.2, 0.8]], np.float32)


def made(source: list[str], target: list[str], weights: np.ndarray = WEIGHTS) -> Alignment:
    return Alignment(source, target, [(0, 0)], (Block(0, 0, weights),))


def test_words_stand_above_their_columns() -> None:
    drawn = terminal(made(["der", "Hund", "bellt"], ["dogs", "bark"])).split("\n")
    assert drawn[0] == "     der Hund bellt"
    assert drawn[1] == "dogs ██"
    assert drawn[2] == "bark     ░░   ▓▓"


def test_what_is_too_wide_is_numbered() -> None:
    words = [f"wort{number}" for number in range(30)]
    weights = np.eye(30, dtype=np.float32)
    drawn = terminal(made(words, words, weights), width=80).split("\n")
    assert max(map(len, drawn)) <= 30 * 3 + 8
    row = next(line for line in drawn if line.startswith("wort12"))
    header = drawn[0]
    assert header[row.index("█") :].startswith("13"), "the cell lies below its number"
    assert "13 wort12" in " ".join(drawn[-5:])


def test_wide_and_strange_letters_keep_their_columns() -> None:
    drawn = terminal(made(["漢字", "e\u0301te\u0301", "\u202eab\x1b"], ["x", "漢"])).split("\n")
    assert drawn[0].startswith("   漢字 e\u0301te\u0301 ")
    assert "\x1b" not in drawn[0]
    assert "\u202e" not in drawn[0]
    assert drawn[1] == "x  ██"


@pytest.mark.parametrize(("weight", "wanted"), [(0, " "), (0.1, " "), (0.2, "░"), (0.5, "▒"), (1, "█"), (1.5, "█")])
def test_shades(weight: float, wanted: str) -> None:
    assert shade(weight) == wanted
    assert wanted in SHADES


@pytest.mark.parametrize(("ending", "begin"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_pictures(tmp_path: Path, ending: str, begin: bytes) -> None:
    path = tmp_path / f"a.{ending}"
    picture(made(["der", "Hund", "bellt"], ["dogs", "$bark_^"]), path, "a title")
    assert path.read_bytes().startswith(begin)


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        picture(made(["a", "b", "c"], ["d", "e"]), tmp_path / "a.nothing")
    with pytest.raises(InputError, match="cannot be written"):
        picture(made(["a", "b", "c"], ["d", "e"]), tmp_path / "none" / "a.png")
