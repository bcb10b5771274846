"""`regard look` in a real browser: what it shows is what Python says, and nothing leaves the machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from browser_cases import HOSTILE, READY, TEXT, Served, Watched, eventually, wait_for
from PIL import Image
from tiny_models import WRITERS

import regard
from regard.look.input import Input
from regard.look.study import Study
from regard.look.views import views_of
from regard.shipped import MODELS


@pytest.mark.parametrize("family", list(WRITERS))
def test_every_view_opens_for_every_family(served: dict[str, Served], watched: Watched, family: str) -> None:
    one = served[family]
    page = watched.open(one.address, text=HOSTILE)
    page.set_viewport_size({"width": 800, "height": 900})
    for view in views_of(one.study):
        page.locator(f"#tab-{view}").click()
        wait_for(page, f"#view[aria-labelledby=tab-{view}] {READY}")
        assert page.locator(".trust p").text_content()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view
        assert page.locator("img").count() == 0, "the text is shown as text"


@pytest.mark.parametrize("name", sorted({each.directory for each in MODELS.values()}))
def test_every_view_opens_for_every_shipped_model(watched: Watched, name: str) -> None:
    """Each view without an error, and as a picture that holds its text."""
    one = Served(Study(regard.load(name, "cpu")))
    try:
        page = watched.open(one.address)
        for view in views_of(one.study):
            page.locator(f"#tab-{view}").click()
            wait_for(page, f"#view[aria-labelledby=tab-{view}] {READY}")
            assert page.locator("#status.error").count() == 0, page.locator("#status").inner_text()
            headings = page.locator("#view h2").all_inner_texts()  # before the picture: notes can follow later
            with page.expect_download() as started:
                page.get_by_role("button", name="Save as SVG").click()
            picture = ElementTree.parse(started.value.path())
            said = "".join(picture.getroot().itertext())
            assert all(heading.split()[0] in said for heading in headings), view
    finally:
        one.close()


@pytest.mark.parametrize(("family", "at"), [("translator", "decoder.cross"), ("decoder", "decoder.attention")])
def test_the_number_under_the_pointer_is_pythons(
    served: dict[str, Served], watched: Watched, family: str, at: str
) -> None:
    one = served[family]
    page = watched.open(one.address, text=TEXT, view="heads", at=at, layer="0", head="1", to="en")
    kept = next(run for run in one.study._runs.values() if run.given.text == TEXT and not run.given.ablated)
    stack, kind = at.split(".")
    weights = one.study.tensor(kept.key, f"{stack}.0.{kind}.weights")[1]
    canvas = page.locator("#enlarged")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    left, top, cell = (float(canvas.get_attribute(f"data-{name}")) for name in ("left", "top", "cell"))
    for query, key in ((1, 0), (2, 1), (weights.shape[0] - 1, weights.shape[1] - 1)):
        page.mouse.move(box["x"] + left + (key + 0.5) * cell, box["y"] + top + (query + 0.5) * cell)
        shown = page.locator("#readout [data-value]").inner_text()
        assert abs(float(shown) - float(weights[query, key])) < 1e-4
        assert len(shown.partition(".")[2]) >= 4


def test_a_head_is_silenced_by_keyboard_alone(served: dict[str, Served], watched: Watched) -> None:
    one = served["translator"]
    page = watched.open(one.address, text=TEXT, view="heads", to="en")
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.getAttribute('role') === 'gridcell'"):
            break
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.dataset.head") == "decoder.0.cross.1"
    page.keyboard.press("Enter")
    wait_for(page, "#edits:not([hidden])")
    eventually(lambda: page.evaluate("document.activeElement.dataset.head") == "decoder.0.cross.1")
    run = one.study.run(Input(TEXT, to="en", ablated=("decoder.0.cross.1",)))
    actual = run.answers[0].rows[0].actual
    assert actual is not None
    row = page.locator(".effect tbody tr").first
    assert f"{actual.chance:.4f}" in row.inner_text().replace("−", "-")
    assert "off=decoder.0.cross.1" in page.url
    page.keyboard.press("Enter")
    page.wait_for_selector("#edits", state="hidden")


def test_sliders_act_at_once_and_the_tree_has_what_was_dropped(served: dict[str, Served], watched: Watched) -> None:
    page = watched.open(served["translator"].address, text=TEXT, view="decode", to="en")
    before = page.locator(".options .chosen .number").first.inner_text()
    page.locator("input[name=temperature]").focus()
    for _ in range(10):
        page.keyboard.press("ArrowLeft")
    eventually(lambda: page.locator(".options .chosen .number").first.inner_text() != before)
    page.locator("input[name=top_k]").fill("2")
    eventually(lambda: page.locator(".steps tr").first.locator("button.cut").count() >= 6)
    assert "temperature=0.5" in page.url
    nodes = page.locator(".tree g[role=img]").count()
    page.locator("input[name=beam]").fill("2")
    eventually(lambda: 0 < page.locator(".tree g[role=img]").count() != nodes)
    assert page.locator(".tree g.dropped").count() > 0
    page.locator(".steps tr").first.locator("button").nth(1).click()
    page.get_by_role("button", name="Follow the model again").wait_for()


def test_an_error_is_told(served: dict[str, Served], browser: Any) -> None:
    other = Watched(browser)
    page = other.open(served["decoder"].address, text=TEXT)
    page.locator("textarea[name=text]").fill("the dog " * 2000)
    page.locator("#input button.main").click()
    wait_for(page, "#status.error")
    assert "the limit is 1,024" in page.locator("#status").inner_text()
    other.context.close()


def test_views_are_saved_as_pictures(served: dict[str, Served], watched: Watched, tmp_path: Path) -> None:
    """The SVG holds the map and its tokens, and the PNG has the size of the view, twice as fine."""
    page = watched.open(served["decoder"].address, text=TEXT, view="heads")
    wait_for(page, "[data-noted]")
    files = {}
    for format_ in ("SVG", "PNG"):
        with page.expect_download() as started:
            page.get_by_role("button", name=f"Save as {format_}").click()
        files[format_] = tmp_path / started.value.suggested_filename
        started.value.save_as(files[format_])
        assert files[format_].name.endswith(f"-heads.{format_.lower()}")
    drawn = files["SVG"].read_text(encoding="utf-8")
    assert "Masked self-attention · layer 0 · head 0" in drawn
    assert drawn.count("data:image/png") > 4, "the enlarged map, the small ones and the scale"
    assert "<script" not in drawn
    box = page.locator("#view > div").bounding_box()
    with Image.open(files["PNG"]) as image:
        assert image.size == (pytest.approx(2 * box["width"], abs=2), pytest.approx(2 * box["height"], abs=2))
        assert len(image.convert("RGB").getcolors(2**24)) > 50, "something is drawn"
