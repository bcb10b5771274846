"""Does the loss behave? Its first value, its fall, its jumps, its end. No torch in here."""

from __future__ import annotations

import math

import numpy as np

from regard.format import four_digits, percent
from regard.training.checks.evidence import Evidence
from regard.training.checks.finding import Finding, fine

FIRST_STEPS = 50
"""A first line of the log from later than this tells nothing about fresh weights."""
ENOUGH = 10
"""Lines of the log that it takes to speak of a course."""
LEAST_FALL = 0.02
SPIKE, SPIKE_DEVIATIONS, BEFORE = 0.25, 8.0, 15
"""A spike is above the median of so many lines before it by this share of it, and by so many deviations."""
DIVERGED = 0.15
PLATEAU, PLATEAU_SHARE, PLATEAU_RATE = 0.01, 0.5, 0.2
"""Within this share of its last value for this share of the run, at more than this share of the highest rate."""
STILL = 0.02
"""A fall in the last fifth of the run from which on it seems unfinished."""


def first_loss(run: Evidence) -> Finding | None:
    """Fresh weights know nothing: their loss is about the logarithm of the number of choices."""
    choices = _choices(run)
    if choices is None or run.setting("train.start") is not None or not run.train:
        return None
    record = run.train[0]
    loss = _number(record.get("loss"))
    if record["step"] > FIRST_STEPS or not math.isfinite(loss):
        return None
    expected = math.log(choices)
    told = f"{four_digits(loss)} up to step {record['step']:,}; ln {choices:,} = {four_digits(expected)}"
    if loss > 1.25 * expected + 0.5:
        return Finding(
            "odd",
            "the first loss is far above that of guessing",
            told,
            "initial weights are too large or the rate too high at once: look at model.initial and "
            "model.embedding_scale, lengthen train.schedule.warmup",
        )
    if loss < 0.6 * expected:
        return Finding(
            "odd",
            "the first loss is far below that of guessing",
            told,
            "labels may leak into the input, or most of the data be one and the same: run `regard data`",
        )
    return fine("the first loss is about that of guessing", told)


def finite(run: Evidence) -> Finding | None:
    """Losses and norms are numbers."""
    if not run.train:
        return None
    for kind, figure, name in (
        ("train", "loss", "training loss"),
        ("valid", "loss", "validation loss"),
        ("train", "norm", "gradient norm"),
    ):
        curve = run.curve(kind, figure)
        wrong = ~np.isfinite(curve.values)
        if wrong.any():
            first = int(curve.steps[int(np.argmax(wrong))])
            scaled = figure == "norm" and run.setting("train.precision") == "float16"
            return Finding(
                "note" if scaled else "bad",
                f"the {name} is not finite",
                f"{int(wrong.sum()):,} of {len(curve):,} lines, first at step {first:,}",
                "float16 skips such steps; with many of them, set train.precision=bfloat16"
                if scaled
                else "lower train.optimizer.rate, lengthen train.schedule.warmup, set train.clip=1.0; look at the data "
                "of these steps",
            )
    return fine("every loss and norm is finite", f"{len(run.train):,} lines, {len(run.valid):,} evaluations")


def falls(run: Evidence) -> Finding | None:
    """The loss ends lower than it began."""
    curve = run.curve("train", "loss").finite()
    if len(curve) < ENOUGH:
        return None
    start, end = curve.part(0, 0.1).median(), curve.part(0.8, 1).median()
    told = f"from {four_digits(start)} to {four_digits(end)} in {run.last_step:,} steps"
    if end > (1 - LEAST_FALL) * start:
        tuned = run.setting("train.start") is not None
        return Finding(
            "odd" if tuned else "bad",
            "the training loss does not fall",
            told,
            "raise train.optimizer.rate ten times, or lower it ten times, and compare 100 steps; make sure that labels "
            "belong to their inputs (regard data)",
        )
    return fine("the training loss falls", told)


