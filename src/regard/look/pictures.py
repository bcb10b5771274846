"""Vectors and positions as pictures: PNG, SVG or PDF, by the file's ending. matplotlib only when one is drawn."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from regard.errors import InputError
from regard.files import write_beside
from regard.look.positions import DistanceScores, Encodings
from regard.look.table import VectorTable
from regard.look.vectors import Map, Place, Similarity, map_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's, which those see apart who see red and green alike."""
MARKERS = "osD^vPX"
GREY = "#6b6b6b"
MOST_LINES = 12
"""Pairs that are drawn each by themselves; of more, only their middle half and median."""
MOST_PANELS = 8
LETTER = 5.5
"""About how wide a letter of a label is, in points."""


def similarity_picture(found: Similarity, path: Path, title: str = "") -> None:
    """Cosines by layer, beside the static ones and those of random words."""
    figure = _figure(8.5, 4.8)
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
    _plain(axes)
    legend = axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=8)
    legend.set_in_layout(True)
    _listed(figure, found.places)
    _save(figure, path, title)


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
    figure = _figure(max(3.6 * columns, 5.0), 3.6 * rows)
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    for panel in panels[len(chosen) :]:
        panel.set_visible(False)
    for panel, layer in zip(panels, chosen, strict=False):
        for point, place in zip(maps[layer].points.tolist(), places, strict=True):
            kind = kinds.index(place.word.lower())
            panel.plot(
                *point, MARKERS[kind % len(MARKERS)], color=COLOURS[kind % len(COLOURS)], ms=6, mec="white", mew=0.6
            )
        _map_axes(panel, maps[layer])
        panel.set_title(f"layer {layer}", fontsize=10)
    _listed(figure, places)
    for panel, layer in zip(panels, chosen, strict=False):
        _labelled(figure, panel, maps[layer].points.tolist(), [str(number) for number in range(1, len(places) + 1)])
    _save(figure, path, title)


def words_picture(
    table: VectorTable, words: Sequence[str], path: Path, arrows: Sequence[tuple[str, str]] = (), title: str = ""
) -> None:
    """Words of a table on a plane, with arrows between some: king → queen beside man → woman."""
    chosen = table.chosen(words)
    found = map_of(chosen.units)
    figure = _figure(6.0, 5.0)
    axes = figure.add_subplot()
    points = {word: (float(x), float(y)) for word, (x, y) in zip(words, found.points.tolist(), strict=True)}
    for first, second in arrows:
        chosen.row(first), chosen.row(second)
        ends = {"arrowstyle": "->", "color": GREY, "lw": 1.2, "shrinkA": 6, "shrinkB": 6}
        axes.annotate("", points[second], points[first], arrowprops=ends)
    for x, y in points.values():
        axes.plot(x, y, "o", color=COLOURS[0], ms=6)
    _map_axes(axes, found)
    _labelled(figure, axes, list(points.values()), [_shown(word) for word in points])
    _save(figure, path, title)


def encodings_picture(found: Encodings, path: Path, title: str = "") -> None:
    """The vectors as a heat map, and beside it how alike places are; of an image, how alike patches are to nine."""
    if found.grid is not None:
        _grid_picture(found, path, title)
        return
    figure = _figure(11.0, 4.4)
    left, right = figure.subplots(1, 2)
    what = "distance" if found.first < 0 else "place"
    begin, end = found.first - 0.5, found.first + len(found.matrix) - 0.5
    shown = found.matrix
    if found.order == "interleaved":
        shown = torch.cat([shown[:, 0::2], shown[:, 1::2]], 1)
    _heat(left, shown, (-0.5, shown.shape[1] - 0.5, end, begin), "auto")
    left.set_xlabel("channel" if found.order is None else "sines, then cosines, the fastest first")
    left.set_title("encodings", fontsize=10)
    _heat(right, found.dots, (begin, end, end, begin), "equal")
    right.set_xlabel(what)
    right.set_title("dot products", fontsize=10)
    for axes in (left, right):
        axes.set_ylabel(what)
    _save(figure, path, title)


def _heat(
    axes: Axes, values: Tensor, extent: tuple[float, float, float, float], aspect: Literal["auto", "equal"]
) -> None:
    """Two colours around zero; one scale where nothing is below it."""
    least, most = float(values.min()), float(values.max())
    bound = max(-least, most) or 1.0
    colours, low, high = ("RdBu_r", -bound, bound) if least < 0 else ("viridis", least, most)
    drawn = axes.imshow(
        values.numpy(), colours, vmin=low, vmax=high, aspect=aspect, interpolation="nearest", extent=extent
    )
    axes.figure.colorbar(drawn, ax=axes)


