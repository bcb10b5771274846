"""Vectors and positions as pictures: PNG, SVG or PDF, by the file's ending. matplotlib only when one is drawn."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

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


def similarity_picture(found: Similarity, path: Path, title: str = "") -> None:
    """Cosines by layer, beside the static ones and those of random words."""
    figure = _figure(8.5, 4.8)
    axes = figure.add_subplot()
    layers = torch.arange(len(found.layers))
    if len(found.pairs) <= MOST_LINES:
        for number, (one, two) in enumerate(found.pairs):
            colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
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
        for number, (point, place) in enumerate(zip(maps[layer].points.tolist(), places, strict=True), 1):
            kind = kinds.index(place.word.lower())
            _numbered(panel, point, number, COLOURS[kind % len(COLOURS)], MARKERS[kind % len(MARKERS)])
        _map_axes(panel, maps[layer])
        panel.set_title(f"layer {layer}", fontsize=10)
    _listed(figure, places)
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
    for word, (x, y) in points.items():
        axes.plot(x, y, "o", color=COLOURS[0], ms=6)
        axes.annotate(_shown(word), (x, y), xytext=(6, 5), textcoords="offset points", fontsize=9)
    _map_axes(axes, found)
    _save(figure, path, title)


def encodings_picture(found: Encodings, path: Path, title: str = "") -> None:
    """The vectors as a heat map, and beside it how alike places are; of an image, how alike patches are to nine."""
    if found.grid is not None:
        _grid_picture(found, path, title)
        return
    figure = _figure(11.0, 4.4)
    left, right = figure.subplots(1, 2)
    last = found.first + len(found.matrix) - 1
    what = "distance" if found.first < 0 else "place"
    bound = float(found.matrix.abs().max()) or 1.0
    side = (found.first - 0.5, last + 0.5)
    drawn = left.imshow(
        found.matrix,
        cmap="RdBu_r",
        vmin=-bound,
        vmax=bound,
        aspect="auto",
        interpolation="nearest",
        extent=(-0.5, found.matrix.shape[1] - 0.5, side[1], side[0]),
    )
    left.set_xlabel("channel" if found.angles is None else "sine and cosine of each pair")
    left.set_ylabel(what)
    left.set_title("encodings", fontsize=10)
    figure.colorbar(drawn, ax=left)
    dots = found.dots
    bound = float(dots.abs().max()) or 1.0
    drawn = right.imshow(
        dots, cmap="RdBu_r", vmin=-bound, vmax=bound, interpolation="nearest", extent=(*side, side[1], side[0])
    )
    right.set_xlabel(what)
    right.set_ylabel(what)
    right.set_title("dot products", fontsize=10)
    figure.colorbar(drawn, ax=right)
    _save(figure, path, title)


def _grid_picture(found: Encodings, path: Path, title: str) -> None:
    """Nine patches, each with its cosine to every other, as ViT's paper draws them."""
    assert found.grid is not None
    rows, columns = found.grid
    picked = [sorted({round((size - 1) * share) for share in (0.1, 0.5, 0.9)}) for size in (rows, columns)]
    figure = _figure(2.1 * len(picked[1]) + 1.4, 2.1 * len(picked[0]) + 0.8)
    panels = figure.subplots(len(picked[0]), len(picked[1]), squeeze=False)
    cosines = found.cosines.reshape(rows, columns, rows, columns)
    for line, row in zip(panels, picked[0], strict=True):
        for panel, column in zip(line, picked[1], strict=True):
            drawn = panel.imshow(cosines[row, column], cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest")
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
        bound = float(found.scores.abs().max()) or 1.0
        first, last = int(found.distances[0]), int(found.distances[-1])
        drawn = axes.imshow(
            found.scores,
            cmap="RdBu_r",
            vmin=-bound,
            vmax=bound,
            aspect="auto",
            interpolation="nearest",
            extent=(first - 0.5, last + 0.5, len(found.scores) - 0.5, -0.5),
        )
        axes.set_ylabel("head (of one layer after the other)")
        figure.colorbar(drawn, ax=axes, label="added to the score")
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


def _numbered(axes: Axes, point: Sequence[float], number: int, colour: str, marker: str) -> None:
    axes.plot(*point, marker, color=colour, ms=6, alpha=0.8, mec="white", mew=0.6)
    axes.annotate(
        str(number), (point[0], point[1]), xytext=(4, 4), textcoords="offset points", fontsize=8, color=colour
    )


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
