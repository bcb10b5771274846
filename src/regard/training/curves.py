"""Curves of a run: as text in a terminal, and as a picture. No torch; matplotlib only for a picture."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from regard.errors import RunError
from regard.files import write_beside
from regard.format import amount, four_digits
from regard.training.checks.evidence import Curve, Evidence, read_evidence

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Points = Mapping[str, Sequence[tuple[float, float]]]
"""Curves by name, each a list of (x, y)."""

DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a Braille letter's dots (Unicode, chapter 21.1), by row and column."""
MARKS = ("o", "x", "+", "*", "#", "@", "%", "&")
"""How the second curve is drawn, the third, and so on: told apart without colours."""
COLOURS = (36, 33, 32, 35, 34, 31)
"""Of the curves, as terminals number them (cyan, yellow, green, magenta, blue, red)."""
LOGARITHMIC_FROM = 50.0
"""The highest over the lowest value from which on the vertical axis is logarithmic."""


@dataclass(frozen=True)
class Axis:
    """Maps values to 0..1."""

    low: float
    high: float
    logarithmic: bool = False

    def place(self, value: float) -> float:
        if self.high <= self.low:
            return 0.5
        if self.logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self, most: int) -> list[float]:
        """At most so many round values."""
        if self.high <= self.low:
            return [self.low]
        if self.logarithmic:
            found = list(_powers(self.low, self.high))
            if len(found) >= 2:
                return found[:: math.ceil(len(found) / most)]
        return list(_round_steps(self.low, self.high, most))


def terminal_curve(
    points: Points, width: int, height: int, ascii_only: bool = False, log_x: bool = False, colours: bool = False
) -> str:
    """The curves with axes, in at most `width` columns and `height` rows of text.

    The first is drawn in Braille dots (`.` if `ascii_only`), each further one with a letter of its own; `colours` adds
    a terminal's. What is not finite is left out.
    """
    curves = {name: _finite(curve, log_x) for name, curve in points.items()}
    curves = {name: curve for name, curve in curves.items() if curve}
    if not curves:
        return "(nothing to draw)"
    xs = [x for curve in curves.values() for x, _ in curve]
    ys = [y for curve in curves.values() for _, y in curve]
    across = Axis(min(xs), max(xs), log_x)
    up = Axis(min(ys), max(ys), min(ys) > 0 and max(ys) / min(ys) > LOGARITHMIC_FROM)
    rows = max(height - 3, 3)
    labels = _labels(up, rows)
    margin = max(len(label) for label in labels.values()) + 2
    columns = max(width - margin, 8)
    canvas = _Canvas(columns, rows, across, up)
    for index, curve in enumerate(curves.values()):
        canvas.draw(curve, None if index == 0 else MARKS[(index - 1) % len(MARKS)], index, ascii_only)
    corner, bar, tick = ("+", "|", "+") if ascii_only else ("└", "│", "┤")
    lines = []
    for row in range(rows):
        label = labels.get(row, "")
        lines.append(f"{label:>{margin - 2}} {tick if label else bar}{canvas.row(row, colours)}".rstrip())
    lines.append(" " * (margin - 1) + corner + _ruler(across, columns, ascii_only))
    lines.append(" " * margin + _ticks_below(across, columns))
    lines.append(" " * margin + _legend(list(curves), ascii_only, colours))
    return "\n".join(line.rstrip() for line in lines)


# ------------------------------------------------------------------------------------------------------------- drawing


