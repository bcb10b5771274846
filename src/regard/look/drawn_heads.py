"""Attention as a picture: every head of a model as a small map, or one of them enlarged with its tokens."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import adaptive_max_pool2d

from regard.look.addresses import where_named
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
MARK = COLOURS[1]


def heads_picture(study: Study, run: Run, path: Path, at: str = "", title: str = "") -> None:
    """All heads of one kind of attention (`decoder.cross`; unless it is told, the last kind), or one of them, named as
    `decoder.1.cross.0`."""
    where = where_named(study.loaded, at) if at else None
    places = study.attentions
    place = next((each for each in places if where and (each.stack, each.kind) == where[:2]), places[-1])
    if where is None or where.layer is None or where.head is None:
        _all(study, run, place, path, title)
    else:
        _one(study, run, place, (where.layer, where.head), path, title)


def _weights(study: Study, run: Run, place: AttentionPlace, layer: int) -> Tensor:
    return study.tensor(run.key, f"{place.stack}.{layer}.{place.kind}.weights").cpu()


def _all(study: Study, run: Run, place: AttentionPlace, path: Path, title: str) -> None:
    side = min(1.5, max(0.6, 9.0 / place.heads))
    names = [[token.text for token in run.sides[each].tokens] for each in (place.queries, place.keys)]
    named = side / max(map(len, names)) >= NAMED
    figure = new_figure(side * place.heads + (2.0 if named else 1.4), side * place.layers + (1.5 if named else 0.9))
    panels = figure.subplots(place.layers, place.heads, squeeze=False)
    drawn = None
    for layer, line in enumerate(panels):
        for head, (panel, map_QK) in enumerate(zip(line, _weights(study, run, place, layer), strict=True)):
            size = [min(length, CELLS) for length in map_QK.shape]
            pooled_QK = adaptive_max_pool2d(map_QK[None], size)[0] / map_QK.max()
            drawn = panel.imshow(pooled_QK.numpy(), "Blues", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
            _quiet(panel, f"{place.stack}.{layer}.{place.kind}.{head}" in run.given.ablated)
            if layer == 0:
                panel.set_title(f"head {head + 1}", fontsize=8, color=GREY, pad=4)
            if head == 0:
                panel.set_ylabel(f"layer {layer + 1}", fontsize=8, color=GREY)
            if named:
                _name(panel, names, head == 0, layer == place.layers - 1)
    assert drawn is not None  # a model has heads
    scale = figure.colorbar(drawn, ax=panels, shrink=min(1.0, 3 / (side * place.layers)), aspect=16, pad=0.015)
    scale.set_label("weight, as a share of the map's largest", fontsize=8, color=GREY)
    scale.ax.tick_params(labelsize=7, colors=GREY)
    scale.outline.set_visible(False)
    figure.supxlabel(f"{_said(place)}; {_sizes(run, place)}", fontsize=8, color=GREY)
    save(figure, path, title or place.label)


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
    most = float(map_QK.max())
    drawn = axes.imshow(map_QK.numpy(), "Blues", vmin=0, vmax=most, interpolation="nearest" if cell > 0.05 else "auto")
    every = max(1, math.ceil(0.16 / cell))
    name_ticks(axes, queries, keys, (every, every))
    axes.tick_params(labelsize=9 if cell > 0.2 else 7, colors=INK)
    if len(keys) <= WRITTEN:
        _write(axes, map_QK, most)
    if cell >= 0.12:
        _rule(axes, len(queries), len(keys))
    scale = figure.colorbar(drawn, ax=axes, shrink=min(1.0, 3 / (cell * len(queries))), aspect=16, pad=0.03)
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
