"""How long examples are: all that a plan asks about them. What is known of prepared ones is read where it lies."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

import numpy as np

from regard.data.prepared import Prepared
from regard.data.ragged import Integers


class Lengths(Protocol):
    """How long examples are, on each of their sides."""

    def __len__(self) -> int:
        """How many examples there are."""
        ...

    def of(self, examples: Integers) -> Integers:
        """`[examples, sides]`."""
        ...

    @property
    def longest(self) -> tuple[int, ...]:
        """The longest example's, by side."""
        ...

    @property
    def means(self) -> tuple[float, ...]:
        """The mean, by side."""
        ...


class ListedLengths:
    """Lengths in an array `[examples, sides]`."""

    def __init__(self, lengths: Integers) -> None:
        self._lengths = lengths

    @staticmethod
    def alike(count: int, length: int) -> ListedLengths:
        """One side, and one length for all; they take no memory."""
        return ListedLengths(np.broadcast_to(np.int64(length), (count, 1)))

    def __len__(self) -> int:
        return len(self._lengths)

    def of(self, examples: Integers) -> Integers:
        return self._lengths[examples]

    @cached_property
    def longest(self) -> tuple[int, ...]:
        return tuple(int(length) for length in self._lengths.max(axis=0, initial=0))

    @cached_property
    def means(self) -> tuple[float, ...]:
        return tuple(float(total) / max(1, len(self)) for total in self._lengths.sum(axis=0))


class MappedLengths:
    """Lengths of prepared examples, read where they lie: they take no memory, however large the corpus is."""

    def __init__(self, prepared: Prepared, sides: Sequence[str], less: Sequence[int]) -> None:
        """`less` is taken off the tokens of each side, such as the target's last, which no decoder reads."""
        self._prepared = prepared
        self._sides = tuple(zip(sides, less, strict=True))

    def __len__(self) -> int:
        return len(self._prepared)

    def of(self, examples: Integers) -> Integers:
        columns = []
        for side, less in self._sides:
            offsets = np.asarray(self._prepared.mapped(side)[1])
            columns.append(offsets[examples + 1] - offsets[examples] - less)
        return np.maximum(np.stack(columns, axis=1), 0)

    @cached_property
    def longest(self) -> tuple[int, ...]:
        found = np.zeros(len(self._sides), np.int64)
        for start in range(0, len(self), 1 << 18):
            part = self.of(np.arange(start, min(len(self), start + (1 << 18))))
            found = np.maximum(found, part.max(axis=0))
        return tuple(int(length) for length in found)

    @property
    def means(self) -> tuple[float, ...]:
        return tuple(self._prepared.tokens(side) / max(1, len(self)) - less for side, less in self._sides)
