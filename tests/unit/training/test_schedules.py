"""Schedules against the paper's formula and against those of transformers."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import optimization

from regard.training.schedules import Progress, factor
from regard.training.settings import (
    Constant,
    Cosine,
    InverseSquareRoot,
    Linear,
    Paper,
    Schedule,
    WarmupStableDecay,
)

STEPS, WARMUP = 100, 10


def ours(schedule: Schedule, step: int, warmup: int = WARMUP, width: int = 512) -> float:
    return factor(schedule, Progress(step, step / STEPS, warmup / STEPS), width)


def theirs(name: str, step: int, **options: object) -> float:
    """The factor of a schedule of transformers at a step."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = optimization.get_scheduler(
        name, optimizer, num_warmup_steps=WARMUP, num_training_steps=STEPS, **options
    )
    return float(scheduler.lr_lambdas[0](step))


@pytest.mark.parametrize("step", [1, 5, 9, 10, 11, 37, 99, 100])
@pytest.mark.parametrize(
    ("schedule", "name"),
    [
        (Linear(warmup=WARMUP), "linear"),
        (Cosine(warmup=WARMUP), "cosine"),
        (Constant(warmup=WARMUP), "constant_with_warmup"),
        (InverseSquareRoot(warmup=WARMUP), "inverse_sqrt"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_equal_to_transformers(schedule: Schedule, name: str, step: int) -> None:
    assert ours(schedule, step) == pytest.approx(theirs(name, step), abs=1e-12)


@pytest.mark.parametrize("step", [1, 100, 3999, 4000, 4001, 100_000])
def test_the_papers_formula(step: int) -> None:
    expected = 512**-0.5 * min(step**-0.5, step * 4000**-1.5)
    assert factor(Paper(), Progress(step, 0.0), 512) == pytest.approx(expected, rel=1e-12)


def test_the_papers_highest_rate_is_at_the_end_of_warmup() -> None:
    rates = [factor(Paper(), Progress(step, 0.0), 512) for step in range(1, 8001)]
    assert rates.index(max(rates)) == 3999
    assert max(rates) == pytest.approx(7e-4, abs=1e-5)  # 1 / √(512 · 4000)


@pytest.mark.parametrize("shape", ["linear", "square-root"])
def test_stays_and_then_falls(shape: str) -> None:
    schedule = WarmupStableDecay(warmup=WARMUP, decay=0.5, shape=shape, floor=0.1)
    assert ours(schedule, 5) == 0.5
    assert ours(schedule, WARMUP) == ours(schedule, 54) == 1.0
    halfway = math.sqrt(0.5) if shape == "square-root" else 0.5
    # Of the 90 steps after warm-up the last 45 fall: at step 77.5 half of the decay is over.
    half = factor(schedule, Progress(78, 0.775, 0.1), 512)
    assert half == pytest.approx(0.1 + 0.9 * (1 - halfway))
    assert ours(schedule, STEPS) == pytest.approx(0.1)


def test_a_budget_of_minutes_ends_at_the_floor_whatever_the_steps() -> None:
    schedule = Cosine(warmup=100, floor=0.05)
    # Warm-up took a quarter of the time; nobody knows how many steps will follow.
    assert factor(schedule, Progress(100, 0.25, 0.25), 512) == 1.0
    assert factor(schedule, Progress(731, 0.625, 0.25), 512) == pytest.approx(0.525)
    assert factor(schedule, Progress(9999, 1.0, 0.25), 512) == pytest.approx(0.05)
    assert factor(schedule, Progress(10_000, 1.2, 0.25), 512) == pytest.approx(0.05)


def test_a_run_that_is_all_warmup_has_an_end() -> None:
    assert factor(Linear(warmup=5), Progress(5, 1.0, 1.0), 512) == 0.0
