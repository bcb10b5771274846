"""Compare in a real browser: the numbers are Python's, heads are chosen by click and by key, another model too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from browser_cases import READY, TEXT, Served, Watched, eventually, wait_for
from tiny_models import write_decoder

import regard
from regard.look.input import Input
from regard.look.study import Study
from regard.look.views.compare import compare_runs, control
from regard.models.families import Decoder


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    one, two = (regard.load(write_decoder(tmp_path_factory.mktemp("decoder")), "cpu") for _ in range(2))
    assert isinstance(two.network, Decoder)
    with torch.no_grad():
        two.network.output.matrix.mul_(1.5)
    made = Served(Study(one, against=two))
    yield made
    made.close()


def figure(page: Any, name: str, field: str = "value") -> float:
    return float(page.locator(f'[data-figure="{name}"] [data-{field}]').get_attribute(f"data-{field}"))


def numbers(page: Any, field: str) -> list[float]:
    found: list[float] = page.locator(f"[data-{field}]").evaluate_all(f"all => all.map(e => Number(e.dataset.{field}))")
    return found


@pytest.mark.parametrize(
    ("family", "kind", "change"),
    [("translator", "silent", ""), ("decoder", "scaled", "*2"), ("decoder", "mean", "=mean")],
)
def test_the_numbers_are_pythons(
    served: dict[str, Served], watched: Watched, family: str, kind: str, change: str
) -> None:
    study, head = served[family].study, "decoder.0.attention.1"
    state = {"view": "compare", "against": kind, "edited": head, "factor": "2", "at": "decoder.attention", "layer": "0"}
    page = watched.open(served[family].address, text=TEXT, to="en", **state)
    run = study.run(Input(TEXT, to="en" if family == "translator" else None))
    found, random = compare_runs(study, run, [head + change]), control(study, run, [head + change])
    answer = found["answers"][0]
    assert figure(page, "output.divergence") == pytest.approx(answer["figures"]["divergence"], abs=1e-4)
    assert figure(page, "output.divergence", "control") == pytest.approx(
        random["answers"]["output"]["divergence"]["mean"], abs=1e-4
    )
    assert numbers(page, "divergence") == pytest.approx([row["divergence"] for row in answer["rows"]], abs=1e-4)
    pairs = [row["actual"] or row["candidates"][0] for row in answer["rows"]]
    assert numbers(page, "after") == pytest.approx([pair["after"] for pair in pairs], abs=1e-4)
    cosines = page.locator("[data-stream] [data-value]").all_inner_texts()
    assert [float(text.replace("−", "-")) for text in cosines] == pytest.approx(
        [each["cosine"] for each in found["streams"]], abs=1e-4
    )
    if found["written"][1] is not None:
        told = "".join(chr(0x2400 + ord(letter)) if letter < " " else letter for letter in found["written"][1])
        assert page.locator("dd.after").inner_text().split() == told.split()


def test_the_maps_and_their_difference(compared: Served, watched: Watched) -> None:
    page = watched.open(
        compared.address,
        text=TEXT,
        view="compare",
        against="silent",
        edited="decoder.0.attention.0",
        layer="1",
        head="1",
    )
    study = compared.study
    run = study.run(Input(TEXT))
    other = study.run(Input(TEXT, ablated=("decoder.0.attention.0",)))
    one, two = (study.tensor(each.key, "decoder.1.attention.weights")[1] for each in (run, other))
    canvas = page.locator("#map-2")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    left, top, cell = (float(canvas.get_attribute(f"data-{name}")) for name in ("left", "top", "cell"))
    page.mouse.move(box["x"] + left + 0.5 * cell, box["y"] + top + 2.5 * cell)
    shown = [float(text.replace("−", "-")) for text in page.locator("#readout [data-value]").all_inner_texts()]
    assert shown == pytest.approx([float(one[2, 0]), float(two[2, 0]), float(two[2, 0] - one[2, 0])], abs=1e-4)
    page.locator("#map-0").focus()
    page.keyboard.press("ArrowRight")
    shown = [float(text.replace("−", "-")) for text in page.locator("#readout [data-value]").all_inner_texts()]
    assert shown[:2] == pytest.approx([float(one[2, 1]), float(two[2, 1])], abs=1e-4)


def test_heads_are_chosen_by_keyboard_alone(served: dict[str, Served], watched: Watched) -> None:
    page = watched.open(
        served["decoder"].address, text=TEXT, view="compare", layer="0", head="0", edited="decoder.0.attention.0"
    )
    before = figure(page, "output.divergence")
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.dataset.head") == "decoder.0.attention.0":
            break
    page.keyboard.press("Enter")
    assert "At least one head" in page.locator("#status").inner_text()
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.dataset.head") == "decoder.1.attention.0"
    page.keyboard.press("Enter")
    eventually(lambda: page.locator(".toggles .changed").count() == 2)
    wait_for(page, f"#view {READY}")
    assert page.evaluate("document.activeElement.dataset.head") == "decoder.1.attention.0"
    study = served["decoder"].study
    words = ["decoder.0.attention.0", "decoder.1.attention.0"]
    expected = compare_runs(study, study.run(Input(TEXT)), words)["answers"][0]["figures"]["divergence"]
    assert figure(page, "output.divergence") == pytest.approx(expected, abs=1e-4)
    assert before != pytest.approx(expected, abs=1e-4)
    page.get_by_role("button", name="Leave decoder, layer 0, head 0 as it is").click()
    eventually(lambda: page.locator(".toggles .changed").count() == 1)


def test_another_model(compared: Served, watched: Watched) -> None:
    page = watched.open(compared.address, text=TEXT, view="compare")
    found = compare_runs(compared.study, compared.study.run(Input(TEXT)))
    assert found["answers"][0]["figures"]["divergence"] > 1e-4
    assert figure(page, "output.divergence") == pytest.approx(found["answers"][0]["figures"]["divergence"], abs=1e-4)
    page.locator('select[aria-label="Head of the other"]').select_option("1")
    eventually(lambda: "ohead=1" in page.url)
    page.get_by_role("radio", name="Silent heads").click()
    wait_for(page, "button.changed")
