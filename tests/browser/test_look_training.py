"""Training, attribution, arrows and analogies in a real browser: the numbers are Python's."""

from __future__ import annotations

import pytest
from browser_cases import READY, TEXT, Served, Watched, eventually, wait_for

from regard.look.input import Input
from regard.look.views.attribution import AttributionRequest, attribution_of
from regard.look.views.training import TrainingRequest, training
from regard.look.views.vectors import AnalogyRequest, analogy, atlas, samples

TARGET = "a dog runs in the snow"


def numbers(page: object, selector: str, name: str) -> list[float]:
    return page.locator(f"[{selector}]").evaluate_all(f"all => all.map(e => Number(e.dataset.{name}))")  # type: ignore[attr-defined,no-any-return]


def test_one_step_changes_a_copy(served: dict[str, Served], watched: Watched) -> None:
    one = served["translator"]
    page = watched.open(one.address, text=TEXT, target=TARGET, to="en", view="training", rate="0.1")
    run = one.study.run(Input(TEXT, TARGET, "en"))
    found = training(one.study, run, TrainingRequest(run=run.key, rate=0.1, steps=1))
    before = [row["before"]["loss"] for row in found["rows"]]
    assert numbers(page, "data-before", "before") == pytest.approx(before, abs=1e-6)
    assert numbers(page, "data-part", "value") == pytest.approx([each["gradient"] for each in found["parts"]], abs=1e-6)
    cells = page.locator(".forcing tbody tr").first.locator("td, th").all_inner_texts()
    assert cells[1] == found["rows"][0]["truth"]
    assert f"{found['free'][0]['chance']:.2f}" in cells[-1]
    assert page.locator(".mask canvas").count() == 1
    page.locator("#step").click()
    eventually(lambda: page.locator("[data-expected]").count())
    after = [row["after"]["loss"] for row in found["rows"]]
    assert numbers(page, "data-after", "after") == pytest.approx(after, abs=1e-6)
    assert numbers(page, "data-loss", "loss") == pytest.approx(found["losses"], abs=1e-6)
    assert float(page.locator("[data-expected]").get_attribute("data-expected")) == pytest.approx(found["expected"])
    assert "steps=1" in page.url
    page.locator("#reset").click()
    eventually(lambda: page.locator("[data-after]").count() == 0)
    assert numbers(page, "data-before", "before") == pytest.approx(before, abs=1e-6), "the model is as it was"


def test_tokens_are_hidden_and_classes_chosen(served: dict[str, Served], watched: Watched) -> None:
    one = served["encoder"]
    page = watched.open(one.address, text=TEXT, view="training")
    places = numbers(page, "data-before", "before")
    shown = page.locator(".forcing button[aria-pressed=false]:enabled").first
    shown.click()
    eventually(lambda: page.locator("[data-before]").count() == len(places) + 1)
    assert "masked=" in page.url
    page = watched.open(served["vision"].address, view="training")
    for answer in ("0", "2"):
        page.get_by_label("True class", exact=True).select_option(answer)
        eventually(lambda answer=answer: f"answer={answer}" in page.url)
        wait_for(page, f"#view {READY}")
    eventually(lambda: page.locator("[data-before]").count() == 1)


def test_scores_of_tokens_are_pythons(served: dict[str, Served], watched: Watched) -> None:
    for family, state in (("translator", {"to": "en", "target": TARGET}), ("decoder", {}), ("encoder", {})):
        one = served[family]
        page = watched.open(one.address, text=TEXT, view="attribution", place="1", **state)
        run = one.study.run(Input(TEXT, state.get("target"), state.get("to")))
        found = attribution_of(one.study, run, AttributionRequest(run=run.key, place=1))
        scores = [score for side in found["stacks"].values() for score in side["scores"]]
        assert numbers(page, "data-score", "score") == pytest.approx(scores, abs=1e-5)
        page.locator(".scores li").nth(1).hover()
        assert float(page.locator("#readout [data-value]").get_attribute("data-value")) == pytest.approx(scores[1])
        other = found["answers"][1]
        page.get_by_label("Answer", exact=True).select_option(str(other[0]))
        eventually(lambda page=page, other=other: f"answer={other[0]}" in page.url)
        wait_for(page, f"#view {READY}")
        assert f"{other[2]:.3f}" in page.locator(".attribution > p").inner_text()


def test_arrows_and_analogies(served: dict[str, Served], watched: Watched) -> None:
    one = served["decoder"]
    page = watched.open(one.address, text=TEXT, view="vectors", arrows="1", word="bank")
    places = atlas(one.study, samples()["en"]["lines"]).chart("bank").places
    assert page.locator(".scatter .arrow").count() == len(places)
    starts = page.locator(".scatter .arrow").evaluate_all("all => all.map(e => e.getAttribute('d').split('L')[0])")
    assert len(set(starts)) == 1, "one static vector"
    ends = page.locator(".scatter .arrow").evaluate_all("all => all.map(e => e.getAttribute('d').split('L')[1])")
    assert len(set(ends)) == len(places)
    page.get_by_role("radio", name="contextual", exact=True).click()
    eventually(lambda: page.locator(".scatter .arrow").count() == 0)
    for name, word in (("a", "dog"), ("b", "the dog"), ("c", "cat")):
        page.get_by_label(f"Word {name}", exact=True).fill(word)
    page.get_by_role("button", name="Nearest words").click()
    eventually(lambda: page.locator(".analogy table").count() == 2)
    found = analogy(one.study, AnalogyRequest(a="dog", b="the dog", c="cat"))
    shown = page.locator(".analogy [data-value]").evaluate_all("all => all.map(e => Number(e.dataset.value))")
    assert shown == pytest.approx([score for key in ("analogy", "neighbours") for _, score in found[key]], abs=1e-5)
