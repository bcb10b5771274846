"""Attention as a picture: every head of a model as a small map, or one of them enlarged with its tokens."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor
from torch.nn.functional import adaptive_max_pool2d

from regard.look.drawing import COLOURS, GREY, INK, LINE, name_ticks, new_figure, number, save, short, shown
from regard.look.study import AttentionPlace, Run, Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CELLS = 160
"""Cells of a small map, each way; of a larger one, the most of those that share one is drawn."""
WRITTEN = 14
"""Keys up to which the numbers of an enlarged head are written into its cells."""
SIDE = 9.0
"""Inches that an enlarged map takes at the most."""
NAMED = 0.105
"""Inches of a row of a small map from which tokens are named at the edge of the picture."""
LONG = 64 * 64
"""Cells from which a map is that of a long input, whose few largest weights are not told apart."""
SHOWN = 0.995
"""The share of its weights that are."""
TOP = 0.5
"""Inches above the small maps."""
MARK = COLOURS[1]


def heads_picture(study: Study, run: Run, path: Path, at: str = "", title: str = "") -> None:
    """All heads of one kind of attention (`decoder.cross`; unless it is told, the last kind), or one of them, named as
    `decoder.1.cross.0`."""
    place, layer, head = study.place(at)
    if layer is None or head is None:
        _all(study, run, place, path, title)
    else:
        _one(study, run, place, (layer, head), path, title)


def _weights(study: Study, run: Run, place: AttentionPlace, layer: int) -> Tensor:
    return study.tensor(run.key, f"{place.stack}.{layer}.{place.kind}.weights").cpu()


def _all(study: Study, run: Run, place: AttentionPlace, path: Path, title: str) -> None:
    side = min(1.5, max(0.6, 9.0 / place.heads))
    names = [[token.text for token in run.sides[each].tokens] for each in (place.queries, place.keys)]
    named = side / max(map(len, names)) >= NAMED
    left, below = (1.0, 0.8) if named else (0.4, 0.3)
    width, height = left + side * place.heads + 0.9, TOP + side * place.layers + below
    figure = new_figure(width, height)
    figure.set_layout_engine("none")  # to fit a hundred maps takes matplotlib long, and their places are known
    drawn, clipped = None, False
    for layer in range(place.layers):
        for head, map_QK in enumerate(_weights(study, run, place, layer)):
            low = height - TOP - side * (layer + 1)
            panel = figure.add_axes(
                ((left + side * head) / width, low / height, 0.94 * side / width, 0.94 * side / height)
            )
            pooled_QK = adaptive_max_pool2d(map_QK[None], [min(length, CELLS) for length in map_QK.shape])[0]
            cap, clipped = _cap(pooled_QK)
            drawn = panel.imshow(
                pooled_QK.numpy() / cap, "Blues", vmin=0, vmax=1, aspect="auto", interpolation="nearest"
            )
            _quiet(panel, f"{place.stack}.{layer}.{place.kind}.{head}" in run.given.ablated)
            if layer == 0:
                panel.set_title(f"head {head + 1}", fontsize=8, color=GREY, pad=4)
            if head == 0:
                panel.set_ylabel(f"layer {layer + 1}", fontsize=8, color=GREY)
            if named:
                _name(panel, names, head == 0, layer == place.layers - 1)
    assert drawn is not None  # a model has heads
    tall = min(3.0, 0.94 * side * place.layers)
    at = (width - 0.75) / width, (height - TOP - 0.06 * side - tall) / height
    scale = figure.colorbar(drawn, cax=figure.add_axes((*at, 0.16 / width, tall / height)), extend=_more(clipped))
    share = f"{100 * SHOWN:g} % are below" if clipped else "its largest"
    scale.set_label(f"weight, by map (1: {share})", fontsize=8, color=GREY)
    scale.ax.tick_params(labelsize=7, colors=GREY)
    scale.outline.set_visible(False)
    figure.text(0.5, 0.1 / height, f"{_said(place)}; {_sizes(run, place)}", fontsize=8, color=GREY, ha="center")
    figure.text(0.5, 1 - 0.2 / height, shown(title or place.label), fontsize=12, color=INK, ha="center", va="center")
    save(figure, path)


def _cap(map_QK: Tensor) -> tuple[float, bool]:
    """The weight that gets the darkest colour, and whether some are above it.

    The first token of a long text sees only itself, and all else would be pale beside it.
    """
    visible = map_QK[map_QK > 0]
    if map_QK.numel() < LONG or not len(visible):
        return float(map_QK.max()) or 1.0, False
    return float(visible.quantile(SHOWN)), True


def _more(clipped: bool) -> Literal["max", "neither"]:
    return "max" if clipped else "neither"


def _name(panel: Axes, names: list[list[str]], left: bool, below: bool) -> None:
    """Tokens beside a map that stands at an edge."""
    queries, keys = ([short(shown(name), 10) for name in each] for each in names)
    if left:
        panel.set_yticks(range(len(queries)), labels=queries)
    if below:
        panel.set_xticks(range(len(keys)), labels=keys, rotation=60, ha="right", rotation_mode="anchor")
    panel.tick_params(length=0, pad=2, labelsize=6, labelcolor=INK)


def _quiet(panel: Axes, silent: bool) -> None:
    panel.set_xticks([])
    panel.set_yticks([])
    for spine in panel.spines.values():
        spine.set(color=LINE, linewidth=0.6)
    if silent:
        panel.images[0].set_alpha(0.3)
        panel.plot([0, 1], [0, 1], color=MARK, lw=1.4, transform=panel.transAxes)


def _said(place: AttentionPlace) -> str:
    return f"rows: queries of the {place.queries}, columns: keys of the {place.keys}"


def _sizes(run: Run, place: AttentionPlace) -> str:
    return " × ".join(str(len(run.sides[side].tokens)) for side in (place.queries, place.keys))


def _one(study: Study, run: Run, place: AttentionPlace, head: tuple[int, int], path: Path, title: str) -> None:
    map_QK = _weights(study, run, place, head[0])[head[1]]
    queries, keys = ([token.text for token in run.sides[side].tokens] for side in (place.queries, place.keys))
    cell = min(0.5, SIDE / max(len(keys), len(queries)))
    figure = new_figure(cell * len(keys) + 2.4, cell * len(queries) + 1.6)
    axes = figure.add_subplot()
    most, clipped = _cap(map_QK)
    drawn = axes.imshow(map_QK.numpy(), "Blues", vmin=0, vmax=most, interpolation="nearest" if cell > 0.05 else "auto")
    every = max(1, math.ceil(0.16 / cell))
    name_ticks(axes, queries, keys, (every, every))
    axes.tick_params(labelsize=9 if cell > 0.2 else 7, colors=INK)
    if len(keys) <= WRITTEN:
        _write(axes, map_QK, most)
    if cell >= 0.12:
        _rule(axes, len(queries), len(keys))
    scale = figure.colorbar(
        drawn, ax=axes, shrink=min(1.0, 3 / (cell * len(queries))), aspect=16, pad=0.03, extend=_more(clipped)
    )
    scale.set_label("weight", fontsize=9)
    scale.ax.tick_params(labelsize=8)
    scale.outline.set_visible(False)
    axes.set_xlabel(_said(place), fontsize=8, color=GREY)
    silent = f"{place.stack}.{head[0]}.{place.kind}.{head[1]}" in run.given.ablated
    said = f"{place.label}, layer {head[0] + 1}, head {head[1] + 1}{' (silent)' if silent else ''}"
    save(figure, path, title or said)


def _write(axes: Axes, map_QK: Tensor, most: float) -> None:
    """The numbers, where they are not nearly nothing."""
    for query, key in (map_QK >= 0.005).nonzero().tolist():
        value = float(map_QK[query, key])
        colour = "white" if value > 0.6 * most else INK
        axes.text(key, query, number(value), ha="center", va="center", fontsize=7.5, color=colour)


def _rule(axes: Axes, rows: int, columns: int) -> None:
    axes.hlines(torch.arange(rows - 1) + 0.5, -0.5, columns - 0.5, colors="white", lw=0.8)
    axes.vlines(torch.arange(columns - 1) + 0.5, -0.5, rows - 0.5, colors="white", lw=0.8)
