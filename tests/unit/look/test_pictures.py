"""Pictures: what they draw is what was recorded, whatever the text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from study_cases import run_of

from regard.errors import InputError
from regard.look import pictures
from regard.look.pictures import alignment_text, draw_alignment, draw_heads, draw_lens, drawable
from regard.look.study import Study
from regard.look.views import draw_view
from regard.look.views.lens import lens
from regard.use.translator import Alignment

HOSTILE = "<img> $x_1^2$ \\frac \u202eabc\u202c \u0007 漢字 😀 שלום " + "x" * 60
WEIGHTS = np.array([[1.0, 0.0, 0.0], [0.0, 0.2, 0.8]], np.float32)


def test_grid_of_heads(studies: dict[str, Study]) -> None:
    study, run = run_of(studies, "translator", ablated=("decoder.0.cross.1",))
    *panels, _ = draw_heads(study, run).axes
    for panel, truth in zip(panels, study.tensor(run.key, "decoder.0.cross.weights"), strict=True):
        assert np.abs(panel.images[0].get_array() - (truth / truth.max()).numpy()).max() < 1e-6
    assert [[each.get_text() for each in panel.texts] for panel in panels] == [[], ["off"]], "the silent head is marked"


def test_large_maps_keep_their_largest_cells(studies: dict[str, Study]) -> None:
    study, run = run_of(studies, "decoder", "the dog runs " * 40)
    drawn: Any = draw_heads(study, run).axes[0].images[0].get_array()
    truth = study.tensor(run.key, "decoder.0.attention.weights")[0].numpy()
    assert len(truth) > pictures.SMALL_MAP == len(drawn)
    assert drawn[0, 0] == drawn.max(), "the first token sees only itself"
    assert 0.98 < (drawn <= 1).mean() < 1
    figure = draw_heads(study, run, "decoder.0.attention.0")
    assert 20 < len(figure.axes[0].get_yticks()) < 80 < len(truth), "names do not overlap"
    assert max(figure.get_size_inches()) < 14


def test_one_head(studies: dict[str, Study]) -> None:
    study, run = run_of(studies, "translator", target="a dog")
    axes: Any = draw_heads(study, run, "decoder.0.cross.1").axes[0]
    truth = study.tensor(run.key, "decoder.0.cross.weights")[1].numpy()
    assert axes.get_title() == "Cross-attention, layer 0, head 1"
    assert np.abs(axes.images[0].get_array() - truth).max() < 1e-7
    for labels, side in ((axes.get_yticklabels(), "decoder"), (axes.get_xticklabels(), "encoder")):
        assert [label.get_text() for label in labels] == run.sides[side].names
    assert [text.get_text() for text in axes.texts] == [f"{v:.2f}" for v in truth.flatten() if v >= 0.005]


def test_lens(studies: dict[str, Study]) -> None:
    for family in ("translator", "encoder", "vision"):
        study, run = run_of(studies, family, "ein Hund")
        found = lens(study, run)
        axes: Any = draw_lens(found, run.sides[found["stack"]].names).axes[0]
        shown = slice(pictures.LENS_POSITIONS)
        cells = [drawable(found["texts"][row[0]], 11) for layer in found["layers"] for row in layer["tokens"][shown]]
        assert [text.get_text() for text in axes.texts] == cells
        chances = [[row[0] for row in layer["chances"][shown]] for layer in found["layers"]]
        assert np.allclose(axes.images[0].get_array(), chances)
        assert len(axes.lines) == len(found["final"][shown]), "one frame for each position"


def test_files(studies: dict[str, Study], tmp_path: Path) -> None:
    study, run = run_of(studies, "decoder", HOSTILE)
    draw_view(study, run, tmp_path / "a.svg", "heads", "decoder.0.attention.0", HOSTILE)
    written = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert written.count("<image ") == 2, "the map and its scale"
    assert len(re.findall(r"<use ", written)) > 100, "the names of the tokens are drawn"
    for name, first in (("b.png", b"\x89PNG"), ("c.pdf", b"%PDF")):
        draw_view(study, run, tmp_path / name, "lens", title=HOSTILE)
        assert (tmp_path / name).read_bytes().startswith(first)


def test_errors(studies: dict[str, Study], tmp_path: Path) -> None:
    study, run = run_of(studies, "encoder")
    for view, at, name, message in (
        ("decode", "", "a.png", r"view \(decode\) must be one of architecture, heads"),
        ("walk", "", "a.png", "only heads and lens"),
        ("heads", "decoder.0.cross.0", "a.png", r"head \(decoder\.0\.cross\.0\)"),
        ("heads", "", "a.bmp", r"\.png, \.svg or \.pdf"),
        ("heads", "", "none/a.png", "cannot be written"),
    ):
        with pytest.raises(InputError, match=message):
            draw_view(study, run, tmp_path / name, view, at)
    assert not [*tmp_path.iterdir()]


def alignment(source: list[str], target: list[str], weights: np.ndarray = WEIGHTS) -> Alignment:
    return Alignment(source, target, [(0, 0)], ((0, 0, weights),))


def test_alignment_as_text() -> None:
    drawn = alignment_text(alignment(["der", "Hund", "bellt"], ["dogs", "bark"])).split("\n")
    assert drawn == ["     der Hund bellt", "dogs ██", "bark     ░░   ▓▓"]
    drawn = alignment_text(alignment(["漢字", "e\u0301te\u0301", "\u202eab\x1b"], ["x", "漢"])).split("\n")
    assert drawn[0].startswith("   漢字 e\u0301te\u0301 ")
    assert not {"\x1b", "\u202e"} & {*drawn[0]}
    assert drawn[1] == "x  ██"


def test_alignment_as_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = []
    monkeypatch.setattr(pictures, "save", lambda figure, path, title="": found.append(figure))
    draw_alignment(alignment(["der", "Hund", "bellt"], ["dogs", "$bark_^"]), Path("a.png"))
    axes = found[0].axes[0]
    assert np.allclose(axes.images[0].get_array(), WEIGHTS)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["dogs", r"\$bark_^"]
    assert len(axes.lines) == 1, "a circle for the link"
