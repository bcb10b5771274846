"""The Image view in a real browser, and what the Heads view says besides the weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser_cases import READY, TEXT, Served, Watched, eventually, wait_for
from PIL import Image

from regard.look.heads import attentions_of
from regard.look.input import Input, image_from
from regard.look.study import StudyRun
from regard.look.views.heads import head_notes, rollout
from regard.look.views.image import PatchesRequest, concentration, deletion, patch_attention


def last(one: Served) -> StudyRun:
    """What the page is looking at."""
    return next(reversed(one.study._runs.values()))


def point(page: Any, row: int, column: int) -> float:
    """The number that is told of a patch."""
    canvas = page.locator("#picture")
    canvas.scroll_into_view_if_needed()
    box, cell = canvas.bounding_box(), float(canvas.get_attribute("data-cell"))
    page.mouse.move(box["x"] + (column + 0.5) * cell, box["y"] + (row + 0.5) * cell)
    shown = page.locator("#readout [data-value]").inner_text()
    assert len(shown.partition(".")[2]) >= 4
    return float(shown)


@pytest.mark.parametrize(
    ("state", "query"),
    [
        ({"head": "1"}, {"head": 1}),
        ({"query": "2"}, {"query": 2}),
        ({"query": "mean"}, {"query": None}),
        ({"map": "rollout"}, {"rollout": True}),
    ],
)
def test_the_number_of_a_patch_is_pythons(
    served: dict[str, Served], watched: Watched, state: dict[str, str], query: dict[str, Any]
) -> None:
    one = served["vision"]
    page = watched.open(one.address, view="image", **state)
    run = last(one)
    asked = PatchesRequest(run=run.key, **query)
    expected = patch_attention(one.study, asked)[0].tolist()
    for patch in (3, 0, 1):
        assert abs(point(page, patch // 2, patch % 2) - expected[patch]) < 1e-4
    measured = concentration(one.study, asked)
    for name in ("entropy", "uniform", "chance"):
        shown = float(page.locator(f"#figures [data-figure={name}]").inner_text())
        assert abs(shown - measured[name]) < 1e-4
    assert page.locator(".trust p").text_content().startswith("Attention shows where a head looked")


def test_the_gradient_map_and_the_deletion_curve(served: dict[str, Served], watched: Watched) -> None:
    one = served["vision"]
    page = watched.open(one.address, view="image", map="gradient")
    asked = PatchesRequest(run=last(one).key, gradient=True)
    expected = patch_attention(one.study, asked)[0].tolist()
    for patch in (3, 0):
        assert abs(point(page, patch // 2, patch % 2) - expected[patch]) < 1e-4
    page.locator("#deletion").click()
    page.locator("#deletion-curve").wait_for()
    area = deletion(one.study, asked)["area"]
    for name, value in area.items():
        assert abs(float(page.locator(f"[data-figure=area-{name}]").inner_text()) - value) < 1e-3


def test_a_query_is_chosen_by_a_click_and_by_keyboard_alone(served: dict[str, Served], watched: Watched) -> None:
    one = served["vision"]
    page = watched.open(one.address, view="image")
    run = last(one)
    point(page, 1, 0)
    page.mouse.down()
    page.mouse.up()
    eventually(lambda: "query=2" in page.url)
    expected = patch_attention(one.study, PatchesRequest(run=run.key, query=2))[0]
    eventually(lambda: abs(float(page.locator("#readout [data-value]").inner_text()) - float(expected[2])) < 1e-4)
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id === 'picture'"):
            break
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    eventually(lambda: "query=3" in page.url)
    page.keyboard.press("Enter")
    eventually(lambda: "query=" not in page.url)
    expected = patch_attention(one.study, PatchesRequest(run=run.key))[0]
    eventually(lambda: abs(float(page.locator("#readout [data-value]").inner_text()) - float(expected[3])) < 1e-4)
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    eventually(lambda: page.evaluate("document.activeElement.dataset.head") == "encoder.0.attention.1")
    assert "head=1" in page.url


def test_the_overlay_and_dark_mode(served: dict[str, Served], browser: Any) -> None:
    """Without an overlay the picture is the image; with all of it, the map alone."""
    pixel = """(at) => {
        const canvas = document.getElementById("picture"), size = canvas.width / 2;
        const x = size * (at % 2 + 0.3), y = size * (Math.floor(at / 2) + 0.3);
        const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d");
        copy.drawImage(canvas, 0, 0);
        return [...copy.getImageData(x, y, 1, 1).data].slice(0, 3);
    }"""
    for scheme in ("light", "dark"):
        other = Watched(browser, color_scheme=scheme)
        page = other.open(served["vision"].address, view="image", opacity="0")
        image = last(served["vision"]).given.image
        assert image is not None
        for patch in range(4):
            row, column = (int(4 * (place + 0.3)) for place in divmod(patch, 2))
            assert page.evaluate(pixel, patch) == [int(image[0, row, column])] * 3
        page.locator("input[name=opacity]").fill("100")
        shares = patch_attention(served["vision"].study, PatchesRequest(run=last(served["vision"]).key))[0]
        assert page.evaluate(pixel, int(shares.argmax())) == [252, 255, 164]
        assert "opacity=100" in page.url
        other.context.close()
        assert other.wrong == []


def test_an_upload_is_read_as_training_reads_it(served: dict[str, Served], watched: Watched, tmp_path: Path) -> None:
    one = served["vision"]
    page = watched.open(one.address, view="image")
    made = np.random.default_rng(2).integers(0, 256, (37, 29, 3), dtype=np.uint8)
    for name, size in (("large.png", None), ("small.png", (5, 3))):
        picture = Image.fromarray(made)
        (picture if size is None else picture.resize(size)).save(tmp_path / name)
        page.locator("input[name=image]").set_input_files(tmp_path / name)
        expected = image_from(one.study.loaded, tmp_path / name)
        eventually(lambda wanted=expected: np.array_equal(last(one).given.image, wanted))
        wait_for(page, READY)
    before = last(one).key
    (tmp_path / "<b>none.png").write_text("nothing", encoding="utf-8")
    page.locator("input[name=image]").set_input_files(tmp_path / "<b>none.png")
    wait_for(page, "#status.error")
    assert "<b>none.png cannot be read as an image" in page.locator("#status").inner_text()
    assert last(one).key == before


@pytest.mark.parametrize(
    ("family", "at", "name"),
    [
        ("translator", "decoder.cross", "rollout.source"),
        ("decoder", "decoder.attention", "rollout.decoder"),
        ("vision", "encoder.attention", "rollout.encoder"),
    ],
)
def test_the_rollout_among_the_heads(
    served: dict[str, Served], watched: Watched, family: str, at: str, name: str
) -> None:
    one = served[family]
    state = {} if family == "vision" else {"text": TEXT}
    page = watched.open(one.address, view="heads", at=at, map="rollout", **state)
    expected = rollout(one.study, last(one), name)
    page.locator("#enlarged").focus()
    page.keyboard.press("ArrowRight")
    for place in (0, 1):
        shown = float(page.locator("#readout [data-value]").inner_text())
        assert abs(shown - float(expected[0, place])) < 1e-4
        page.keyboard.press("ArrowRight")
    page.locator(f'[data-head="{at.replace(".", ".0.")}.1"]').click()
    wait_for(page, "#silence")
    assert "map=" not in page.url


def test_what_is_known_of_a_head(served: dict[str, Served], watched: Watched) -> None:
    one = served["decoder"]
    page = watched.open(one.address, text=TEXT, view="heads", layer="1", head="1")
    wait_for(page, "[data-noted]")
    note = head_notes(one.study, last(one), "decoder.1.attention")["decoder.1.attention.1"]
    for name in ("score", "chance", "entropy", "distance"):
        shown = float(page.locator(f"#note [data-note={name}]").inner_text())
        assert abs(shown - getattr(note, name)) < 1e-4
    every = [head_notes(one.study, last(one), at) for at in attentions_of(one.study.network)]
    known = {head for notes in every for head, each in notes.items() if each.name}
    assert {button.get_attribute("data-named") for button in page.locator("[data-named]").all()} == known
    assert page.locator(".maps .sign").count() == len(known)


def test_silent_heads_give_their_mean_on_request(served: dict[str, Served], watched: Watched) -> None:
    one = served["decoder"]
    page = watched.open(one.address, text=TEXT, view="heads", off="decoder.0.attention.0")
    page.get_by_role("radio", name="zero").focus()
    page.keyboard.press("ArrowRight")
    run = one.study.run(Input(TEXT, ablated=("decoder.0.attention.0=mean",)))
    actual = run.answers[0].rows[0].actual
    assert actual is not None
    eventually(lambda: f"{actual.chance:.4f}" in page.locator(".effect tbody tr").first.inner_text())
    assert "mean=1" in page.url
    eventually(lambda: page.evaluate("document.activeElement.textContent") == "their mean")
