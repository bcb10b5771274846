"""Lengths and their histogram, from exact counts of each length: memory does not grow with the corpus."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

BINS = 12
BLOCKS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Bin:
    """How many lengths lie from `first` to `last`, both included."""

    first: int
    last: int
    count: int


@dataclass(frozen=True)
class Lengths:
    """What the lengths of one side are like."""

    total: int
    """Words or tokens of all examples together."""
    mean: float
    median: int
    percentile_95: int
    longest: int
    bins: tuple[Bin, ...]

    def bars(self) -> str:
        """The histogram as one line of blocks; what is not empty shows at least the lowest."""
        return bars([found.count for found in self.bins])


def bars(counts: Sequence[int]) -> str:
    top = max(counts, default=0)
    return "".join(BLOCKS[math.ceil(count / top * (len(BLOCKS) - 1)) if top else 0] for count in counts)


def summarise(counts: Counter[int], width: int) -> Lengths:
    """`counts` says how often each length occurs; `width` is how many lengths share a bin."""
    number = sum(counts.values())
    total = sum(length * count for length, count in counts.items())
    return Lengths(
        total=total,
        mean=total / number,
        median=percentile(counts, 0.5),
        percentile_95=percentile(counts, 0.95),
        longest=max(counts),
        bins=_bins(counts, width),
    )


def percentile(counts: Counter[int], share: float) -> int:
    """The least length that at least this share of the examples do not exceed."""
    wanted = share * sum(counts.values())
    seen = 0
    for length in sorted(counts):
        seen += counts[length]
        if seen >= wanted:
            return length
    return 0


def bin_width(counts: Iterable[Counter[int]]) -> int:
    """A round width, the same for every split, so that `BINS` bins hold all but the longest hundredth."""
    together: Counter[int] = Counter()
    for found in counts:
        together.update(found)
    needed = max(1.0, percentile(together, 0.99) / BINS)
    step = int(10 ** math.floor(math.log10(needed)))
    return next(step * factor for factor in (1, 2, 5, 10) if step * factor >= needed)


def _bins(counts: Counter[int], width: int) -> tuple[Bin, ...]:
    """Bins from 1 on; the last one holds all that is longer. A length of 0 falls into the first."""
    found = Counter[int]()
    for length, count in counts.items():
        found[min(max(length - 1, 0) // width, BINS - 1)] += count
    last = max(max(counts), BINS * width)
    ends = [(index + 1) * width for index in range(BINS - 1)] + [last]
    return tuple(Bin(index * width + 1, end, found[index]) for index, end in enumerate(ends))
