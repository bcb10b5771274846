"""A run that was interrupted, at whatever moment and however often, gives bit by bit what it would have given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loop_cases import MOMENTS, before, interrupt, interrupted, remains
from training_cases import FAMILIES, Job

from regard.settings import parse
from regard.training.run import read_log
from regard.training.settings import Train

pytestmark = pytest.mark.slow

STEPS = 10
RHYTHMS: dict[str, Any] = {"log_every": 4, "evaluate_every": 5, "save_every": 3}
"""None divides another, or the number of steps: checkpoints fall between lines of the log, and between evaluations."""


def job(family: str, directory: Path, **changes: Any) -> Job:
    """Dropout everywhere, several parts a step, an average of the weights, two snapshots kept."""
    train: dict[str, Any] = {
        "steps": STEPS,
        "tokens": 96,
        "micro": 40,
        "ema": 0.8,
        "keep": 2,
        "optimizer": {"kind": "adamw", "rate": 0.01, "decay": 0.1},
        "schedule": {"kind": "linear", "warmup": 4},
        **RHYTHMS,
        **changes,
    }
    if train.get("layout") == "packed" and family != "image":
        train["row"] = 24
    return Job(family, parse(Train, train), directory, model_changes={"dropout": 0.2, "depth": 1})


def moments(number: int) -> list[tuple[str, int]]:
    """Three for the test of this number: one that comes in turn, one at random, and one when all steps are taken."""
    chance = np.random.default_rng(number)
    return [(EARLY[number % len(EARLY)], 1), (str(chance.choice(EARLY)), 2), (LATE[number % len(LATE)], 1)]


EARLY = [moment for moment in MOMENTS if not moment.endswith("the weights")]
LATE = [moment for moment in MOMENTS if moment.endswith("the weights")]


def assert_same_bits(made: Job, number: int, directory: Path) -> None:
    made.trainer(run=directory / "straight").run()
    _, ends = interrupted(made, directory / "broken", moments(number))
    assert ends[0] in ("crashed", "SIGINT", "SIGTERM")
    assert ends[-1] == "crashed"
    assert remains(directory / "broken") == remains(directory / "straight")


@pytest.mark.parametrize("layout", ["padded", "packed"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_resumes_to_the_same_bits(family: str, layout: str, tmp_path: Path) -> None:
    number = 2 * FAMILIES.index(family) + (layout == "packed")
    assert_same_bits(job(family, tmp_path, layout=layout), number, tmp_path)


@pytest.mark.parametrize(
    "optimizer",
    [{"kind": "adam"}, {"kind": "sgd", "rate": 0.1, "momentum": 0.9, "decay": 0.1}, {"kind": "muon"}],
    ids=["adam", "sgd", "muon"],
)
def test_every_optimiser_resumes_to_the_same_bits(optimizer: dict[str, Any], tmp_path: Path) -> None:
    assert_same_bits(job("language", tmp_path, optimizer=optimizer, ema=None), 8, tmp_path)


@pytest.mark.parametrize(
    "budget",
    [{"total_tokens": 600}, {"epochs": 1.5}, {"epochs": 9, "patience": 2, "optimizer": {"kind": "sgd", "rate": 1e-30}}],
    ids=["tokens", "epochs", "patience"],
)
def test_every_budget_resumes_to_the_same_bits(budget: dict[str, Any], tmp_path: Path) -> None:
    """Without a rhythm of its own, evaluation goes by shares of the budget."""
    assert_same_bits(job("language", tmp_path, steps=None, evaluate_every=None, **budget), 6, tmp_path)


def test_batches_made_ahead_are_the_same_batches(tmp_path: Path) -> None:
    plain, ahead = job("translate", tmp_path, workers=0), job("translate", tmp_path, workers=2)
    plain.trainer(run=tmp_path / "straight").run()
    _, ends = interrupted(ahead, tmp_path / "broken", [("in the loss", 9), ("Ctrl-C in the loss", 3)])
    assert ends == ["crashed", "SIGINT"]
    assert remains(tmp_path / "broken") == remains(tmp_path / "straight")


def test_a_signal_before_the_first_step_loses_nothing(tmp_path: Path) -> None:
    made = job("language", tmp_path)
    made.trainer(run=tmp_path / "straight").run()
    trainer = made.trainer(run=tmp_path / "broken")
    before(trainer.task, "batches", 1, interrupt())
    assert trainer.run().step == 0
    made.trainer(resume=True, run=tmp_path / "broken").run()
    assert remains(tmp_path / "broken") == remains(tmp_path / "straight")


def test_a_signal_ends_an_evaluation_which_is_repeated(tmp_path: Path) -> None:
    made = job("language", tmp_path, average=2)  # the mean is evaluated after the last step
    made.trainer(run=tmp_path / "straight").run()
    trainers = [made.trainer(run=tmp_path / "broken")]
    for evaluation, step in ((1, 5), (2, 10), (2, 10)):
        before(trainers[-1].task, "extra_metrics", evaluation, interrupt())
        stopped = trainers[-1].run()
        assert (stopped.reason, stopped.step) == ("SIGINT", step)
        log = read_log(tmp_path / "broken" / "log.jsonl")
        assert [record["step"] for record in log if record["kind"] == "valid"] == [5, 10][: len(trainers) - 1]
        trainers.append(made.trainer(resume=True, run=tmp_path / "broken"))
    assert trainers[-1].run().reason == "budget"
    assert remains(tmp_path / "broken") == remains(tmp_path / "straight")


def test_a_prolonged_run_is_evaluated_as_often(tmp_path: Path) -> None:
    """Evaluations are counted in shares of the budget, of which more is left once the budget has grown."""
    short, long = (job("language", tmp_path, steps=steps, evaluate_every=None) for steps in (5, 25))
    short.valid = long.valid = 2  # cheap enough for twenty evaluations
    short.trainer().run()
    long.trainer(resume=True).run()
    evaluated = [record["step"] for record in read_log(tmp_path / "run" / "log.jsonl") if record["kind"] == "valid"]
    # From the sixth step on, twenty-fifths of the new budget against twentieths: every fifth step is left out.
    assert evaluated == [*range(1, 6), *(step for step in range(6, 26) if 20 * step // 25 > 20 * (step - 1) // 25)]
