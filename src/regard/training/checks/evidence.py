"""All that a run left behind about itself, read for questions. No torch in here."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.errors import RunError, SettingsError
from regard.settings import Table, parse, read_toml
from regard.training.run import LOG, is_run, read_log, read_status
from regard.training.schedules import Spent, spent_share
from regard.training.settings import Train
from regard.weights.directory import CONFIG

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """One figure over the steps."""

    steps: Numbers
    values: Numbers

    def __len__(self) -> int:
        return len(self.steps)

    def finite(self) -> Curve:
        return self._where(np.isfinite(self.values))

    def after(self, step: float) -> Curve:
        return self._where(self.steps > step)

    def part(self, start: float, end: float) -> Curve:
        """The points from one share of them to another: part(0.9, 1) is the last tenth, of one point at least."""
        first = min(int(start * len(self)), len(self) - 1)
        last = max(math.ceil(end * len(self)), first + 1)
        return Curve(self.steps[first:last], self.values[first:last])

    def smoothed(self, window: int, true_ends: bool = False) -> Curve:
        """Each value replaced by the median of so many values around it; with `true_ends`, of fewer near the ends."""
        if not len(self):
            return self
        half = window // 2
        padded = np.pad(self.values, half, constant_values=np.nan)
        medians = np.nanmedian(np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1), axis=1)
        if true_ends:
            for index in (*range(min(half, len(self))), *range(max(len(self) - half, 0), len(self))):
                near = min(index, len(self) - 1 - index, half)
                medians[index] = np.median(self.values[index - near : index + near + 1])
        return Curve(self.steps, medians)

    def calm(self) -> Curve:
        """Smoothed over a tenth of the run, and over five values at least."""
        return self.smoothed(max(len(self) // 10, 5))

    def at(self, step: float) -> float:
        """The value at a step, between two points along the logarithm of the step."""
        return float(np.interp(math.log(max(step, 1)), np.log(np.maximum(self.steps, 1)), self.values))

    def median(self) -> float:
        return float(np.median(self.values))

    def lowest(self) -> tuple[int, float]:
        """Step and value."""
        index = int(np.argmin(self.values))
        return int(self.steps[index]), float(self.values[index])

    def highest(self) -> tuple[int, float]:
        """Step and value."""
        index = int(np.argmax(self.values))
        return int(self.steps[index]), float(self.values[index])

    def points(self) -> list[tuple[float, float]]:
        return [(float(step), float(value)) for step, value in zip(self.steps, self.values, strict=True)]

    def _where(self, wanted: NDArray[np.bool_]) -> Curve:
        return Curve(self.steps[wanted], self.values[wanted])


@dataclass(frozen=True)
class Evidence:
    """A run's settings, its log by kind of record, how it ended and where it ran."""

    directory: Path
    config: Table
    status: Table
    environment: Table
    data: Table
    train: tuple[Table, ...]
    valid: tuple[Table, ...]
    events: tuple[Table, ...]
    end: Table

    def curve(self, kind: str, figure: str) -> Curve:
        """A figure of the records of one kind ("train" or "valid"); what is no number becomes NaN."""
        records = [record for record in getattr(self, kind) if figure in record]
        values = [_number(record[figure]) for record in records]
        return Curve(np.array([float(record["step"]) for record in records]), np.array(values))

    def setting(self, path: str, default: Any = None) -> Any:
        """A setting by its dotted name; an empty one, which the file writes as the word "none", is None."""
        found: Any = self.config
        for part in path.split("."):
            if not isinstance(found, Mapping) or part not in found:
                return default
            found = found[part]
        return None if found == "none" else found

    @cached_property
    def last_step(self) -> int:
        return max((int(record["step"]) for record in (*self.train, *self.valid)), default=0)

    @property
    def state(self) -> str:
        """running, stopped, finished, failed or killed; empty where nothing says so."""
        return str(self.status.get("state", ""))

    @property
    def task(self) -> str:
        task = self.config.get("task", "")
        return str(task.get("kind", "") if isinstance(task, Mapping) else task)

    @cached_property
    def settings(self) -> Train | None:
        """The run's `[train]` table; None where this version does not understand it."""
        try:
            train: Train = parse(Train, self.config.get("train", {}))
        except SettingsError:
            return None
        return train

    @cached_property
    def spent(self) -> float | None:
        """Share of the budget that is spent; None where it is not known."""
        if self.settings is None or not self.settings.budgets or not self.train:
            return None
        if self.end.get("reason") == "budget":
            return 1.0
        last = self.train[-1]
        epochs, tokens = float(last.get("epochs", 0)), int(last.get("tokens", 0))
        return spent_share(self.settings, Spent(self.last_step, epochs, tokens, self.seconds))

    @property
    def seconds(self) -> float:
        """Time spent, over all sessions."""
        return max((float(record.get("seconds") or 0) for record in (*self.train, *self.valid, self.end)), default=0.0)

    @property
    def warmup(self) -> int:
        return int(self.setting("train.schedule.warmup", 0))


def read_evidence(run_dir: Path) -> Evidence:
    """What a run left behind; a file that is missing is as good as empty."""
    if not is_run(run_dir):
        raise RunError(f"{run_dir} holds no run (no config.toml, or no status.json); give a run's directory")
    path = run_dir / LOG
    by_kind: dict[str, list[Table]] = {}
    for record in read_log(path) if path.is_file() else ():
        by_kind.setdefault(str(record.get("kind", "")), []).append(record)
    return Evidence(
        directory=run_dir,
        config=read_toml((run_dir / CONFIG).read_text(encoding="utf-8"), source=str(run_dir / CONFIG)),
        status=asdict(read_status(run_dir)),
        environment=_json(run_dir / "environment.json"),
        data=(by_kind.get("data") or [{}])[-1],
        train=tuple(_latest(by_kind.get("train", ()))),
        valid=tuple(_latest(by_kind.get("valid", ()))),
        events=tuple(by_kind.get("event", ())),
        end=(by_kind.get("end") or [{}])[-1],
    )


def _latest(records: Iterable[Table]) -> list[Table]:
    """A run that was resumed may tell of a step twice; what was told last counts. Edited logs may lack a step."""
    kept: list[Table] = []
    for record in (each for each in records if isinstance(each.get("step"), int)):
        while kept and kept[-1]["step"] >= record["step"]:
            kept.pop()
        kept.append(record)
    return kept


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _json(path: Path) -> Table:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError):
        return {}
    return found if isinstance(found, dict) else {}
