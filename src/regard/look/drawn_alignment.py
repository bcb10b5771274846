"""Which words belong together, drawn: as text in a terminal, and as a picture. matplotlib only for a picture."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from pathlib import Path

from regard.look.drawing import breadth, name_ticks, new_figure, save
from regard.use.translation import Alignment

SHADES = " ░▒▓█"
"""From nothing to all of a word's attention."""
CELL = 2
"""Letters of a cell where columns are numbered."""


def terminal(alignment: Alignment, width: int = 80) -> str:
    """A line for each target word, a column for each source word, the darker the more it was looked at.

    Source words stand above their columns where the width allows it; else their numbers do, and a list of them below.
    """
    source, target = [_shown(word) for word in alignment.source], [_shown(word) for word in alignment.target]
    margin = max((breadth(word) for word in target), default=0) + 1
    wide = [max(breadth(word), CELL) + 1 for word in source]
    named = margin + sum(wide) <= width
    cells = wide if named else [max(len(str(number)), CELL) + 1 for number in range(1, len(source) + 1)]
    heads = source if named else [str(number) for number in range(1, len(source) + 1)]
    lines = [" " * margin + "".join(_padded(head, cell) for head, cell in zip(heads, cells, strict=True))]
    for word, weights in zip(target, alignment.weights, strict=True):
        row = "".join(_padded(shade(float(weight)) * CELL, cell) for weight, cell in zip(weights, cells, strict=True))
        lines.append(_padded(word, margin) + row)
    if not named:
        lines += ["", *_listed(source, width)]
    return "\n".join(line.rstrip() for line in lines)


def shade(weight: float) -> str:
    """How dark a cell is drawn."""
    return SHADES[min(max(round(weight * (len(SHADES) - 1)), 0), len(SHADES) - 1)]


def picture(alignment: Alignment, path: Path, title: str = "") -> None:
    """A heat map as PNG, SVG or PDF, by the file's ending."""
    source, target = alignment.source, alignment.target
    figure = new_figure(1.5 + 0.42 * len(source), 1.5 + 0.32 * len(target))
    axes = figure.add_subplot()
    drawn = axes.imshow(alignment.weights, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    name_ticks(axes, target, source)
    for first, second in alignment.pairs:
        axes.plot(first, second, marker="o", markersize=5, markerfacecolor="none", markeredgecolor="tab:red")
    figure.colorbar(drawn, ax=axes, label="share of attention")
    save(figure, path, title)


def _shown(word: str) -> str:
    """A word whose letters all take up room: control and directional characters would spoil a table."""
    return "".join(letter if unicodedata.category(letter)[0] != "C" else "\N{REPLACEMENT CHARACTER}" for letter in word)


def _padded(word: str, columns: int) -> str:
    return word + " " * max(columns - breadth(word), 0)


def _listed(words: Sequence[str], width: int) -> list[str]:
    lines = [""]
    for number, word in enumerate(words, 1):
        entry = f"{number} {word}  "
        if breadth(lines[-1]) + breadth(entry) > width and lines[-1]:
            lines.append("")
        lines[-1] += entry
    return lines