class _Canvas:
    """Letters in rows and columns; of each, the curve that it belongs to."""

    def __init__(self, columns: int, rows: int, across: Axis, up: Axis) -> None:
        self.columns, self.rows, self.across, self.up = columns, rows, across, up
        self._letters: dict[tuple[int, int], str] = {}
        self._owners: dict[tuple[int, int], int] = {}

    def draw(self, curve: Sequence[tuple[float, float]], mark: str | None, owner: int, ascii_only: bool) -> None:
        if mark is None and not ascii_only:
            self._draw_dots(curve, owner)
            return
        places = self._places(curve, self.columns, self.rows)
        # A few points, such as evaluations, are shown where they are; many become a line.
        line = mark is None or len(curve) > self.columns // 2
        for column, row in _joined(places) if line else places:
            self._letters[row, column] = mark or "."
            self._owners[row, column] = owner

    def _draw_dots(self, curve: Sequence[tuple[float, float]], owner: int) -> None:
        dots: dict[tuple[int, int], int] = {}
        for column, row in _joined(self._places(curve, 2 * self.columns, 4 * self.rows)):
            cell = row // 4, column // 2
            dots[cell] = dots.get(cell, 0) | DOTS[row % 4][column % 2]
        for cell, bits in dots.items():
            self._letters[cell] = chr(0x2800 + bits)
            self._owners[cell] = owner

    def _places(self, curve: Sequence[tuple[float, float]], columns: int, rows: int) -> list[tuple[int, int]]:
        """Column and row of each column's mean, from the left."""
        sums: dict[int, list[float]] = {}
        for x, y in curve:
            sums.setdefault(round(self.across.place(x) * (columns - 1)), []).append(self.up.place(y))
        return [(column, round((1 - sum(ys) / len(ys)) * (rows - 1))) for column, ys in sorted(sums.items())]

    def row(self, row: int, colours: bool) -> str:
        letters = []
        for column in range(self.columns):
            letter = self._letters.get((row, column), " ")
            owner = self._owners.get((row, column))
            letters.append(_coloured(letter, owner) if colours and owner is not None else letter)
        return "".join(letters)


def _joined(places: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The places and those on straight lines between them."""
    yield from places[:1]
    for (x0, y0), (x1, y1) in pairwise(places):
        steps = max(x1 - x0, abs(y1 - y0))
        for step in range(1, steps + 1):
            yield x0 + round(step * (x1 - x0) / steps), y0 + round(step * (y1 - y0) / steps)


def _finite(curve: Sequence[tuple[float, float]], log_x: bool) -> list[tuple[float, float]]:
    return [(x, y) for x, y in curve if math.isfinite(x) and math.isfinite(y) and (x > 0 or not log_x)]


def _coloured(text: str, owner: int) -> str:
    return f"\x1b[{COLOURS[owner % len(COLOURS)]}m{text}\x1b[0m"


# ---------------------------------------------------------------------------------------------------------------- axes


def _labels(up: Axis, rows: int) -> dict[int, str]:
    """Labels of the vertical axis by row."""
    ticks = up.ticks(max(rows // 2, 2))
    texts = _alike(ticks)
    return {round((1 - up.place(tick)) * (rows - 1)): text for tick, text in zip(ticks, texts, strict=True)}


def _alike(values: Sequence[float]) -> list[str]:
    """Values with as many decimals as tell them apart."""
    if any(abs(value) >= 10_000 for value in values):
        return [amount(value) for value in values]
    for decimals in range(5):
        texts = [f"{value:.{decimals}f}" for value in values]
        if len(set(texts)) == len(texts) and all(
            math.isclose(float(text), value, rel_tol=1e-6, abs_tol=1e-12)
            for text, value in zip(texts, values, strict=True)
        ):
            return texts
    return [f"{value:.3g}" for value in values]


def _below(across: Axis, columns: int) -> list[tuple[int, str]]:
    """Column and text of each label of the horizontal axis, none touching another."""
    placed: list[tuple[int, str]] = []
    free = 0
    for tick in across.ticks(max(columns // 12, 2)):
        text, column = amount(tick), round(across.place(tick) * (columns - 1))
        start = min(max(column - len(text) // 2, 0), columns - len(text))
        if start >= free:
            placed.append((column, text))
            free = start + len(text) + 2
    return placed


def _ruler(across: Axis, columns: int, ascii_only: bool) -> str:
    line, tick = ("-", "+") if ascii_only else ("─", "┬")
    marked = {column for column, _ in _below(across, columns)}
    return "".join(tick if column in marked else line for column in range(columns))


def _ticks_below(across: Axis, columns: int) -> str:
    text = ""
    for column, label in _below(across, columns):
        start = min(max(column - len(label) // 2, 0), columns - len(label))
        text = text.ljust(start) + label
    return text


def _legend(names: Sequence[str], ascii_only: bool, colours: bool) -> str:
    first = "." if ascii_only else "⠒"
    entries = []
    for index, name in enumerate(names):
        mark = first if index == 0 else MARKS[(index - 1) % len(MARKS)]
        entry = f"{mark * (2 if index == 0 else 1)} {name}"
        entries.append(_coloured(entry, index) if colours else entry)
    return "   ".join(entries)


def _round_steps(low: float, high: float, most: int) -> Iterator[float]:
    """Multiples of 1, 2 or 5 times a power of ten, at most so many from low to high."""
    rough = (high - low) / max(most, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    for index in range(first, math.floor(high / step + 1e-9) + 1):
        yield index * step + 0.0


def _powers(low: float, high: float) -> Iterator[float]:
    """Powers of ten from low to high."""
    for exponent in range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1):
        yield 10.0**exponent


# ----------------------------------------------------------------------------------------------------------- a picture

INK, GRID, TRAIN, VALID, OTHER = "#333333", "#e6e6e6", "#2a6fbb", "#d9662b", "#5a7d5a"


def write_png(run_dir: Path, path: Path, log_x: bool = False) -> None:
    """A picture of a run: losses against steps, and beside them the rate and the gradient's norm."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise RunError(
            "a picture needs the package matplotlib, which is not installed; run pip install 'regard[plot]'"
        ) from None
    run = read_evidence(run_dir)
    figure = Figure(figsize=(10, 4.8), dpi=150, facecolor="white", layout="constrained")
    _draw(figure, run, log_x)
    try:
        write_beside(path, lambda partial: figure.savefig(partial, format="png"))
    except OSError as error:
        raise RunError(f"{path} cannot be written ({error.strerror}); choose another file") from None


