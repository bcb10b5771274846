"""Columns: how the parts of an example are stored, and how they become the tensors of a batch.

A task names its columns. A `TokenColumn` is a text, a `PairColumn` one text or two, a `PixelColumn` an image; each is a
side of the examples, with lengths that decide which examples form a batch. A `LabelColumn` has one class for each
example, a `NumberColumn` a number, a `TokenLabelColumn` a class for each token of a text. A task can define columns of
its own: see `MaskedColumn` in tasks/masked.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.blocks.layout import Layout, Packed, Padded
from regard.data.batches import Group, Lengths, PackedPlan, PaddedPlan, Plan
from regard.data.store import Integers, Ragged, Store, spread
from regard.errors import DataError
from regard.text.tokenizer import Tokenizer

IGNORED = -100
"""The label of a cell that no loss reads: padding, fillers, tokens that are not predicted."""


@dataclass(frozen=True)
class Sequences:
    """Token ids, padded `[B, T]` or packed `[N]`, and their layout."""

    tokens: Tensor
    layout: Layout

    def twice(self) -> Sequences:
        return Sequences(torch.cat([self.tokens, self.tokens]), self.layout.twice())


@dataclass(frozen=True)
class Batch:
    """The examples of one forward pass: one entry for each column."""

    sequences: dict[str, Sequences] = field(default_factory=dict)
    values: dict[str, Tensor] = field(default_factory=dict)
    """Labels, pixels, and other tensors that are not token ids."""

    def to(self, device: torch.device) -> Batch:
        """The batch on a device; a copy from pinned memory runs in the background."""
        return self._mapped(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> Batch:
        return self._mapped(lambda tensor: tensor.pin_memory())

    def _mapped(self, change: Callable[[Tensor], Tensor]) -> Batch:
        def layout(old: Layout) -> Layout:
            found = {each.name: getattr(old, each.name) for each in fields(old)}
            moved: dict[str, Any] = {name: change(each) for name, each in found.items() if isinstance(each, Tensor)}
            return replace(old, **moved)

        return Batch(
            {name: Sequences(change(each.tokens), layout(each.layout)) for name, each in self.sequences.items()},
            {name: change(value) for name, value in self.values.items()},
        )


@dataclass(frozen=True)
class Grid:
    """Where the examples of a batch are on one side. Cells are counted through the flattened tensor."""

    layout: Layout
    starts: Integers
    """The first cell of each example."""
    lengths: Integers
    """Cells of each example."""
    sequences: Integers
    """The number of each example among the layout's sequences; other sequences are padding or fillers."""

    @cached_property
    def cells(self) -> Integers:
        """The cell of each token, example by example."""
        return spread(self.starts, self.lengths)

    def in_rows(self, length: int) -> Grid:
        """The same for examples of one length: each is a whole row, without padding."""
        width = math.prod(self.layout.shape) // self.layout.rows
        rows = self.starts // width
        return Grid(Padded(self.layout.rows, length), rows * length, self.lengths, rows)

    def filled(self, values: Integers, rest: int) -> Tensor:
        """A tensor with a value for each token, or for whole rows `[examples, T]`, and `rest` in every other cell."""
        if values.ndim == 2:  # faster than cell by cell
            rows = np.full(self.layout.shape, rest, np.int64)
            rows[self.sequences] = values
            return torch.from_numpy(rows)
        flat = np.full(math.prod(self.layout.shape), rest, np.int64)
        flat[self.cells] = values
        return torch.from_numpy(flat).view(self.layout.shape)

    def per_sequence(self, values: NDArray[Any], rest: float) -> Tensor:
        """`[sequences, ...]`: values for each example, and `rest` for every other sequence."""
        found = np.full((self.layout.count, *values.shape[1:]), rest, values.dtype)
        found[self.sequences] = values
        return torch.from_numpy(found)


