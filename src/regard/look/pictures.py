"""Pictures of attention, alignments and the logit lens with matplotlib, and alignments as text for a terminal.

matplotlib is imported only when something is drawn.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.cells import cell_len, set_cell_size
from torch import Tensor
from torch.nn.functional import adaptive_max_pool2d

from regard.errors import InputError
from regard.files import write_beside
from regard.look.study import AttentionGroup, Study, StudyRun
from regard.use.translator import Alignment

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")
INK, GREY, LINE, MARK = "#1b2430", "#6b6b6b", "#d8dee4", "#D55E00"
SHADES = " ░▒▓█"
"""From no weight to weight 1."""
CELL = 2
"""Characters of a cell in a terminal."""
NAME = 24
"""Longest name at an axis."""
SMALL_MAP = 160
"""Cells of a small map in each direction. In a larger map, neighbouring cells share one, and the largest counts."""
LONG = 64 * 64
"""Cells from which a map belongs to a long input."""
SHOWN = 0.995
"""In a long input, colours end at this quantile: the first token sees only itself, and all else would be pale."""
LENS_POSITIONS = 32


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, in inches, without a window."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("pictures need matplotlib; install it: pip install 'regard[plot]'") from None
    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def require_format(path: Path) -> str:
    """The format that a file's suffix asks for, by default PNG."""
    form = path.suffix.removeprefix(".").lower() or "png"
    if form not in FORMATS:
        raise InputError(f"{path} cannot be written; choose a name that ends in .png, .svg or .pdf")
    return form


