"""Images with attention over them, and rollouts, as pictures: PNG, SVG or PDF, by the file's ending."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from regard.errors import InputError
from regard.look.drawing import new_figure, save, shown

OPACITY = 0.6
"""Of the maps that lie over an image."""
COLUMNS = 4
"""Panels beside each other."""
MOST_NAMES = 60
"""Tokens that are named at an axis; of more, only some are."""


def image_picture(
    image: NDArray[np.uint8], patch: int, maps: Sequence[tuple[str, Tensor]], path: Path, title: str = ""
) -> None:
    """An image, `[C, height, width]`, cut into patches; then each map over it, `[patches]`, under its name."""
    _, height, width = image.shape
    rows, columns = height // patch, width // patch
    wrong = [name for name, map_N in maps if map_N.shape != (rows * columns,)]
    if wrong:
        raise InputError(f"map ({wrong[0]}) must have a number for each of the {rows * columns} patches; give as many")
    across = min(len(maps) + 1, COLUMNS)
    down = -(-(len(maps) + 1) // across)
    figure = new_figure(3.3 * across, 2.8 * down * height / width + 0.3)
    panels = figure.subplots(down, across, squeeze=False).flatten()
    pixels = image.transpose(1, 2, 0)[:, :, :3] if len(image) >= 3 else image[0]
    for panel in panels[len(maps) + 1 :]:
        panel.set_visible(False)
    for panel, (name, map_N) in zip(panels, [("patches", None), *maps], strict=False):
        extent = (0.0, columns, rows, 0.0)
        panel.imshow(pixels, cmap="gray", vmin=0, vmax=255, interpolation="nearest", extent=extent)
        if map_N is not None:
            over = map_N.reshape(rows, columns).numpy()
            drawn = panel.imshow(over, cmap="inferno", vmin=0, alpha=OPACITY, interpolation="nearest", extent=extent)
            bar = figure.colorbar(drawn, ax=panel, fraction=0.046, pad=0.02)
            bar.ax.tick_params(labelsize=7)
            assert bar.solids is not None  # the map is filled
            bar.solids.set_alpha(1)
        panel.set_xticks(range(columns + 1), [""] * (columns + 1))
        panel.set_yticks(range(rows + 1), [""] * (rows + 1))
        panel.grid(color="#8c96a0", lw=0.5, alpha=0.7)
        panel.tick_params(length=0)
        panel.set_title(shown(name), fontsize=9)
    save(figure, path, title)


def rollout_picture(map_QK: Tensor, queries: Sequence[str], keys: Sequence[str], path: Path, title: str = "") -> None:
    """A rollout: what each position, a row, holds of each input, a column."""
    if map_QK.shape != (len(queries), len(keys)):
        raise InputError(
            f"map ({list(map_QK.shape)}) must have a row for each of {len(queries)} queries and a column for each of "
            f"{len(keys)} keys; give all of their names"
        )
    figure = new_figure(min(2.5 + 0.28 * len(keys), 12.0), min(2.0 + 0.28 * len(queries), 12.0))
    axes = figure.add_subplot()
    drawn = axes.imshow(map_QK.numpy(), cmap="Blues", vmin=0, interpolation="nearest")
    figure.colorbar(drawn, ax=axes, fraction=0.046, label="share")
    axes.set_xticks(*_named(keys), rotation=45, ha="left", rotation_mode="anchor", fontsize=8)
    axes.set_yticks(*_named(queries), fontsize=8)
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    save(figure, path, title)


def _named(tokens: Sequence[str]) -> tuple[list[int], list[str]]:
    places = list(range(0, len(tokens), 1 + len(tokens) // MOST_NAMES))
    return places, [shown(tokens[place]) for place in places]
