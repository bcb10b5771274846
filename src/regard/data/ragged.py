"""Sequences of unequal length, one behind the other in one array: what is done to thousands of them costs no loop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]


class Ragged(NamedTuple):
    """`tokens` of all sequences, and how many each has."""

    tokens: NDArray[Any]
    lengths: Integers

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]]) -> Ragged:
        lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
        return cls(np.fromiter(chain.from_iterable(sequences), np.uint32, int(lengths.sum())), lengths)

    @classmethod
    def joined(cls, parts: Iterable[NDArray[Any]]) -> Ragged:
        """A sequence for each array."""
        found = list(parts)
        lengths = np.fromiter(map(len, found), np.int64, len(found))
        return cls(np.concatenate(found) if found else np.empty(0, np.uint32), lengths)

    @property
    def ends(self) -> Integers:
        """Where each sequence ends: the next one begins there."""
        return np.cumsum(self.lengths)

    def parts(self) -> Iterator[NDArray[Any]]:
        """Each sequence by itself."""
        for end, length in zip(self.ends.tolist(), self.lengths.tolist(), strict=True):
            yield self.tokens[end - length : end]

    def only(self, kept: Mask) -> Ragged:
        """The sequences where `kept` is true."""
        starts = (self.ends - self.lengths)[kept]
        return Ragged(self.tokens[spread(starts, self.lengths[kept])], self.lengths[kept])

    def cut(self, limit: int) -> Ragged:
        """The first `limit` tokens of each."""
        if not len(self.lengths) or self.lengths.max() <= limit:
            return self
        lengths = np.minimum(self.lengths, limit)
        return Ragged(self.tokens[spread(self.ends - self.lengths, lengths)], lengths)

    def split(self, limit: int) -> Ragged:
        """Each in pieces of `limit` tokens; the last has what is left. An empty one stays."""
        pieces = np.maximum(1, -(-self.lengths // limit))
        lengths = np.full(int(pieces.sum()), limit, np.int64)
        lengths[np.cumsum(pieces) - 1] = self.lengths - (pieces - 1) * limit
        return Ragged(self.tokens, lengths)

    def framed(self, first: int | None, last: int | None, ended: Mask | None = None) -> Ragged:
        """Each with a token before it, and one behind it (where `ended` is true, if that is given)."""
        before = 0 if first is None else 1
        behind = np.full(len(self.lengths), last is not None) if ended is None else ended
        lengths = self.lengths + before + behind
        ends = np.cumsum(lengths)
        tokens = np.empty(int(lengths.sum()), self.tokens.dtype)
        tokens[spread(ends - lengths + before, self.lengths)] = self.tokens
        if first is not None:
            tokens[ends - lengths] = first
        if last is not None:
            tokens[ends[behind] - 1] = last
        return Ragged(tokens, lengths)


def spread(starts: Integers, lengths: Integers) -> Integers:
    """start, start + 1, … start + length − 1 for each pair, one behind the other, without a loop."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    places: Integers = np.arange(total) + np.repeat(starts - (ends - lengths), lengths)
    return places
