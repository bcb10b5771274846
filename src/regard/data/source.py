"""From settings to examples: each split is a lazy stream of examples, filtered, in the order of its files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeAlias

from regard.data import readers
from regard.data.embedded import origin_of, read_embedded
from regard.data.examples import Example, Located, Pair, Problem, Side, Tally, Text, excerpt
from regard.data.images import read_idx, read_image_folder, read_npz
from regard.data.settings import DataSettings, EmbeddedSettings, PairFilters, Pairs, Split, TextFilters
from regard.errors import DataError

READ_PAIRS = partial(readers.read_records, names=["source", "target"], make=Pair)
READERS: dict[str, Callable[..., Iterator[Located[Example | Problem]]]] = {
    "parallel": readers.read_parallel,
    "parallel-tsv": READ_PAIRS,
    "parallel-csv": READ_PAIRS,
    "parallel-jsonl": READ_PAIRS,
    "text": readers.read_text,
    "text-jsonl": partial(readers.read_records, names=["text"], make=Text),
    "labelled-tsv": readers.read_labelled,
    "labelled-csv": readers.read_labelled,
    "labelled-jsonl": readers.read_labelled,
    "columns": readers.read_columns,
    "slots": readers.read_slots,
    "squad": readers.read_squad,
    "choices": readers.read_choices,
    "chat": readers.read_chats,
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
        split: Split = "train" if self.split == "valid" and settings.holds_out else self.split
        return tuple(str(Path(settings.root) / file) for file in settings.files(split))

    @property
    def origin(self) -> list[Path]:
        """Files and folders whose content decides the examples, also for an embedded corpus."""
        if isinstance(self.settings, EmbeddedSettings):
            return origin_of(self.settings, self.split)
        return [Path(file) for file in self.files]

    def __iter__(self) -> Iterator[Example]:
        return (located.example for located in self.located())

    def located(self) -> Iterator[Located[Example]]:
        """Yields the examples with their locations; a split without any is an error."""
        examples = self._read()
        filters = getattr(self.settings, "filters", None) if self.split == "train" else None
        if filters is not None and filters != type(filters)():
            examples = self._filter(examples, make_check(filters))
        if isinstance(self.settings, Pairs) and (self.settings.both or self.settings.tagged):
            examples = _with_languages(examples, *self.settings.directions[0], self.settings.both)
        first = next(examples, None)
        if first is None:
            names = ", ".join(self.files) or self.settings.kind
            reasons = [text for tally in (self.problems, self.removed) if (text := tally.text())]
            raise DataError("\n".join([f"data.{self.split} ({names}) has no usable example", *reasons]))
        yield first
        yield from examples

    def _read(self) -> Iterator[Located[Example]]:
        settings, files = self.settings, self.files
        if isinstance(settings, EmbeddedSettings):
            yield from read_embedded(settings, self.split)
            return
        held = (settings.hold_out or 0.0) if settings.holds_out and self.split != "test" else 0.0
        for start in range(0, len(files), settings.files_each):
            for located in READERS[settings.kind](settings, *files[start : start + settings.files_each]):
                example = located.example
                if not isinstance(example, Problem):
                    if not held:
                        yield located  # type: ignore[misc]
                    elif is_held_out(example, held) == (self.split == "valid"):
                        # Pieces of a long document are shared out one by one, so each ends.
                        whole = example._replace(ends=True) if isinstance(example, Text) else example
                        yield Located(whole, located.file, located.number, located.unit)
                    continue
                detail = f" ({example.detail})" if example.detail else ""
                if settings.bad == "stop":
                    remedy = 'fix it, or set data.bad = "skip" to skip such examples'
                    raise DataError(f"{located.where} {example.reason}{detail}; {remedy}")
                self.problems.count(example.reason, f"{located.where}{detail}")

    def _filter(self, examples: Iterator[Located[Example]], check: Check) -> Iterator[Located[Example]]:
        for located in examples:
            if (reason := check(located.example)) is None:
                yield located
            else:
                self.removed.count(reason, f"{located.where} ({excerpt(located.example)})")


def is_held_out(example: Example, share: float) -> bool:
    """Whether an example is used for validation. Its text, image, source or context decides."""
    sides = example.sides()
    return text_mark(sides.get("context", next(iter(sides.values())))) < share * 2**64


def _with_languages(
    examples: Iterator[Located[Example]], first: str, second: str, both: bool
) -> Iterator[Located[Example]]:
    """Yields each pair with the language of its target, in one direction or in both."""
    for pair, file, number, _ in examples:
        assert isinstance(pair, Pair)
        yield Located(Pair(pair.source, pair.target, second), file, number)
        if both:
            yield Located(Pair(pair.target, pair.source, first), file, number)


def missing_split(settings: DataSettings, split: Split) -> str:
    if isinstance(settings, EmbeddedSettings):
        return f"data of kind {settings.kind} have no {split}; choose {' or '.join(settings.splits)}"
    return f"data.{split} is empty; give it a list of files"


Check: TypeAlias = Callable[[Example], str | None]


def make_check(filters: PairFilters | TextFilters) -> Check:
    """Returns a function that gives the reason to remove an example, or None to keep it."""
    bounds: list[tuple[str, Callable[[Side], int], int, float]] = [
        (unit, measure, getattr(filters, f"min_{unit}") or 0, getattr(filters, f"max_{unit}") or float("inf"))
        for unit, measure in (("characters", len), ("words", _words))
        if getattr(filters, f"min_{unit}") or getattr(filters, f"max_{unit}")
    ]
    seen: set[int] = set()  # marks, so that memory does not grow with the length of examples

    def check(example: Example) -> str | None:
        sides = example.sides()
        for unit, measure, least, most in bounds:
            lengths = [measure(side) for side in sides.values()]
            if min(lengths) < least:
                return f"has fewer than {least:,} {unit}"
            if max(lengths) > most:
                return f"has more than {most:,} {unit}"
        if isinstance(filters, PairFilters):
            assert isinstance(example, Pair)
            if filters.ratio is not None:
                lengths = [max(1, _words(side)) for side in sides.values()]
                if max(lengths) > filters.ratio * min(lengths):
                    return f"has a side over {filters.ratio:g} times as long"
            if filters.copies and example.source.casefold().split() == example.target.casefold().split():
                return "copies its source"
        if filters.duplicates:
            by_side = filters.duplicates in ("source", "target")
            mark = text_mark(sides[str(filters.duplicates)]) if by_side else text_mark(*sides.values())
            if mark in seen:
                return f"is a duplicate by its {filters.duplicates}" if by_side else "is a duplicate"
            seen.add(mark)
        return None

    return check


def _words(text: Side) -> int:
    return len(text.split())


def text_mark(*sides: Side) -> int:
    """64 bits of a text, the same in every process; two texts share them once in about 10^19."""
    digest = hashlib.blake2b(digest_size=8)
    for side in sides:
        data = side.encode("utf-8") if isinstance(side, str) else side
        digest.update(b"%d:" % len(data))  # so that ("ab", "c") and ("a", "bc") differ
        digest.update(data)
    return int.from_bytes(digest.digest(), "little")
