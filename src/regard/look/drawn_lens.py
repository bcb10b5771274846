"""What each layer would say, as a picture: PNG, SVG or PDF, by the file's ending. matplotlib only when one is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from regard.errors import InputError
from regard.look.drawing import COLOURS, new_figure, save, shown
from regard.look.lensed import Lensed

MOST = 32
"""Places that are drawn at the most: more could not be read."""
LETTERS = 11


def lens_picture(found: Lensed, tokens: Sequence[str], path: Path, first: int = 0, title: str = "") -> None:
    """Layers by tokens, from the place `first` on: each cell is a layer's first guess, its shade the probability.

    `tokens` are those of the input, as they are shown. Framed is the layer that first says what the model says.
    """
    places = len(found.final)
    if not 0 <= first < places:
        raise InputError(f"first ({first}) must be one of the {places} places, counted from 0; choose another")
    chosen = range(first, min(first + MOST, places))
    figure = new_figure(2.6 + 0.78 * max(len(chosen), 4), 1.5 + 0.34 * len(found.layers))
    axes = figure.add_subplot()
    chances = [[layer.chances[place][0] for place in chosen] for layer in found.layers]
    drawn = axes.imshow(chances, cmap="Blues", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    for row, layer in enumerate(found.layers):
        for column, place in enumerate(chosen):
            guess = layer.tokens[place][0]
            own = guess == found.final[place]
            ink = "white" if layer.chances[place][0] > 0.55 else "black"
            weight = "bold" if own else "normal"
            axes.text(
                column,
                row,
                _short(found.texts[guess]),
                color=ink,
                weight=weight,
                fontsize=7.5,
                ha="center",
                va="center",
            )
            if found.first[place] == row:
                frame = ([column - 0.47, column + 0.47], [row - 0.45, row + 0.45])
                (left, right), (top, bottom) = frame
                axes.plot([left, right, right, left, left], [top, top, bottom, bottom, top], color=COLOURS[1], lw=1.4)
    axes.set_xticks(range(len(chosen)), [_column(found, tokens, place) for place in chosen], fontsize=7.5)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    names = ["embeddings", *(f"layer {number}" for number in range(1, len(found.layers)))]
    shares = [
        f"{name}  {layer.agrees:.0%}" if found.each else name for name, layer in zip(names, found.layers, strict=True)
    ]
    axes.set_yticks(range(len(shares)), shares, fontsize=8)
    if found.each:
        axes.set_xlabel(
            f"share: first guess is the model's own; always the same would reach {found.constant:.0%}", fontsize=8
        )
    for spine in axes.spines.values():
        spine.set_visible(False)
    figure.colorbar(drawn, ax=axes, label="probability", shrink=0.9)
    save(figure, path, title)


def _column(found: Lensed, tokens: Sequence[str], place: int) -> str:
    if not found.each:
        return "the whole"
    follows = found.actual[place] if found.output == "output" else None
    return _short(tokens[place]) + ("" if follows is None else f"\n→ {_short(found.texts[follows])}")


def _short(text: str) -> str:
    return shown(text if len(text) <= LETTERS else f"{text[: LETTERS - 1]}…")
