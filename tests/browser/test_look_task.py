"""Task view in a real browser: the predictions are Python's, for a text and for a pair."""

from __future__ import annotations

import pytest
from browser_cases import TEXT, Served, Watched, wait_for

from regard.look.input import Input
from regard.look.views.task import task_of


def test_a_click_masks_a_token(served: dict[str, Served], watched: Watched) -> None:
    study = served["encoder"].study
    page = watched.open(served["encoder"].address, text=TEXT, view="task")
    assert "Click a token" in page.locator('[data-head="masked"]').inner_text()
    side = study.run(Input(TEXT)).sides["encoder"]
    begin, end = side.tokens[2].span
    page.locator('[data-head="masked"] [data-place="2"] button').click()
    wait_for(page, '[data-head="masked"] table')
    written = page.locator("textarea[name=text]").input_value()
    assert written == f"{TEXT[:begin]}{' ' * TEXT[begin:end].startswith(' ')}<mask>{TEXT[end:]}"
    heads = {head["name"]: head for head in task_of(study, study.run(Input(written)))["heads"]}
    (place, best), *_ = heads["masked"]["masks"]
    assert page.locator(f'[aria-label="Candidates for token {place}"] [data-value]').count() == len(best)


def test_predictions_are_pythons(served: dict[str, Served], watched: Watched) -> None:
    study = served["encoder"].study
    for second in (None, "ein Hund"):
        state = {"text": TEXT, "view": "task", **({"target": second} if second else {})}
        page = watched.open(served["encoder"].address, **state)
        found = task_of(study, study.run(Input(TEXT, second)))
        for head in found["heads"]:
            shown = page.locator(f'[data-head="{head["name"]}"]')
            assert shown.locator("li").count() == len(found["segments"])
            assert shown.locator("li.segment-1").count() == sum(found["segments"])
            values = shown.locator("[data-value]").evaluate_all("all => all.map(e => Number(e.dataset.value))")
            if head["kind"] == "tagging":
                assert values == pytest.approx([share for *_, share in head["tags"]])
            elif head["kind"] in ("classification", "next-sentence"):
                assert values == pytest.approx([share for _, share in head["classes"]])
                assert shown.locator("li.marked").count() >= 1
        assert page.locator("textarea[name=target]").input_value() == (second or "")
    assert not watched.wrong
