"""Vectors and positions as pictures: PNG, SVG or PDF, by the file's ending. matplotlib only when one is drawn."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from regard.errors import InputError
from regard.look.drawing import COLOURS, GREY, MARKERS, heat, labelled, new_figure, plain, save, shown
from regard.look.positions import DistanceScores, Encodings
from regard.look.table import VectorTable
from regard.look.vectors import Map, Place, Similarity, map_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_LINES = 12
"""Pairs that are drawn each by themselves; of more, only their middle half and median."""
MOST_PANELS = 8


def similarity_picture(found: Similarity, path: Path, title: str = "") -> None:
    """Cosines by layer, beside the static ones and those of random words."""
    figure = new_figure(8.5, 4.8)
    axes = figure.add_subplot()
    layers = torch.arange(len(found.layers))
    if len(found.pairs) <= MOST_LINES:
        for number, (one, two) in enumerate(found.pairs):
            colour = COLOURS[number % len(COLOURS)]
            marker = MARKERS[(number + number // len(MARKERS)) % len(MARKERS)]
            label = f"{_name(found, one)} – {_name(found, two)}"
            style = "-" if number < len(COLOURS) else "--"
            axes.plot(layers, found.layers[:, number], style, color=colour, marker=marker, ms=4, lw=1.6, label=label)
    else:
        low, middle, high = found.layers.double().quantile(torch.tensor([0.25, 0.5, 0.75]).double(), dim=1)
        axes.fill_between(
            layers, low, high, color=COLOURS[0], alpha=0.2, lw=0, label=f"half of {len(found.pairs)} pairs"
        )
        axes.plot(layers, middle, color=COLOURS[0], marker="o", ms=4, lw=1.6, label="their median")
    static = float(found.static.double().median())
    axes.axhline(static, color=GREY, lw=1.2, ls=":", label="static vectors" + " (median)" * (len(found.pairs) > 1))
    axes.plot(layers, found.chance.layers, color=GREY, lw=1.2, ls="--", label="random other words")
    axes.set_xlabel("layer (0: embeddings and positions)")
    axes.set_ylabel("cosine")
    axes.set_xticks(layers[:: 1 + len(layers) // 16].tolist())
    axes.set_ylim(min(0.0, float(found.layers.min()), float(found.chance.layers.min())) - 0.03, 1.03)
    plain(axes)
    legend = axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=8)
    legend.set_in_layout(True)
    _listed(figure, found.places)
    save(figure, path, title)


def map_picture(
    maps: Sequence[Map], places: Sequence[Place], path: Path, layers: Sequence[int] = (), title: str = ""
) -> None:
    """A panel for each layer: the first and the last, unless others are chosen. Words have numbers, told below."""
    chosen = list(layers) or sorted({0, len(maps) - 1})
    wrong = [layer for layer in chosen if not 0 <= layer < len(maps)]
    if wrong or len(chosen) > MOST_PANELS:
        raise InputError(f"layers ({chosen}) must be at most {MOST_PANELS}, from 0 to {len(maps) - 1}; choose others")
    kinds = list(dict.fromkeys(place.word.lower() for place in places))
    columns = min(len(chosen), 4)
    rows = -(-len(chosen) // columns)
    figure = new_figure(max(3.6 * columns, 5.0), 3.6 * rows)
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    for panel in panels[len(chosen) :]:
        panel.set_visible(False)
    for panel, layer in zip(panels, chosen, strict=False):
        for point, place in zip(maps[layer].points.tolist(), places, strict=True):
            kind = kinds.index(place.word.lower())
            panel.plot(
                *point, MARKERS[kind % len(MARKERS)], color=COLOURS[kind % len(COLOURS)], ms=6, mec="white", mew=0.6
            )
        map_axes(panel, maps[layer])
        panel.set_title(f"layer {layer}", fontsize=10)
    _listed(figure, places)
    for panel, layer in zip(panels, chosen, strict=False):
        labelled(figure, panel, maps[layer].points.tolist(), [str(number) for number in range(1, len(places) + 1)])
    save(figure, path, title)


def words_picture(
    table: VectorTable, words: Sequence[str], path: Path, arrows: Sequence[tuple[str, str]] = (), title: str = ""
) -> None:
    """Words of a table on a plane, with arrows between some: king → queen beside man → woman."""
    chosen = table.chosen(words)
    found = map_of(chosen.units)
    figure = new_figure(6.0, 5.0)
    axes = figure.add_subplot()
    points = {word: (float(x), float(y)) for word, (x, y) in zip(words, found.points.tolist(), strict=True)}
    for first, second in arrows:
        chosen.row(first), chosen.row(second)
        ends = {"arrowstyle": "->", "color": GREY, "lw": 1.2, "shrinkA": 6, "shrinkB": 6}
        axes.annotate("", points[second], points[first], arrowprops=ends)
    for x, y in points.values():
        axes.plot(x, y, "o", color=COLOURS[0], ms=6)
    map_axes(axes, found)
    labelled(figure, axes, list(points.values()), [shown(word) for word in points])
    save(figure, path, title)


def encodings_picture(found: Encodings, path: Path, title: str = "") -> None:
    """The vectors as a heat map, and beside it how alike places are; of an image, how alike patches are to nine."""
    if found.grid is not None:
        _grid_picture(found, path, title)
        return
    figure = new_figure(11.0, 4.4)
    left, right = figure.subplots(1, 2)
    what = "distance" if found.first < 0 else "place"
    begin, end = found.first - 0.5, found.first + len(found.matrix) - 0.5
    drawn = found.matrix
    if found.order == "interleaved":
        drawn = torch.cat([drawn[:, 0::2], drawn[:, 1::2]], 1)
    heat(left, drawn, (-0.5, drawn.shape[1] - 0.5, end, begin), "auto")
    left.set_xlabel("channel" if found.order is None else "sines, then cosines, the fastest first")
    left.set_title("encodings", fontsize=10)
    heat(right, found.dots, (begin, end, end, begin), "equal")
    right.set_xlabel(what)
    right.set_title("dot products", fontsize=10)
    for axes in (left, right):
        axes.set_ylabel(what)
    save(figure, path, title)


def _grid_picture(found: Encodings, path: Path, title: str) -> None:
    """Nine patches, each with its cosine to every other, as ViT's paper draws them."""
    assert found.grid is not None
    rows, columns = found.grid
    picked = [sorted({round((size - 1) * share) for share in (0.1, 0.5, 0.9)}) for size in (rows, columns)]
    figure = new_figure(2.1 * len(picked[1]) + 1.4, 2.1 * len(picked[0]) + 0.8)
    panels = figure.subplots(len(picked[0]), len(picked[1]), squeeze=False)
    cosines = found.cosines.reshape(rows, columns, rows, columns)
    least = float(cosines.min())
    for line, row in zip(panels, picked[0], strict=True):
        for panel, column in zip(line, picked[1], strict=True):
            drawn = panel.imshow(
                cosines[row, column].numpy(), cmap="viridis", vmin=least, vmax=1, interpolation="nearest"
            )
            panel.plot(column, row, marker="s", ms=5, markerfacecolor="none", markeredgecolor="black")
            panel.set_title(f"row {row}, column {column}", fontsize=8)
            panel.set_xticks([])
            panel.set_yticks([])
    figure.colorbar(drawn, ax=panels, label="cosine")
    save(figure, path, title)


