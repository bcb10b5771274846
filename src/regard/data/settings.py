"""Settings of data: a recipe's `[data]` table, whose `kind` says how the files are written. No torch in here.

A kind has two halves: what is done with its examples (`Pairs`, `RawTexts`, `Images`, …), and where they come from
(`FromFiles`, or settings of its own where a corpus is embedded).
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self, TypeAlias

from pydantic import Field, model_validator

from regard.blocks.settings import Positive
from regard.data.base_settings import Column, Data, FromFiles, Key, Split, Table, Texts, UnseenLabels
from regard.data.filter_settings import PairFilters, TextFilters

# ------------------------------------------------------------------------------------------------------ parallel text


Language: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$")]
"""The code of a language, such as `de`."""
Direction: TypeAlias = tuple[str, str]
"""From which language into which."""


class Pairs(Texts):
    """What every kind of parallel text has."""

    both: bool = False
    """Whether each pair is learnt in both directions, by one model: the source then begins with a tag of the language
    that is to be written (Johnson et al. 2017)."""
    too_long: Literal["skip", "truncate"] = "skip"
    """What is done with a pair of which a side is over `longest`."""
    filters: PairFilters = PairFilters()
    """What is removed from the training data."""

    @property
    def direction_of_pairs(self) -> Direction | None:
        """The languages of source and target, as they are read; None where nobody said."""
        raise NotImplementedError

    @property
    def directions(self) -> tuple[Direction, ...]:
        """What a model learns to translate; empty where nobody said."""
        known = self.direction_of_pairs
        return () if known is None else (known, known[::-1]) if self.both else (known,)


class PairsFromFiles(Pairs, FromFiles):
    """What parallel text has that is read from files."""

    languages: Annotated[tuple[Language, Language], Field(strict=False)] | None = None
    """The languages of source and target, such as `["en", "de"]`; none: they have no names."""

    @property
    def direction_of_pairs(self) -> Direction | None:
        return self.languages

    @model_validator(mode="after")
    def _check_both(self) -> Self:
        if self.both and (self.languages is None or self.languages[0] == self.languages[1]):
            raise ValueError(
                'both needs the names of two languages, to ask for one of them; set languages = ["…", "…"]'
            )
        return self


class Parallel(PairsFromFiles):
    """Two files, line by line: a source file, then its target file; then perhaps the next two."""

    kind: Literal["parallel"] = "parallel"
    files_each: ClassVar[int] = 2


class ParallelTsv(PairsFromFiles, Table):
    """Two columns of a file with tabs between columns; nothing is quoted."""

    kind: Literal["parallel-tsv"] = "parallel-tsv"
    source: Column = 1
    """Column of the source text: its number, counted from 1, or its name in the header."""
    target: Column = 2
    """Column of the target text: its number, counted from 1, or its name in the header."""


class ParallelJsonl(PairsFromFiles):
    """Two keys of a file with a JSON object on each line."""

    kind: Literal["parallel-jsonl"] = "parallel-jsonl"
    source: Key = "source"
    """Key of the source text; dots lead into objects inside: `translation.en`."""
    target: Key = "target"
    """Key of the target text."""


# ----------------------------------------------------------------------------------------------------------- raw text


class RawTexts(Texts):
    """What every kind of raw text has."""

    too_long: Literal["skip", "truncate", "split"] = "split"
    """What is done with a document over `longest`; split: each part becomes an example."""
    filters: TextFilters = TextFilters()
    """What is removed from the training data."""


class RawText(RawTexts, FromFiles):
    """Plain text."""

    kind: Literal["text"] = "text"
    document: Literal["line", "paragraph", "file"] = "line"
    """What one document is: a line, what stands between empty lines, or a whole file."""

    @model_validator(mode="after")
    def _check_filters(self) -> Self:
        if self.document == "file" and self.filters != TextFilters():
            raise ValueError('filters judge lines or paragraphs, but document is "file"; drop the one or the other')
        return self


class RawJsonl(RawTexts, FromFiles):
    """A document in each JSON object of a file with one object on each line."""

    kind: Literal["text-jsonl"] = "text-jsonl"
    text: Key = "text"
    """Key of the text."""


# ------------------------------------------------------------------------------------------------------ labelled text


class LabelledTexts(Texts, FromFiles, UnseenLabels):
    """What every kind of labelled text has."""

    labels: Literal["classes", "numbers", "absent"] = "classes"
    """Whether labels are names of classes, or numbers to be predicted as such, or not there."""
    too_long: Literal["skip", "truncate"] = "truncate"
    """What is done with a text over `longest`."""
    filters: TextFilters = TextFilters()
    """What is removed from the training data."""


class LabelledTsv(LabelledTexts, Table):
    """Columns of a file with tabs between columns; nothing is quoted."""

    kind: Literal["labelled-tsv"] = "labelled-tsv"
    text: Column = 1
    """Column of the text: its number, counted from 1, or its name in the header."""
    second: Column | None = None
    """Column of the second text, where texts come in twos."""
    label: Column = 2
    """Column of the label: its number, counted from 1, or its name in the header."""


class LabelledCsv(LabelledTexts, Table):
    """Columns of a file with commas between columns, quoted with `"` where need be."""

    kind: Literal["labelled-csv"] = "labelled-csv"
    text: Column = 1
    """Column of the text: its number, counted from 1, or its name in the header."""
    second: Column | None = None
    """Column of the second text, where texts come in twos."""
    label: Column = 2
    """Column of the label: its number, counted from 1, or its name in the header."""
    separator: str = Field(default=",", min_length=1, max_length=1)
    """The character between columns."""


class LabelledJsonl(LabelledTexts):
    """Keys of a file with a JSON object on each line."""

    kind: Literal["labelled-jsonl"] = "labelled-jsonl"
    text: Key = "text"
    """Key of the text; dots lead into objects inside."""
    second: Key | None = None
    """Key of the second text, where texts come in twos."""
    label: Key = "label"
    """Key of the label."""


# -------------------------------------------------------------------------------------------------------- tagged words


class TaggedTexts(Texts, FromFiles, UnseenLabels):
    """What every kind of tagged words has."""

    scheme: Literal["as-is", "iob1"] = "as-is"
    """iob1: as CoNLL-2003 is written, where `B-` only parts neighbours; every entity is made to begin with `B-`."""
    too_long: Literal["skip", "truncate"] = "truncate"
    """What is done with a sentence over `longest`."""


class Columns(TaggedTexts):
    """CoNLL: a word and its tags on each line, an empty line after each sentence."""

    kind: Literal["columns"] = "columns"
    word: Positive = 1
    """Column of the word, counted from 1."""
    tag: Positive | None = None
    """Column of the tag, counted from 1; none: the last."""
    separator: Literal["space", "tab"] = "space"
    """What stands between columns: any white space, or one tab."""
    document_mark: str = "-DOCSTART-"
    """A line whose word is this opens a document and belongs to no sentence; empty: there are no such lines."""


class Slots(TaggedTexts):
    """Folders with three files: `seq.in` (words), `seq.out` (a tag for each) and `label` (one for the sentence)."""

    kind: Literal["slots"] = "slots"


# ---------------------------------------------------------------------------------------------------------- questions


class Squad(Texts, FromFiles):
    """Questions with answers marked in a paragraph, in the JSON of SQuAD 1.1 and 2.0."""

    kind: Literal["squad"] = "squad"
    too_long: Literal["skip", "truncate", "split"] = "split"
    """What is done with a context over `longest`; split: overlapping parts are read one after another."""


# ------------------------------------------------------------------------------------------------------------- images


class Images(Data, UnseenLabels):
    """What every kind of images has."""


class ImageFolder(Images, FromFiles):
    """A folder of images for each class, named by the class; any format that Pillow reads."""

    kind: Literal["image-folder"] = "image-folder"
    colours: Literal["rgb", "grey"] = "rgb"
    """What each image is converted to: three channels or one."""


class Idx(Images, FromFiles):
    """MNIST's format: a file of images, then its file of labels; then perhaps the next two."""

    kind: Literal["idx"] = "idx"
    files_each: ClassVar[int] = 2


