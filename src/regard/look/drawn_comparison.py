"""Two on one input, as a picture: PNG, SVG or PDF, by the file's ending. matplotlib only when one is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from regard.errors import InputError
from regard.look.compare import Compared, ComparedAnswer, Control, PairRow
from regard.look.drawing import COLOURS, GREY, new_figure, plain, save, shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 48
"""Places that are drawn at the most."""
LABELS = 30
"""Tokens beside a map; of more, only some have their names."""


class Maps(NamedTuple):
    """The attention of one head in both, `[T, K]`, with the tokens on both sides."""

    first_TK: Tensor
    second_TK: Tensor
    queries: Sequence[str]
    keys: Sequence[str]


def compare_picture(
    found: Compared, path: Path, control: Control | None = None, maps: Maps | None = None, title: str = ""
) -> None:
    """Probabilities and divergences place by place, streams layer by layer, random heads beside; and maps, if given."""
    answer = next(iter(found.answers), None)
    if answer is None:
        raise InputError(f"there is nothing to draw: {found.why or 'the two have no output in common'}; compare others")
    heights = ([3.4] if maps else []) + [2.6] * (2 if found.streams else 1)
    figure = new_figure(11.0, sum(heights))
    parts = figure.subfigures(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    if maps:
        _maps(parts[0], maps, found.names)
    left, right = parts[1 if maps else 0].subplots(1, 2)
    rows = answer.rows[:MOST]
    _chances(left, answer, rows, found.names)
    _divergences(right, answer, rows, control)
    if found.streams:
        _streams(parts[-1].add_subplot(), found, control)
    save(figure, path, title)


def _maps(figure: Figure, maps: Maps, names: Sequence[str]) -> None:
    most = float(max(maps.first_TK.max(), maps.second_TK.max())) or 1.0
    panels = figure.subplots(1, 3)
    for panel, values, name in zip(panels[:2], (maps.first_TK, maps.second_TK), names, strict=True):
        drawn = panel.imshow(values.numpy(), cmap="Blues", vmin=0, vmax=most, interpolation="nearest")
        panel.set_title(shown(name), fontsize=9)
    figure.colorbar(drawn, ax=panels[:2], shrink=0.8)
    apart = (maps.second_TK - maps.first_TK).numpy()
    drawn = panels[2].imshow(apart, cmap="PuOr_r", vmin=-most, vmax=most, interpolation="nearest")
    panels[2].set_title("difference", fontsize=9)
    figure.colorbar(drawn, ax=panels[2], shrink=0.8)
    for panel in panels:
        for side, tokens in ((panel.xaxis, maps.keys), (panel.yaxis, maps.queries)):
            every = 1 + len(tokens) // LABELS
            side.set_ticks(range(0, len(tokens), every), [shown(each) for each in tokens[::every]], fontsize=7)
        panel.tick_params("x", rotation=90)


def _chances(axes: Axes, answer: ComparedAnswer, rows: Sequence[PairRow], names: Sequence[str]) -> None:
    """How likely both find the same answers: what follows, or what the first finds likeliest."""
    pairs = [row.actual or row.candidates[0] for row in rows] if answer.each else rows[0].candidates
    places = range(len(pairs))
    axes.bar([x - 0.2 for x in places], [pair.before for pair in pairs], 0.4, color=COLOURS[0], label=shown(names[0]))
    axes.bar([x + 0.2 for x in places], [pair.after for pair in pairs], 0.4, color=COLOURS[1], label=shown(names[1]))
    axes.set_xticks(places, [shown(pair.text) for pair in pairs], rotation=60, ha="right", fontsize=7)
    axes.set_ylabel("probability")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False, fontsize=8)
    plain(axes)


def _divergences(axes: Axes, answer: ComparedAnswer, rows: Sequence[PairRow], control: Control | None) -> None:
    axes.bar(range(len(rows)), [row.divergence for row in rows], 0.6, color=COLOURS[0], label="each place")
    axes.axhline(answer.figures.divergence, color=COLOURS[0], lw=1.2, label="mean")
    if control is not None:
        spread = control.answers[answer.name]["divergence"]
        axes.axhline(spread.mean, color=GREY, lw=1.2, ls="--", label="random heads, mean")
        axes.axhspan(spread.least, spread.most, color=GREY, alpha=0.15, lw=0)
    names = [shown((row.actual or row.candidates[0]).text) if answer.each else "the whole" for row in rows]
    axes.set_xticks(range(len(rows)), names, rotation=60, ha="right", fontsize=7)
    axes.set_ylabel("KL divergence (nats)")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, frameon=False, fontsize=8)
    plain(axes)


def _streams(axes: Axes, found: Compared, control: Control | None) -> None:
    places = range(len(found.streams))
    axes.plot(places, [each.cosine for each in found.streams], "o-", color=COLOURS[0], ms=4, lw=1.6, label="mean")
    axes.plot(places, [each.least for each in found.streams], "v:", color=COLOURS[0], ms=4, lw=1.0, label="least")
    if control is not None:
        means = [control.cosines[each.name].mean for each in found.streams]
        axes.plot(places, means, "s--", color=GREY, ms=3, lw=1.2, label="random heads, mean")
    names = [each.name.removesuffix(".residual") for each in found.streams]
    axes.set_xticks(places, names, rotation=30, ha="right", fontsize=7)
    axes.set_ylabel("cosine of the streams")
    axes.legend(frameon=False, fontsize=8)
    plain(axes)
