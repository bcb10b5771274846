"""Lens in a real browser: the numbers are Python's, by pointer and by keyboard, in the light and in the dark."""

from __future__ import annotations

from typing import Any

import pytest
from browser_cases import READY, TEXT, Served, Watched, wait_for

from regard.look.input import Input
from regard.look.views.lens import lens


def found_in(served: Served, text: str = TEXT, output: str | None = None, **more: Any) -> dict[str, Any]:
    study = served.study
    to = "en" if study.loaded.settings.kind == "encoder-decoder" else None
    return lens(study, study.run(Input(text, to=to, **more)), output)


def shown(page: Any) -> list[float]:
    rows = page.locator('[aria-label="Most probable"] [data-value]').all_inner_texts()
    return [float(text.replace("−", "-")) for text in rows]


def fact(page: Any, name: str) -> float:
    return float(page.locator(f'[data-fact="{name}"] [data-value]').get_attribute("data-value"))


@pytest.mark.parametrize(("family", "output"), [("translator", None), ("decoder", None), ("encoder", "masked")])
def test_the_numbers_of_a_cell_are_pythons(
    served: dict[str, Served], watched: Watched, family: str, output: str | None
) -> None:
    page = watched.open(served[family].address, text=TEXT, view="lens", **({"to": "en"} if output is None else {}))
    found = found_in(served[family], output=output)
    for layer, place in ((0, 1), (1, 0)):
        cell = page.locator(f"#cell-{layer}-{place}")
        cell.hover()
        assert shown(page) == pytest.approx(found["layers"][layer]["chances"][place], abs=1e-4)
        assert fact(page, "Model's answer") == pytest.approx(found["layers"][layer]["final_chance"][place], abs=1e-4)
        assert fact(page, "Entropy") == pytest.approx(found["layers"][layer]["entropy"][place], abs=1e-4)
        name = "Actual token" if output else "Actual next token"
        assert fact(page, name) == pytest.approx(found["layers"][layer]["actual_chance"][place], abs=1e-4)
    shares = page.locator("[data-agrees]").evaluate_all("all => all.map(e => Number(e.dataset.agrees))")
    assert shares == pytest.approx([layer["agrees"] for layer in found["layers"]])
    constant = float(page.locator("[data-constant]").get_attribute("data-constant"))
    assert constant == pytest.approx(found["constant"])


def test_by_keyboard_alone_and_the_address_keeps_the_cell(served: dict[str, Served], watched: Watched) -> None:
    page = watched.open(served["decoder"].address, text=TEXT, view="lens", row="0", column="0")
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "lens":
            break
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "ArrowUp", "ArrowDown"):
        page.keyboard.press(key)
    assert page.locator("#lens").get_attribute("aria-activedescendant") == "cell-1-2"
    assert page.locator("#cell-1-2.at").count() == 1
    assert shown(page) == pytest.approx(found_in(served["decoder"])["layers"][1]["chances"][2], abs=1e-4)
    assert "row=1&column=2" in page.url


def test_classes_of_the_whole_input(served: dict[str, Served], watched: Watched) -> None:
    page = watched.open(served["encoder"].address, text=TEXT, view="lens")
    page.get_by_role("radio", name="label").click()
    wait_for(page, f"#view {READY} >> text=the whole input")
    found = found_in(served["encoder"], output="label")
    page.locator("#cell-0-0").hover()
    assert shown(page) == pytest.approx(found["layers"][0]["chances"][0], abs=1e-4)
    assert "once in 3" in page.locator("#baseline").inner_text()


def test_a_long_text_scrolls_in_its_box_and_only_what_is_seen_is_drawn(
    served: dict[str, Served], watched: Watched
) -> None:
    text = "ein Hund läuft durch den Schnee " * 20
    page = watched.open(served["decoder"].address, text=text, view="lens", column="0")
    places = len(found_in(served["decoder"], text)["final"])
    assert places > 300
    assert page.locator("#lens [role=gridcell]").count() < 3 * 60
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.locator("#lens").focus()
    page.keyboard.press("End")
    last = page.locator(f"#cell-2-{places - 1}.at")
    last.wait_for()
    box, outer = last.bounding_box(), page.locator("#lens").bounding_box()
    assert outer["x"] <= box["x"]
    assert box["x"] + box["width"] <= outer["x"] + outer["width"] + 1
