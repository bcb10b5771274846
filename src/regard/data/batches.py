"""Batches by token budget: which examples come together.

A plan is made for each epoch from the seed alone, so a run resumes at any batch at once, without reading what came
before. Padded batches hold examples of like lengths; packed ones fill rows, so that their shape never changes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from regard.errors import DataError

Lengths = NDArray[np.int64]
"""`[examples, sides]`."""
Examples = NDArray[np.int64]
"""Numbers of examples."""


@dataclass(frozen=True)
class PaddedPlan:
    """Batches of examples of like lengths, each of at most `tokens` cells a side, padding included."""

    tokens: int
    pool: int = 100
    """Examples are sorted by length within about this many batches, so that batches differ from epoch to epoch."""

    def batches(self, lengths: Lengths, seed: int, epoch: int) -> list[Examples]:
        """The examples of each batch, in the order in which a run sees them."""
        _require_fit(lengths, [self.tokens] * lengths.shape[1], "tokens")
        chance = np.random.default_rng([seed, epoch])
        order = chance.permutation(len(lengths))
        longest = lengths.max(axis=1, initial=1)
        size = max(1, round(self.pool * self.tokens / float(longest.mean()))) if len(longest) else 1
        found: list[Examples] = []
        for start in range(0, len(order), size):
            pool = order[start : start + size]
            pool = pool[np.argsort(longest[pool], kind="stable")]
            found.extend(_cut(pool, longest[pool], self.tokens))
        return [found[i] for i in chance.permutation(len(found))]


def _cut(pool: Examples, longest: NDArray[np.int64], tokens: int) -> Iterator[Examples]:
    """Examples sorted by length, in runs whose longest, times their number, stays within the budget."""
    start = 0
    for end, length in enumerate(longest.tolist()):
        if (end + 1 - start) * length > tokens:
            yield pool[start:end]
            start = end
    if start < len(pool):
        yield pool[start:]


@dataclass(frozen=True)
class PackedPlan:
    """Batches of `rows` rows, one width for each side; a row holds as many examples as fit on every side."""

    rows: int
    widths: tuple[int, ...]
    most: int = 64
    """Examples in a row at the most: it bounds the number of sequences in a batch, which is part of its shape."""
    pool: int = 64
    """Examples are fitted together within about this many batches: a larger pool wastes less, and mixes less."""

    def batches(self, lengths: Lengths, seed: int, epoch: int) -> list[list[Examples]]:
        """The rows of each batch, each with its examples. The last batch may lack rows; no example is left out."""
        _require_fit(lengths, self.widths, "widths")
        chance = np.random.default_rng([seed, epoch])
        order = chance.permutation(len(lengths))
        share = (lengths / np.asarray(self.widths)).max(axis=1, initial=1e-3)
        size = max(1, round(self.pool * self.rows / float(share.mean()))) if len(share) else 1
        rows: list[Examples] = []
        for start in range(0, len(order), size):
            pool = order[start : start + size]
            filled = self._fill(pool[np.argsort(-share[pool], kind="stable")], lengths)
            rows.extend(filled[i] for i in chance.permutation(len(filled)))
        return [rows[start : start + self.rows] for start in range(0, len(rows), self.rows)]

    def _fill(self, pool: Examples, lengths: Lengths) -> list[Examples]:
        """Best fit, longest first: each example goes into the fullest row that has room for it."""
        rows: list[list[int]] = []
        left: list[list[int]] = []
        # Rows by the room on their tighter side: where that suffices for the longer side, the example fits.
        by_room: list[tuple[int, int]] = []
        for example, needs in zip(pool.tolist(), lengths[pool].tolist(), strict=True):
            at = bisect_left(by_room, (max(needs), -1))
            if at < len(by_room):
                row = by_room.pop(at)[1]
            else:
                row = len(rows)
                rows.append([])
                left.append(list(self.widths))
            rows[row].append(example)
            left[row] = [room - need for room, need in zip(left[row], needs, strict=True)]
            if len(rows[row]) < self.most:
                insort(by_room, (min(left[row]), row))
        return [np.asarray(row, np.int64) for row in rows]


def _require_fit(lengths: Lengths, limits: Sequence[int], name: str) -> None:
    """Refuses examples that no batch can hold; to skip, cut or split them belongs to whoever prepares the data."""
    for side, limit in enumerate(limits):
        too_long = int((lengths[:, side] > limit).sum())
        if too_long:
            raise DataError(
                f"{too_long} examples are longer than {name} ({limit}), the longest has {lengths[:, side].max()} "
                "tokens; skip, cut or split them, or allow more"
            )