def _draw(figure: Figure, run: Evidence, log_x: bool) -> None:
    places = figure.subplot_mosaic([["loss", "rate"], ["loss", "norm"]], width_ratios=[2, 1])
    name = run.directory.resolve().name
    figure.suptitle(f"{name}, {run.task}" if run.task else name, color=INK, fontsize=13, x=0.01, ha="left")
    train, valid = run.curve("train", "loss").finite(), run.curve("valid", "loss").finite()
    _faint_and_calm(places["loss"], train, TRAIN, "training")
    if len(valid):
        places["loss"].plot(valid.steps, valid.values, "o-", color=VALID, ms=4, lw=1.2, label="validation")
        step, lowest = valid.lowest()
        places["loss"].axhline(lowest, color=VALID, lw=0.8, ls=":")
        label = f"validation, lowest {four_digits(lowest)} at step {step:,}"
        places["loss"].get_lines()[-2].set_label(label)
    rate, power = run.curve("train", "rate").finite(), 0
    if len(rate) and rate.highest()[1] > 0:
        power = math.floor(math.log10(rate.highest()[1]))
        places["rate"].plot(rate.steps, rate.values / 10.0**power, color=OTHER, lw=1.5)
    norm = run.curve("train", "norm").finite()
    _faint_and_calm(places["norm"], norm, OTHER, "norm")
    if len(norm) and norm.values.min() > 0 and norm.highest()[1] > LOGARITHMIC_FROM * norm.values.min():
        places["norm"].set_yscale("log")
    titles = {"loss": "loss (nats)", "rate": f"learning rate (10$^{{{power}}}$)", "norm": "gradient norm"}
    for key, title in titles.items():
        _dress(places[key], title, log_x)
    places["rate"].tick_params(labelbottom=False)
    places["rate"].set_xlabel("")
    if places["loss"].get_legend_handles_labels()[1]:
        # Above the panel, where no curve can run into it.
        places["loss"].legend(
            frameon=False, labelcolor=INK, fontsize=9, ncols=2, loc="lower right", bbox_to_anchor=(1, 0.99), borderpad=0
        )


def _faint_and_calm(axes: Axes, curve: Curve, colour: str, label: str) -> None:
    """The values as they are, pale, and a smoothed line over them."""
    if not len(curve):
        return
    many = len(curve) > 40
    axes.plot(curve.steps, curve.values, color=colour, lw=0.8, alpha=0.3 if many else 1, label=None if many else label)
    if many:
        calm = curve.smoothed(max(len(curve) // 40, 3), true_ends=True)
        axes.plot(calm.steps, calm.values, color=colour, lw=1.6, label=label)


def _dress(axes: Axes, title: str, log_x: bool) -> None:
    from matplotlib.ticker import EngFormatter, MaxNLocator

    axes.set_title(title, loc="left", fontsize=10, color=INK)
    axes.set_xlabel("step", color=INK, fontsize=9)
    axes.grid(color=GRID, lw=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, labelsize=9, length=3)
    axes.margins(x=0.02)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#bbbbbb")
    if log_x:
        axes.set_xscale("log")
    else:
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.xaxis.set_major_formatter(EngFormatter(sep=" "))
