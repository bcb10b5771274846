"""Plans: which examples form a step of the optimizer, and which of them form a batch.

An epoch is a random order of the examples, cut into pools; each pool is planned alone, from the seed and its number.
So a run resumes at any step at once, and never waits for the plan of a whole epoch. A padded step has examples of
similar lengths; a packed step has rows that are filled with examples, so that its shape never changes.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from typing import ClassVar, TypeAlias

import numpy as np

from regard.data.store import Integers
from regard.errors import DataError, SettingsError


@dataclass(frozen=True)
class Lengths:
    """The number of tokens of each example, on one or two sides. Stored lengths are read from disk where needed."""

    count: int
    sides: tuple[tuple[Integers | None, int], ...]
    """For each side, the offsets of a stored column and how many of an example's tokens a model does not read; or None
    and the length that all examples have."""

    def __len__(self) -> int:
        return self.count

    @property
    def uniform(self) -> bool:
        """Whether all examples have one length, as windows and images have: then a row is an example."""
        return all(offsets is None for offsets, _ in self.sides)

    def of(self, examples: Integers) -> Integers:
        """`[examples, sides]`."""
        columns = [
            np.full(len(examples), number)
            if offsets is None
            else np.maximum(offsets[examples + 1] - offsets[examples] - number, 0)
            for offsets, number in self.sides
        ]
        return np.stack(columns, axis=1)

    @cached_property
    def longest(self) -> tuple[int, ...]:
        """The longest example, by side; read in parts, so that memory does not grow with the data."""
        found = np.zeros(len(self.sides), np.int64)
        for start in range(0, self.count, 1 << 18):
            part = self.of(np.arange(start, min(self.count, start + (1 << 18))))
            found = np.maximum(found, part.max(axis=0))
        return tuple(int(length) for length in found)

    @cached_property
    def means(self) -> tuple[float, ...]:
        return tuple(
            float(number) if offsets is None else float(offsets[-1]) / max(1, self.count) - number
            for offsets, number in self.sides
        )


@dataclass(frozen=True)
class StepPosition:
    """The next step: its number in its pool, and the pool's number in its epoch, all counted from 0."""

    epoch: int = 0
    pool: int = 0
    step: int = 0


@dataclass(frozen=True)
class Group:
    """The examples of a step, or of one batch of it, and their lengths."""

    examples: Integers
    """Their numbers; padded: the longest first; packed: row by row."""
    lengths: Integers
    """`[examples, sides]`."""
    bounds: Integers | None = None
    """Packed: row r holds the examples from `bounds[r]` to `bounds[r + 1]`."""


@dataclass(frozen=True)
class Share:
    """The part of each step that one process takes, and the most tokens that it processes at once."""

    rank: int = 0
    world: int = 1
    """Number of processes."""
    micro: int | None = None
    """Most tokens in one batch; none: all of the share of a step."""


