"""Are the steps of a sensible size? The rate, its warm-up, the gradient's norm. No torch in here."""

from __future__ import annotations

import math

import numpy as np

from regard.format import four_digits, percent
from regard.format import rate as rate_text
from regard.training.checks.evidence import Evidence
from regard.training.checks.finding import Finding, fine

REACHED = 0.9
"""Share of the rate that was asked for which counts as reached: the log skips steps."""
EXPLODED, BURST = 10.0, 100.0
"""How many times its usual self a norm is at the end, or once, to be called exploding."""
CLIPPED = 0.9


def rate(run: Evidence) -> Finding | None:
    """The rate rises to what was asked for, and is not zero for long."""
    rates = run.curve("train", "rate").finite()
    wanted = _highest_rate(run)
    if not len(rates) or wanted is None:
        return None
    _, highest = rates.highest()
    if highest == 0:
        return Finding(
            "bad", "the learning rate is zero", f"in all {len(rates):,} lines of the log", "raise train.optimizer.rate"
        )
    told = f"highest {rate_text(highest)} of {rate_text(wanted)}"
    idle = float(np.mean(rates.part(0, 0.98).values == 0))
    if idle > 0.05:
        return Finding(
            "odd",
            "the learning rate is zero for a part of the run",
            f"in {percent(idle)} of the log; {told}",
            "set train.schedule.floor, or end the budget where the schedule ends",
        )
    if run.state == "finished" and highest < REACHED * wanted and run.last_step >= run.warmup:
        return Finding(
            "odd",
            "the learning rate was never reached",
            told,
            "shorten train.schedule.warmup, or lengthen the budget",
        )
    return fine("the learning rate is as set", told)


def warmup(run: Evidence) -> Finding | None:
    """Warm-up ends well before the run does."""
    if not run.warmup or not run.train:
        return None
    planned = run.setting("train.steps")
    steps = planned if isinstance(planned, int) else run.last_step if run.state == "finished" else None
    if steps is None:
        return None
    told = f"{run.warmup:,} steps of warm-up, {steps:,} steps in all"
    if run.warmup >= steps:
        return Finding(
            "bad",
            "warm-up is longer than the run",
            told,
            f"set train.schedule.warmup to a tenth of the run, {max(steps // 10, 1):,}, or lengthen the budget",
        )
    if run.warmup > steps / 2:
        return Finding(
            "odd",
            "warm-up takes more than half of the run",
            told,
            f"set train.schedule.warmup to about a tenth of the run, {max(steps // 10, 1):,}",
        )
    return fine("warm-up ends in time", told)


def norm(run: Evidence) -> Finding | None:
    """The gradient keeps its size."""
    norms = run.curve("train", "norm").finite().after(run.warmup)
    if len(norms) < 10:
        return None
    usual, end = norms.part(0, 0.5).median(), norms.part(0.9, 1).median()
    step, highest = norms.highest()
    told = f"median {four_digits(usual)} in the first half, {four_digits(end)} at the end"
    if end > EXPLODED * usual:
        return Finding(
            "bad",
            "the gradient explodes",
            told,
            "lower train.optimizer.rate, set train.clip=1.0, or choose model.norm_place=pre",
        )
    if highest > BURST * usual:
        return Finding(
            "odd",
            "the gradient exploded once",
            f"{told}; {four_digits(highest)} at step {step:,}",
            "keep train.clip, and look at the data of these steps",
        )
    return fine("the gradient keeps its size", told)


def clipped(run: Evidence) -> Finding | None:
    """Clipping is for exceptions."""
    shares = run.curve("train", "clipped").finite().after(run.warmup)
    if run.setting("train.clip") is None or len(shares) < 10:
        return None
    share = float(np.mean(shares.values))
    told = f"{percent(share)} of the steps after warm-up, at train.clip={run.setting('train.clip')}"
    if share > CLIPPED:
        norms = run.curve("train", "norm").finite()
        usual = four_digits(norms.median()) if len(norms) else "above it"
        return Finding(
            "note",
            "nearly every gradient is clipped",
            f"{told}; the median norm is {usual}",
            "harmless with adam and its kin, which rescale anyway; else raise train.clip to about the median norm",
        )
    return fine("few gradients are clipped" if share < 0.5 else "some gradients are clipped", told)


def _highest_rate(run: Evidence) -> float | None:
    """The rate at the end of warm-up."""
    asked = run.setting("train.optimizer.rate")
    if not isinstance(asked, int | float):
        return None
    if run.setting("train.schedule.kind") == "paper":
        width = run.setting("model.width")
        return asked / math.sqrt(width * run.warmup) if width and run.warmup else None
    return float(asked)
