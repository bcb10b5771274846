"""Does it hold on data that it did not learn from? No torch in here."""

from __future__ import annotations

import numpy as np

from regard.format import four_digits, percent
from regard.training.checks.evidence import Curve, Evidence
from regard.training.checks.finding import Finding, fine

ENOUGH = 4
"""Evaluations that it takes to speak of a course."""
RISE, STEEP_RISE = 0.02, 0.1
FAR = 1.3
"""Validation over training loss, in the first evaluations, from which on the data seem different ones."""
TOO_GOOD = 0.6
TINY = 100
"""Examples below which a figure moves by per cents by chance."""
LONG_BEFORE = 0.6


def overfits(run: Evidence) -> Finding | None:
    """The validation loss rises while the training loss falls."""
    valid, train = run.curve("valid", "loss").finite(), run.curve("train", "loss").finite()
    if len(valid) < ENOUGH or len(train) < ENOUGH:
        return None
    calm = train.calm()
    step, lowest = valid.lowest()
    later = valid.after(step)
    end = float(np.min(valid.values[-2:]))
    told = f"validation loss {four_digits(lowest)} at step {step:,}, {four_digits(end)} at the end"
    if len(later) >= 2 and end > (1 + RISE) * lowest and calm.values[-1] < calm.at(step):
        return Finding(
            "odd" if end > (1 + STEEP_RISE) * lowest else "note",
            f"overfits from step {step:,} on",
            f"{told}; training loss {four_digits(calm.at(step))} and {four_digits(float(calm.values[-1]))}",
            "the best snapshot is kept all the same; for a better one: more data, a higher model.dropout, a smaller "
            "model, or train.patience=3 to stop in time",
        )
    return fine("does not overfit", told)


def far_worse(run: Evidence) -> Finding | None:
    """From the first evaluation on, validation data are much harder than training data."""
    ratios = _ratios(run)
    if ratios is None:
        return None
    first = ratios.part(0, 0.25)
    told = f"{first.median():.2f} times the training loss in the first {_evaluations(first)}"
    if first.median() > FAR and ratios.median() > FAR:
        return Finding(
            "odd",
            "the validation loss is far above the training loss from the start",
            told,
            "the splits may be of different kinds, or be prepared differently: compare them with `regard data`",
        )
    return fine("validation and training begin alike", told)


def too_good(run: Evidence) -> Finding | None:
    """Much better on held-out data than dropout explains."""
    ratios = _ratios(run)
    if ratios is None:
        return None
    last = ratios.part(0.5, 1)
    told = f"{last.median():.2f} times the training loss in the last {_evaluations(last)}"
    if last.median() < TOO_GOOD:
        return Finding(
            "odd",
            "the validation loss is suspiciously low",
            told,
            "look for validation examples among the training data (`regard data` lists leaks); a model.dropout above "
            "0.3 explains a part of it",
        )
    return fine("the validation loss is no lower than is plausible", told)


def enough_validation(run: Evidence) -> Finding | None:
    """How far its figures can be trusted."""
    if not run.data:
        return None
    counts = run.data.get("valid")
    if not counts or not counts.get("examples"):
        return Finding(
            "note",
            "there are no validation data",
            "no evaluations, and no best snapshot",
            "hold out some hundred examples and name them in data.valid",
        )
    number = int(counts["examples"])
    if number < TINY:
        return Finding(
            "note",
            "the validation set is tiny",
            f"{number:,} examples: one more right is {percent(1 / number)}",
            "hold out more, some hundred at least; do not trust small differences",
        )
    return fine("the validation set is large enough", f"{number:,} examples")


def best_long_ago(run: Evidence) -> Finding | None:
    """The best snapshot is from long before the end, for another reason than overfitting."""
    best = [record for record in run.valid if record.get("best")]
    if len(run.valid) < ENOUGH or not best:
        return None
    overfitting = overfits(run)
    if overfitting is not None and overfitting.level != "fine":
        return None
    step, select = int(best[-1]["step"]), run.setting("train.select", "loss")
    told = f"by {select}, at step {step:,} of {run.last_step:,}"
    if step < LONG_BEFORE * run.last_step:
        return Finding(
            "note",
            "the best snapshot is from long before the end",
            f"{told}; {percent(1 - step / run.last_step)} of the run came after it",
            "set train.patience=5 to stop earlier, or lower train.optimizer.rate",
        )
    return fine("the best snapshot is a late one", told)


def _ratios(run: Evidence) -> Curve | None:
    """At each evaluation, the validation loss over the training loss around its step."""
    valid, train = run.curve("valid", "loss").finite(), run.curve("train", "loss").finite()
    if not len(valid) or len(train) < ENOUGH:
        return None
    calm = train.smoothed(5)
    return Curve(valid.steps, valid.values / np.array([max(calm.at(step), 1e-9) for step in valid.steps]))


def _evaluations(curve: Curve) -> str:
    return "evaluation" if len(curve) == 1 else f"{len(curve)} evaluations"
