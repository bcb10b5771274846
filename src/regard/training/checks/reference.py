"""Does a run look like the one that its recipe was measured with? No torch in here.

A recipe's table `[reference]` holds points of that run's curves:

```toml
[reference]
hardware = "NVIDIA H200"
commit = "0123abc"
loss = [[10, 8.93], [31, 7.02], [100, 5.64]]
valid = [[50, 6.41], [100, 5.58]]
tolerance = 0.1
```
"""

from __future__ import annotations

import math
from pathlib import Path

import tomli_w

from regard.training.checks.evidence import Curve, Evidence, read_evidence
from regard.training.checks.finding import Finding, fine

TOLERANCE = 0.1
"""Share of the reference's loss by which a run may differ, unless the table says otherwise."""
POINTS = 12


def reference_checks(run: Evidence) -> list[Finding]:
    """A finding for each curve of the reference that the run has, too."""
    table = run.config.get("reference")
    if not isinstance(table, dict):
        return []
    tolerance = float(table.get("tolerance", TOLERANCE))
    origin = ", ".join(str(table[key]) for key in ("hardware", "commit") if table.get(key))
    found = []
    for key, kind, name in (("loss", "train", "training"), ("valid", "valid", "validation")):
        curve = run.curve(kind, "loss").finite()
        points = [(float(step), float(loss)) for step, loss in table.get(key) or () if loss > 0]
        compared = deviations(curve.smoothed(5, true_ends=True) if kind == "train" else curve, points)
        if compared:
            found.append(_judged(compared, name, tolerance, origin))
    return found


def deviations(curve: Curve, points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Step and relative difference at each point of the reference that lies within the curve."""
    if not len(curve):
        return []
    first, last = float(curve.steps[0]), float(curve.steps[-1])
    return [(step, curve.at(step) / loss - 1) for step, loss in points if first <= step <= last]


def _judged(compared: list[tuple[float, float]], name: str, tolerance: float, origin: str) -> Finding:
    step, worst = max(compared, key=lambda each: abs(each[1]))
    last, end = compared[-1]
    told = f"{_signed(end)} at step {last:,.0f}, at the most {_signed(worst)} at step {step:,.0f}"
    told += f", {len(compared)} points" + (f"; reference: {origin}" if origin else "")
    if abs(worst) <= tolerance:
        return fine(f"the {name} loss is as in the recipe's reference", told)
    better = end < -tolerance
    return Finding(
        "note" if better else "odd",
        f"the {name} loss differs from the recipe's reference",
        told,
        "lower is no harm, if settings or data were meant to differ"
        if better
        else "compare settings (`regard runs` lists what differs), data and versions; another budget changes the "
        "schedule, and with it the curve",
    )


def _signed(share: float) -> str:
    return f"{100 * share + 0.0:+.1f} %"


# ------------------------------------------------------------------------------------------------------------- to paste


def reference_of(run_dir: Path) -> str:
    """The table to paste into the recipe of this run: about a dozen points, evenly over the logarithm of the step."""
    run = read_evidence(run_dir)
    table: dict[str, str] = {}
    if device := run.environment.get("device"):
        table["hardware"] = run.environment.get("cpu", "cpu") if device == "cpu" else device
    if commit := run.environment.get("commit"):
        table["commit"] = commit
    lines = [tomli_w.dumps({"reference": table}).rstrip()]
    for key, kind in (("loss", "train"), ("valid", "valid")):
        curve = run.curve(kind, "loss").finite()
        if len(curve):
            points = spread(curve.smoothed(5, true_ends=True) if kind == "train" else curve)
            lines.append(f"{key} = {points}")  # TOML writes lists of numbers as Python does
    return "\n".join(lines) + "\n"


def spread(curve: Curve, points: int = POINTS) -> list[list[float]]:
    """At most so many points of a curve, the first and the last among them."""
    first, last = max(float(curve.steps[0]), 1.0), max(float(curve.steps[-1]), 1.0)
    wanted = [first * (last / first) ** (index / max(points - 1, 1)) for index in range(points)]
    nearest = {min(range(len(curve)), key=lambda i: abs(math.log(max(curve.steps[i], 1) / step))) for step in wanted}
    return [[int(curve.steps[i]), float(f"{curve.values[i]:.4g}")] for i in sorted(nearest)]
