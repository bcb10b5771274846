"""Budgets and learning-rate schedules.

A budget is counted in steps, epochs, tokens or minutes. A schedule gets the step and the share of the budget that is
spent, so a schedule that falls until the end works with every budget.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from regard.errors import SettingsError
from regard.training.settings import BUDGETS, Constant, Cosine, InverseSquareRoot, Linear, Paper, Schedule, Train

EVALUATIONS, FEWEST_EVALUATIONS = 20, 5
"""Number of evaluations in a budget if `train.evaluate_every` is not set."""
EVALUATION_SHARE = 0.15
"""Most of the time that these evaluations take."""
FEW_STEPS = 300
"""A model with random weights learns little in fewer steps."""
FEWEST_BATCHES, ENOUGH_TOKENS = 16, 65_536
"""So many batches of the validation data are always read, unless fewer have enough tokens."""


@dataclass
class Spent:
    """The part of the budgets that a run has used."""

    step: int = 0
    epochs: float = 0.0
    """Passes over the training data."""
    tokens: int = 0
    seconds: float = 0.0
    """Time over all sessions."""
    starting: float = 0.0
    """The part of it before the first steps of a compiled run were done. No schedule advances in it."""


def require_budget(train: Train) -> dict[str, float]:
    """The budgets that are set. Raises `SettingsError` if there is none."""
    if not train.budgets:
        raise SettingsError(
            "train has no budget; set train.minutes, train.steps, train.epochs or train.total_tokens, such as "
            "train.minutes=5"
        )
    return train.budgets


def nearest_budget(train: Train, spent: Spent) -> tuple[str, float]:
    """The name of the budget that is closest to its end, and the share of it that is spent."""
    used = dict(zip(BUDGETS, (spent.step, spent.epochs, spent.tokens, spent.seconds / 60), strict=True))
    shares = {name: used[name] / limit for name, limit in require_budget(train).items()}
    if shares.get("minutes", 1) < 1:
        shares["minutes"] = (spent.seconds - spent.starting) / (60 * train.budgets["minutes"] - spent.starting)
    name = max(shares, key=lambda each: shares[each])
    return name, shares[name]


def spent_share(train: Train, spent: Spent) -> float:
    """The share of the budget that is spent, from 0 to 1."""
    return min(nearest_budget(train, spent)[1], 1.0)


def evaluations_due(train: Train, spent: Spent, count: int = EVALUATIONS) -> int:
    """The number of evaluations, of `count` in the budget, that are due so far. One is due whenever it grows."""
    if train.evaluate_every is not None:
        return spent.step // train.evaluate_every
    return int(spent_share(train, spent) * count + 1e-9)  # 3 · (1 / 20) can be slightly less than 3 / 20


def plan_evaluations(training: float, validation: float, batch: int) -> tuple[int, int]:
    """The number of evaluations in a budget of `training` tokens, and n if each reads every n-th validation batch.

    Together they take at most `EVALUATION_SHARE` of the time: a token costs a third of what it costs in training.
    """
    affordable = 3 * EVALUATION_SHARE / (1 - EVALUATION_SHARE) * training
    count = min(max(int(affordable / max(validation, 1)), FEWEST_EVALUATIONS), EVALUATIONS)
    wanted = math.ceil(count * validation / max(affordable, 1))
    return count, max(min(wanted, int(validation / min(batch * FEWEST_BATCHES, ENOUGH_TOKENS))), 1)


def rate_factor(schedule: Schedule, step: int, spent: float, warm: float, width: int) -> float:
    """The factor of the learning rate for a step.

    `step` counts from 1. `spent` is the share of the budget that is spent before the step, and `warm` the share that
    was spent before the last step of warm-up; 0 while a warm-up that is a share of the budget goes on. `width` is that
    of the model, for the schedule of the paper.
    """
    if isinstance(schedule, Paper):
        return 1 / math.sqrt(width) * min(1 / math.sqrt(step), step / math.pow(schedule.warmup, 1.5))
    if isinstance(schedule, InverseSquareRoot):
        return min(step / schedule.warmup, math.sqrt(schedule.warmup / step))
    if isinstance(schedule.warmup, float):
        if not warm:  # the share after this step, if it takes as much as the steps before it
            return min(max(spent * step / max(step - 1, 1), 0.001) / schedule.warmup, 1.0)
    elif step < schedule.warmup:
        return step / schedule.warmup
    if isinstance(schedule, Constant):
        return 1.0
    over = min(max((spent - warm) / (1 - warm), 0.0), 1.0) if warm < 1 else 1.0
    if isinstance(schedule, Linear):
        height = 1 - over
    elif isinstance(schedule, Cosine):
        height = (1 + math.cos(math.pi * over)) / 2
    else:
        fallen = max(over - (1 - schedule.decay), 0.0) / schedule.decay
        height = 1 - (math.sqrt(fallen) if schedule.shape == "square-root" else fallen)
    return schedule.floor + (1 - schedule.floor) * height