def spikes(run: Evidence) -> Finding | None:
    """Single jumps after warm-up that the loss comes back from."""
    curve = run.curve("train", "loss").finite()
    if len(curve) < 2 * ENOUGH:
        return None
    found: list[tuple[float, float]] = []
    for index in range(ENOUGH, len(curve)):
        before = curve.values[max(index - BEFORE, 0) : index]
        median = float(np.median(before))
        deviation = 1.5 * float(np.median(np.abs(before - median)))
        value = float(curve.values[index])
        bound = median + max(SPIKE * abs(median), SPIKE_DEVIATIONS * deviation)
        if curve.steps[index] > run.warmup and value > bound:
            found.append((value / median, float(curve.steps[index])))
    if not found:
        return fine("the training loss does not jump", f"{len(curve):,} lines of the log")
    worst, step = max(found)
    return Finding(
        "odd",
        "the training loss jumps",
        f"{len(found):,} of {len(curve):,} lines; at step {step:,.0f} it is {worst:.1f} times what it was before",
        "lower train.optimizer.rate or train.optimizer.beta2, lengthen warm-up, clip lower (train.clip=0.5); "
        "or look for odd examples in the data (regard data)",
    )


def diverges(run: Evidence) -> Finding | None:
    """The loss rises again and stays up."""
    curve = run.curve("train", "loss").finite()
    if len(curve) < 2 * ENOUGH:
        return None
    step, lowest = curve.calm().lowest()
    end = curve.part(0.9, 1).median()
    if end > (1 + DIVERGED) * lowest and end - lowest > 0.05 and step < curve.steps[int(0.9 * len(curve))]:
        where = "after warm-up" if step >= run.warmup else "in warm-up"
        return Finding(
            "bad",
            f"the training loss diverges {where}",
            f"{four_digits(lowest)} at step {step:,}, {four_digits(end)} at the end",
            "lower train.optimizer.rate to a third, or lengthen train.schedule.warmup; post-norm models need both",
        )
    return fine("the training loss does not diverge", f"lowest {four_digits(lowest)}, at the end {four_digits(end)}")


def plateau(run: Evidence) -> Finding | None:
    """The loss stood still for long, though the rate was high enough to learn."""
    curve = run.curve("train", "loss").finite()
    if len(curve) < 2 * ENOUGH:
        return None
    calm, end = curve.calm(), curve.part(0.9, 1).median()
    apart = np.flatnonzero(calm.values > (1 + PLATEAU) * end)
    since = float(calm.steps[apart[-1]]) if len(apart) else 0.0
    share = 1 - since / float(curve.steps[-1])
    rates = run.curve("train", "rate").finite()
    lasting = rates.after(since)
    warm = len(lasting) and lasting.median() > PLATEAU_RATE * rates.highest()[1]
    fell = curve.part(0, 0.1).median() > (1 + LEAST_FALL) * end
    told = f"{four_digits(end)} at the end, within 1 % of it since step {since:,.0f}"
    if share > PLATEAU_SHARE and warm and fell:
        return Finding(
            "note",
            f"the training loss stands still since step {since:,.0f}",
            f"{told}: {percent(share)} of the run",
            "let the rate fall earlier (a shorter budget, or another train.schedule), or take a larger model",
        )
    return fine("the training loss moves until late", told)


def still_improving(run: Evidence) -> Finding | None:
    """A run whose budget ended while it learnt."""
    if run.state != "finished" or run.end.get("reason") == "patience":
        return None
    name, curve = "validation", run.curve("valid", "loss").finite()
    if len(curve) >= 5:
        before, end = curve.at(0.8 * run.last_step), float(curve.values[-1])
    else:
        name, curve = "training", run.curve("train", "loss").finite()
        if len(curve) < 2 * ENOUGH:
            return None
        before, end = curve.part(0.75, 0.85).median(), curve.part(0.9, 1).median()
    fall = 1 - end / before if before > 0 else 0.0
    told = f"the {name} loss went from {four_digits(before)} to {four_digits(end)} in the last fifth of the run"
    if fall > STILL:
        return Finding(
            "note",
            "the run was still improving when its budget ended",
            f"{told}, by {percent(fall)}",
            "train longer: raise the budget and start again, so that the schedule fits it",
        )
    return fine("the run had learnt what it could", told)


def _choices(run: Evidence) -> int | None:
    """Between how many answers the model chooses, where that is one number."""
    if run.task in ("translate", "language", "masked"):
        choices = run.setting("model.target_vocabulary") or run.setting("model.vocabulary")
    else:
        classes = [head.get("classes") for head in run.setting("model.heads", {}).values()]
        choices = classes[0] if len(classes) == 1 else None
    return choices if isinstance(choices, int) and choices > 1 else None


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else math.nan
