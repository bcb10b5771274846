"""From settings to examples: each split is a lazy stream, in the order of its files, the same each time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import assert_never

from regard.data.base_settings import Split
from regard.data.embedded import origin_of, read_embedded
from regard.data.examples import Example, Pair, Placed
from regard.data.files import full_name, shown_name
from regard.data.filters import filtered
from regard.data.images import read_idx, read_image_folder, read_npz
from regard.data.labelled import read_labelled_jsonl, read_labelled_table
from regard.data.parallel import read_parallel, read_parallel_jsonl, read_parallel_tsv
from regard.data.problems import Problems, Tally
from regard.data.raw import read_text, read_text_jsonl
from regard.data.settings import (
    Columns,
    DataSettings,
    Direction,
    EmbeddedSettings,
    Grammar,
    Idx,
    ImageFolder,
    LabelledCsv,
    LabelledJsonl,
    LabelledTsv,
    Npz,
    Pairs,
    Parallel,
    ParallelJsonl,
    ParallelTsv,
    RawJsonl,
    RawText,
    ReadSettings,
    Slots,
    Squad,
)
from regard.data.squad import read_squad
from regard.data.tagged import read_columns, read_slots
from regard.errors import DataError


@dataclass
class Source:
    """One split of the data. Iterating reads its files from the start; the two tallies tell about all readings so far.

    The training split is filtered, as the settings say; the others never are.
    """

    settings: DataSettings
    split: Split
    problems: Problems = field(init=False)
    """What could not be read."""
    removed: Tally = field(default_factory=Tally, init=False)
    """What filters took out."""

    def __post_init__(self) -> None:
        self.problems = Problems("skip" if isinstance(self.settings, EmbeddedSettings) else self.settings.bad)
        if self.split not in self.settings.splits:
            raise DataError(told_missing(self.settings, self.split))

    @property
    def files(self) -> tuple[str, ...]:
        """The files, each with its root before it."""
        settings = self.settings
        if isinstance(settings, EmbeddedSettings):
            return ()
        return tuple(full_name(settings.root, file) for file in settings.files(self.split))

    @property
    def origin(self) -> list[Path]:
        """Files and folders whose content decides the examples; an embedded corpus has some too."""
        settings = self.settings
        return (
            origin_of(settings, self.split)
            if isinstance(settings, EmbeddedSettings)
            else [Path(file) for file in self.files]
        )

    @property
    def size(self) -> int | None:
        """How many examples there are before filters, where that is known without reading."""
        settings = self.settings
        size = settings.pairs(self.split) if isinstance(settings, Grammar) else None
        return size if size is None or not getattr(settings, "both", False) else 2 * size

    def __iter__(self) -> Iterator[Example]:
        return (placed.example for placed in self.placed())

    def placed(self) -> Iterator[Placed[Example]]:
        """The examples with their places; a split that gives none is an error."""
        settings = getattr(self.settings, "filters", None) if self.split == "train" else None
        examples = filtered(self._read(), settings, self.removed)
        if isinstance(self.settings, Pairs) and self.settings.both:
            examples = _both_ways(examples, self.settings.directions[0])
        first = next(examples, None)
        if first is None:
            raise DataError(self._told_nothing())
        yield first
        yield from examples

    def _read(self) -> Iterator[Placed[Example]]:
        settings, files = self.settings, self.files
        if isinstance(settings, EmbeddedSettings):
            yield from read_embedded(settings, self.split)
        else:
            for start in range(0, len(files), settings.files_each):
                yield from read(settings, files[start : start + settings.files_each], self.problems)

    def _told_nothing(self) -> str:
        names = ", ".join(map(shown_name, self.files)) or self.settings.kind
        told = [text for tally in (self.problems, self.removed) if (text := tally.text())]
        return "\n".join([f"data.{self.split} ({names}) gives no example{':' if told else ''}", *told])


def _both_ways(examples: Iterator[Placed[Example]], languages: Direction) -> Iterator[Placed[Example]]:
    """Each pair, and then the same the other way round; each says which language its target is in."""
    first, second = languages
    for pair, file, number in examples:
        assert isinstance(pair, Pair)
        one, other = pair.source, pair.target
        yield Placed(Pair(one, other, second), file, number)
        yield Placed(Pair(other, one, first), file, number)


def told_missing(settings: DataSettings, split: Split) -> str:
    """What to say of a split that is not there."""
    if isinstance(settings, EmbeddedSettings):
        return f"data of kind {settings.kind} have no {split}, only {' and '.join(settings.splits)}; choose one of them"
    return f"data.{split} ([]) names no file; give it a list of files"


def read(settings: ReadSettings, files: tuple[str, ...], problems: Problems) -> Iterator[Placed[Example]]:
    """The examples of one part: a file, or the two that belong together."""
    file = files[0]
    match settings:
        case Parallel():
            return read_parallel(file, files[1], problems)
        case ParallelTsv():
            return read_parallel_tsv(file, settings, problems)
        case ParallelJsonl():
            return read_parallel_jsonl(file, settings, problems)
        case RawText():
            return read_text(file, settings, problems)
        case RawJsonl():
            return read_text_jsonl(file, settings, problems)
        case LabelledTsv() | LabelledCsv():
            return read_labelled_table(file, settings, problems)
        case LabelledJsonl():
            return read_labelled_jsonl(file, settings, problems)
        case Columns():
            return read_columns(file, settings, problems)
        case Slots():
            return read_slots(file, settings, problems)
        case Squad():
            return read_squad(file, problems)
        case ImageFolder():
            return read_image_folder(file, settings, problems)
        case Idx():
            return read_idx(file, files[1])
        case Npz():
            return read_npz(file, settings)
        case _:
            assert_never(settings)
