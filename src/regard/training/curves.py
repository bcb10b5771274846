"""The history of a run as curves, and a picture of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from regard.errors import RunError, SettingsError
from regard.files import write_beside
from regard.format import four_digits
from regard.settings import Table, parse
from regard.training.run import LOG, Status, is_moderate, is_run, read_environment, read_log, read_status
from regard.training.schedules import Spent, spent_share
from regard.training.settings import Train
from regard.weights.directory import read_config

if TYPE_CHECKING:
    from matplotlib.axes import Axes


NUMBERS = ("step", "seconds", "epochs", "tokens", "examples", "unknown", "skipped", "removed", "too_long")
"""Values of the log with which doctor computes."""


@dataclass(frozen=True)
class Curve:
    """One metric over the steps."""

    steps: NDArray[np.float64]
    values: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.steps)

    def finite(self) -> Curve:
        wanted = np.isfinite(self.values)
        return Curve(self.steps[wanted], self.values[wanted])

    def part(self, start: float, end: float) -> Curve:
        """The points between two shares of them: part(0.9, 1) is the last tenth. It has at least one point."""
        first = min(int(start * len(self)), len(self) - 1)
        last = max(math.ceil(end * len(self)), first + 1)
        return Curve(self.steps[first:last], self.values[first:last])

    def smoothed(self, window: int) -> Curve:
        """The running median. The window is smaller near the ends, so that it stays symmetric."""
        last = len(self) - 1
        reaches = [min(window // 2, index, last - index) for index in range(len(self))]
        medians = [np.median(self.values[i - reach : i + reach + 1]) for i, reach in enumerate(reaches)]
        return Curve(self.steps, np.array(medians))

    def at(self, step: float) -> float:
        """The value at a step, interpolated over the logarithm of the step."""
        return float(np.interp(math.log(max(step, 1)), np.log(np.maximum(self.steps, 1)), self.values))

    def median(self) -> float:
        return float(np.median(self.values))

    def lowest(self) -> tuple[int, float]:
        """Step and value."""
        index = int(np.argmin(self.values))
        return int(self.steps[index]), float(self.values[index])


@dataclass(frozen=True)
class RunHistory:
    """The settings, the log, the status and the environment of a run."""

    directory: Path
    config: Table
    status: Status
    environment: Table
    data: Table
    train: list[Table]
    valid: list[Table]
    events: list[Table]
    end: Table
    damaged: tuple[int, ...] = ()
    """Lines of the log that could not be read."""

    def curve(self, kind: str, metric: str) -> Curve:
        """A metric of the records of one kind, "train" or "valid". Missing values become NaN."""
        records = [record for record in getattr(self, kind) if metric in record]
        values = [each if isinstance(each, int | float) else math.nan for each in (r[metric] for r in records)]
        return Curve(np.array([float(record["step"]) for record in records]), np.array(values, dtype=float))

    def setting(self, path: str, default: Any = None) -> Any:
        """A setting by its dotted name. The word "none" of the file becomes None."""
        found: Any = self.config
        for part in path.split("."):
            if not isinstance(found, Mapping) or part not in found:
                return default
            found = found[part]
        return None if found == "none" else found

    @cached_property
    def last_step(self) -> int:
        return max((int(record.get("step") or 0) for record in (*self.train, *self.valid, self.end)), default=0)

    @property
    def task(self) -> str:
        task = self.config.get("task", "")
        return str(task.get("kind", "") if isinstance(task, Mapping) else task)

    @cached_property
    def spent(self) -> float | None:
        """Share of the budget that is spent; None if it is unknown."""
        try:
            train: Train = parse(Train, self.config.get("train", {}))
        except SettingsError:  # of another version
            return None
        if not train.budgets or not self.train:
            return None
        if self.end.get("reason") == "budget":
            return 1.0
        last = self.train[-1]
        epochs, tokens = float(last.get("epochs", 0)), int(last.get("tokens", 0))
        return spent_share(train, Spent(self.last_step, epochs, tokens, self.seconds))

    @property
    def seconds(self) -> float:
        """Time spent over all sessions."""
        return max((float(record.get("seconds") or 0) for record in (*self.train, *self.valid, self.end)), default=0.0)


def read_history(directory: Path) -> RunHistory:
    """Read the files of a run. Missing files count as empty."""
    if not is_run(directory):
        raise RunError(f"{directory} is not a run (it has no config.toml or no status.json); give a run directory")
    by_kind: dict[str, list[Table]] = {}
    damaged: list[int] = []
    for record in read_log(directory / LOG, damaged) if (directory / LOG).is_file() else ():
        by_kind.setdefault(str(record.get("kind", "")), []).append(_cleaned(record))
    return RunHistory(
        directory=directory,
        config=read_config(directory),
        status=read_status(directory),
        environment=read_environment(directory),
        data={key: _cleaned(part) for key, part in (by_kind.get("data") or [{}])[-1].items() if isinstance(part, dict)},
        train=_latest(by_kind.get("train", ())),
        valid=_latest(by_kind.get("valid", ())),
        events=by_kind.get("event", []),
        end=(by_kind.get("end") or [{}])[-1],
        damaged=tuple(damaged),
    )


def _cleaned(record: Table) -> Table:
    """A record without values that cannot be used: a log that is damaged can contain anything."""
    return {
        key: value
        for key, value in record.items()
        if is_moderate(value) and (key not in NUMBERS or (isinstance(value, int | float) and math.isfinite(value)))
    }


def _latest(records: Iterable[Table]) -> list[Table]:
    """The last record of each step: a resumed run can log a step twice."""
    kept: list[Table] = []
    for record in (each for each in records if isinstance(each.get("step"), int)):
        while kept and kept[-1]["step"] >= record["step"]:
            kept.pop()
        kept.append(record)
    return kept


INK, GRID, TRAIN, VALID, OTHER = "#333333", "#e6e6e6", "#2a6fbb", "#d9662b", "#5a7d5a"


def draw_curves(directory: Path, path: Path) -> None:
    """Draw the losses, the learning rate and the gradient norm of a run into a PNG file."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise RunError("a picture needs the package matplotlib; run pip install 'regard[plot]'") from None
    run = read_history(directory)
    figure = Figure(figsize=(10, 4.8), dpi=150, facecolor="white", layout="constrained")
    axes = figure.subplot_mosaic([["loss", "rate"], ["loss", "norm"]], width_ratios=[2, 1])
    name = directory.resolve().name
    figure.suptitle(f"{name}, {run.task}" if run.task else name, color=INK, fontsize=13, x=0.01, ha="left")

    for key, metric, colour, title in (
        ("loss", "loss", TRAIN, "loss (nats)"),
        ("rate", "rate", OTHER, "learning rate"),
        ("norm", "norm", OTHER, "gradient norm"),
    ):
        _plot(axes[key], run.curve("train", metric).finite(), colour, title)
    valid = run.curve("valid", "loss").finite()
    if len(valid):
        step, lowest = valid.lowest()
        label = f"validation, lowest {four_digits(lowest)} at step {step:,}"
        axes["loss"].plot(valid.steps, valid.values, "o-", color=VALID, ms=4, lw=1.2, label=label)
    if axes["loss"].get_legend_handles_labels()[1]:
        axes["loss"].legend(frameon=False, labelcolor=INK, fontsize=9)
    try:
        write_beside(path, lambda partial: figure.savefig(partial, format="png"))
    except OSError as error:
        raise RunError(f"{path} cannot be written ({error.strerror}); choose another file") from None


def _plot(axes: Axes, curve: Curve, colour: str, title: str) -> None:
    """A curve of training; one with many points is pale with a smoothed line over it."""
    from matplotlib.ticker import EngFormatter, MaxNLocator

    many = len(curve) > 40
    axes.plot(curve.steps, curve.values, color=colour, lw=0.8, alpha=0.3 if many else 1)
    smooth = curve.smoothed(max(len(curve) // 40, 3)) if many else curve
    axes.plot(smooth.steps, smooth.values, color=colour, lw=1.6, label="training" if len(curve) else None)
    axes.set_title(title, loc="left", fontsize=10, color=INK)
    axes.set_xlabel("step", color=INK, fontsize=9)
    axes.grid(color=GRID, lw=0.8)
    axes.tick_params(colors=INK, labelsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.xaxis.set_major_formatter(EngFormatter(sep=" "))