def save(figure: Figure, path: Path, title: str = "") -> None:
    """Writes a figure as PNG, SVG or PDF, by the file's suffix."""
    import matplotlib

    form = require_format(path)
    if title:
        figure.suptitle(drawable(title), fontsize=12)
    try:
        # Type 42 fonts, since publishers refuse matplotlib's default.
        with matplotlib.rc_context({"pdf.fonttype": 42}):
            write_beside(path, lambda partial: figure.savefig(partial, format=form, dpi=150, bbox_inches="tight"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be written ({error}); choose another file") from None


@cache
def _letters() -> frozenset[int]:
    """Characters of matplotlib's font."""
    from matplotlib import font_manager

    return frozenset(font_manager.get_font(font_manager.findfont(font_manager.FontProperties())).get_charmap())


def drawable(text: str, longest: int | None = None) -> str:
    """Text that matplotlib draws as it is: without formulas, and with � for characters that the font lacks."""
    text = unicodedata.normalize("NFC", text.replace("\t", " ").replace("\n", " "))
    known = "".join(c if ord(c) in _letters() and unicodedata.category(c)[0] != "C" else "\ufffd" for c in text)
    if longest is not None and len(known) > longest:
        known = f"{known[: longest - 1]}…"
    return known.replace("$", r"\$")


def _name_axes(axes: Axes, rows: Sequence[str], columns: Sequence[str], every: int = 1) -> None:
    """Names of the rows on the left and of the columns above; only every n-th if there are many."""
    down, across = range(0, len(rows), every), range(0, len(columns), every)
    axes.set_yticks(down, labels=[drawable(rows[i], NAME) for i in down])
    names = [drawable(columns[i], NAME) for i in across]
    axes.set_xticks(across, labels=names, rotation=45, ha="left", rotation_mode="anchor")
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _cap(map_QK: Tensor) -> float:
    """The weight with the darkest colour."""
    visible = map_QK[map_QK > 0]
    if map_QK.numel() < LONG or not len(visible):
        return float(map_QK.max()) or 1.0
    return float(visible.quantile(SHOWN))


def draw_heads(study: Study, run: StudyRun, at: str = "") -> Figure:
    """All heads of one kind of attention (`decoder.cross`, by default the last), or one head (`decoder.1.cross.0`)."""
    group, layer, head = study.locate(at)
    if layer is not None and head is not None:
        return _draw_head(study, run, group, layer, head)
    side = min(1.5, max(0.6, 9.0 / group.heads))
    width, height = side * group.heads + 1.3, side * group.layers + 0.9
    figure = new_figure(width, height)
    figure.set_layout_engine("none")  # fitting a hundred maps takes long
    edges = {"left": 0.4 / width, "right": 1 - 0.9 / width, "bottom": 0.3 / height, "top": 1 - 0.6 / height}
    panels = figure.subplots(
        group.layers, group.heads, squeeze=False, gridspec_kw=edges | {"wspace": 0.06, "hspace": 0.06}
    )
    for layer, row in enumerate(panels):
        row[0].set_ylabel(f"layer {layer}", fontsize=8, color=GREY)
        for head, map_QK in enumerate(study.tensor(run.key, f"{group.at(layer)}.weights").cpu()):
            panel = row[head]
            pooled_QK = adaptive_max_pool2d(map_QK[None], [min(length, SMALL_MAP) for length in map_QK.shape])[0]
            image = panel.imshow((pooled_QK / _cap(pooled_QK)).numpy(), "Blues", vmin=0, vmax=1, aspect="auto")
            panel.set(xticks=[], yticks=[])
            panel.spines[:].set(color=LINE, linewidth=0.6)
            if f"{group.at(layer)}.{head}" in run.given.ablated:
                image.set_alpha(0.3)
                panel.spines[:].set(color=MARK, linewidth=1.6)
                panel.text(0.5, 0.5, "off", color=MARK, fontsize=8, ha="center", va="center", transform=panel.transAxes)
            if layer == 0:
                panel.set_title(f"head {head}", fontsize=8, color=GREY, pad=4)
    scale = figure.colorbar(image, cax=figure.add_axes((1 - 0.75 / width, edges["bottom"], 0.16 / width, 0.5)))
    scale.set_label("weight ÷ largest of the map", fontsize=8, color=GREY)
    scale.ax.tick_params(labelsize=7, colors=GREY)
    note = f"rows: queries of the {group.stack}, columns: keys of the {group.keys}"
    figure.text(0.5, 0.1 / height, note, fontsize=8, color=GREY, ha="center")
    figure.text(0.5, 1 - 0.2 / height, group.label, fontsize=12, color=INK, ha="center", va="center")
    return figure


def _draw_head(study: Study, run: StudyRun, group: AttentionGroup, layer: int, head: int) -> Figure:
    map_QK = study.tensor(run.key, f"{group.at(layer)}.weights")[head].cpu()
    queries, keys = (run.sides[side].names for side in (group.stack, group.keys))
    cell = min(0.5, 9.0 / max(len(keys), len(queries)))
    figure = new_figure(cell * len(keys) + 2.4, cell * len(queries) + 1.6)
    axes = figure.add_subplot()
    most = _cap(map_QK)
    image = axes.imshow(map_QK.numpy(), "Blues", vmin=0, vmax=most, interpolation="nearest" if cell > 0.05 else "auto")
    _name_axes(axes, queries, keys, max(1, math.ceil(0.16 / cell)))
    axes.tick_params(labelsize=9 if cell > 0.2 else 7, colors=INK)
    if len(keys) <= 14:  # numbers fit into the cells
        for query, key in (map_QK >= 0.005).nonzero().tolist():
            value = float(map_QK[query, key])
            colour = "white" if value > 0.6 * most else INK
            axes.text(key, query, f"{value:.2f}", ha="center", va="center", fontsize=7.5, color=colour)
    if cell >= 0.12:
        axes.hlines(torch.arange(len(queries) - 1) + 0.5, -0.5, len(keys) - 0.5, colors="white", lw=0.8)
        axes.vlines(torch.arange(len(keys) - 1) + 0.5, -0.5, len(queries) - 0.5, colors="white", lw=0.8)
    figure.colorbar(image, ax=axes, shrink=min(1.0, 3 / (cell * len(queries))), aspect=16, pad=0.03, label="weight")
    note = f"rows: queries of the {group.stack}, columns: keys of the {group.keys}"
    axes.set_xlabel(note, fontsize=8, color=GREY)
    silent = " (silent)" if f"{group.at(layer)}.{head}" in run.given.ablated else ""
    axes.set_title(f"{group.label}, layer {layer}, head {head}{silent}", fontsize=10, color=INK)
    return figure


def draw_lens(found: Mapping[str, Any], tokens: Sequence[str]) -> Figure:
    """The answer of `lens`: layers by tokens. A cell is a layer's first guess, its shade the probability.

    A frame marks the first layer whose guess is the model's answer.
    """
    layers, count = found["layers"], min(LENS_POSITIONS, len(found["final"]))
    figure = new_figure(2.6 + 0.78 * max(count, 4), 1.5 + 0.34 * len(layers))
    axes = figure.add_subplot()
    chances = [[layer["chances"][i][0] for i in range(count)] for layer in layers]
    image = axes.imshow(chances, cmap="Blues", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    for row, layer in enumerate(layers):
        for i in range(count):
            guess = layer["tokens"][i][0]
            ink = "white" if layer["chances"][i][0] > 0.55 else "black"
            weight = "bold" if guess == found["final"][i] else "normal"
            name = drawable(found["texts"][guess], 11)
            axes.text(i, row, name, color=ink, weight=weight, fontsize=7.5, ha="center", va="center")
            if found["first"][i] == row:
                x, y = (i - 0.47, i + 0.47), (row - 0.45, row + 0.45)
                axes.plot([x[0], x[1], x[1], x[0], x[0]], [y[0], y[0], y[1], y[1], y[0]], color=MARK, lw=1.4)
    columns = []
    for i in range(count):
        follows = found["actual"][i] if found["output"] == "output" else None
        after = "" if follows is None else f"\n→ {drawable(found['texts'][follows], 11)}"
        columns.append(f"{drawable(tokens[i], 11)}{after}" if found["each"] else "the whole")
    names = ["embeddings", *(f"layer {number}" for number in range(len(layers) - 1))]
    if found["each"]:
        names = [f"{name}  {layer['agrees']:.0%}" for name, layer in zip(names, layers, strict=True)]
        note = f"share of tokens with the model's own answer; a constant answer reaches {found['constant']:.0%}"
        axes.set_xlabel(note, fontsize=8)
    axes.set_xticks(range(count), columns, fontsize=7.5)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    figure.colorbar(image, ax=axes, label="probability", shrink=0.9)
    return figure


def draw_alignment(alignment: Alignment, path: Path, title: str = "") -> None:
    """Writes a word alignment as a heat map: PNG, SVG or PDF, by the file's suffix."""
    source, target = alignment.source, alignment.target
    figure = new_figure(1.5 + 0.42 * len(source), 1.5 + 0.32 * len(target))
    axes = figure.add_subplot()
    image = axes.imshow(alignment.weights, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    _name_axes(axes, target, source)
    for first, second in alignment.pairs:
        axes.plot(first, second, marker="o", markersize=5, markerfacecolor="none", markeredgecolor="tab:red")
    figure.colorbar(image, ax=axes, label="share of attention")
    save(figure, path, title)


def alignment_text(alignment: Alignment) -> str:
    """A word alignment for a terminal: a row for each target word, a column for each source word, darker is more."""
    source, target = ([_printable(word) for word in words] for words in (alignment.source, alignment.target))
    margin = max((cell_len(word) for word in target), default=0) + 1
    cells = [max(cell_len(word), CELL) + 1 for word in source]
    rows = [("", source)]
    for word, weights in zip(target, alignment.weights, strict=True):
        rows.append((word, [SHADES[min(max(round(float(weight) * 4), 0), 4)] * CELL for weight in weights]))
    lines = [
        set_cell_size(word, margin)
        + "".join(set_cell_size(text, cell) for text, cell in zip(texts, cells, strict=True))
        for word, texts in rows
    ]
    return "\n".join(line.rstrip() for line in lines)


def _printable(word: str) -> str:
    """Control and directional characters would break the table."""
    return "".join(c if unicodedata.category(c)[0] != "C" else "\N{REPLACEMENT CHARACTER}" for c in word)
