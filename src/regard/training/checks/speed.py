"""Is time well spent? Waiting, padding, throughput, memory, compilation. No torch in here."""

from __future__ import annotations

import numpy as np

from regard.format import amount, percent
from regard.training.checks.evidence import Curve, Evidence
from regard.training.checks.finding import Finding, fine

WAIT, LONG_WAIT = 0.01, 0.1
PADDING, MUCH_PADDING = 0.2, 0.4
SLOWER = 0.85
"""Throughput in the last third over that in the first third."""


def wait(run: Evidence) -> Finding | None:
    """Time that the model waits for batches."""
    share = _mean(_settled(run.curve("train", "wait")))
    if share is None:
        return None
    told = f"{percent(share)} of the time"
    if share > WAIT:
        return Finding(
            "odd" if share > LONG_WAIT else "note",
            "training waits for data",
            told,
            "raise train.workers; keep the data on a local disk",
        )
    return fine("training does not wait for data", told)


def padding(run: Evidence) -> Finding | None:
    """Cells of batches that hold nothing."""
    share = _mean(run.curve("train", "padding").finite())
    if share is None:
        return None
    told = f"{percent(share)} of the cells"
    if share > PADDING:
        return Finding(
            "odd" if share > MUCH_PADDING else "note",
            "much of each batch is padding",
            told,
            "set train.layout=packed on a GPU; or raise train.tokens, so that more examples of like lengths are found",
        )
    return fine("little is padding", told)


def throughput(run: Evidence) -> Finding | None:
    """The speed at the end is that of the beginning."""
    speeds = _settled(run.curve("train", "tokens_per_second"))
    if len(speeds) < 9:
        return None
    start, end = speeds.part(0, 1 / 3).median(), speeds.part(2 / 3, 1).median()
    told = f"{amount(start)} tokens/s in the first third, {amount(end)} in the last"
    if end < SLOWER * start:
        return Finding(
            "odd",
            f"training became {percent(1 - end / start)} slower",
            told,
            "look for other programs on the machine, a device that grows hot (nvidia-smi -q -d PERFORMANCE), or a disk "
            "that is full",
        )
    return fine("the speed is steady", told)


def memory(run: Evidence) -> Finding | None:
    """Whether memory sufficed for what was planned."""
    found = [event for event in run.events if event.get("what") == "out-of-memory"]
    if not run.train:
        return None
    if found:
        return Finding(
            "odd",
            "memory ran out",
            f"{_times(len(found))}, last at step {found[-1].get('step', 0):,}: {found[-1].get('text', '')}",
            "set train.micro to what is held now, so that no step is taken twice; or train.recompute=true",
        )
    highest = run.curve("train", "memory").finite()
    told = f"{highest.highest()[1] / 2**30:.1f} GiB at the most" if len(highest) else "it never ran out"
    return fine("memory sufficed", told)


def compilation(run: Evidence) -> Finding | None:
    """Whether compiled steps were had, and had once."""
    fallen = [event for event in run.events if event.get("what") == "compile-fallback"]
    again = [event for event in run.events if str(event.get("what", "")).startswith("recompil")]
    if fallen:
        return Finding(
            "odd",
            "the model runs uncompiled",
            str(fallen[-1].get("text", "compilation failed")),
            "set train.compile=off to be rid of the attempt, or report the error that it names",
        )
    if again:
        return Finding(
            "odd",
            "the model was compiled more than once",
            f"{_times(len(again))}, last at step {again[-1].get('step', 0):,}: {again[-1].get('text', '')}",
            "set train.layout=packed, whose batches have one shape; a model that changes shapes is faster with "
            "train.compile=off",
        )
    return None


def _settled(curve: Curve) -> Curve:
    """Without the first line, in which kernels are loaded and compiled."""
    curve = curve.finite()
    return Curve(curve.steps[1:], curve.values[1:]) if len(curve) > 2 else curve


def _mean(curve: Curve) -> float | None:
    return float(np.mean(curve.values)) if len(curve) else None


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
