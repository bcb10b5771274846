"""From prepared examples to tensors: one assembler for each kind of data, in whatever layout a plan chose.

An assembler knows how long its examples are, which is all that a plan asks, and fills the grids of a batch with them.
It is a plain value that any process can have: it holds the name of a directory, and maps its files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.blocks.layout import Padded
from regard.data.assemble_grid import Grid
from regard.data.batch import IGNORED, Batch, ImageBatch, PairBatch, Sequences, TextBatch
from regard.data.example_lengths import Lengths, ListedLengths, MappedLengths
from regard.data.prepared import Prepared
from regard.data.ragged import Integers
from regard.errors import DataError


class Draw(NamedTuple):
    """What chance depends on, beside the example itself: so an example is the same however a step is split."""

    seed: int
    epoch: int


class Assembler(Protocol):
    """Makes batches of one kind of data."""

    @property
    def lengths(self) -> Lengths:
        """How many cells each example takes, by side."""
        ...

    def assemble(self, examples: Integers, grids: Sequence[Grid], draw: Draw) -> Batch:
        """The batch of these examples; every other cell of the grids is padding, and its label is `IGNORED`."""
        ...


@dataclass(frozen=True)
class Pairs:
    """Sources, which have an end token, and targets, which have start and end: all but the start is predicted."""

    prepared: Prepared
    pad: int
    """The token that fills empty cells."""
    sides: tuple[str, str] = ("source", "target")

    @cached_property
    def lengths(self) -> Lengths:
        return MappedLengths(self.prepared, self.sides, (0, 1))

    def assemble(self, examples: Integers, grids: Sequence[Grid], draw: Draw) -> PairBatch:
        (source, target), (from_source, from_target) = self.sides, grids
        stored, places = located(self.prepared, source, examples, from_source)
        read = Sequences(from_source.filled(stored[places], self.pad), from_source.layout)
        return PairBatch(read, *_next_tokens(self.prepared, target, examples, from_target, self.pad))


@dataclass(frozen=True)
class Documents:
    """Texts with start and end, each by itself; all but the start is predicted."""

    prepared: Prepared
    pad: int
    """The token that fills empty cells."""
    side: str = "text"

    @cached_property
    def lengths(self) -> Lengths:
        return MappedLengths(self.prepared, [self.side], [1])

    def assemble(self, examples: Integers, grids: Sequence[Grid], draw: Draw) -> TextBatch:
        return TextBatch(*_next_tokens(self.prepared, self.side, examples, grids[0], self.pad))


@dataclass(frozen=True)
class Windows:
    """Windows of `context` tokens over all texts, one behind the other: a window sees across texts.

    Each predicts what follows each of its tokens. The last window, which is shorter, is left out unless it is alone.
    """

    prepared: Prepared
    pad: int
    """The token that fills empty rows."""
    context: int
    side: str = "text"

    @cached_property
    def lengths(self) -> Lengths:
        return window_lengths(self.prepared, self.side, self.context, ahead=1)

    def assemble(self, examples: Integers, grids: Sequence[Grid], draw: Draw) -> TextBatch:
        tokens = window_tokens(self.prepared, self.side, examples, self.context, self.lengths.longest[0] + 1)
        read, labels = (
            in_rows(part, grids[0], rest) for part, rest in ((tokens[:, :-1], self.pad), (tokens[:, 1:], IGNORED))
        )
        return TextBatch(Sequences(read, Padded(*read.shape)), labels)


@dataclass(frozen=True)
class Images:
    """Images as bytes, each of one shape, and a class for each."""

    prepared: Prepared
    shape: tuple[int, int, int]
    """Channels, height and width; the bytes lie in this order."""
    tokens: int
    """What an image is for a model: its patches, and a class token where there is one."""
    sides: tuple[str, str] = ("pixels", "label")

    @cached_property
    def lengths(self) -> Lengths:
        held, wanted = self.prepared.tokens(self.sides[0]), len(self.prepared) * int(np.prod(self.shape))
        if held != wanted:
            raise DataError(
                f"{self.prepared.directory} holds {held:,} bytes of pixels, but {len(self.prepared):,} images of "
                f"{' × '.join(map(str, self.shape))} have {wanted:,}; give the shape that they were prepared in"
            )
        return ListedLengths.alike(len(self.prepared), self.tokens)

    def assemble(self, examples: Integers, grids: Sequence[Grid], draw: Draw) -> ImageBatch:
        pixels = np.asarray(self.prepared.mapped(self.sides[0])[0]).reshape(-1, *self.shape)
        labels, offsets = map(np.asarray, self.prepared.mapped(self.sides[1]))
        images = np.zeros((grids[0].rows, *self.shape), np.uint8)
        images[grids[0].rows_of] = pixels[examples]
        return ImageBatch(torch.from_numpy(images), in_rows(labels[offsets[examples]], grids[0], IGNORED))


def located(prepared: Prepared, side: str, examples: Integers, grid: Grid) -> tuple[NDArray[Any], Integers]:
    """All tokens of a side, and where among them those of the grid's cells lie."""
    tokens, offsets = map(np.asarray, prepared.mapped(side))
    return tokens, grid.cells + np.repeat(offsets[examples] - grid.starts, grid.lengths)


def _next_tokens(prepared: Prepared, side: str, examples: Integers, grid: Grid, pad: int) -> tuple[Sequences, Tensor]:
    """All tokens of the examples but the last, and what follows each."""
    tokens, places = located(prepared, side, examples, grid)
    return Sequences(grid.filled(tokens[places], pad), grid.layout), grid.filled(tokens[places + 1], IGNORED)


def window_lengths(prepared: Prepared, side: str, context: int, ahead: int) -> Lengths:
    """The lengths of windows, each of which needs `ahead` tokens more than it has cells."""
    usable = prepared.tokens(side) - ahead
    if usable < 1:
        raise DataError(f"{prepared.directory} holds too few tokens for one window; give it more text")
    return ListedLengths.alike(max(1, usable // context), min(context, usable))


def window_tokens(prepared: Prepared, side: str, examples: Integers, context: int, length: int) -> NDArray[Any]:
    """`[examples, length]`: so many tokens from the start of each window on."""
    places = (examples * context)[:, None] + np.arange(length)
    windows: NDArray[Any] = np.asarray(prepared.mapped(side)[0])[places]
    return windows


def in_rows(values: NDArray[Any], grid: Grid, rest: int) -> Tensor:
    """The values of each example in the row where it lies; rows without an example hold `rest`."""
    rows = np.full((grid.rows, *values.shape[1:]), rest, np.int64)
    rows[grid.rows_of] = values
    return torch.from_numpy(rows)
