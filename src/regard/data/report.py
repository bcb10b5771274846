"""What data look like before a run: counts, lengths, duplicates, leaks between splits, labels, image sizes.

One pass over each split. Of every text 8 bytes are kept, to find duplicates and leaks; of training, every distinct
word, to say how many words of the other splits it never saw.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from regard.data.base_settings import SPLITS, STANDARD_INPUT, Split
from regard.data.examples import Example, Labelled, Picture, Placed, Text, excerpt, place_of
from regard.data.filters import fingerprint
from regard.data.labels import labels_in
from regard.data.lengths import Lengths, bin_width, summarise
from regard.data.problems import Reason
from regard.data.settings import DataSettings
from regard.data.sources import Source

Marks: TypeAlias = NDArray[np.uint64]
Progress: TypeAlias = Callable[[Split, int], None]
"""Told the split and how many of its examples were read so far."""

EVERY = 10_000
SHOWN = 3
"""First examples of a leak that are shown."""
LINE = "line"
"""What raw text is compared by, whatever a document is."""
WHOLE = "whole"
"""The name of an example of several sides as a whole, beside theirs."""


class Measure(Protocol):
    """A tokenizer, as far as a report needs one."""

    def __call__(self, text: str, /) -> tuple[int, int]:
        """How many tokens a text has, and how many of them are unknown."""
        ...


@dataclass(frozen=True)
class Numbers:
    """Labels that are numbers."""

    least: float
    mean: float
    most: float


@dataclass(frozen=True)
class SplitReport:
    """One split. Tables are by side (source, target, text, ...), and `duplicates` also by `whole` if there are several.

    Raw text is compared by `line`, whatever a document is.
    """

    examples: int
    files: tuple[str, ...]
    skipped: Mapping[str, Reason]
    """What could not be read, by reason."""
    removed: Mapping[str, Reason]
    """What filters took out, by reason."""
    lengths: Mapping[str, Lengths]
    duplicates: Mapping[str, int]
    """How many came before in the same split."""
    unknown: Mapping[str, float]
    """Share of unknown tokens; without a tokenizer, of words that training never saw (empty for training itself)."""
    labels: Mapping[str, Mapping[str, int]]
    """How often each label occurs, by sort (`label`, `tags`), the commonest first."""
    numbers: Numbers | None
    """Of labels that are numbers."""
    sizes: Mapping[str, int]
    """How often each size of image occurs: "28×28×1"."""


@dataclass(frozen=True)
class Leak:
    """Examples of a later split that an earlier one holds too."""

    earlier: Split
    later: Split
    side: str
    count: int
    share: float
    """Of the later split's examples."""
    first: tuple[str, ...]
    """The first of them, and where they stand; not told of raw text's lines and of standard input."""


@dataclass(frozen=True)
class Report:
    """All of it."""

    kind: str
    unit: str
    """What lengths are counted in: words or tokens."""
    splits: Mapping[Split, SplitReport]
    leaks: tuple[Leak, ...]


def report(
    settings: DataSettings,
    splits: Sequence[Split] = SPLITS,
    measure: Measure | None = None,
    progress: Progress | None = None,
) -> Report:
    """The report of the splits that there are; `measure` counts tokens instead of words."""
    wanted = [split for split in splits if split in settings.splits]
    sources = {split: Source(settings, split) for split in wanted}
    known: dict[str, set[str]] | None = None
    gathered: dict[Split, _Gathered] = {}
    for split, source in sources.items():
        found = _Gathered(measure, known)
        for number, placed in enumerate(source.placed(), 1):
            found.add(placed)
            if progress is not None and number % EVERY == 0:
                progress(split, number)
        gathered[split] = found
        known = found.words if split == "train" else known
    sides = {side for found in gathered.values() for side in found.lengths}
    widths = {side: bin_width(found.lengths[side] for found in gathered.values()) for side in sides}
    return Report(
        kind=settings.kind,
        unit="words" if measure is None else "tokens",
        splits={split: found.finished(sources[split], widths) for split, found in gathered.items()},
        leaks=tuple(_leaks(settings, {split: found.marked() for split, found in gathered.items()})),
    )


