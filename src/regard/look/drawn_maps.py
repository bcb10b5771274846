"""The page's views of vectors and positions as pictures: PNG, SVG or PDF, by the file's ending."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

from regard.errors import InputError
from regard.look.atlas import Atlas, Chart
from regard.look.drawing import COLOURS, GREY, MARKERS, labelled, new_figure, plain, save, shown
from regard.look.nearness import Placed
from regard.look.pictures import distance_picture, encodings_picture, map_axes, map_picture


def vectors_picture(
    found: Atlas, path: Path, word: str | None = None, layers: Sequence[int] = (), title: str = ""
) -> None:
    """A word of the sentences on a map for each layer; or all words, on that of one layer: the last, unless chosen."""
    chart = found.chart(word)
    if chart.word is not None:
        places = [found.vectors.places[number] for number in chart.places]
        map_picture(chart.maps, places, path, layers, title)
        return
    layer = layers[0] if layers else len(chart.maps) - 1
    if len(layers) > 1 or not 0 <= layer < len(chart.maps):
        raise InputError(f"layers ({list(layers)}) must be one, from 0 to {len(chart.maps) - 1}, for all words at once")
    _every_word(found, chart, layer, path, title)


def _every_word(found: Atlas, chart: Chart, layer: int, path: Path, title: str) -> None:
    """Those that stand more than once have colours, and each sentence its marker."""
    figure = new_figure(9.0, 6.5)
    axes = figure.add_subplot()
    colours = {str(each.word).lower(): COLOURS[number % len(COLOURS)] for number, each in enumerate(found.charts[1:])}
    points = chart.maps[layer].points.tolist()
    labels = []
    for point, place in zip(points, found.vectors.places, strict=True):
        sentence = found.texts.index(place.text)
        colour, marker = colours.get(place.word.lower(), GREY), MARKERS[sentence % len(MARKERS)]
        axes.plot(*point, marker, color=colour, ms=6, mec="white", mew=0.6)
        labels.append(shown(f"{sentence + 1} {place.word}"))
    map_axes(axes, chart.maps[layer])
    axes.set_title(f"layer {layer}", fontsize=10)
    lines = [f"{n}  {shown(textwrap.shorten(text, 100, placeholder=' …'))}" for n, text in enumerate(found.texts, 1)]
    figure.supxlabel("\n".join(lines), x=0.01, ha="left", fontsize=8)
    labelled(figure, axes, points, labels)
    save(figure, path, title)


def positions_picture(found: Placed, path: Path, title: str = "") -> None:
    """The vectors of places and their dot products; where places have none, the scores by distance."""
    if found.encodings is not None:
        encodings_picture(found.encodings, path, title)
    elif found.scores is not None:
        distance_picture(found.scores, path, title)
    else:
        raise InputError(f"position.kind ({found.kind}) leaves nothing to draw; choose another model")


def nearness_picture(found: Placed, path: Path, title: str = "") -> None:
    """How alike places are by how far apart they lie, beside any two places and random vectors."""
    near, deviation = found.nearness, found.deviation
    if near is None or deviation is None:
        raise InputError(f"position.kind ({found.kind}) has no vectors of places; positions_picture draws what it has")
    figure = new_figure(7.5, 4.2)
    axes = figure.add_subplot()
    axes.fill_between(near.distances, near.least, near.most, color=COLOURS[0], alpha=0.2, lw=0, label="least to most")
    axes.plot(near.distances, near.mean, color=COLOURS[0], lw=1.6, label="mean cosine")
    axes.axhline(near.whole, color=GREY, lw=1.2, ls=":", label="any two places, in the mean")
    axes.axhline(0, color=GREY, lw=1.2, ls="--", label=f"random vectors: 0 ± {deviation:.3f}")
    axes.axhspan(-deviation, deviation, color=GREY, alpha=0.12, lw=0)
    axes.set_xlabel("places apart" if found.encodings is None or found.encodings.grid is None else "patches apart")
    axes.set_ylabel("cosine")
    axes.legend(frameon=False, fontsize=8)
    plain(axes)
    save(figure, path, title)
