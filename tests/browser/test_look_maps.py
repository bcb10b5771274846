"""Vectors and Positions in a real browser: their numbers are Python's, by pointer and by keyboard."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from browser_cases import HOSTILE, READY, TEXT, Served, Watched, eventually, wait_for
from tiny_translator import TEXTS as TRAINED

import regard
from regard.blocks import settings as blocks
from regard.look.study import Study
from regard.look.views.positions import distance_scores, encodings
from regard.look.views.vectors import atlas
from regard.models.settings import Classification, Decoder, Vision
from regard.text.settings import ByteBpe
from regard.text.tokenizer import TokenizerPair
from regard.text.train import train_tokenizer
from regard.weights.directory import save_model

LINES = "the dog is running\nund the dog läuft\na cat and the dog too"
TEXTS = LINES.split("\n")
POSITIONS = {"alibi": blocks.Alibi(), "rotary": blocks.Rotary(), "none": blocks.NoPosition()}


def write(directory: Path, kind: str) -> Path:
    torch.manual_seed(0)
    tokenizer = train_tokenizer(ByteBpe(size=400), TRAINED)
    attention = blocks.Attention(heads=2)
    settings = Decoder(vocabulary=tokenizer.size, width=16, depth=1, attention=attention, position=POSITIONS[kind])
    save_model(regard.build(settings), directory)
    TokenizerPair.of(tokenizer).save(directory)
    return directory


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Served]]:
    """Decoders with other positions, and an image model of more than a few patches."""
    found = {kind: Served(Study(regard.load(write(tmp_path_factory.mktemp(kind), kind), "cpu"))) for kind in POSITIONS}
    images = Vision(
        image=(12, 20),
        patch=4,
        channels=1,
        width=16,
        depth=1,
        attention=blocks.Attention(heads=2),
        heads={"label": Classification(classes=3)},
    )
    directory = tmp_path_factory.mktemp("patches")
    save_model(regard.build(images), directory)
    found["patches"] = Served(Study(regard.load(directory, "cpu")))
    yield found
    for each in found.values():
        each.close()


def shown(page: Any, where: str) -> float:
    return float(page.locator(where).first.inner_text().replace("−", "-"))


def point_at(page: Any, canvas: str, row: int, column: int) -> None:
    found = page.locator(canvas)
    found.scroll_into_view_if_needed()
    box = found.bounding_box()
    left, top, wide, high = (float(found.get_attribute(f"data-{name}")) for name in ("left", "top", "wide", "high"))
    page.mouse.move(box["x"] + left + (column + 0.5) * wide, box["y"] + top + (row + 0.5) * high)


@pytest.mark.parametrize("family", ["translator", "decoder"])
def test_points_and_cosines_are_pythons(served: dict[str, Served], watched: Watched, family: str) -> None:
    one = served[family]
    to = {"to": "en"} if family == "translator" else {}
    page = watched.open(one.address, text=TEXT, view="vectors", lines=LINES, word="dog", depth="1", **to)
    found = atlas(one.study, TEXTS, to.get("to"))
    chart = found.chart("dog")
    assert page.locator(".spot").count() == len(chart.places) == 3
    for number, word in enumerate(chart.places):
        page.locator(f".spot[data-number='{number}']").hover()
        place = page.locator("#readout [data-x]")
        for axis, value in zip("xy", chart.points[1, number].tolist(), strict=True):
            assert abs(float(place.get_attribute(f"data-{axis}")) - value) < 1e-4
        for row in page.locator("#readout [data-other]").all():
            wanted = float(found.cosines[1, word, int(row.get_attribute("data-other"))])
            assert abs(float(row.inner_text().replace("−", "-")) - wanted) < 1e-4
    measured = page.locator("#measured").text_content()
    assert f"{100 * float(chart.share[1].sum()):.0f} % of the variance" in measured
    assert chart.chance is not None
    assert f"{float(chart.chance.layers[1]):.3f}".replace("-", "−") in measured
    for first, second in itertools.combinations(chart.places, 2):
        row = page.locator(f"[data-pair='{first}-{second}'] [data-value]")
        cells = [float(cell.inner_text().replace("−", "-")) for cell in row.all()]
        assert cells == pytest.approx(found.cosines[:, first, second].tolist(), abs=1e-4)
    chance = [float(cell.get_attribute("data-value")) for cell in page.locator("[data-pair=random] [data-value]").all()]
    assert chance == pytest.approx(chart.chance.layers.tolist(), abs=1e-5)


def test_the_slider_asks_for_nothing_again(served: dict[str, Served], watched: Watched) -> None:
    page = watched.open(served["encoder"].address, text=TEXT, view="vectors", lines=LINES)
    asked = [url for url in watched.asked if url.endswith("/api/vectors")]
    assert len(asked) == 1
    before = page.locator(".spot").first.get_attribute("transform")
    slider = page.locator("input[name=depth]")
    slider.focus()
    for _ in range(2):
        page.keyboard.press("ArrowLeft")
    assert page.locator(".spot").first.get_attribute("transform") != before
    assert "depth=0" in page.url
    page.locator("select[name=word]").select_option("*")
    assert page.locator(".spot").count() == 14
    page.locator("#theme").click()
    wait_for(page, f"#view {READY}")
    assert [url for url in watched.asked if url.endswith("/api/vectors")] == asked


def test_other_sentences(served: dict[str, Served], watched: Watched) -> None:
    page = watched.open(served["translator"].address, text=TEXT, view="vectors", to="en")
    page.locator("textarea[name=lines]").fill("the cat\na cat too")
    page.locator(".sentences button").click()
    eventually(lambda: page.locator(".spot").count() == 2)
    assert "cat" in page.locator("select[name=word] option:checked").inner_text()
    assert "lines=the+cat" in page.url
    page.locator("textarea[name=lines]").fill(HOSTILE + "\n" + HOSTILE[::-1])
    page.keyboard.press("Control+Enter")
    eventually(lambda: "<img src=x onerror" in page.locator(".legend-list").inner_text())
    assert page.locator("img").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    boxes = [page.locator(each).bounding_box() for each in ("textarea[name=lines]", ".scatter")]
    assert boxes[0]["x"] + boxes[0]["width"] <= boxes[1]["x"], "a long word does not push the form over the map"
    page.locator("select[name=word]").select_option("*")
    assert page.locator(".spot").count() > 5


def test_encodings_dots_and_distances_are_pythons(served: dict[str, Served], watched: Watched) -> None:
    one = served["translator"]
    page = watched.open(one.address, text=TEXT, view="positions", places="24", to="en", side="decoder")
    wanted = encodings(one.study.loaded, 24, "decoder")
    order = [*range(0, 16, 2), *range(1, 16, 2)]
    for row, column in ((7, 1), (23, 9), (0, 15)):
        point_at(page, "#encodings", row, column)
        assert abs(shown(page, "#readout [data-value]") - float(wanted.matrix[row, order[column]])) < 1e-4
        wave = "cos" if order[column] % 2 else "sin"
        assert f"PE({row}, {order[column]}) = {wave}" in page.locator("#readout").inner_text()
    point_at(page, "#similarity", 3, 17)
    assert abs(shown(page, "#readout [data-value]") - float(wanted.cosines[3, 17])) < 1e-4
    assert abs(shown(page, "#readout [data-other]") - float(wanted.dots[3, 17])) < 1e-4
    page.get_by_role("radio", name="Dot product").click()
    point_at(page, "#similarity", 5, 6)
    assert abs(shown(page, "#readout [data-value]") - float(wanted.dots[5, 6])) < 1e-4
    page.locator("#near").focus()
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    near = shown(page, ".lined .readout [data-name=cosine]")
    assert abs(near - float(wanted.cosines.diagonal(3).mean())) < 1e-4
    assert "0 ± 0.250" in page.locator("#measured").text_content()


def test_scores_by_distance(kinds: dict[str, Served], watched: Watched) -> None:
    one = kinds["alibi"]
    page = watched.open(one.address, text=TEXT, view="positions", places="16")
    wanted = distance_scores(one.study.loaded, 16).scores
    for head, distance in ((0, 15), (1, 4)):
        point_at(page, "#scores", head, distance)
        assert abs(shown(page, "#readout [data-value]") - float(wanted[head, distance])) < 1e-4
    page.locator("#curves").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert abs(shown(page, ".lined .readout [data-name='head 1']") - float(wanted[1, 1])) < 1e-4


def test_rotary_and_none(kinds: dict[str, Served], watched: Watched) -> None:
    one = kinds["rotary"]
    page = watched.open(one.address, text=TEXT, view="positions", places="12")
    found = encodings(one.study.loaded, 12)
    point_at(page, "#encodings", 3, 4)  # sines of four pairs first, then cosines
    assert abs(shown(page, "#readout [data-value]") - float(found.matrix[3, 1])) < 1e-4
    assert found.angles is not None
    assert f"turned by {float(found.angles[3, 0]):.4f} radians" in page.locator("#readout").inner_text()
    page = watched.open(kinds["none"].address, text=TEXT, view="positions")
    assert "has no positions" in page.locator("#nothing").inner_text()
    assert page.locator("canvas").count() == 0


def test_patches_of_an_image(kinds: dict[str, Served], watched: Watched) -> None:
    one = kinds["patches"]
    page = watched.open(one.address, view="positions")
    cosines = encodings(one.study.loaded).cosines
    point_at(page, "#similarity", 2, 4)
    assert abs(shown(page, "#readout [data-value]") - float(cosines[7, 14])) < 1e-4, "the middle one is chosen first"
    page.locator("#similarity").focus()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    eventually(lambda: "patch=9" in page.url)
    assert page.evaluate("document.activeElement.id") == "similarity"
    point_at(page, "#similarity", 0, 0)
    assert abs(shown(page, "#readout [data-value]") - float(cosines[9, 0])) < 1e-4