class _Gathered:
    """What one pass over a split gathers."""

    def __init__(self, measure: Measure | None, known: Mapping[str, set[str]] | None) -> None:
        self._measure, self._known = measure, known
        self.examples = 0
        self.words: dict[str, set[str]] = defaultdict(set)
        self.lengths: dict[str, Counter[int]] = defaultdict(Counter)
        self._marks: dict[str, array[int]] = defaultdict(lambda: array("Q"))
        self._unknown: Counter[str] = Counter()
        self._labels: dict[str, Counter[str]] = defaultdict(Counter)
        self._numbers = Counter[float]()
        self._sizes: Counter[str] = Counter()
        self._carried = 0

    def add(self, placed: Placed[Example]) -> None:
        example = placed.example
        ends = not isinstance(example, Text) or example.ends
        self.examples += ends
        sides = example.sides()
        for side, text in sides.items():
            if isinstance(text, str):
                self._carried += self._length(side, text)
                if ends:
                    self.lengths[side][self._carried] += 1
                    self._carried = 0
        if isinstance(example, Text):
            self._mark_lines(example.text)
        else:
            marks = [fingerprint(text) for text in sides.values()]
            for side, mark in zip(sides, marks, strict=True):
                self._marks[side].append(mark)
            if len(marks) > 1:
                self._marks[WHOLE].append(fingerprint(*sides.values()))
        self._note(example)

    def _length(self, side: str, text: str) -> int:
        if self._measure is not None:
            length, unknown = self._measure(text)
            self._unknown[side] += unknown
            return length
        words = text.split()
        if self._known is None:
            self.words[side].update(words)
        else:
            known = self._known.get(side, set())
            self._unknown[side] += sum(word not in known for word in words)
        return len(words)

    def _mark_lines(self, text: str) -> None:
        """Raw text is compared line by line, whatever a document is."""
        for line in text.split("\n"):
            if line and not line.isspace():
                self._marks[LINE].append(fingerprint(line))

    def _note(self, example: Example) -> None:
        for sort, names in labels_in(example).items():
            self._labels[sort].update(names)
        if isinstance(example, Labelled) and isinstance(example.label, float):
            self._numbers[example.label] += 1
        if isinstance(example, Picture):
            self._sizes["×".join(map(str, example.pixels.shape))] += 1

    def marked(self) -> dict[str, Marks]:
        return {side: np.frombuffer(marks, dtype=np.uint64) for side, marks in self._marks.items()}

    def finished(self, source: Source, widths: Mapping[str, int]) -> SplitReport:
        lengths = {side: summarise(counts, widths[side]) for side, counts in self.lengths.items()}
        told = self._measure is not None or self._known is not None
        return SplitReport(
            examples=self.examples,
            files=source.files,
            skipped=source.problems.reasons,
            removed=source.removed.reasons,
            lengths=lengths,
            duplicates={side: len(marks) - len(np.unique(marks)) for side, marks in self.marked().items()},
            unknown={side: self._unknown[side] / max(1, found.total) for side, found in lengths.items()}
            if told
            else {},
            labels={sort: dict(counts.most_common()) for sort, counts in self._labels.items()},
            numbers=_numbers(self._numbers),
            sizes=dict(self._sizes.most_common()),
        )


def _numbers(counts: Counter[float]) -> Numbers | None:
    if not counts:
        return None
    mean = sum(value * count for value, count in counts.items()) / sum(counts.values())
    return Numbers(min(counts), mean, max(counts))


def _leaks(settings: DataSettings, marked: Mapping[Split, Mapping[str, Marks]]) -> Iterator[Leak]:
    for earlier, later in combinations(marked, 2):
        places = {
            side: np.flatnonzero(np.isin(marks, marked[earlier][side]))
            for side, marks in marked[later].items()
            if side in marked[earlier]
        }
        shown = {side: [int(place) for place in found[:SHOWN]] for side, found in places.items() if side != LINE}
        told = _examples_at(settings, later, {place for found in shown.values() for place in found})
        for side, found in places.items():
            if len(found):
                first = tuple(told[place] for place in shown.get(side, ()) if place in told)
                yield Leak(earlier, later, side, len(found), len(found) / len(marked[later][side]), first)


def _examples_at(settings: DataSettings, split: Split, places: set[int]) -> dict[int, str]:
    """The examples at these places, read once more, since only their fingerprints were kept."""
    if not places or STANDARD_INPUT in settings.files(split):
        return {}
    examples = islice(Source(settings, split).placed(), max(places) + 1)
    return {
        number: f"{place_of(placed)} ({excerpt(placed.example)})"
        for number, placed in enumerate(examples)
        if number in places
    }
