"""Pages that left the server: files from the disk and frames of a notebook, with no network at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser_cases import HOSTILE, READY, TEXT, Served, Watched, eventually, wait_for
from tiny_models import WRITERS

import regard
from regard.look.input import Input
from regard.look.study import Study
from regard.look.views import views_of
from regard.look.views.walk import walk
from regard.serving import page_file as files
from regard.serving.page_file import page_file

Error = pytest.importorskip("playwright.sync_api", reason="needs the package playwright").Error
IMAGE = np.arange(64, dtype=np.uint8).reshape(1, 8, 8)


@pytest.fixture
def offline(browser: Any) -> Any:
    made = Watched(browser, offline=True)
    yield made
    made.context.close()
    assert made.wrong == []
    assert all(url.startswith(("file:", "data:", "about:")) for url in made.asked)


def written(study: Study, given: Input, file: Path, *views: str, **options: Any) -> str:
    file.write_text(page_file(study, study.run(given), views, **options).html, encoding="utf-8")
    return file.as_uri()


@pytest.mark.parametrize("family", list(WRITERS))
def test_every_view_opens_offline(served: dict[str, Served], offline: Watched, tmp_path: Path, family: str) -> None:
    study = served[family].study
    given = Input(image=IMAGE) if family == "vision" else Input(TEXT)
    page = offline.open(written(study, given, tmp_path / "look.html"))
    for view in views_of(study):
        page.locator(f"#tab-{view}").click()
        wait_for(page, f"#view[aria-labelledby=tab-{view}] {READY}")
        assert page.locator("#status").inner_text() == ""
    assert page.locator("#input :is(button, textarea, input)").count() == 0
    told = page.locator("#input").inner_text()
    assert "run: regard look" in told
    assert family == "vision" or TEXT in told


def test_the_files_numbers_are_pythons(served: dict[str, Served], offline: Watched, tmp_path: Path) -> None:
    study = served["translator"].study
    run = study.run(Input(HOSTILE[:60], to="en"))
    page = offline.open(written(study, run.given, tmp_path / "look.html"))
    page.locator("#tab-heads").click()
    page.locator("#enlarged").focus()
    page.keyboard.press("ArrowRight")
    shown = float(page.locator("#readout [data-value]").inner_text())
    assert abs(shown - float(study.tensor(run.key, "decoder.0.cross.weights")[0, 0, 0])) < 1e-6
    page.locator("#tab-walk").click()
    page.get_by_label("Head", exact=True).select_option("1")
    wait_for(page, READY)
    page.get_by_label("Token", exact=True).select_option("2")
    wait_for(page, READY)
    while page.locator(".walk [aria-current=step]").get_attribute("data-step") != "decoder.0.cross.weights":
        page.locator(".walk [aria-current=step]").focus()
        page.keyboard.press("ArrowRight")
    eventually(lambda: "(2)" in page.locator(".one-query h3").inner_text())
    (softmax,) = (step for step in walk(study, run, "decoder.0", 1) if step.name == "decoder.0.cross.weights")
    rows = page.locator(".one-query tr[data-key]").evaluate_all(
        "all => all.map(e => [e.dataset.key, e.lastChild.dataset.value].map(Number))"
    )
    assert [value for _, value in sorted(rows)] == pytest.approx(softmax.value[2].tolist(), abs=1e-6)
    assert [value for _, value in rows] == sorted((value for _, value in rows), reverse=True), "the largest is visible"
    page.locator("#tab-decode").click()
    wait_for(page, f"#view[aria-labelledby=tab-decode] {READY}")
    assert page.locator(".sliders input").evaluate_all("all => all.every(e => e.disabled)")
    assert page.locator(".options button").evaluate_all("all => all.length > 0 && all.every(e => e.disabled)")
    assert "need the model" in page.locator(".sliders .hint").inner_text()
    assert page.locator(".tree g.dropped").count() > 0


@pytest.mark.parametrize(
    "given", [Input(""), Input(TEXT, target=""), Input(TEXT, "a dog", "en", None, ("decoder.0.cross.1",))]
)
def test_every_input_finds_its_run(served: dict[str, Served], offline: Watched, tmp_path: Path, given: Input) -> None:
    page = offline.open(written(served["translator"].study, given, tmp_path / "look.html", "heads"))
    assert page.locator(".map.off").count() == len(given.ablated)
    assert page.locator(".chips button:enabled").count() == 0


def test_what_a_file_does_not_hold_is_told(served: dict[str, Served], offline: Watched, tmp_path: Path) -> None:
    study = served["translator"].study
    whole = page_file(study, study.run(Input(TEXT, to="en")), ["walk"], "decoder.0.cross.1")
    assert whole.left == {}
    address = written(study, Input(TEXT, to="en"), tmp_path / "a.html", "walk", at="decoder.0.cross.1", room=200_000)
    page = offline.open(address)
    page.get_by_label("Head", exact=True).select_option("0")
    wait_for(page, "#status.error")
    assert "This file holds only some answers (walk, for one input)" in page.locator("#status").inner_text()
    page.get_by_label("Head", exact=True).select_option("1")
    wait_for(page, READY)
    assert page.locator("#status").inner_text() == ""
    page.goto("about:blank")
    page.goto(f"{address}#text=other")
    wait_for(page, "#status.error")


def test_heads_that_had_no_room_are_marked(
    served: dict[str, Served], offline: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "EXACT_BYTES", 0)
    study = served["decoder"].study
    run = study.run(Input("the dog runs " * 12))
    address = written(study, run.given, tmp_path / "a.html", "heads", at="decoder.1.attention.1", room=40_000)
    page = offline.open(address)
    assert page.locator(".map.missing").count() == 2
    page.locator("#enlarged").focus()
    for key in ("ArrowRight", "ArrowDown", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    shown = float(page.locator("#readout [data-value]").inner_text())
    assert abs(shown - float(study.tensor(run.key, "decoder.1.attention.weights")[1, 2, 1])) < 1e-4
    page.locator(".map.missing").first.click()
    wait_for(page, "#status.error")


def test_frames_of_a_notebook_keep_apart(served: dict[str, Served], offline: Watched, tmp_path: Path) -> None:
    """Three on one page, of other models and views: each has its own data, and none reaches out."""
    looks = [
        regard.show(served["translator"].study, HOSTILE[:60], ("walk", "heads"), at="decoder.0.cross.1"),
        regard.show(served["decoder"].study, "the dog", "heads", theme="dark", height=500),
        regard.show(served["vision"].study, Input(image=IMAGE), "heads", theme="light"),
    ]
    frames = "\n".join(look._repr_html_() for look in looks)
    (tmp_path / "notebook.html").write_text(f"<!doctype html><meta charset=utf-8><h1>cells</h1>{frames}", "utf-8")
    page = offline.page
    page.goto((tmp_path / "notebook.html").as_uri())
    assert page.locator("iframe").count() == 3
    found = [page.frame_locator("iframe").nth(number) for number in range(3)]
    for frame in found:
        frame.locator(READY).wait_for()
        assert frame.locator("#status").inner_text() == ""
    families = [frame.locator("#model").inner_text().split(" · ")[1] for frame in found]
    assert families == ["encoder-decoder", "decoder", "vision"]
    grounds = [frame.locator("html").evaluate("e => getComputedStyle(e).backgroundColor") for frame in found[1:]]
    assert grounds == ["rgb(18, 22, 28)", "rgb(255, 255, 255)"]
    assert page.locator("iframe").nth(1).bounding_box()["height"] == 502, "with its border"
    study = served["decoder"].study
    weights = study.tensor(study.run(Input("the dog")).key, "decoder.0.attention.weights")
    found[1].locator("#enlarged").focus()
    page.keyboard.press("ArrowRight")
    assert abs(float(found[1].locator("#readout [data-value]").inner_text()) - float(weights[0, 0, 0])) < 1e-6
    found[1].locator("#theme").click()
    assert found[1].locator("html").get_attribute("data-theme") == "light"
    found[0].locator("#tab-heads").click()
    assert found[0].locator("#enlarged").get_attribute("aria-label").startswith("Cross-attention · layer 0 · head 1")
    assert found[2].locator("#tab-walk").count() == 0
    for frame in page.frames[1:]:
        assert frame.evaluate("window.origin") == "null"
        with pytest.raises(Error, match=r"SecurityError|cross-origin"):
            frame.evaluate("parent.document.title")
        assert frame.evaluate("fetch('https://example.invalid/').then(() => 'sent', () => 'refused')") == "refused"
    assert all("Content Security Policy" in told for told in offline.wrong), offline.wrong
    offline.wrong.clear()
