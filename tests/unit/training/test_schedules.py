"""Schedules against the paper's formula and against those of transformers; budgets."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import optimization

from regard.errors import SettingsError
from regard.settings import parse
from regard.training.schedules import Spent, evaluations_due, plan_evaluations, rate_factor, spent_share
from regard.training.settings import (
    Constant,
    Cosine,
    InverseSquareRoot,
    Linear,
    Muon,
    Paper,
    Schedule,
    Train,
    WarmupStableDecay,
)

STEPS, WARMUP = 100, 10


def ours(schedule: Schedule, step: int, warmup: int = WARMUP, width: int = 512) -> float:
    return rate_factor(schedule, step, step / STEPS, warmup / STEPS, width)


def theirs(name: str, step: int, **options: object) -> float:
    """The factor of a schedule of transformers at a step."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = optimization.get_scheduler(
        name, optimizer, num_warmup_steps=WARMUP, num_training_steps=STEPS, **options
    )
    return float(scheduler.lr_lambdas[0](step))


def test_equal_to_transformers() -> None:
    schedules: list[tuple[Schedule, str]] = [
        (Linear(warmup=WARMUP), "linear"),
        (Cosine(warmup=WARMUP), "cosine"),
        (Constant(warmup=WARMUP), "constant_with_warmup"),
        (InverseSquareRoot(warmup=WARMUP), "inverse_sqrt"),
    ]
    for schedule, name in schedules:
        for step in (1, 5, 9, 10, 11, 37, 99, 100):
            assert ours(schedule, step) == pytest.approx(theirs(name, step), abs=1e-12), (name, step)


def test_the_papers_formula() -> None:
    for step in (1, 100, 3999, 4000, 4001, 100_000):
        expected = 512**-0.5 * min(step**-0.5, step * 4000**-1.5)
        assert rate_factor(Paper(), step, 0.0, 0.0, 512) == pytest.approx(expected, rel=1e-12)
    rates = [rate_factor(Paper(), step, 0.0, 0.0, 512) for step in range(1, 8001)]
    assert rates.index(max(rates)) == 3999
    assert max(rates) == pytest.approx(7e-4, abs=1e-5)  # 1 / √(512 · 4000)


@pytest.mark.parametrize("shape", ["linear", "square-root"])
def test_stays_and_then_falls(shape: str) -> None:
    schedule = WarmupStableDecay(warmup=WARMUP, decay=0.5, shape=shape, floor=0.1)
    assert ours(schedule, 5) == 0.5
    assert ours(schedule, WARMUP) == ours(schedule, 54) == 1.0
    halfway = math.sqrt(0.5) if shape == "square-root" else 0.5
    # Of the 90 steps after warm-up the last 45 fall: at step 77.5 half of the decay is over.
    half = rate_factor(schedule, 78, 0.775, 0.1, 512)
    assert half == pytest.approx(0.1 + 0.9 * (1 - halfway))
    assert ours(schedule, STEPS) == pytest.approx(0.1)


def test_a_budget_of_minutes_ends_at_the_floor_whatever_the_steps() -> None:
    schedule = Cosine(warmup=100, floor=0.05)
    # Warm-up took a quarter of the time; nobody knows how many steps will follow.
    assert rate_factor(schedule, 100, 0.25, 0.25, 512) == 1.0
    assert rate_factor(schedule, 731, 0.625, 0.25, 512) == pytest.approx(0.525)
    assert rate_factor(schedule, 9999, 1.0, 0.25, 512) == pytest.approx(0.05)
    assert rate_factor(schedule, 10_000, 1.2, 0.25, 512) == pytest.approx(0.05)
    assert rate_factor(Linear(warmup=5), 5, 1.0, 1.0, 512) == 0.0


def test_the_budget_that_is_closest_to_its_end_counts() -> None:
    spent = Spent(step=30, epochs=1.5, tokens=4000, seconds=90)
    for budget, expected in (
        ({"steps": 120}, 0.25),
        ({"epochs": 2}, 0.75),
        ({"total_tokens": 40_000}, 0.1),
        ({"minutes": 3}, 0.5),
        ({"steps": 120, "epochs": 2, "minutes": 3}, 0.75),
        ({"steps": 10}, 1.0),
    ):
        assert spent_share(parse(Train, budget), spent) == expected


def test_evaluations_are_spread_over_the_budget() -> None:
    """Twenty, or one in each step of a shorter run."""
    for steps in (1, 7, 19, 20, 21, 60, 100, 999, 1000, 12_345):
        train = parse(Train, {"steps": steps})
        due = [evaluations_due(train, Spent(step=step)) for step in range(steps + 1)]
        assert len(set(due)) == min(20, steps) + 1
        assert due == [20 * step // steps for step in range(steps + 1)]


def test_settings_that_contradict_each_other() -> None:
    with pytest.raises(SettingsError, match=r"micro \(200\) .* tokens \(100\)"):
        Train(tokens=100, micro=200)
    # Two processes with a part of each matrix took other steps, by 1e-2 after ten steps.
    with pytest.raises(SettingsError, match=r"shard .*muon"):
        Train(optimizer=Muon(), shard=True)


def test_warm_up_as_a_share_of_the_budget() -> None:
    """Of 100 steps the first 5 rise, whatever the budget is counted in; a prolonged run does not warm up again."""
    schedule = Linear(warmup=0.05)
    rising = [rate_factor(schedule, step, (step - 1) / 100, 0.0, 512) for step in range(1, 6)]
    assert rising == pytest.approx([0.02, 0.4, 0.6, 0.8, 1.0])  # nobody knows how long the first step takes
    assert rate_factor(schedule, 6, 0.05, 0.05, 512) == 1.0
    assert rate_factor(schedule, 53, 0.525, 0.05, 512) == pytest.approx(0.5)
    assert rate_factor(schedule, 7, 0.01, 0.005, 512) > 0.99
    for wrong in (1.0, 1.5, -1, -0.1):
        with pytest.raises(SettingsError, match="warmup"):
            Linear(warmup=wrong)


def test_evaluations_take_at_most_their_share() -> None:
    for training, validation, expected in (
        (10_000_000, 1_000, (20, 1)),
        (1_000_000, 50_000, (10, 1)),
        (1_000_000, 250_000, (5, 3)),
        (100_000, 1_000_000, (5, 61)),  # not fewer than 16 batches of 1,024 tokens
        (100, 900, (5, 1)),
    ):
        count, stride = plan_evaluations(training, validation, 1_024)
        assert (count, stride) == expected
    for batch, stride in ((65_536, 20), (16_384, 20), (512, 160)):  # 16 batches, or 65,536 tokens if they are large
        assert plan_evaluations(200_000, 1_310_720, batch) == (5, min(stride, 62)), batch
    for training, validation in ((10_000_000, 1_000), (1_000_000, 50_000), (1_000_000, 250_000), (100_000, 1_000_000)):
        count, stride = plan_evaluations(training, validation, 1_024)
        if validation / stride > 17 * 1_024:
            assert count * validation / stride / 3 <= 0.15 * (training + count * validation / stride / 3)