def _grid_picture(found: Encodings, path: Path, title: str) -> None:
    """Nine patches, each with its cosine to every other, as ViT's paper draws them."""
    assert found.grid is not None
    rows, columns = found.grid
    picked = [sorted({round((size - 1) * share) for share in (0.1, 0.5, 0.9)}) for size in (rows, columns)]
    figure = _figure(2.1 * len(picked[1]) + 1.4, 2.1 * len(picked[0]) + 0.8)
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
    _save(figure, path, title)


def distance_picture(found: DistanceScores, path: Path, title: str = "") -> None:
    """What is added to scores by distance: a line for each head; of many, a heat map."""
    figure = _figure(7.5, 4.2)
    axes = figure.add_subplot()
    if len(found.scores) <= MOST_LINES:
        for head, scores in enumerate(found.scores):
            style = "-" if head < len(COLOURS) else "--"
            axes.plot(found.distances, scores, style, color=COLOURS[head % len(COLOURS)], lw=1.6, label=f"head {head}")
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=8)
        axes.set_ylabel("added to the score")
        _plain(axes)
    else:
        first, last = int(found.distances[0]), int(found.distances[-1])
        _heat(axes, found.scores, (first - 0.5, last + 0.5, len(found.scores) - 0.5, -0.5), "auto")
        axes.set_ylabel("head (of one layer after the other); colour: added to the score")
    axes.set_xlabel("how far the key lies before its query")
    _save(figure, path, title)


# --------------------------------------------------------------------------------------------------------------- pieces


def _figure(width: float, height: float) -> Figure:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("pictures need matplotlib; install it: pip install 'regard[plot]'") from None
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def _save(figure: Figure, path: Path, title: str) -> None:
    if title:
        figure.suptitle(_shown(title), fontsize=12)
    form = path.suffix.removeprefix(".") or "png"
    try:
        write_beside(path, lambda partial: figure.savefig(partial, format=form, dpi=150, bbox_inches="tight"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be written ({error}); choose another file, ending in .png or .svg") from None


def _plain(axes: Axes) -> None:
    axes.grid(color="#e6e6e6", lw=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _map_axes(axes: Axes, found: Map) -> None:
    first, second = (f"{100 * float(share):.0f} % of the variance" for share in found.share)
    axes.set_xlabel(first, fontsize=8)
    axes.set_ylabel(second, fontsize=8)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.margins(0.15)
    axes.set_aspect("equal", adjustable="datalim")


def _labelled(figure: Figure, axes: Axes, points: Sequence[Sequence[float]], labels: Sequence[str]) -> None:
    """Writes beside each point, where the least else stands: the nearest of some places around it that is free."""
    figure.draw_without_rendering()  # only then is it known where points lie
    scale = figure.dpi / 72
    spots = [tuple(axes.transData.transform((point[0], point[1])) / scale) for point in points]
    taken = [(x - 4, y - 4, x + 4, y + 4) for x, y in spots]
    for (x, y), point, label in zip(spots, points, labels, strict=True):
        width, height = LETTER * len(label), 1.3 * LETTER
        around = [
            (math.cos(turn) * (far + width / 2), math.sin(turn) * (far + height / 2))
            for far in (6, 12, 18, 26)
            for turn in (math.pi / 4 * step for step in (1, 7, 3, 5, 0, 2, 4, 6))
        ]
        boxes = [
            (x + right - width / 2, y + up - height / 2, x + right + width / 2, y + up + height / 2)
            for right, up in around
        ]
        best = min(range(len(boxes)), key=lambda place: (sum(_overlap(boxes[place], other) for other in taken), place))
        taken.append(boxes[best])
        axes.annotate(
            label, (point[0], point[1]), around[best], textcoords="offset points", fontsize=8, ha="center", va="center"
        )


def _overlap(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    """The area that two boxes share."""
    wide = min(one[2], other[2]) - max(one[0], other[0])
    high = min(one[3], other[3]) - max(one[1], other[1])
    return max(wide, 0.0) * max(high, 0.0)


def _name(found: Similarity, number: int) -> str:
    return f"{number + 1} {_shown(found.places[number].word)}"


def _listed(figure: Figure, places: Sequence[Place]) -> None:
    """The texts by their numbers, below, each word in brackets."""
    lines = []
    for number, place in enumerate(places, 1):
        first, last = place.span
        text = f"{place.text[:first]}[{place.word}]{place.text[last:]}"
        lines.append(f"{number}  {_shown(textwrap.shorten(text, 100, placeholder=' …'))}")
    figure.supxlabel("\n".join(lines), x=0.01, ha="left", fontsize=8)


def _shown(word: str) -> str:
    """Text as it is: a dollar sign would begin a formula, and control characters have no shape."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in word).replace(
        "$", r"\$"
    )
