"""Budgets: which share is spent, and what is due then."""

from __future__ import annotations

import pytest

from regard.errors import SettingsError
from regard.settings import parse
from regard.training.budget import Spent, evaluations_due, require_budget, share
from regard.training.settings import Train

SPENT = Spent(step=30, epochs=1.5, tokens=4000, seconds=90)


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        ({"steps": 120}, 0.25),
        ({"epochs": 2}, 0.75),
        ({"total_tokens": 40_000}, 0.1),
        ({"minutes": 3}, 0.5),
        ({"steps": 120, "epochs": 2, "minutes": 3}, 0.75),
        ({"steps": 10}, 1.0),
    ],
)
def test_the_budget_nearest_its_end_counts(budget: dict[str, float], expected: float) -> None:
    assert share(parse(Train, budget), SPENT) == expected


def test_a_run_that_would_never_end_is_refused() -> None:
    with pytest.raises(SettingsError) as caught:
        require_budget(Train())
    assert str(caught.value) == (
        "train has no budget; set train.minutes, train.steps, train.epochs or train.total_tokens, such as "
        "train.minutes=5"
    )


@pytest.mark.parametrize("steps", [1, 7, 19, 20, 21, 60, 100, 999, 1000, 12_345])
def test_evaluations_are_spread_over_the_budget(steps: int) -> None:
    """Twenty, or one a step where there are fewer; none before its share of the steps is taken, and none late."""
    train = parse(Train, {"steps": steps})
    due = [evaluations_due(train, Spent(step=step)) for step in range(steps + 1)]
    assert due[0] == 0
    assert due[-1] == 20
    assert len(set(due)) == min(20, steps) + 1
    assert due == [20 * step // steps for step in range(steps + 1)]


def test_evaluations_at_a_rhythm() -> None:
    train = parse(Train, {"steps": 10, "evaluate_every": 4})
    assert [evaluations_due(train, Spent(step=step)) for step in range(1, 11)] == [0, 0, 0, 1, 1, 1, 1, 2, 2, 2]