def lay_out(batch: Group, plan: Plan) -> list[Grid]:
    """The grids of a batch, one for each side."""
    if isinstance(plan, PaddedPlan):
        numbers = np.arange(len(batch.examples))
        grids = []
        for lengths in batch.lengths.T:
            time = plan.time(lengths)
            # A batch without examples has one row of one token, which no loss reads: models need not know such batches.
            real = torch.from_numpy(np.ascontiguousarray(lengths) if len(lengths) else np.ones(1, np.int64))
            grids.append(Grid(Padded(len(real), time, real), numbers * time, lengths, numbers))
        return grids
    assert batch.bounds is not None
    rows = len(batch.bounds) - 1
    counts = np.diff(batch.bounds)
    row = np.repeat(np.arange(rows), counts)
    number = np.arange(len(row)) - np.repeat(batch.bounds[:-1], counts)
    each = plan.most + plan.fillers
    sequences = row * each + number
    return [_packed(batch.lengths[:, side], sequences, (rows, each), plan, side) for side in range(len(plan.widths))]


def _packed(lengths: Integers, sequences: Integers, shape: tuple[int, int], plan: PackedPlan, side: int) -> Grid:
    """Rows of examples, empty sequences up to `most`, and fillers for the rest of each row."""
    width, limit = plan.widths[side], plan.limits[side]
    sizes = np.zeros(shape, np.int64)
    sizes.ravel()[sequences] = lengths
    room = width - sizes.sum(axis=1, keepdims=True)
    sizes[:, plan.most :] = np.clip(room - np.arange(plan.fillers) * limit, 0, limit)
    offsets = np.zeros(sizes.size + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    layout = Packed(shape[0] * width, torch.from_numpy(offsets), limit, width, plan.fillers)
    return Grid(layout, offsets[sequences].astype(np.int64), lengths, sequences)


LABELS = 1 << 32
"""Labels are stored in 4 bytes; the largest value stands for no label."""


class Draw(NamedTuple):
    """Together with the number of an example, the only things that random choices depend on."""

    seed: int
    epoch: int


@dataclass(frozen=True)
class Selection:
    """The examples of a batch in one stored column."""

    store: Store
    name: str
    examples: Integers
    grid: Grid
    draw: Draw

    def firsts(self) -> NDArray[Any]:
        """The first stored value of each example."""
        return self.store.values(self.name)[self.store.offsets(self.name)[self.examples]]

    def indices(self) -> Integers:
        begins = self.store.offsets(self.name)[self.examples]
        return self.grid.cells + np.repeat(begins - self.grid.starts, self.grid.lengths)


@dataclass(frozen=True)
class Column:
    """One named part of all examples."""

    @property
    def size(self) -> int:
        """The number of different stored values; by default as many as 4 bytes hold."""
        return LABELS

    def key(self) -> list[Any]:
        """Everything that decides the stored values."""
        return [type(self).__name__, self.size]

    def ragged(self, values: Any) -> Ragged:
        """What `Task.encode` returns for this column, as stored values."""
        return Ragged.of(values)

    def side(self, store: Store, name: str) -> tuple[int, Integers | None, int] | None:
        """The number of examples, and a side of `Lengths`; None: the column belongs to another one."""
        return None

    def collate(self, selected: Selection, batch: Batch) -> None:
        """Adds the tensors of this column to a batch."""
        raise NotImplementedError


@dataclass(frozen=True)
class TokenColumn(Column):
    """The token ids of one text."""

    vocabulary: int
    pad: int = 0
    """The token of empty cells."""
    first: int | None = None
    """The token before each text; none: no such token."""
    last: int | None = None
    """The token after each text; none: no such token."""
    unknown: int | None = None
    """The token that is counted as unknown."""
    predict: bool = False
    """Whether the next token is predicted: a model reads all but the last token, and `values["NAME.next"]` of a batch
    is the token after each."""
    window: int | None = None
    """Examples are windows of this many tokens over all texts, which are stored one after the other; none: each text is
    an example. The last window, which is shorter, is left out unless it is the only one. From the second epoch on,
    all windows are moved by a random number of tokens, so that the same text is cut at other places."""

    @classmethod
    def for_tokenizer(cls, tokenizer: Tokenizer, first: int | None = None, last: int | None = None) -> Self:
        """The column of texts that a tokenizer encodes."""
        roles = tokenizer.roles
        return cls(tokenizer.size, roles.get("pad", 0), first, last, roles.get("unknown"))

    @property
    def size(self) -> int:
        return self.vocabulary

    def key(self) -> list[Any]:
        return [*super().key(), self.first, self.last, self.window is not None]

    @property
    def added(self) -> int:
        """Tokens that a model reads in addition to the text."""
        return (self.first is not None) + (self.last is not None) - self.predict

    def side(self, store: Store, name: str) -> tuple[int, Integers | None, int]:
        offsets = store.offsets(name)
        if self.window is None:
            return len(store), offsets, int(self.predict)
        usable = int(offsets[-1]) - self.predict
        if usable < 1:
            raise DataError(f"{store.directory} has too few tokens for one window; add more text")
        return max(1, usable // self.window), None, min(self.window, usable)

    def cut(self, texts: Ragged, room: int) -> Ragged:
        """Texts without special tokens, shortened to at most `room` tokens."""
        return texts.cut(room)

    def collate(self, selected: Selection, batch: Batch) -> None:
        grid = selected.grid
        tokens, following = self.read(selected)
        batch.sequences[selected.name] = Sequences(grid.filled(tokens, self.pad), grid.layout)
        if self.predict:
            batch.values[f"{selected.name}.next"] = grid.filled(following, IGNORED)

    def read(self, selected: Selection) -> tuple[NDArray[Any], NDArray[Any]]:
        """The token of each cell, or `[examples, T]` for windows; and the token after each, if it is predicted."""
        stored = selected.store.values(selected.name)
        if self.window is None:
            indices = selected.indices()  # `take` is faster than indexing
            return stored.take(indices), stored.take(indices + 1 if self.predict else indices[:0])
        length = selected.grid.layout.longest
        # Whole rows are copied faster.
        windows = np.lib.stride_tricks.sliding_window_view(stored, length + self.predict)
        seed, epoch = selected.draw
        moved = int(np.random.default_rng([seed, epoch]).integers(self.window)) if epoch else 0
        rows = windows[(selected.examples * self.window + moved) % len(windows)]
        return rows[:, :length], rows[:, 1:]


@dataclass(frozen=True)
class PairColumn(TokenColumn):
    """The token ids of one text, or of two with `between` in the middle. `values["NAME.segments"]` of a batch is 0 for
    the tokens of the first text, up to its separator, and 1 for those of the second."""

    between: tuple[int, ...] = ()

    def key(self) -> list[Any]:
        return [*super().key(), *self.between]

    def cut(self, texts: Ragged, room: int) -> Ragged:
        """Of a pair that is too long, tokens are removed from the end of the longer text."""
        if not (texts.lengths > room).any():
            return texts
        return Ragged.joined(row if len(row) <= room else self._shortened(row, room) for row in texts.parts())

    def _shortened(self, row: NDArray[Any], room: int) -> NDArray[Any]:
        gap = len(self.between)
        ends = np.flatnonzero(row == self.between[0]) if gap else row[:0]
        if not len(ends):
            return row[:room]
        first, second = row[: ends[0]], row[ends[0] + gap :]
        shorter = min(len(first), len(second), (room - gap) // 2)
        longer = room - gap - shorter
        sizes = (shorter, longer) if len(first) <= len(second) else (longer, shorter)
        return np.concatenate([first[: sizes[0]], row[ends[0] : ends[0] + gap], second[: sizes[1]]])

    def collate(self, selected: Selection, batch: Batch) -> None:
        super().collate(selected, batch)
        if self.between:
            batch.values[f"{selected.name}.segments"] = self.segments(self.read(selected)[0], selected.grid)

    def segments(self, tokens: NDArray[Any], grid: Grid) -> Tensor:
        """0 for the tokens of each example up to its first separator, 1 for the others."""
        separators = np.append(tokens == self.between[0], False)
        before = np.cumsum(separators) - separators  # separators before each token
        starts = np.cumsum(grid.lengths) - grid.lengths
        later = before[:-1] > np.repeat(before[starts], grid.lengths)
        return grid.filled(later.astype(np.int64), 0)


@dataclass(frozen=True)
class PixelColumn(Column):
    """Images of one shape as bytes. `values["NAME"]` of a batch is `[B, channels, height, width]`."""

    shape: tuple[int, int, int]
    tokens: int
    """The number of tokens of an image for a model: its patches, and perhaps a class token."""

    @property
    def size(self) -> int:
        return 256

    def key(self) -> list[Any]:
        return [*super().key(), self.shape]

    def ragged(self, values: Any) -> Ragged:
        flat = np.stack(values).reshape(len(values), -1)
        return Ragged(flat.reshape(-1), np.full(len(flat), flat.shape[1], np.int64))

    def side(self, store: Store, name: str) -> tuple[int, Integers | None, int]:
        assert store.offsets(name)[-1] == len(store) * math.prod(self.shape)
        return len(store), None, self.tokens

    def collate(self, selected: Selection, batch: Batch) -> None:
        pixels = selected.store.values(selected.name).reshape(-1, *self.shape)
        batch.values[selected.name] = selected.grid.per_sequence(pixels[selected.examples], 0)


@dataclass(frozen=True)
class LabelColumn(Column):
    """One class for each example. `encode` returns names; `values["NAME"]` of a batch is `[B]`.

    The class of a name that the training data does not have is the number of known classes.
    """

    def collate(self, selected: Selection, batch: Batch) -> None:
        batch.values[selected.name] = selected.grid.per_sequence(selected.firsts().astype(np.int64), IGNORED)


@dataclass(frozen=True)
class NumberColumn(Column):
    """One number for each example: a target of regression, or the index of a token. `values["NAME"]` of a batch is
    `[B]`, in float32, and NaN for padding."""

    def ragged(self, values: Any) -> Ragged:
        bits = np.asarray(values, np.float32).view(np.uint32)
        return Ragged(bits, np.ones(len(bits), np.int64))

    def collate(self, selected: Selection, batch: Batch) -> None:
        numbers = selected.firsts().astype(np.uint32).view(np.float32)
        batch.values[selected.name] = selected.grid.per_sequence(numbers, np.nan)


@dataclass(frozen=True)
class TokenLabelColumn(LabelColumn):
    """One class for each token of a text. `encode` returns lists of names, or None for a token without a class."""

    of: str = "text"

    def key(self) -> list[Any]:
        return [*super().key(), self.of]

    def collate(self, selected: Selection, batch: Batch) -> None:
        stored = selected.store.values(selected.name)[selected.indices()].astype(np.int64)
        labels = np.where(stored == LABELS - 1, IGNORED, stored)
        batch.values[selected.name] = selected.grid.filled(labels, IGNORED)


@dataclass(frozen=True)
class Examples:
    """The examples of one split, ready to be batched. A plain value: any process can have it."""

    store: Store
    columns: Mapping[str, Column]

    def __reduce__(self) -> tuple[type[Examples], tuple[Any, ...]]:
        """Pickled without what is cached: another process maps the files again."""
        return Examples, (self.store, self.columns)

    @cached_property
    def _sides(self) -> dict[str, tuple[int, Integers | None, int]]:
        return {name: side for name, column in self.columns.items() if (side := column.side(self.store, name))}

    @cached_property
    def lengths(self) -> Lengths:
        counts = {count for count, _, _ in self._sides.values()}
        assert len(counts) == 1, f"columns have unequal numbers of examples: {counts}"
        return Lengths(counts.pop(), tuple((offsets, number) for _, offsets, number in self._sides.values()))

    @property
    def tokens(self) -> int:
        """The tokens of all examples on all sides, special ones included."""
        return sum(
            count * number if isinstance(self.columns[name], PixelColumn) else int(self.store.offsets(name)[-1])
            for name, (count, _, number) in self._sides.items()
        )

    def collate(self, group: Group, plan: Plan, draw: Draw) -> Batch:
        """The batch of these examples; every other cell is padding, and its label is `IGNORED`."""
        grids = lay_out(group, plan)
        if self.lengths.uniform:
            grids = [grid.in_rows(length) for grid, length in zip(grids, self.lengths.longest, strict=True)]
        by_name = dict(zip(self._sides, grids, strict=True))
        batch = Batch()
        for name, column in self.columns.items():
            grid = by_name.get(getattr(column, "of", name), grids[0])
            column.collate(Selection(self.store, name, group.examples, grid, draw), batch)
        return batch
