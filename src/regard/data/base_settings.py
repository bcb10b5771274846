"""What the settings of all kinds of data are made of: splits, files, columns. No torch in here."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self, TypeAlias

from pydantic import BeforeValidator, Field, PlainValidator, model_validator

from regard.blocks.settings import Positive
from regard.settings import Settings

Split: TypeAlias = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = ("train", "valid", "test")

STANDARD_INPUT = "-"


def _listed(value: object) -> object:
    if isinstance(value, str):
        raise ValueError(f'must be a list of files; write ["{value}"]')
    return value


Files: TypeAlias = Annotated[tuple[str, ...], Field(strict=False), BeforeValidator(_listed)]


def _column(value: object) -> int | str:
    if (isinstance(value, int) and not isinstance(value, bool) and value > 0) or (isinstance(value, str) and value):
        return value
    raise ValueError(f"{value!r} is no column; give its number, counted from 1, or its name in the header")


Column: TypeAlias = Annotated[int | str, PlainValidator(_column)]
"""A column by its number, counted from 1 as `cut` does, or by its name in the header."""

Key: TypeAlias = Annotated[str, Field(min_length=1)]
"""A key of a JSON object; dots lead into objects inside: `translation.en`."""


class Data(Settings):
    """What every kind of data has, wherever it comes from."""

    files_each: ClassVar[int] = 1
    """How many files make one part: 2 where a source file is followed by its target file."""

    def files(self, split: Split) -> tuple[str, ...]:
        """The files of a split; an embedded corpus has none."""
        return ()

    @property
    def splits(self) -> tuple[Split, ...]:
        """The splits that there are."""
        return SPLITS


class FromFiles(Data):
    """What every kind has that is read from files."""

    root: str = "."
    """Folder that the names below are relative to."""
    train: Files = ()
    """Files to learn from, read in this order; gzip, xz and bzip2 are read as they are, `-` is standard input."""
    valid: Files = ()
    """Files that decide when to stop and which checkpoint is best."""
    test: Files = ()
    """Files for the final score."""
    bad: Literal["skip", "stop"] = "skip"
    """Whether a line that cannot be used is skipped and counted, or stops the run."""

    def files(self, split: Split) -> tuple[str, ...]:
        found: tuple[str, ...] = getattr(self, split)
        return found

    @property
    def splits(self) -> tuple[Split, ...]:
        return tuple(split for split in SPLITS if self.files(split))

    @model_validator(mode="after")
    def _check_files(self) -> Self:
        for split in SPLITS:
            files = self.files(split)
            if len(files) % self.files_each:
                raise ValueError(
                    f"{split} ({list(files)}) must name files by twos, the one before the other: "
                    f"{len(files)} cannot be paired"
                )
        if [file for split in SPLITS for file in self.files(split)].count(STANDARD_INPUT) > 1:
            raise ValueError('"-" is named twice, but standard input can be read only once; give files')
        return self


class Texts(Data):
    """What every kind of text has."""

    longest: Positive | None = None
    """The most tokens of an example (of one side of a pair); none: no limit but the model's."""
    variants: Positive = 8
    """How many times training data are split into tokens, each time otherwise, where `text.dropout` is above 0."""


class UnseenLabels(Settings):
    """How labels that training never saw are treated. They occur in real tests: ATIS has some."""

    unseen: Literal["stop", "skip", "keep"] = "stop"
    """What a label in valid or test that training never saw does: stop the run, be skipped, or be kept as a mistake."""


class Table(Settings):
    """What files with columns have."""

    header: bool = False
    """Whether the first line of each file names the columns."""

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        for name in ("source", "target", "text", "second", "label"):
            column = getattr(self, name, None)
            if isinstance(column, str) and not self.header:
                raise ValueError(
                    f"{name} ({column}) names a column, but header is false; set header = true, or give a number"
                )
        return self
