"""The whole path of one input as a picture: a sheet of panels, each with its formula, shape and real numbers."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

from regard.look.drawing import COLOURS, GREY, INK, LINE, breadth, new_figure, number, save, sheet, short, shown
from regard.look.study import Run, Study
from regard.look.walk import Numbers, Place, WalkStep, walk

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ACROSS = 4
"""Panels side by side."""
WIDTH, HEIGHT = 3.7, 2.62
GAP = 0.16
MARGIN = 0.12
LINES = 5
"""Lines of words in a panel."""
SAYS = 66
"""Letters of a line of what a step says."""
LETTER = 0.066
"""Inches of a letter of a word, about."""


def walk_picture(study: Study, run: Run, path: Path, at: str = "", title: str = "") -> None:
    """The path through one head (`decoder.1.cross.0`; unless it is told, the first of all) as a sheet of panels."""
    place, layer, head = study.place(at, usual=0)
    steps = walk(study, run, Place(place.stack, layer or 0, place.kind, head or 0))
    said = f"{place.label}, layer {(layer or 0) + 1}, head {(head or 0) + 1}"
    sheet_picture(steps, path, title or f"From text to answer: {said}")


def sheet_picture(steps: list[WalkStep], path: Path, title: str = "") -> None:
    """The steps of a walk, a panel each, in the order in which one reads."""
    rows = -(-len(steps) // ACROSS)
    top = 0.5 if title else 0.0
    width, height = ACROSS * (WIDTH + GAP) + GAP, rows * (HEIGHT + GAP) + GAP + top
    figure = new_figure(width, height)
    figure.set_layout_engine("none")
    axes = sheet(figure, width, height)
    if title:
        axes.text(width / 2, 0.36, shown(title), fontsize=14, ha="center", va="center", color=INK)
    for place, step in enumerate(steps):
        row, column = divmod(place, ACROSS)
        _panel(axes, step, place + 1, GAP + column * (WIDTH + GAP), top + GAP + row * (HEIGHT + GAP))
    save(figure, path)


def _panel(axes: Axes, step: WalkStep, place: int, x: float, y: float) -> None:
    from matplotlib.patches import FancyBboxPatch

    rounded = "round,pad=0,rounding_size=0.06"
    axes.add_patch(FancyBboxPatch((x, y), WIDTH, HEIGHT, rounded, facecolor="white", edgecolor=LINE, lw=0.8))
    left, right = x + MARGIN, x + WIDTH - MARGIN
    axes.text(left, y + 0.2, f"{place}", fontsize=9, va="center", color=COLOURS[0], weight="bold")
    axes.text(left + 0.24, y + 0.2, shown(step.title), fontsize=9.5, va="center", color=INK, weight="bold")
    if step.numbers is not None:
        sizes = " × ".join(map(str, step.numbers.shape))
        axes.text(right, y + 0.2, sizes, fontsize=8, va="center", ha="right", color=GREY)
    size = 9 * min(1.0, 48 / breadth(step.formula))
    axes.text(left, y + 0.45, shown(step.formula), fontsize=size, va="center", color=COLOURS[0])
    for line, says in enumerate(wrap(step.says, SAYS)[:2]):
        axes.text(left, y + HEIGHT - 0.32 + line * 0.15, shown(says), fontsize=7.2, va="center", color=GREY)
    if step.numbers is not None:
        _numbers(axes, step.numbers, left, y + 0.62)
    elif step.words:
        draw = _answers if step.name.startswith("answer.") else _words if len(step.words) == 1 else _table
        draw(axes, step.words, left, y + 0.74)


def _words(axes: Axes, rows: list[list[str]], left: float, y: float) -> None:
    """Words one behind the other, each in a box; a single one is a text, which is wrapped."""
    from matplotlib.patches import FancyBboxPatch

    single = len(rows[0]) == 1
    words = rows[0][0].split() if single else rows[0]
    room, x, line = WIDTH - 2 * MARGIN, left, 0
    for place, word in enumerate(words):
        text = short(shown(word), 40)
        wide = breadth(text) * LETTER + (0.0 if single else 0.1)
        if x > left and x + wide > left + room:
            x, line = left, line + 1
        at = y + line * 0.26
        if line == LINES - 1 and x + wide > left + room - 0.8 and place < len(words) - 1:
            axes.text(x, at, f"… {len(words)} in all", fontsize=8, va="center", color=GREY)
            return
        if single:
            axes.text(x, at, text, fontsize=8.5, va="center", color=INK)
        else:
            box = FancyBboxPatch((x, at - 0.1), wide, 0.2, "round,pad=0,rounding_size=0.04")
            box.set(facecolor="#f1f5fa", edgecolor=LINE, linewidth=0.6)
            axes.add_patch(box)
            axes.text(x + wide / 2, at, text, fontsize=8, va="center", ha="center", color=INK)
        x += wide + 0.07


def _table(axes: Axes, rows: list[list[str]], left: float, y: float) -> None:
    """The first columns of a table of words, as many as there is room for."""
    room, x = WIDTH - 2 * MARGIN - 0.2, left
    for column in zip(*rows, strict=False):
        texts = [short(shown(word), 14) for word in column]
        wide = max(map(breadth, texts)) * LETTER + 0.12
        if x + wide > left + room:
            axes.text(x, y, "…", fontsize=8, va="center", color=GREY)
            return
        for line, text in enumerate(texts):
            axes.text(x, y + line * 0.26, text, fontsize=8, va="center", color=INK if line else GREY)
        x += wide


def _answers(axes: Axes, rows: list[list[str]], left: float, y: float) -> None:
    """A line for each token, and what the model gives it: the three likeliest, with their probabilities."""
    for line, row in enumerate(islice(rows, LINES + 1)):
        at = y + line * 0.22
        axes.text(left, at, short(shown(row[0]), 11), fontsize=7.5, va="center", color=GREY)
        for column, word in enumerate(row[1:4]):
            text, _, chance = word.rpartition("  ")
            x = left + 0.78 + column * 0.92
            axes.text(x, at, short(shown(text), 8), fontsize=7.5, va="center", color=INK)
            axes.text(x + 0.84, at, f"{float(chance):.3f}", fontsize=7, va="center", ha="right", color=COLOURS[0])
    if len(rows) > LINES + 1:
        axes.text(left, y + (LINES + 1) * 0.22, f"⋮  {len(rows)} in all", fontsize=7.5, va="center", color=GREY)


def _numbers(axes: Axes, found: Numbers, left: float, y: float) -> None:
    """The corner of a tensor, tinted by its numbers."""
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    wide, high, names, top = 0.425, 0.2, 0.72, 0.2 if found.columns else 0.02
    bound = max((abs(each) for row in found.corner for each in row if each is not None), default=0.0) or 1.0
    colours = colormaps["RdBu_r"]
    for column, name in enumerate(found.columns[: len(found.corner[0])]):
        x = left + names + (column + 0.5) * wide
        axes.text(x, y + 0.09, short(shown(name), 6), fontsize=6.5, ha="center", va="center", color=GREY)
    for line, row in enumerate(found.corner):
        at = y + top + line * high
        name = short(shown(found.rows[line]), 10) if line < len(found.rows) else ""
        axes.text(left + names - 0.06, at + high / 2, name, fontsize=7, ha="right", va="center", color=GREY)
        for column, value in enumerate(row):
            x = left + names + column * wide
            tint = "#ececec" if value is None else colours(0.5 + 0.28 * value / bound)
            axes.add_patch(Rectangle((x, at), wide, high, facecolor=tint, edgecolor="white", lw=0.8))
            digits = 2 if value is None or abs(value) < 100 else 0
            axes.text(
                x + wide / 2, at + high / 2, number(value, digits), fontsize=6.8, ha="center", va="center", color=INK
            )
    more_right, more_down = found.shape[1] > len(found.corner[0]), found.shape[0] > len(found.corner)
    below = y + top + len(found.corner) * high
    if more_right:
        axes.text(
            left + names + len(found.corner[0]) * wide + 0.03, y + top + 0.09, "…", fontsize=8, va="center", color=GREY
        )
    if more_down:
        axes.text(left + names + wide / 2, below + 0.08, "⋮", fontsize=8, ha="center", va="center", color=GREY)
    facts = f"{number(found.least, 3)} … {number(found.most, 3)}, mean {number(found.mean, 3)}"
    axes.text(left + WIDTH - 2 * MARGIN, below + 0.09, facts, fontsize=6.8, ha="right", va="center", color=GREY)
