"""The report of `regard data`: counts, lengths, duplicates, leaks between splits, labels, image sizes.

It takes one pass over each split. For each text it keeps 8 bytes, to find duplicates and leaks; for training, every
distinct word, to find the share of words in other splits that do not occur in training.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, TypeAlias

import numpy as np

from regard.data.examples import Example, Labelled, Picture, Text, labels_in
from regard.data.settings import SPLITS, DataSettings, Split
from regard.data.source import Source, text_mark

EVERY = 10_000
"""Examples between two calls of `progress`."""
SHOWN = 3
LINE = "line"
"""The side by which raw text is compared, whatever a document is."""

SplitReport: TypeAlias = dict[str, Any]
"""One split: the number of `examples`, its `files`, the tallies `skipped` and `removed`; by side (source, target, text,
...) `lengths` in words, `duplicates` (also of the `whole`), and the share of `unknown` words, which do not occur in
training; how often each of the `labels` and image `sizes` occurs; and the range of labels that are `numbers`."""


def report_data(
    settings: DataSettings, splits: Sequence[Split] = SPLITS, progress: Callable[[Split, int], None] | None = None
) -> dict[str, Any]:
    """The `kind` of data, the report of each of the `splits` that exist, and the `leaks` between them.

    A leak is about examples of a later split that also occur in an earlier one: their `count`, their `share` of the
    later split, and the numbers of the `first`. `progress` receives the split and the number of examples so far.
    """
    sources = {split: Source(settings, split) for split in splits if split in settings.splits}
    known: dict[str, Counter[str]] | None = None
    gathered: dict[Split, _Gathered] = {}
    for split, source in sources.items():
        found = _Gathered(known)
        for number, example in enumerate(source, 1):
            found.add(example)
            if progress is not None and number % EVERY == 0:
                progress(split, number)
        gathered[split] = found
        known = found.words if split == "train" else known
    reports = {split: found.report(sources[split]) for split, found in gathered.items()}
    leaks = [*_leaks({split: found.marks for split, found in gathered.items()})]
    return {"kind": settings.kind, "splits": reports, "leaks": leaks}


class _Gathered:
    """The statistics of one pass over a split."""

    def __init__(self, known: Mapping[str, Mapping[str, int]] | None) -> None:
        self.known = known
        self.examples = 0
        self.lengths: dict[str, Counter[int]] = defaultdict(Counter)
        self.words: dict[str, Counter[str]] = defaultdict(Counter)
        self.marks: dict[str, array[int]] = defaultdict(lambda: array("Q"))
        self.labels: dict[str, Counter[str]] = defaultdict(Counter)
        self.numbers: Counter[float] = Counter()
        self.sizes: Counter[str] = Counter()
        self.unfinished = 0
        """Words of the pieces so far of a document that comes in several."""

    def add(self, example: Example) -> None:
        ends = not isinstance(example, Text) or example.ends
        self.examples += ends
        sides = example.sides()
        for side, text in sides.items():
            if isinstance(text, str):
                words = text.split()
                self.words[side].update(words)
                self.unfinished += len(words)
                if ends:
                    self.lengths[side][self.unfinished] += 1
                    self.unfinished = 0
        if isinstance(example, Text):
            for line in example.text.split("\n"):
                if line and not line.isspace():
                    self.marks[LINE].append(text_mark(line))
        else:
            for side, text in sides.items():
                self.marks[side].append(text_mark(text))
            if len(sides) > 1:
                self.marks["whole"].append(text_mark(*sides.values()))
        for sort, names in labels_in(example).items():
            self.labels[sort].update(names)
        if isinstance(example, Labelled) and isinstance(example.label, float):
            self.numbers[example.label] += 1
        if isinstance(example, Picture):
            self.sizes["×".join(map(str, example.pixels.shape))] += 1

    def report(self, source: Source) -> SplitReport:
        unknown: dict[str, float] = {}
        if self.known is not None:
            for side, counts in self.words.items():
                known = self.known.get(side, {})
                unseen = sum(count for word, count in counts.items() if word not in known)
                unknown[side] = unseen / max(1, counts.total())
        numbers = None
        if self.numbers:
            mean = sum(value * count for value, count in self.numbers.items()) / self.numbers.total()
            numbers = {"least": min(self.numbers), "mean": mean, "most": max(self.numbers)}
        return {
            "examples": self.examples,
            "files": source.files,
            "skipped": source.problems,
            "removed": source.removed,
            "lengths": {side: summarise(counts) for side, counts in self.lengths.items()},
            "duplicates": {side: len(marks) - len(np.unique(marks)) for side, marks in self.marks.items()},
            "unknown": unknown,
            "labels": {sort: dict(counts.most_common()) for sort, counts in self.labels.items()},
            "numbers": numbers,
            "sizes": dict(self.sizes.most_common()),
        }


def _leaks(marked: Mapping[Split, Mapping[str, array[int]]]) -> Iterator[dict[str, Any]]:
    for earlier, later in combinations(marked, 2):
        for side, marks in marked[later].items():
            found = np.flatnonzero(np.isin(marks, marked[earlier].get(side, ()))) + 1
            if len(found):
                where = {"earlier": earlier, "later": later, "side": side}
                first = found[:SHOWN].tolist()
                yield {**where, "count": len(found), "share": len(found) / len(marks), "first": first}


def summarise(counts: Counter[int]) -> dict[str, float]:
    lengths = np.repeat(list(counts), list(counts.values()))
    median, high = np.quantile(lengths, (0.5, 0.95), method="inverted_cdf")
    found = {"total": lengths.sum(), "mean": lengths.mean(), "median": median, "percentile_95": high}
    return {name: value.item() for name, value in {**found, "longest": lengths.max()}.items()}
