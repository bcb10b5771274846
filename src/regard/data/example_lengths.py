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


class VariantLengths:
    """Lengths of several variants of the same examples, one variant behind the other: what all of them need."""

    def __init__(self, variants: Sequence[Lengths]) -> None:
        self._variants = variants
        self._starts = np.cumsum([0, *map(len, variants)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def of(self, examples: Integers) -> Integers:
        found = np.zeros((len(examples), len(self.longest)), np.int64)
        which = np.searchsorted(self._starts, examples, side="right") - 1
        for number, variant in enumerate(self._variants):
            found[which == number] = variant.of(examples[which == number] - self._starts[number])
        return found

    @property
    def longest(self) -> tuple[int, ...]:
        return tuple(map(max, zip(*(variant.longest for variant in self._variants), strict=True)))

    @property
    def means(self) -> tuple[float, ...]:
        sizes = [len(variant) for variant in self._variants]
        sums = (np.average(side, weights=sizes) for side in zip(*(each.means for each in self._variants), strict=True))
        return tuple(float(mean) for mean in sums)
