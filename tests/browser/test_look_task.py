"""Task view in a real browser: the predictions are Python's, for a text and for a pair."""

from __future__ import annotations

import pytest
from browser_cases import TEXT, Served, Watched

from regard.look.input import Input
from regard.look.views.task import task_of


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
