"""Where the examples of a batch lie: in padded rows, or packed one behind the other, found without a loop."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from regard.blocks.layout import Layout, Packed, Padded
from regard.data.batches import Group, PackedPlan, PaddedPlan, Plan
from regard.data.ragged import Integers, spread


@dataclass(frozen=True)
class Grid:
    """One side of a batch. Cells are counted through the flattened tensor."""

    layout: Layout
    starts: Integers
    """The cell where each example begins."""
    lengths: Integers
    """Cells of each example."""
    sequences: Integers
    """Which of the layout's sequences each example is; the others are padding or fillers."""

    @cached_property
    def cells(self) -> Integers:
        """The cell of each token, example by example."""
        return spread(self.starts, self.lengths)

    @property
    def rows(self) -> int:
        return self.layout.rows

    @cached_property
    def rows_of(self) -> Integers:
        """The row in which each example lies."""
        size = int(np.prod(self.layout.shape))
        return self.starts // (size // self.rows)

    def filled(self, values: Integers, rest: int) -> Tensor:
        """A tensor with a value for each token, and `rest` in every other cell."""
        flat = np.full(int(np.prod(self.layout.shape)), rest, np.int64)
        flat[self.cells] = values
        return torch.from_numpy(flat).view(self.layout.shape)

    def for_each(self, values: Integers, rest: int) -> Tensor:
        """`[sequences]`: a value for each example, and `rest` for every other sequence."""
        flat = np.full(self.layout.count, rest, np.int64)
        flat[self.sequences] = values
        return torch.from_numpy(flat)


def lay(batch: Group, plan: Plan) -> list[Grid]:
    """The grids of a batch, one for each side."""
    if isinstance(plan, PaddedPlan):
        return [_padded(lengths, plan) for lengths in batch.lengths.T]
    assert isinstance(plan, PackedPlan)
    return _packed(batch, plan)


def _padded(lengths: Integers, plan: PaddedPlan) -> Grid:
    count, time = len(lengths), plan.time(lengths)
    # A batch without examples has one row of one token, which no loss reads: a model need not know such batches.
    rows = lengths if count else np.ones(1, np.int64)
    layout = Padded(len(rows), time, torch.from_numpy(np.ascontiguousarray(rows)))
    return Grid(layout, np.arange(count) * time, lengths, np.arange(count))


def _packed(batch: Group, plan: PackedPlan) -> list[Grid]:
    assert batch.bounds is not None
    rows = len(batch.bounds) - 1
    counts = np.diff(batch.bounds)
    row = np.repeat(np.arange(rows), counts)
    turn = np.arange(len(row)) - np.repeat(batch.bounds[:-1], counts)
    each = plan.most + plan.fillers
    sequences = row * each + turn
    return [
        _packed_side(batch.lengths[:, side], sequences, (rows, each), plan, side) for side in range(len(plan.widths))
    ]


def _packed_side(lengths: Integers, sequences: Integers, shape: tuple[int, int], plan: PackedPlan, side: int) -> Grid:
    """Rows of examples, empty sequences up to `most`, and fillers for the room that is left."""
    width, limit = plan.widths[side], plan.limits[side]
    sizes = np.zeros(shape, np.int64)
    sizes.ravel()[sequences] = lengths
    room = width - sizes.sum(axis=1, keepdims=True)
    sizes[:, plan.most :] = np.clip(room - np.arange(plan.fillers) * limit, 0, limit)
    offsets = np.zeros(sizes.size + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    layout = Packed(shape[0] * width, torch.from_numpy(offsets), limit, width)
    return Grid(layout, offsets[sequences].astype(np.int64), lengths, sequences)