def distance_picture(found: DistanceScores, path: Path, title: str = "") -> None:
    """What is added to scores by distance: a line for each head; of many, a heat map."""
    figure = new_figure(7.5, 4.2)
    axes = figure.add_subplot()
    if len(found.scores) <= MOST_LINES:
        for head, scores in enumerate(found.scores):
            style = "-" if head < len(COLOURS) else "--"
            axes.plot(found.distances, scores, style, color=COLOURS[head % len(COLOURS)], lw=1.6, label=f"head {head}")
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=8)
        axes.set_ylabel("added to the score")
        plain(axes)
    else:
        first, last = int(found.distances[0]), int(found.distances[-1])
        heat(axes, found.scores, (first - 0.5, last + 0.5, len(found.scores) - 0.5, -0.5), "auto")
        axes.set_ylabel("head (of one layer after the other); colour: added to the score")
    axes.set_xlabel("how far the key lies before its query")
    save(figure, path, title)


# --------------------------------------------------------------------------------------------------------------- pieces


def map_axes(axes: Axes, found: Map) -> None:
    first, second = (f"{100 * float(share):.0f} % of the variance" for share in found.share)
    axes.set_xlabel(first, fontsize=8)
    axes.set_ylabel(second, fontsize=8)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.margins(0.15)
    axes.set_aspect("equal", adjustable="datalim")


def _name(found: Similarity, number: int) -> str:
    return f"{number + 1} {shown(found.places[number].word)}"


def _listed(figure: Figure, places: Sequence[Place]) -> None:
    """The texts by their numbers, below, each word in brackets."""
    lines = []
    for number, place in enumerate(places, 1):
        first, last = place.span
        text = f"{place.text[:first]}[{place.word}]{place.text[last:]}"
        lines.append(f"{number}  {shown(textwrap.shorten(text, 100, placeholder=' …'))}")
    figure.supxlabel("\n".join(lines), x=0.01, ha="left", fontsize=8)
