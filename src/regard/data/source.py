"""From settings to examples: each split is a lazy stream of examples, filtered, in the order of its files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from regard.data import readers
from regard.data.embedded import origin_of, read_embedded
from regard.data.examples import Example, Located, Pair, Problem, Side, Tally, excerpt, shown_name
from regard.data.images import read_idx, read_image_folder, read_npz
from regard.data.settings import (
    STANDARD_INPUT,
    DataSettings,
    EmbeddedSettings,
    Filters,
    Grammar,
    PairFilters,
    Pairs,
    Split,
    TextFilters,
)
from regard.errors import DataError

READERS: dict[str, Callable[..., Iterator[Located[Example | Problem]]]] = {
    "parallel": readers.read_parallel,
    "parallel-tsv": readers.read_pairs,
    "parallel-jsonl": readers.read_pairs,
    "text": readers.read_text,
    "text-jsonl": readers.read_text_jsonl,
    "labelled-tsv": readers.read_labelled,
    "labelled-csv": readers.read_labelled,
    "labelled-jsonl": readers.read_labelled,
    "columns": readers.read_columns,
    "slots": readers.read_slots,
    "squad": readers.read_squad,
    "image-folder": read_image_folder,
    "idx": read_idx,
    "npz": read_npz,
}
"""The reader of each kind: it takes the settings, and a file or the two that belong together."""


@dataclass
class Source:
    """One split of the data. Each iteration reads its files from the start and adds to the two tallies.

    Filters apply to the training split only.
    """

    settings: DataSettings
    split: Split
    problems: Tally = field(default_factory=Tally, init=False)
    """Lines and examples that could not be used."""
    removed: Tally = field(default_factory=Tally, init=False)
    """Examples that filters removed."""

    def __post_init__(self) -> None:
        if self.split not in self.settings.splits:
            raise DataError(missing_split(self.settings, self.split))

    @property
    def files(self) -> tuple[str, ...]:
        """The files with their root; none for an embedded corpus."""
        settings = self.settings
        if isinstance(settings, EmbeddedSettings):
            return ()
        return tuple(
            file if file == STANDARD_INPUT else str(Path(settings.root) / file) for file in settings.files(self.split)
        )

    @property
    def origin(self) -> list[Path]:
        """Files and folders whose content decides the examples, also for an embedded corpus."""
        if isinstance(self.settings, EmbeddedSettings):
            return origin_of(self.settings, self.split)
        return [Path(file) for file in self.files]

    @property
    def size(self) -> int | None:
        """The number of examples before filters, if it is known without reading."""
        if not isinstance(self.settings, Grammar):
            return None
        return self.settings.pairs(self.split) * (2 if self.settings.both else 1)

    def __iter__(self) -> Iterator[Example]:
        return (located.example for located in self.located())

    def located(self) -> Iterator[Located[Example]]:
        """Yields the examples with their locations; a split without any is an error."""
        examples = self._read()
        filters = getattr(self.settings, "filters", None) if self.split == "train" else None
        if filters is not None and (checks := checks_of(filters)):
            examples = self._filter(examples, checks)
        if isinstance(self.settings, Pairs) and self.settings.both:
            examples = _both_directions(examples, *self.settings.directions[0])
        first = next(examples, None)
        if first is None:
            names = ", ".join(map(shown_name, self.files)) or self.settings.kind
            reasons = [text for tally in (self.problems, self.removed) if (text := tally.text())]
            raise DataError("\n".join([f"data.{self.split} ({names}) has no usable example", *reasons]))
        yield first
        yield from examples

    def _read(self) -> Iterator[Located[Example]]:
        settings, files = self.settings, self.files
        if isinstance(settings, EmbeddedSettings):
            yield from read_embedded(settings, self.split)
            return
        for start in range(0, len(files), settings.files_each):
            for located in READERS[settings.kind](settings, *files[start : start + settings.files_each]):
                example = located.example
                if not isinstance(example, Problem):
                    yield located  # type: ignore[misc]
                    continue
                detail = f" ({example.detail})" if example.detail else ""
                if settings.bad == "stop":
                    remedy = 'fix it, or set data.bad = "skip" to skip such examples'
                    raise DataError(f"{located.where} {example.reason}{detail}; {remedy}")
                self.problems.count(example.reason, f"{located.where}{detail}")

    def _filter(self, examples: Iterator[Located[Example]], checks: list[Check]) -> Iterator[Located[Example]]:
        for located in examples:
            reason = next((reason for check in checks if (reason := check(located.example)) is not None), None)
            if reason is None:
                yield located
            else:
                self.removed.count(reason, f"{located.where} ({excerpt(located.example)})")


def _both_directions(examples: Iterator[Located[Example]], first: str, second: str) -> Iterator[Located[Example]]:
    """Yields each pair in both directions, with the language of its target."""
    for pair, file, number, _ in examples:
        assert isinstance(pair, Pair)
        yield Located(Pair(pair.source, pair.target, second), file, number)
        yield Located(Pair(pair.target, pair.source, first), file, number)


def missing_split(settings: DataSettings, split: Split) -> str:
    """The message for a split that does not exist."""
    if isinstance(settings, EmbeddedSettings):
        return f"data of kind {settings.kind} have no {split}; choose {' or '.join(settings.splits)}"
    return f"data.{split} is empty; give it a list of files"


# ------------------------------------------------------------------------------------------------------------- filters

Check: TypeAlias = Callable[[Example], str | None]
"""Returns the reason to remove an example, or None to keep it."""


def checks_of(settings: Filters) -> list[Check]:
    """The checks that are switched on; the first reason counts, and those that need memory come last."""
    checks: list[Check] = []
    for unit, measure, least, most in (
        ("characters", len, settings.min_characters, settings.max_characters),
        ("words", _words, settings.min_words, settings.max_words),
    ):
        if least is not None or most is not None:
            checks.append(_bounded(unit, measure, least, most))
    if isinstance(settings, PairFilters):
        if settings.ratio is not None:
            checks.append(_even(settings.ratio))
        if settings.copies:
            checks.append(_copy)
        if settings.duplicates == "pair":
            checks.append(_Repeated("is a duplicate"))
        elif settings.duplicates is not None:
            checks.append(_Repeated(f"is a duplicate by its {settings.duplicates}", settings.duplicates))
    elif isinstance(settings, TextFilters) and settings.duplicates:
        checks.append(_Repeated("is a duplicate"))
    return checks


def text_mark(*sides: Side) -> int:
    """64 bits of a text, the same in every process; two texts share them once in about 10^19."""
    digest = hashlib.blake2b(digest_size=8)
    for side in sides:
        data = side.encode("utf-8") if isinstance(side, str) else side
        digest.update(b"%d:" % len(data))  # so that ("ab", "c") and ("a", "bc") differ
        digest.update(data)
    return int.from_bytes(digest.digest(), "little")


def _words(text: Side) -> int:
    return len(text.split())


def _bounded(unit: str, measure: Callable[[Side], int], least: int | None, most: int | None) -> Check:
    low, high = least or 0, float("inf") if most is None else most

    def check(example: Example) -> str | None:
        lengths = [measure(side) for side in example.sides().values()]
        if min(lengths) < low:
            return f"has fewer than {low:,} {unit}"
        return f"has more than {high:,} {unit}" if max(lengths) > high else None

    return check


def _even(ratio: float) -> Check:
    def check(example: Example) -> str | None:
        lengths = [max(1, _words(side)) for side in example.sides().values()]
        return f"has a side over {ratio:g} times as long" if max(lengths) > ratio * min(lengths) else None

    return check


def _copy(example: Example) -> str | None:
    assert isinstance(example, Pair)
    return "copies its source" if example.source.casefold().split() == example.target.casefold().split() else None


class _Repeated:
    """Remembers 64 bits of each example, so that memory does not grow with the length of examples."""

    def __init__(self, reason: str, side: str | None = None) -> None:
        self._reason, self._side = reason, side
        self._seen: set[int] = set()

    def __call__(self, example: Example) -> str | None:
        sides = example.sides()
        mark = text_mark(*sides.values()) if self._side is None else text_mark(sides[self._side])
        if mark in self._seen:
            return self._reason
        self._seen.add(mark)
        return None
