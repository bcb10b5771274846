"""`regard doctor`: the history of a run as curves, checks that report problems with numbers and a remedy, a picture."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import tomli_w
from numpy.typing import NDArray

from regard.errors import RunError, SettingsError, extra_module
from regard.files import write_beside
from regard.format import four_digits, percent
from regard.settings import Table, parse
from regard.training.run import LOG, is_moderate, is_run, read_environment, read_log, read_status
from regard.training.schedules import EVALUATION_SHARE, FEW_STEPS, Spent, spent_share
from regard.training.settings import Train
from regard.weights.directory import read_config

if TYPE_CHECKING:
    from matplotlib.axes import Axes


NUMBERS = ("step", "seconds", "epochs", "tokens", "examples", "unknown", "skipped", "removed", "too_long")


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
        index = int(np.argmin(self.values))
        return int(self.steps[index]), float(self.values[index])


class RunHistory:
    """The settings, the log, the status and the environment of a run. Missing files count as empty."""

    def __init__(self, directory: Path) -> None:
        if not is_run(directory):
            raise RunError(f"{directory} is not a run (it has no config.toml or no status.json); give a run directory")
        self.damaged: list[int] = []
        """The numbers of damaged lines of the log."""
        by_kind: dict[str, list[Table]] = {}
        for record in read_log(directory / LOG, self.damaged) if (directory / LOG).is_file() else ():
            by_kind.setdefault(str(record.get("kind", "")), []).append(_cleaned(record))
        self.directory, self.config = directory, read_config(directory)
        self.status, self.environment = read_status(directory), read_environment(directory)
        counts = (by_kind.get("data") or [{}])[-1]
        self.data = {split: _cleaned(part) for split, part in counts.items() if isinstance(part, dict)}
        self.train, self.valid = (_latest(by_kind.get(kind, ())) for kind in ("train", "valid"))
        self.events = by_kind.get("event", [])
        self.end = (by_kind.get("end") or [{}])[-1]

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
        return int(self._largest("step"))

    def _largest(self, key: str) -> float:
        return max(float(record.get(key) or 0) for record in (*self.train, *self.valid, self.end))

    @property
    def task(self) -> str:
        return str(self.setting("task.kind", ""))

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
        return self._largest("seconds")


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


Level: TypeAlias = Literal["bad", "odd", "note", "fine"]
LEVELS: tuple[Level, ...] = ("bad", "odd", "note", "fine")

ENOUGH = 10
"""Lines of the log that a judgement about a curve needs."""
LEAST_FALL, DIVERGED, STILL_FALLING, RISE, STEEP_RISE = 0.02, 0.15, 0.02, 0.02, 0.1
TINY, TINY_TOKENS = 100, 1_000
LEARNED = 0.5
"""A short run whose loss falls to this share of its start has learned something."""
UNKNOWN = 0.01
LOST = {"skipped": 0.01, "too_long": 0.05, "removed": 0.3}
"""Shares of the examples above which a loss is reported."""
TOLERANCE = 0.1
"""Relative difference from the reference that is accepted if the table has no `tolerance`."""
POINTS = 12
MUCH_EVALUATION, SHORT_SECONDS = EVALUATION_SHARE + 0.05, 60.0
"""Share of the time above which evaluations are reported, in runs that are not short."""


@dataclass(frozen=True)
class Finding:
    """The result of a check."""

    level: Level
    """bad: a problem; odd: probably a problem; note: worth knowing; fine: normal."""
    title: str
    evidence: str
    remedy: str = ""
    """What to do; empty if nothing is to be done."""


def diagnose(run: RunHistory) -> list[Finding]:
    """How the run ended, and the problems that the checks find, the most severe first."""
    checks = (
        *(check_end, check_log, check_finite, check_steps, check_training_loss, check_still_improving, check_warmup),
        *(check_overfitting, check_validation_set, check_data, check_speed, check_events, check_reference),
    )
    return sorted((found for check in checks for found in check(run)), key=lambda found: LEVELS.index(found.level))


def check_log(run: RunHistory) -> Iterator[Finding]:
    if run.damaged:
        evidence = f"{len(run.damaged):,} of log.jsonl, first line {run.damaged[0]:,}"
        yield Finding("odd", "lines of the log are damaged", evidence, "remove them, or copy the log again")


def check_end(run: RunHistory) -> Iterator[Finding]:
    spent = "" if run.spent is None else f", {percent(run.spent)} of the budget spent"
    evidence = f"at step {max(run.last_step, run.status.step):,}{spent}"
    reason = run.status.reason or str(run.end.get("reason") or "")
    if reason not in ("", "budget"):
        evidence += f": {reason}"
    resume = f"continue with `regard train --resume {run.directory}`"
    ends: dict[str, tuple[Level, str, str]] = {
        "finished": ("fine", "the run finished", ""),
        "running": ("note", "the run is still running", "check again later"),
        "stopped": ("note", "the run was stopped before its budget was spent", resume),
        "failed": ("bad", "the run failed", f"fix the cause, then {resume}"),
    }
    level, title, remedy = ends.get(run.status.state, ("odd", "the run was killed", resume))
    yield Finding(level, title, evidence, remedy)


def check_finite(run: RunHistory) -> Iterator[Finding]:
    """Whether validation losses and gradient norms are finite. A training loss that is not ends the run."""
    checked: tuple[tuple[str, str, Level, str, str], ...] = (
        ("valid", "loss", "bad", "validation loss", "lower train.optimizer.rate; check the validation data"),
        ("train", "norm", "note", "gradient norm", "float16 skips such steps; or set train.precision=bfloat16"),
    )
    for kind, metric, level, name, remedy in checked:
        curve = run.curve(kind, metric)
        wrong = ~np.isfinite(curve.values)
        if wrong.any():
            first = int(curve.steps[int(np.argmax(wrong))])
            evidence = f"{int(wrong.sum()):,} of {len(curve):,} lines, first at step {first:,}"
            yield Finding(level, f"the {name} is not finite", evidence, remedy)


def check_steps(run: RunHistory) -> Iterator[Finding]:
    """Whether the budget had enough steps for a model with random weights."""
    losses = run.curve("train", "loss").finite().values
    learned = len(losses) > 1 and losses[-1] < LEARNED * losses[0]
    if run.status.state == "finished" and run.last_step < FEW_STEPS and not learned and not run.setting("train.start"):
        evidence = f"{run.last_step:,} steps of {run.setting('train.tokens', 0):,} tokens"
        remedy = "lower train.tokens, choose a smaller model, or increase the budget, until it holds some hundred steps"
        yield Finding("odd", "the run has too few steps", evidence, remedy)


def check_training_loss(run: RunHistory) -> Iterator[Finding]:
    curve = run.curve("train", "loss").finite()
    if len(curve) < ENOUGH:
        return
    start, end = curve.part(0, 0.1).median(), curve.part(0.9, 1).median()
    step, lowest = curve.smoothed(max(len(curve) // 10, 5)).lowest()
    early = step < curve.steps[int(0.9 * len(curve))]
    if early and end > (1 + DIVERGED) * lowest and end - lowest > 0.05:
        evidence = f"{four_digits(lowest)} at step {step:,}, {four_digits(end)} at the end"
        remedy = "divide train.optimizer.rate by 3, or increase train.schedule.warmup; post-norm models need both"
        yield Finding("bad", "the training loss diverges", evidence, remedy)
    elif end > (1 - LEAST_FALL) * start:
        level: Level = "bad" if run.setting("train.start") is None else "odd"
        evidence = f"from {four_digits(start)} to {four_digits(end)} in {run.last_step:,} steps"
        remedy = "try a train.optimizer.rate ten times higher and ten times lower; check the labels with `regard data`"
        yield Finding(level, "the training loss does not fall", evidence, remedy)


def check_still_improving(run: RunHistory) -> Iterator[Finding]:
    """Whether the validation loss was still falling when the budget ended."""
    curve = run.curve("valid", "loss").finite()
    if run.status.state != "finished" or run.end.get("reason") == "patience" or len(curve) < 5:
        return
    before, end = curve.at(0.8 * run.last_step), float(curve.values[-1])
    if before > 0 and 1 - end / before > STILL_FALLING:
        evidence = f"validation loss from {four_digits(before)} to {four_digits(end)} in the last fifth of the run"
        remedy = "increase the budget and train again, so that the schedule matches it"
        yield Finding("note", "the run was still improving at its end", evidence, remedy)


def check_warmup(run: RunHistory) -> Iterator[Finding]:
    warmup, planned = run.setting("train.schedule.warmup", 0), run.setting("train.steps")
    ended = run.last_step if run.status.state == "finished" else math.inf
    steps = 1.0 if isinstance(warmup, float) else planned if isinstance(planned, int) else ended
    if warmup > steps / 2:
        level: Level = "bad" if warmup >= steps else "odd"
        evidence = f"{percent(warmup)} of it" if isinstance(warmup, float) else f"{warmup:,} of {steps:,} steps"
        remedy = "set train.schedule.warmup to a smaller share of the budget, such as 0.05"
        yield Finding(level, "warm-up takes more than half of the run", evidence, remedy)


def check_overfitting(run: RunHistory) -> Iterator[Finding]:
    """Whether the validation loss rises while the training loss falls."""
    valid, train = run.curve("valid", "loss").finite(), run.curve("train", "loss").finite()
    if len(valid) < 4 or len(train) < ENOUGH:
        return
    smooth = train.smoothed(max(len(train) // 10, 5))
    step, lowest = valid.lowest()
    end = float(np.min(valid.values[-2:]))
    if np.sum(valid.steps > step) >= 2 and end > (1 + RISE) * lowest and smooth.values[-1] < smooth.at(step):
        level: Level = "odd" if end > (1 + STEEP_RISE) * lowest else "note"
        evidence = f"validation loss {four_digits(lowest)} at step {step:,}, {four_digits(end)} at the end; training "
        evidence += f"loss {four_digits(smooth.at(step))} and {four_digits(float(smooth.values[-1]))}"
        kept = "" if run.setting("train.average") else "the best weights are kept; "
        remedy = f"{kept}use more data, a higher model.dropout or a smaller model"
        yield Finding(level, f"overfits from step {step:,} on", evidence, remedy)


def check_validation_set(run: RunHistory) -> Iterator[Finding]:
    if not run.data:
        return
    counts = run.data.get("valid", {})
    number, tokens = int(counts.get("examples") or 0), int(counts.get("tokens") or 0)
    by_token = any("perplexity" in record for record in (*run.valid, *run.train))  # then each token is a prediction
    if not number:
        remedy = "hold out some hundred examples and set data.valid, or set data.hold_out=0.05"
        yield Finding("note", "there are no validation data", "no evaluations, and no best weights", remedy)
    elif (tokens < TINY_TOKENS) if by_token else (number < TINY):
        evidence = f"{number:,} examples" + (f" with {tokens:,} tokens" if by_token else "")
        yield Finding("note", "the validation set is tiny", evidence, "hold out some hundred examples")


def check_data(run: RunHistory) -> Iterator[Finding]:
    """Whether the vocabulary covers the data, and whether many examples were unreadable, too long or filtered."""
    unknown, lost, cut = [], list[str](), list[str]()
    way = run.setting("data.too_long", "skip")
    for split, counts in run.data.items():
        if (counts.get("unknown") or 0) > UNKNOWN:
            unknown.append(f"{percent(counts['unknown'])} of {split}")
        gone = [name for name in LOST if name != "too_long" or way == "skip"]
        total = counts.get("examples", 0) + sum(counts.get(name) or 0 for name in gone)
        for name, bound in LOST.items():
            number = counts.get(name) or 0
            if total and number / total > bound and (name != "too_long" or way != "split"):
                where = cut if name == "too_long" and way == "truncate" else lost
                where.append(f"{percent(number / total)} of {split} {name.replace('_', ' ')}")
    if unknown:
        remedy = "increase text.size, decrease text.frequency, or use text.kind=byte-bpe, which has no unknown tokens"
        yield Finding("odd", "many tokens are unknown", ", ".join(unknown), remedy)
    if lost:
        level: Level = "odd" if any("skipped" in text for text in lost) else "note"
        remedy = "`regard data` shows the first ones and the reasons; increase data.longest if they are too long"
        yield Finding(level, "many examples are lost", "; ".join(lost), remedy)
    if cut:
        yield Finding("note", "many examples are cut", "; ".join(cut), "increase data.longest, if the model allows it")


def check_speed(run: RunHistory) -> Iterator[Finding]:
    """Whether training waits for batches or evaluations, or batches are mostly padding."""
    share = float((run.end or (run.valid or [{}])[-1]).get("evaluation") or 0)
    if share > MUCH_EVALUATION and run.seconds > SHORT_SECONDS:
        remedy = "increase train.evaluate_every (or leave it out), or give less validation data"
        level: Level = "odd" if share > 0.4 else "note"
        yield Finding(level, "evaluations take much time", f"{percent(share)} of the time", remedy)
    workers = "increase train.workers; keep the data on a local disk"
    layout = "set train.layout=packed on a GPU, or increase train.tokens to find more examples of similar length"
    for metric, bound, high, title, unit, remedy in (
        ("wait", 0.01, 0.1, "training waits for data", "the time", workers),
        ("padding", 0.2, 0.4, "batches have much padding", "all positions", layout),
    ):
        values = run.curve("train", metric).finite().values
        values = values[1:] if len(values) > 2 else values  # the first line starts up
        share = float(np.mean(values)) if len(values) else 0.0
        if share > bound:
            yield Finding("odd" if share > high else "note", title, f"{percent(share)} of {unit}", remedy)


def check_events(run: RunHistory) -> Iterator[Finding]:
    micro = "set train.micro to the number of tokens at once that it ended with, or train.recompute=true"
    off = "fix the error, or set train.compile=off to skip the attempt"
    for what, title, remedy in (
        ("out-of-memory", "memory ran out", micro),
        ("compile-fallback", "the model is not compiled", off),
    ):
        if events := [event for event in run.events if event.get("what") == what]:
            last = events[-1]
            evidence = f"events: {len(events)}; the last at step {last.get('step', 0):,}: {last.get('text', '')}"
            yield Finding("odd", title, evidence, remedy)


def check_reference(run: RunHistory) -> Iterator[Finding]:
    """Compare the losses with the `[reference]` table of the recipe, which `reference_of` makes."""
    table = run.config.get("reference")
    if not isinstance(table, dict):
        return
    tolerance = float(table.get("tolerance", TOLERANCE))
    origin = ", ".join(str(table[key]) for key in ("hardware", "commit") if table.get(key))
    for key, kind, name in (("loss", "train", "training"), ("valid", "valid", "validation")):
        curve = _reference_curve(run, kind)
        first, last = (float(curve.steps[0]), float(curve.steps[-1])) if len(curve) else (0.0, -1.0)
        points = [(float(step), float(loss)) for step, loss in table.get(key) or () if loss > 0]
        compared = [(step, curve.at(step) / loss - 1) for step, loss in points if first <= step <= last]
        if not compared:
            continue
        step, worst = max(compared, key=lambda each: abs(each[1]))
        last, end = compared[-1]
        evidence = f"{100 * end:+.1f} % at step {last:,.0f}, at most {100 * worst:+.1f} % at step {step:,.0f}"
        evidence += f"; reference: {origin}" if origin else ""
        title = f"the {name} loss differs from the reference of the recipe"
        if abs(worst) <= tolerance:
            yield Finding("fine", f"the {name} loss matches the reference of the recipe", evidence)
        elif end < -tolerance:
            yield Finding("note", title, evidence, "it is lower, which is fine if settings or data were changed")
        else:
            remedy = "compare settings (`regard runs`), data and versions; another budget changes the curve"
            yield Finding("odd", title, evidence, remedy)


def _reference_curve(run: RunHistory, kind: str) -> Curve:
    curve = run.curve(kind, "loss").finite()
    return curve.smoothed(5) if kind == "train" else curve


def reference_of(directory: Path) -> str:
    """The `[reference]` table of a run for its recipe: about 12 points of each loss, evenly over log(step)."""
    run = RunHistory(directory)
    environment = run.environment
    hardware = environment.get("cpu") if environment.get("device") == "cpu" else environment.get("device")
    table = {"hardware": hardware, "commit": environment.get("commit")}
    table = {key: value for key, value in table.items() if value}
    lines = [tomli_w.dumps({"reference": table}).rstrip()]
    for key, kind in (("loss", "train"), ("valid", "valid")):
        curve = _reference_curve(run, kind)
        if len(curve):
            steps = np.maximum(curve.steps, 1)
            wanted = np.geomspace(steps[0], steps[-1], POINTS)
            nearest = sorted({int(np.argmin(np.abs(np.log(steps / step)))) for step in wanted})
            points = [[int(curve.steps[i]), float(f"{curve.values[i]:.4g}")] for i in nearest]
            lines.append(f"{key} = {points}")  # TOML writes lists of numbers as Python does
    return "\n".join(lines) + "\n"


INK, GRID, TRAIN, VALID, OTHER = "#333333", "#e6e6e6", "#2a6fbb", "#d9662b", "#5a7d5a"


def draw_curves(directory: Path, path: Path) -> None:
    """Draw the losses, the learning rate and the gradient norm of a run into a PNG file."""
    module = extra_module("matplotlib.figure", "matplotlib", "plot", "a picture")
    run = RunHistory(directory)
    figure = module.Figure(figsize=(10, 4.8), dpi=150, facecolor="white", layout="constrained")
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
