"""Packed layouts of examples."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch

from regard.blocks.layout import Packed


class Packing(NamedTuple):
    """Where examples lie in a packed batch."""

    layouts: list[Packed]
    """One for each side of the examples."""
    sequences: list[int]
    """Which of the layouts' sequences each example is; the others fill up rows."""


def pack(lengths: Sequence[Sequence[int]], widths: Sequence[int | None]) -> Packing:
    """Lays examples one behind the other in rows of the given widths; each row ends with a filler, perhaps empty.

    Both sides of an example lie in the same row. Without widths there are no rows and no fillers.
    """
    bounds: list[list[int]] = [[0] for _ in widths]
    sequences: list[int] = []
    row = [0] * len(widths)  # where the row starts

    def close_row() -> None:
        for side, width in enumerate(widths):
            row[side] = bounds[side][-1] if width is None else row[side] + width
            bounds[side].append(row[side])

    for example in lengths:
        ends = [own[-1] + length for own, length in zip(bounds, example, strict=True)]
        if any(
            width is not None and end - row[side] > width
            for side, (end, width) in enumerate(zip(ends, widths, strict=True))
        ):
            close_row()
        sequences.append(len(bounds[0]) - 1)
        for own, length in zip(bounds, example, strict=True):
            own.append(own[-1] + length)
    if any(widths):
        close_row()
    layouts = []
    for offsets, width in zip(bounds, widths, strict=True):
        longest = width or max([1, *(right - left for left, right in itertools.pairwise(offsets))])
        layouts.append(Packed(offsets[-1], torch.tensor(offsets, dtype=torch.int32), longest, width))
    return Packing(layouts, sequences)
