"""Views as pictures: what they draw is what was recorded, for every family, whatever the text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import write_decoder, write_encoder, write_vision
from tiny_translator import write_translator

import regard
from regard.decoding.request import Hypothesis
from regard.decoding.tree import Node, Tree
from regard.errors import InputError
from regard.look import drawn_comparison, drawn_heads, drawn_image, drawn_lens, drawn_tree, drawn_walk, pictures
from regard.look.drawing import shown
from regard.look.drawn import draw
from regard.look.drawn_tree import best_path
from regard.look.reading import Input
from regard.look.study import Run, Study

pytestmark = pytest.mark.slow

BEGIN = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}
HOSTILE = "<img> $x_1^2$ \\frac \u202eabc\u202c \u0007 漢字 😀 שלום " + "x" * 60
WRITERS: dict[str, Callable[[Path], Path]] = {
    "translator": write_translator,
    "decoder": write_decoder,
    "encoder": write_encoder,
    "vision": write_vision,
}


@pytest.fixture(scope="module")
def studies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Study]:
    return {name: Study(regard.load(write(tmp_path_factory.mktemp(name)), "cpu")) for name, write in WRITERS.items()}


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """What would have been written."""
    found: list[Any] = []
    monkeypatch.chdir(tmp_path)
    for module in (drawn_heads, drawn_walk, drawn_tree, drawn_comparison, drawn_image, drawn_lens, pictures):
        monkeypatch.setattr(module, "save", lambda figure, path, title="": found.append((figure, title)))
    return found


def run_of(study: Study, text: str = "the dog runs", **options: Any) -> Run:
    image = np.arange(64, dtype=np.uint8).reshape(1, 8, 8) if study.loaded.settings.kind == "vision" else None
    return study.run(Input("" if image is not None else text, image=image, **options))


def texts_of(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.texts]


@pytest.mark.parametrize("family", WRITERS)
def test_every_view_of_every_family_is_drawn(studies: dict[str, Study], figures: list[Any], family: str) -> None:
    study = studies[family]
    for view in study.views:
        draw(study, run_of(study), Path("a.png"), view)
    assert len(figures) == len(study.views)


@pytest.mark.parametrize(("ending", "view"), [("png", "heads"), ("pdf", "walk"), ("svg", "decode")])
def test_hostile_text_is_drawn(studies: dict[str, Study], tmp_path: Path, ending: str, view: str) -> None:
    """A letter that a font lacks would be warned of, and a warning is an error here."""
    study, file = studies["decoder"], tmp_path / f"a.{ending}"
    draw(study, run_of(study, HOSTILE), file, view, title=HOSTILE)
    assert file.read_bytes().startswith(BEGIN[ending])


def test_all_heads(studies: dict[str, Study], figures: list[Any]) -> None:
    study = studies["translator"]
    run = run_of(study, "ein Hund läuft", to="en", ablated=("decoder.0.cross.1",))
    draw(study, run, Path("a.png"), "heads")
    ((figure, _),) = figures
    assert "Cross-attention" in [text.get_text() for text in figure.texts]
    *panels, _ = figure.axes
    weights = torch.stack([study.tensor(run.key, f"decoder.{layer}.cross.weights") for layer in range(1)])
    assert len(panels) == weights.shape[0] * weights.shape[1]
    for panel, truth in zip(panels, weights.flatten(0, 1), strict=True):
        assert np.abs(panel.images[0].get_array() - (truth / truth.max()).numpy()).max() < 1e-6
    assert [len(panel.lines) for panel in panels] == [0, 1], "the silent one is crossed out"


def test_large_maps_keep_their_largest_cells(studies: dict[str, Study], figures: list[Any]) -> None:
    study = studies["decoder"]
    run = run_of(study, "the dog runs " * 40)
    draw(study, run, Path("a.png"), "heads")
    drawn_map = figures[0][0].axes[0].images[0].get_array()
    truth = study.tensor(run.key, "decoder.0.attention.weights")[0].numpy()
    assert truth.shape[0] > drawn_heads.CELLS == len(drawn_map)
    assert drawn_map[0, 0] == drawn_map.max(), "the first token sees itself alone"
    rows = truth[len(truth) * (drawn_heads.CELLS - 1) // drawn_heads.CELLS :]
    assert np.isclose(drawn_map[-1].max() / drawn_map.max(), rows.max() / truth.max(), rtol=1e-5)
    assert 0.98 < (drawn_map <= 1).mean() < 1


def test_one_head(studies: dict[str, Study], figures: list[Any]) -> None:
    study = studies["translator"]
    run = run_of(study, "ein Hund läuft", to="en", target="a dog")
    draw(study, run, Path("a.png"), "heads", "decoder.0.cross.1")
    figure, title = figures[0]
    axes = figure.axes[0]
    assert title == "Cross-attention, layer 1, head 2"
    truth = study.tensor(run.key, "decoder.0.cross.weights")[1].numpy()
    assert np.abs(axes.images[0].get_array() - truth).max() < 1e-7
    for named, side in ((axes.get_yticklabels(), "decoder"), (axes.get_xticklabels(), "encoder")):
        assert [label.get_text() for label in named] == [token.text for token in run.sides[side].tokens]
    if truth.shape[1] <= drawn_heads.WRITTEN:
        assert texts_of(axes) == [f"{value:.2f}" for value in truth.flatten() if value >= 0.005]


def test_labels_of_long_inputs_leave_room(studies: dict[str, Study], figures: list[Any]) -> None:
    study = studies["decoder"]
    run = run_of(study, "the dog runs " * 40)
    draw(study, run, Path("a.png"), "heads", "decoder.0.attention.0")
    axes = figures[0][0].axes[0]
    assert 20 < len(axes.get_yticks()) < 80 < len(run.sides["decoder"].tokens)
    assert max(figures[0][0].get_size_inches()) < 14


def test_the_walk(studies: dict[str, Study], figures: list[Any]) -> None:
    study = studies["decoder"]
    run = run_of(study)
    draw(study, run, Path("a.png"), "walk", "decoder.1.attention.1")
    (axes,) = figures[0][0].axes
    texts = texts_of(axes)
    assert "From text to answer: Masked self-attention, layer 2, head 2" in texts
    assert {"Query · key", "Softmax", "Q Kᵀ", "Logits, softmax"} <= set(texts)
    corner = study.tensor(run.key, "decoder.1.attention.weights")[1][:6, :6]
    place = texts.index("Softmax")
    panel = texts[place : texts.index("Values")]
    for row in corner.tolist():
        for value in row:
            assert f"{value:.2f}" in panel
    lengths = len(run.sides["decoder"].tokens)
    assert f"{lengths} × {lengths}" in panel


def test_decoding(studies: dict[str, Study], figures: list[Any]) -> None:
    """The first step's candidates are what one pass over the text gives behind its last token."""
    study = studies["decoder"]
    run = run_of(study)
    draw(study, run, Path("a.png"), "decode")
    (axes,) = figures[0][0].axes
    texts = texts_of(axes)
    first = texts[texts.index("1") :]
    for place, candidate in enumerate(run.answers[0].rows[-1].candidates):
        assert first[1 + 2 * place : 3 + 2 * place] == [shown(candidate.text), f"{candidate.chance:.3f}"[1:]]
    totals = [text for text in texts[texts.index("start") :] if text.startswith("−")]
    assert totals[0] == f"−{-np.log(run.answers[0].rows[-1].candidates[0].chance):.3f}"
    assert sum(text.startswith("Beam search, 4 wide") for text in texts) == 1