class Npz(Images, FromFiles):
    """NumPy archives with an array of images, [n, height, width] or [n, height, width, channels], and one of labels."""

    kind: Literal["npz"] = "npz"
    pixels: Key = "images"
    """Name of the array of images, each value from 0 to 255."""
    label: Key = "labels"
    """Name of the array of labels."""


# --------------------------------------------------------------------------------------------------- embedded corpora


class Grammar(Pairs):
    """English–German pairs of a small grammar, shipped with the package (docs/grammar.md)."""

    kind: Literal["grammar"] = "grammar"
    direction: Literal["en-de", "de-en"] = "en-de"
    """Which language is the source and which the target."""
    train_pairs: int = Field(default=120_000, ge=1, le=120_000)
    """Pairs to learn from: the first ones of the corpus."""
    valid_pairs: int = Field(default=1_000, ge=1, le=4_000)
    """Pairs that decide when to stop and which checkpoint is best."""
    test_pairs: int = Field(default=2_000, ge=1, le=4_000)
    """Pairs for the final score."""

    @property
    def direction_of_pairs(self) -> Direction:
        source, target = self.direction.split("-")
        return source, target

    def pairs(self, split: Split) -> int:
        """How many a split has."""
        return {"train": self.train_pairs, "valid": self.valid_pairs, "test": self.test_pairs}[split]


class PythonLibrary(RawTexts):
    """The sources of Python's standard library, each file a document; one in twenty is for valid, none for test."""

    kind: Literal["python"] = "python"
    docstrings: bool = False
    """Whether only documentation strings are read: prose in place of code."""

    @property
    def splits(self) -> tuple[Split, ...]:
        return ("train", "valid")


class Digits(Images):
    """scikit-learn's 1,797 handwritten digits of 8 × 8 pixels (`pip install 'regard[vision]'`)."""

    kind: Literal["digits"] = "digits"


ReadSettings: TypeAlias = (
    Parallel
    | ParallelTsv
    | ParallelJsonl
    | RawText
    | RawJsonl
    | LabelledTsv
    | LabelledCsv
    | LabelledJsonl
    | Columns
    | Slots
    | Squad
    | ImageFolder
    | Idx
    | Npz
)
"""Kinds that are read from files."""
EmbeddedSettings: TypeAlias = Grammar | PythonLibrary | Digits
"""Kinds that need none."""
DataSettings: TypeAlias = ReadSettings | EmbeddedSettings
AnyData: TypeAlias = Annotated[DataSettings, Field(discriminator="kind")]
"""What `parse` takes to read the table `[data]`, told apart by its `kind`."""