@dataclass(frozen=True)
class PaddedPlan:
    """Steps of examples of similar lengths, each of at most `tokens` cells on either side, padding included."""

    tokens: int
    examples: int | None = None
    """Most examples in a step; none: as many as fit."""
    multiple: int = 1
    """Batches are padded to a multiple of this length; 8 suits a GPU."""
    pool: int = 100
    """Examples are sorted by length within about this many steps, so that steps differ from epoch to epoch."""

    grain: ClassVar[int] = 1
    """The size of a pool is a multiple of this."""

    def require_fit(self, lengths: Lengths) -> None:
        _require_fit(lengths, [self.tokens] * len(lengths.longest), "train.tokens")

    def pool_size(self, lengths: Lengths) -> int:
        """About how many examples are planned together."""
        each = max(1, round(self.tokens / max(1.0, *lengths.means)))
        return self.pool * min(each, self.examples or each)

    def least(self, lengths: Lengths) -> int:
        """The smallest possible batch in tokens: the longest example, or one packed row."""
        return round_up(max(1, *lengths.longest), self.multiple)

    def steps(self, examples: Integers, lengths: Lengths) -> list[Group]:
        """The steps of these examples; each example is in one of them."""
        measured = lengths.of(examples)
        order = np.argsort(-measured.max(axis=1), kind="stable")
        examples, measured = examples[order], measured[order]
        cuts = _cut(self._times(measured), self.tokens, self.examples)
        return [Group(examples[i:j], measured[i:j]) for i, j in pairwise(cuts)]

    def split(self, step: Group, share: Share) -> list[Group]:
        """The batches of a step for all processes; process r takes batches r, r + world, and so on.

        All processes have the same number of batches; the last ones are empty if there are too few examples.
        """
        times = self._times(step.lengths)
        whole = len(times) * times[0]
        count = len(_cut(times, share.micro or whole)) - 1
        count = round_up(count, share.world)
        # The smallest size that gives this number of batches: then all have about the same size.
        size = bisect_left(range(whole), True, key=lambda size: len(_cut(times, size)) - 1 <= count)
        cuts = _cut(times, size)
        cuts += [len(times)] * (count + 1 - len(cuts))
        return [Group(step.examples[i:j], step.lengths[i:j]) for i, j in pairwise(cuts)]

    def cells(self, batch: Group) -> int:
        """Cells of a batch on its last side, padding and fillers included."""
        return max(1, len(batch.examples)) * self.time(batch.lengths[:, -1])

    def time(self, lengths: Integers) -> int:
        """Cells in a row of a batch on a side with these lengths."""
        return round_up(max(1, int(lengths.max(initial=1))), self.multiple)

    def _times(self, lengths: Integers) -> list[int]:
        """Cells of each example on its longer side, in falling order."""
        longer = np.maximum(lengths.max(axis=1), 1)
        times: list[int] = (-(-longer // self.multiple) * self.multiple).tolist()
        return times


def _cut(times: Sequence[int], cells: int, most: int | None = None) -> list[int]:
    """Cuts a falling list of lengths into batches of at most `cells` cells, but of at least one example each."""
    cuts = [0]
    while cuts[-1] < len(times):
        fitting = max(1, cells // times[cuts[-1]])
        cuts.append(min(len(times), cuts[-1] + min(fitting, most or fitting)))
    return cuts


@dataclass(frozen=True)
class PackedPlan:
    """Steps of `rows` rows, with a width for each side (one or two). A row has as many examples as fit on all sides."""

    rows: int
    widths: tuple[int, ...]
    most: int = 64
    """Most examples in a row: it bounds the number of sequences in a batch, which is part of its shape."""
    longest: int | None = None
    """Bound on the length of a sequence, for rows that are wider than a model's positions; none: the widths."""
    examples: int | None = None
    """Most examples in a step; none: as many as fit."""
    pool: int = 64
    """Rows are filled with examples of about this many steps."""

    @staticmethod
    def for_lengths(lengths: Lengths, tokens: int, row: int | None = None, examples: int | None = None) -> PackedPlan:
        """Rows of `row` tokens on the last side (none: the longest example's, and at least 256), `tokens` a step."""
        if row is not None and row > tokens:
            raise SettingsError(f"train.row ({row}) must be at most train.tokens ({tokens}); lower it")
        width = row or min(tokens, round_up(max(lengths.longest[-1], 256), 8))
        _require_fit(lengths, [*lengths.longest[:-1], width], "train.row" if row else "train.tokens")
        means = [max(mean, 1.0) for mean in lengths.means]
        others = [
            round_up(max(longest, math.ceil(width * mean / means[-1])), 8)
            for longest, mean in zip(lengths.longest[:-1], means[:-1], strict=True)
        ]
        return PackedPlan(
            rows=tokens // width,
            widths=(*others, width),
            most=max(4, math.ceil(2 * width / means[-1])),
            longest=max(1, *lengths.longest),
            examples=examples,
        )

    @staticmethod
    def alike(tokens: int, length: int, examples: int | None = None) -> PackedPlan:
        """For examples of one length, such as windows and images: each row is one example."""
        if length > tokens:
            raise SettingsError(
                f"train.tokens ({tokens}) must be at least {length}, the tokens of one example; raise it"
            )
        rows = tokens // length
        return PackedPlan(min(rows, examples or rows), (length,), most=1)

    @property
    def grain(self) -> int:
        """If each row is one example, every step but the last of an epoch is full."""
        return self.rows if self._most == 1 else 1

    @property
    def fillers(self) -> int:
        """Sequences at the end of each row that fill the rest of it."""
        return max(-(-width // limit) for width, limit in zip(self.widths, self.limits, strict=True))

    @property
    def limits(self) -> tuple[int, ...]:
        """The largest length of a sequence, by side."""
        return tuple(width if self.longest is None else min(width, self.longest) for width in self.widths)

    @property
    def _most(self) -> int:
        return min(self.most, self.examples or self.most)

    def require_fit(self, lengths: Lengths) -> None:
        _require_fit(lengths, self.limits, "widths" if self.longest is None else "longest")

    def pool_size(self, lengths: Lengths) -> int:
        share = max(mean / width for mean, width in zip(lengths.means, self.widths, strict=True))
        each = self.rows * min(self._most, max(1.0, 1 / max(share, 1e-9)))
        return self.pool * round(min(each, self.examples or each))

    def least(self, lengths: Lengths) -> int:
        return self.widths[-1]

    def steps(self, examples: Integers, lengths: Lengths) -> list[Group]:
        """The last of these steps can have fewer rows."""
        measured = lengths.of(examples)
        if self._most == 1:
            order, bounds = np.arange(len(examples)), np.arange(len(examples) + 1)
        else:
            rows = _fill(measured, self.widths, self._most)
            order = np.fromiter(chain.from_iterable(rows), np.int64, len(examples))
            bounds = np.cumsum([0, *map(len, rows)])
        examples, measured = examples[order], measured[order]
        steps = []
        first = 0
        while first < len(bounds) - 1:
            last = min(first + self.rows, len(bounds) - 1)
            if self.examples is not None:
                within = np.searchsorted(bounds, bounds[first] + self.examples, side="right")
                last = min(last, int(within) - 1)
            steps.append(_rows(Group(examples, measured, bounds), first, last, last - first))
            first = last
        return steps

    def split(self, step: Group, share: Share) -> list[Group]:
        """Batches with the same number of rows; missing rows are empty."""
        assert step.bounds is not None
        held = len(step.bounds) - 1
        each = self.rows_at_once(share)
        count = round_up(-(-held // each), share.world)
        return [_rows(step, min(i * each, held), min((i + 1) * each, held), each) for i in range(count)]

    def rows_at_once(self, share: Share) -> int:
        """Rows of each batch: as many as `micro` allows, or fewer if the number of batches stays the same."""
        allowed = self.rows if share.micro is None else max(1, share.micro // self.widths[-1])
        turns = -(-self.rows // (share.world * allowed))
        return -(-self.rows // (share.world * turns))

    def cells(self, batch: Group) -> int:
        assert batch.bounds is not None
        return (len(batch.bounds) - 1) * self.widths[-1]


Plan: TypeAlias = PaddedPlan | PackedPlan


def _rows(group: Group, first: int, last: int, count: int) -> Group:
    """Some rows of a group, and empty ones up to `count`."""
    assert group.bounds is not None
    bounds = group.bounds[first : last + 1]
    start, end = int(bounds[0]), int(bounds[-1])
    bounds = np.concatenate([bounds - start, np.full(count - (last - first), end - start)])
    return Group(group.examples[start:end], group.lengths[start:end], bounds)


class _Stock:
    """The examples that are relatively longer on one side, in order and by length."""

    def __init__(self, examples: Integers, lengths: Integers) -> None:
        turned = examples[::-1]
        self.queue: list[int] = turned.tolist()
        by_length = turned[np.argsort(lengths[turned], kind="stable")]
        present, starts = np.unique(lengths[by_length], return_index=True)
        self.present: list[int] = present.tolist()
        """The lengths of examples that can still be there, in rising order."""
        self.examples: list[list[int]] = [part.tolist() for part in np.split(by_length, starts[1:])]
        """The examples of each of these lengths."""

    def largest(self, room: int, used: bytearray) -> int | None:
        """Takes the longest unused example of at most `room` tokens."""
        while at := bisect_right(self.present, room):
            held = self.examples[at - 1]
            while held:
                example = held.pop()
                if not used[example]:
                    return example
            del self.present[at - 1], self.examples[at - 1]
        return None


def _fill(lengths: Integers, widths: Sequence[int], most: int) -> list[list[int]]:
    """Rows of examples: the next ones until one does not fit, then the longest ones that fit.

    The two sides are kept in balance: the next example is longer on the side with more room. Otherwise rows would be
    full on one side and a tenth empty on the other.
    """
    firsts, lasts = lengths[:, 0].tolist(), lengths[:, -1].tolist()
    wide, width = widths[0], widths[-1]
    heavy = lengths[:, -1] * wide >= lengths[:, 0] * width
    stocks = [_Stock(np.flatnonzero(heavy == side), lengths[:, -side]) for side in (0, 1)]
    used = bytearray(len(lengths))
    rows: list[list[int]] = []
    left = len(lengths)
    while left:
        row: list[int] = []
        first, last = wide, width
        found: int | None
        while len(row) < most:
            queue = stocks[last * wide >= first * width].queue
            while queue and used[queue[-1]]:
                queue.pop()
            if not queue or firsts[queue[-1]] > first or lasts[queue[-1]] > last:
                break
            row.append(found := queue.pop())
            used[found] = 1
            first -= firsts[found]
            last -= lasts[found]
        while len(row) < most:
            for side in (True, False) if last * wide >= first * width else (False, True):
                room = min(last, first * width // wide) if side else min(first, last * wide // width)
                if (found := stocks[side].largest(room, used)) is not None:
                    break
            else:
                break
            row.append(found)
            used[found] = 1
            first -= firsts[found]
            last -= lasts[found]
        assert row  # an empty row has room for every example: see require_fit
        left -= len(row)
        rows.append(row)
    return rows


def round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _require_fit(lengths: Lengths, limits: Sequence[int], name: str) -> None:
    for side, (longest, limit) in enumerate(zip(lengths.longest, limits, strict=True)):
        if longest > limit:
            too_long = int((lengths.of(np.arange(len(lengths)))[:, side] > limit).sum())
            raise DataError(
                f"{too_long} examples are longer than {name} ({limit}), the longest has {longest} tokens; set "
                f"data.longest, or raise {name}"
            )