def test_the_best_path_leads_to_the_best_result() -> None:
    nodes = [
        Node(0, None, 5, -0.1, -0.1, "open"),
        Node(0, None, 6, -2.0, -2.0, "open"),
        Node(1, 1, 2, -0.1, -2.1, "finished", -1.5),
        Node(1, 0, 2, -0.3, -0.4, "finished", -0.3),
        Node(1, 0, 7, -9.0, -9.1, "dropped"),
    ]
    best = Hypothesis([5], -0.3, [], finished=True, looped=False)
    assert best_path(Tree(nodes, [best])) == {0, 3}
    assert best_path(Tree(nodes, [])) == set()


def test_what_cannot_be_drawn(studies: dict[str, Study], tmp_path: Path) -> None:
    study, file = studies["encoder"], tmp_path / "a.png"
    run = run_of(study)
    with pytest.raises(InputError, match=r"view \(decode\) is not among those of this model: heads, walk"):
        draw(study, run, file, "decode")
    with pytest.raises(InputError, match=r"view \(haeds\).*did you mean heads\?"):
        draw(study, run, file, "haeds")
    with pytest.raises(InputError, match=r"head \(decoder\.0\.cross\.0\) is not in this model"):
        draw(study, run, file, "heads", "decoder.0.cross.0")
    with pytest.raises(InputError, match=r"no picture ends in \.bmp"):
        draw(study, run, tmp_path / "a.bmp", "heads")
    with pytest.raises(InputError, match=r"at \(decoder\.0\.attention\.0\) names a head"):
        draw(studies["decoder"], run_of(studies["decoder"]), file, "decode", "decoder.0.attention.0")
    assert not file.exists()
