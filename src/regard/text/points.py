"""What was taken out of a text, and where it goes in the translation: beside the words that its neighbours became.

Points stay in their order, so that what was nested well still is. A text may be full of them and hold one word: no step
here takes longer than the number of points and of words warrants.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

import numpy as np
from numpy.typing import NDArray

from regard.text.protect import Kind
from regard.text.sentences import Span

MOST = 4_000_000
"""Points times places up to which the best of all ways is searched for; beyond, a simple one is taken."""

Links = dict[int, list[int]]
"""The target words that belong to a source word."""


@dataclass(frozen=True)
class Point:
    """Something that was taken out of a text."""

    place: int
    """In the text that is left, before this character."""
    text: str
    kind: Kind
    name: str
    beside: tuple[str, str]
    """The characters before it and behind it; nothing at the edge of the text."""


@dataclass(frozen=True)
class Aligned:
    """A text and its translation, the spans of their words, and which of these belong together."""

    text: str
    written: str
    sources: Sequence[Span] = ()
    targets: Sequence[Span] = ()
    pairs: Sequence[Span] = ()


def places(points: Sequence[Point], aligned: Aligned) -> list[int]:
    """Where each point goes: as near to where its words went as the order of the points allows."""
    if not points:
        return []
    wishes = _Wishes(aligned)
    word_ends = [end for _, end in aligned.sources]
    here = [bisect_left(word_ends, point.place + 1) for point in points]
    length = len(aligned.written)
    starts, ends = [0, *(span[0] for span in aligned.targets)], [*(span[1] for span in aligned.targets), length]
    options = {"open": [*starts, length], "close": [0, *ends]}
    either = [*starts, *ends]
    wanted: list[tuple[int, str]] = []
    for point, covered in zip(points, _covered(points, here, len(aligned.sources)), strict=True):
        inside = wishes.inside_copy(point, covered[0])
        if inside is not None:
            wanted.append((inside, "inside"))
        else:
            wanted.append((wishes.beside(point, *covered), point.kind if point.kind in options else ""))
    more = sorted({want for want, kind in wanted if kind == "inside"})
    options |= {"": either, "inside": [*either, *more]}
    return in_order([want for want, _ in wanted], [kind for _, kind in wanted], options)


def _covered(points: Sequence[Point], here: Sequence[int], words: int) -> list[Span]:
    """The words that each tag is about: those between it and the tag that belongs to it, or the edge; else none."""
    found = [(place, place) for place in here]
    waiting: dict[str, list[int]] = {}
    for index, point in enumerate(points):
        if point.kind == "open":
            waiting.setdefault(point.name, []).append(index)
            found[index] = (here[index], words)
        elif point.kind == "close":
            opened = waiting.get(point.name)
            first = opened.pop() if opened else None
            found[index] = (0 if first is None else here[first], here[index])
            if first is not None:
                found[first] = found[index]
    return found


# --------------------------------------------------------------------------------------------------------------- wishes


class _Wishes:
    """Where points would like to go."""

    def __init__(self, aligned: Aligned) -> None:
        self.aligned = aligned
        self.linked: Links = {}
        for source, target in aligned.pairs:
            self.linked.setdefault(source, []).append(target)
        none = len(aligned.targets)
        first = [min(self.linked.get(word, (none,))) for word in range(len(aligned.sources))]
        last = [max(self.linked.get(word, (-1,))) for word in range(len(aligned.sources))]
        self._first, self._last = _table(first, np.minimum), _table(last, np.maximum)
        here = [word if word in self.linked else None for word in range(len(aligned.sources))]
        self._next = [*accumulate(reversed(here), _nearest)][::-1]
        self._before = [*accumulate(here, _nearest)]
        self._copies: dict[int, int | None] = {}

    def inside_copy(self, point: Point, word: int) -> int | None:
        """The same place inside a word that was copied, such as H2O with a tag around its 2."""
        sources = self.aligned.sources
        for at in (word, word - 1):
            if 0 <= at < len(sources) and sources[at][0] < point.place < sources[at][1]:
                if at not in self._copies:
                    self._copies[at] = self._copy(at)
                start = self._copies[at]
                return None if start is None else start + point.place - sources[at][0]
        return None

    def _copy(self, word: int) -> int | None:
        """Where a source word stands in what was written."""
        text, written = self.aligned.text[slice(*self.aligned.sources[word])], self.aligned.written
        spans = [self.aligned.targets[target] for target in self.linked.get(word, ())]
        return next((start for start, end in spans if written[start:end] == text), None)

    def beside(self, point: Point, first: int, last: int) -> int:
        """Around what its words became, or beside what its neighbours did."""
        targets, words, length = self.aligned.targets, len(self.aligned.sources), len(self.aligned.written)
        if first < last and point.kind in ("open", "close"):
            low, high = _over(self._first, first, last, np.minimum), _over(self._last, first, last, np.maximum)
            if low <= high:
                return targets[low][0] if point.kind == "open" else targets[high][1]
        if first >= words and point.kind != "open":
            return length
        if last == 0:
            return 0
        following = self._next[first] if first < words else None
        before = self._before[min(first, words) - 1] if first and words else None
        if following is not None and (before is None or following - first <= first - 1 - before):
            return self._before_word(min(self.linked[following]), point)
        return length if before is None else targets[max(self.linked[before])][1]

    def _before_word(self, target: int, point: Point) -> int:
        """Before a word; or, where it is a sign that did not touch the point, behind the word before that."""
        start = self.aligned.targets[target][0]
        apart = point.kind not in ("open", "close") and not point.beside[1].strip()
        sign = apart and not self.aligned.written[start].isalnum()
        return self.aligned.targets[target - 1][1] if sign and target else start


def _nearest(known: int | None, here: int | None) -> int | None:
    return known if here is None else here


def _table(values: Sequence[int], better: np.ufunc) -> list[NDArray[np.int64]]:
    """The best of every run of 1, 2, 4, … values, so that the best of any run is that of two of them."""
    rows = [np.asarray(values, np.int64)]
    while 2 ** len(rows) <= len(values):
        half = 2 ** (len(rows) - 1)
        rows.append(better(rows[-1][:-half], rows[-1][half:]))
    return rows


def _over(table: list[NDArray[np.int64]], first: int, last: int, better: np.ufunc) -> int:
    row = (last - first).bit_length() - 1
    return int(better(table[row][first], table[row][last - 2**row]))


# ---------------------------------------------------------------------------------------------------------------- order


def in_order(wanted: Sequence[int], kinds: Sequence[str], options: dict[str, list[int]]) -> list[int]:
    """For each thing one of the places of its kind, none before that of the thing before it.

    They are the nearest to the wanted ones in all. The last place of every kind is the same.
    """
    # Things in a row that want the same have the same place in some best way, and so count as one.
    groups = [(each, len(list(some))) for each, some in groupby(zip(wanted, kinds, strict=True))]
    grid = np.unique(np.concatenate([np.asarray(options[kind], np.int64) for kind in set(kinds)]))
    if len(groups) * len(grid) > MOST:
        return _one_by_one(wanted, kinds, options)
    closed = {kind: ~np.isin(grid, options[kind]) for kind in set(kinds)}
    everywhere = np.arange(len(grid), dtype=np.int32)
    origins = np.zeros((len(groups), len(grid)), np.int32)
    costs = np.zeros(len(grid))
    for row, ((want, kind), count) in enumerate(groups):
        best = np.minimum.accumulate(costs)
        new = np.concatenate(([True], costs[1:] < best[:-1]))
        origins[row] = np.maximum.accumulate(np.where(new, everywhere, 0))
        costs = best + count * np.abs(grid - want)
        costs[closed[kind]] = np.inf
    at = int(costs.argmin())
    chosen: list[int] = []
    for row in range(len(groups) - 1, -1, -1):
        chosen += [int(grid[at])] * groups[row][1]
        at = int(origins[row, at])
    return chosen[::-1]


def _one_by_one(wanted: Sequence[int], kinds: Sequence[str], options: dict[str, list[int]]) -> list[int]:
    """Each at the first place from the wanted one on that is not before the last one's."""
    ordered = {kind: sorted(some) for kind, some in options.items()}
    chosen: list[int] = []
    for want, kind in zip(wanted, kinds, strict=True):
        some = ordered[kind]
        chosen.append(some[bisect_left(some, max(want, chosen[-1] if chosen else 0))])
    return chosen
