"""Settings of data: a recipe's `[data]` table, whose `kind` is the format of the files or an embedded corpus.

A kind inherits from two sides: the examples it holds (`Pairs`, `RawTexts`, `LabelledTexts`, ...), and where they come
from (`FromFiles`, or fields of its own for an embedded corpus).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias

from pydantic import BeforeValidator, Field, PlainValidator, model_validator

from regard.blocks.settings import Positive
from regard.settings import Settings

Split: TypeAlias = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = ("train", "valid", "test")

HOLD_OUT = 0.05


def _listed(value: object) -> object:
    if isinstance(value, str):
        raise ValueError(f'must be a list of files; write ["{value}"]')
    return value


def _column(value: object) -> int | str:
    if (isinstance(value, int) and not isinstance(value, bool) and value > 0) or (isinstance(value, str) and value):
        return value
    raise ValueError(f"{value!r} is not a column; give its number, counted from 1, or its name in the header")


Files: TypeAlias = Annotated[tuple[str, ...], Field(strict=False), BeforeValidator(_listed)]
Column: TypeAlias = Annotated[int | str, PlainValidator(_column)]
"""A column by its number, counted from 1 as `cut` does, or by its name in the header."""
Key: TypeAlias = Annotated[str, Field(min_length=1)]
"""A key of a JSON object; dots lead into nested objects: `translation.en`."""
Language: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$")]
Direction: TypeAlias = tuple[str, str]


class Data(Settings):
    """Base of all kinds of data."""

    removed: ClassVar[Mapping[str, object]] = {"variants": 8, "seed": 1, "constructions": []}
    files_each: ClassVar[int] = 1
    """Files that are read together: 2 where each source file is followed by its target file."""

    def files(self, split: Split) -> tuple[str, ...]:
        """The files of a split; none for an embedded corpus."""
        return ()

    @property
    def splits(self) -> tuple[Split, ...]:
        return SPLITS


class FromFiles(Data):
    """Settings of all kinds that are read from files."""

    root: str = "."
    """Folder that the file names are relative to."""
    train: Files = ()
    """Training files, read in this order; gzip, xz and bzip2 are decompressed."""
    valid: Files = ()
    """Validation files, which decide when to stop and which checkpoint is best."""
    test: Files = ()
    """Files for the final score."""
    hold_out: float | None = Field(default=None, ge=0, lt=1)
    """Without `valid`: share of the training examples that validate instead of train; none: 0.05 when a model is
    trained. The content of an example decides, so that equal examples stay together."""
    bad: Literal["skip", "stop"] = "skip"
    """Whether an unusable line is skipped and counted, or stops the run."""

    def files(self, split: Split) -> tuple[str, ...]:
        return {"train": self.train, "valid": self.valid, "test": self.test}[split]

    @property
    def splits(self) -> tuple[Split, ...]:
        return tuple(split for split in SPLITS if self.files(split) or (split == "valid" and self.holds_out))

    @property
    def holds_out(self) -> bool:
        """Whether validation examples are taken from the training files."""
        return bool(self.train and not self.valid and self.hold_out)

    @model_validator(mode="after")
    def _check_files(self) -> Self:
        for split in SPLITS:
            files = self.files(split)
            if len(files) % self.files_each:
                raise ValueError(
                    f"{split} has {len(files)} files, expected pairs that belong together (two files, two more, ...)"
                )
        return self


class Texts(Data):
    """Settings of all kinds of text."""

    longest: Positive | None = None
    """Maximum number of tokens of an example (of each side of a pair); none: only the model's limit applies."""
    too_long: Literal["skip", "truncate"] = "skip"
    """What to do with an example with a text over `longest`."""


class UnseenLabels(Settings):
    """Settings of all kinds with labels. Real test sets have labels that training lacks: ATIS is one."""

    unseen: Literal["stop", "skip", "keep"] = "stop"
    """What to do with a label in valid or test that does not occur in training: stop the run, skip the example, or
    keep it, so that it counts as a mistake."""


class TableFile(Settings):
    """Settings of files with columns."""

    header: bool = False
    """Whether the first line of each file names the columns."""

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        used: dict[Any, str] = {}
        for name in ("source", "target", "text", "second", "label"):
            column = getattr(self, name, None)
            if isinstance(column, str) and not self.header:
                raise ValueError(
                    f"{name} ({column}) is a name, but header is false; set header = true, or give the column's number"
                )
            if column is not None and (name != "label" or getattr(self, "labels", "") != "absent"):
                if column in used:
                    raise ValueError(f"{used[column]} and {name} are both column {column}; change one of them")
                used[column] = name
        return self


class Filters(Settings):
    """Filters of all kinds of text. They apply to training data only: a score needs the whole valid and test split."""

    removed: ClassVar[Mapping[str, object]] = {
        **{key: [] for key in ("scripts", "source_scripts", "target_scripts")},
        **dict.fromkeys(("language", "source_language", "target_language"), "none"),
        "script_share": 0.5,
    }
    min_words: Positive | None = None
    """Texts with fewer words are removed."""
    max_words: Positive | None = None
    """Texts with more words are removed."""
    min_characters: Positive | None = None
    """Texts with fewer characters are removed."""
    max_characters: Positive | None = None
    """Texts with more characters are removed."""


class TextFilters(Filters):
    """Filters of raw and labelled text."""

    duplicates: bool = False
    """Whether repeated texts are removed."""


class PairFilters(Filters):
    """Filters of parallel text; the limits apply to both sides."""

    ratio: float | None = Field(default=None, ge=1)
    """Pairs are removed if one side has more than this many times the words of the other."""
    duplicates: Literal["pair", "source", "target"] | None = None
    """Repeated pairs are removed: pairs with both sides equal, or with an equal source or target."""
    copies: bool = False
    """Whether pairs are removed whose target equals the source, apart from case and spaces."""


class Pairs(Texts):
    """Settings of all kinds of parallel text."""

    both: bool = False
    """Whether one model learns both directions: each pair is used twice, and the source begins with a tag of the
    target language (Johnson et al. 2017)."""
    tagged: bool = False
    """Whether the source begins with this tag although there is one direction; `train.start` sets it if needed."""
    filters: PairFilters = PairFilters()
    """Filters of the training data."""

    @property
    def directions(self) -> tuple[Direction, ...]:
        """The directions that a model learns; empty if the languages are not given."""
        known: Direction | None = getattr(self, "languages", None)
        return () if known is None else (known, known[::-1]) if self.both else (known,)


class PairsFromFiles(Pairs, FromFiles):
    """Settings of parallel text that is read from files."""

    languages: Annotated[tuple[Language, Language], Field(strict=False)] | None = None
    """The languages of source and target, such as `["en", "de"]`."""

    @model_validator(mode="after")
    def _check_both(self) -> Self:
        name = "both" if self.both else "tagged"
        if (self.both or self.tagged) and (self.languages is None or self.languages[0] == self.languages[1]):
            raise ValueError(f'{name} = true needs two different languages; set languages = ["en", "de"]')
        return self


class Parallel(PairsFromFiles):
    """Two files with parallel lines: a source file, then its target file; more such pairs of files may follow."""

    kind: Literal["parallel"] = "parallel"
    files_each: ClassVar[int] = 2


class PairTable(PairsFromFiles, TableFile):
    """Settings of parallel text in columns."""

    source: Column = 1
    """Column of the source text: its number, counted from 1, or its name in the header."""
    target: Column = 2
    """Column of the target text: its number, counted from 1, or its name in the header."""


class ParallelTsv(PairTable):
    """Two columns of a file with tabs between columns and no quotes."""

    kind: Literal["parallel-tsv"] = "parallel-tsv"


class CsvFile(TableFile):
    """Settings of files with columns that are quoted with `"` where necessary."""

    separator: str = Field(default=",", min_length=1, max_length=1)
    """The character between columns."""


class ParallelCsv(PairTable, CsvFile):
    """Two columns of a file with commas between columns, quoted with `"` where necessary."""

    kind: Literal["parallel-csv"] = "parallel-csv"


class ParallelJsonl(PairsFromFiles):
    """Two keys of a file with a JSON object on each line."""

    kind: Literal["parallel-jsonl"] = "parallel-jsonl"
    source: Key = "source"
    """Key of the source text; dots lead into nested objects: `translation.en`."""
    target: Key = "target"
    """Key of the target text."""


class RawTexts(Texts):
    """Settings of all kinds of raw text."""

    too_long: Literal["skip", "truncate", "split"] = "split"  # type: ignore[assignment]
    """What to do with a document over `longest`; split: each part becomes an example."""
    filters: TextFilters = TextFilters()
    """Filters of the training data."""


class RawText(RawTexts, FromFiles):
    """Plain text."""

    kind: Literal["text"] = "text"
    document: Literal["line", "paragraph", "file"] = "line"
    """What a document is: a line, a paragraph (between empty lines), or a whole file."""

    @model_validator(mode="after")
    def _check_filters(self) -> Self:
        if self.document == "file" and self.filters != TextFilters():
            raise ValueError('filters need document = "line" or "paragraph", not "file"; change one of them')
        return self


class RawJsonl(RawTexts, FromFiles):
    """A document in each JSON object of a file with one object on each line."""

    kind: Literal["text-jsonl"] = "text-jsonl"
    text: Key = "text"
    """Key of the text."""


class LabelledTexts(Texts, FromFiles, UnseenLabels):
    """Settings of all kinds of labelled text."""

    labels: Literal["classes", "numbers", "absent"] = "classes"
    """Whether labels are names of classes, numbers to predict, or absent."""
    too_long: Literal["skip", "truncate"] = "truncate"
    filters: TextFilters = TextFilters()
    """Filters of the training data."""


class LabelledTable(LabelledTexts, TableFile):
    """Settings of labelled text in columns."""

    text: Column = 1
    """Column of the text: its number, counted from 1, or its name in the header."""
    second: Column | None = None
    """Column of the second text, for pairs of texts."""
    label: Column = 2
    """Column of the label: its number, counted from 1, or its name in the header."""


class LabelledTsv(LabelledTable):
    """Columns of a file with tabs between columns and no quotes."""

    kind: Literal["labelled-tsv"] = "labelled-tsv"


class LabelledCsv(LabelledTable, CsvFile):
    """Columns of a file with commas between columns, quoted with `"` where necessary."""

    kind: Literal["labelled-csv"] = "labelled-csv"


class LabelledJsonl(LabelledTexts):
    """Keys of a file with a JSON object on each line."""

    kind: Literal["labelled-jsonl"] = "labelled-jsonl"
    text: Key = "text"
    """Key of the text; dots lead into nested objects."""
    second: Key | None = None
    """Key of the second text, for pairs of texts."""
    label: Key = "label"
    """Key of the label."""


class TaggedTexts(Texts, FromFiles, UnseenLabels):
    """Settings of all kinds of tagged words."""

    scheme: Literal["as-is", "iob1"] = "as-is"
    """iob1: the scheme of CoNLL-2003, where `B-` only separates neighbours; it is converted so that every entity begins
    with `B-`."""
    too_long: Literal["skip", "truncate"] = "truncate"


class Columns(TaggedTexts):
    """CoNLL: a word and its tags on each line, an empty line after each sentence."""

    kind: Literal["columns"] = "columns"
    word: Positive = 1
    """Column of the word, counted from 1."""
    tag: Positive | None = None
    """Column of the tag, counted from 1; none: the last column."""
    separator: Literal["space", "tab"] = "space"
    """What separates columns: any white space, or one tab."""
    document_mark: str = "-DOCSTART-"
    """Lines with this word start a document and belong to no sentence; empty: there are no such lines."""


class Slots(TaggedTexts):
    """Folders with three files: `seq.in` (words), `seq.out` (a tag for each word) and `label` (one per sentence)."""

    kind: Literal["slots"] = "slots"


class Squad(Texts, FromFiles):
    """Questions with answers marked in a paragraph, in the JSON of SQuAD 1.1 and 2.0."""

    kind: Literal["squad"] = "squad"
    too_long: Literal["skip", "truncate", "split"] = "split"  # type: ignore[assignment]
    """What to do with a context over `longest`; split: overlapping parts are read one after another."""


class Choices(Texts, FromFiles):
    """Texts with several options, one of them right, in a file with a JSON object on each line. An example is skipped
    if its options have more than `longest` tokens together."""

    removed: ClassVar[Mapping[str, object]] = {"too_long": "truncate"}
    kind: Literal["choices"] = "choices"
    text: Key = "text"
    """Key of the text, such as a question."""
    options: Key = "options"
    """Key of the list of options; all examples have the same number."""
    label: Key = "label"
    """Key of the index of the right option, counted from 0."""


class Chats(Texts, FromFiles):
    """Conversations in a file with a JSON object on each line."""

    kind: Literal["chat"] = "chat"
    messages: Key = "messages"
    """Key of the list of messages; each is an object with a role (system, user or assistant) and a content."""


class ImageFolder(FromFiles, UnseenLabels):
    """A folder of images for each class, with the name of the class; any format that Pillow reads."""

    kind: Literal["image-folder"] = "image-folder"
    colours: Literal["rgb", "grey"] = "rgb"
    """Three channels or one."""


class Idx(FromFiles, UnseenLabels):
    """MNIST's format: a file of images, then its file of labels; more such pairs of files may follow."""

    kind: Literal["idx"] = "idx"
    files_each: ClassVar[int] = 2


class Npz(FromFiles, UnseenLabels):
    """NumPy archives with an array of images, [n, height, width] or [n, height, width, channels], and one of labels."""

    kind: Literal["npz"] = "npz"
    pixels: Key = "images"
    """Name of the array of images, with values from 0 to 255."""
    label: Key = "labels"
    """Name of the array of labels."""


class Grammar(Pairs):
    """English–German pairs of a small grammar, shipped with the package (docs/grammar.md)."""

    kind: Literal["grammar"] = "grammar"
    direction: Literal["en-de", "de-en", "en-tree"] = "en-de"
    """Source and target language; en-tree: English sentences and their constituents, for parsing as translation."""
    train_pairs: int = Field(default=120_000, ge=1, le=120_000)
    """Training pairs: the first ones of the corpus."""
    valid_pairs: int = Field(default=1_000, ge=1, le=4_000)
    """Validation pairs, which decide when to stop and which checkpoint is best."""
    test_pairs: int = Field(default=2_000, ge=1, le=4_000)
    """Pairs for the final score."""

    @property
    def languages(self) -> Direction:
        source, target = self.direction.split("-")
        return source, target

    def pairs(self, split: Split) -> int:
        return int(getattr(self, f"{split}_pairs"))


class Referents(Texts, UnseenLabels):
    """English sentences of the grammar with *it* and two nouns, one of which it means. The test sentences are those of
    `pronouns`."""

    kind: Literal["grammar-referents"] = "grammar-referents"
    form: Literal["tags", "classes", "pairs", "answers"] = "tags"
    """What is learned. tags: which noun is the REFERENT and which the OTHER one; classes: whether it means the `first`
    or the `second` noun; pairs: whether a statement about one of them is `true` or `false`; answers: the noun that
    answers a question."""


class PythonLibrary(RawTexts):
    """The source files of Python's standard library, one document each; 1 in 20 is for valid, none for test."""

    kind: Literal["python"] = "python"
    docstrings: bool = False
    """Whether only docstrings are read: prose instead of code."""

    @property
    def splits(self) -> tuple[Split, ...]:
        return ("train", "valid")


class Digits(Data, UnseenLabels):
    """scikit-learn's 1,797 handwritten digits of 8 × 8 pixels (`pip install 'regard[vision]'`)."""

    kind: Literal["digits"] = "digits"


_Texts: TypeAlias = Parallel | ParallelTsv | ParallelCsv | ParallelJsonl | RawText | RawJsonl
_Labelled: TypeAlias = LabelledTsv | LabelledCsv | LabelledJsonl | Columns | Slots | Squad | Choices | Chats
_Images: TypeAlias = ImageFolder | Idx | Npz
EmbeddedSettings: TypeAlias = Grammar | Referents | PythonLibrary | Digits
DataSettings: TypeAlias = _Texts | _Labelled | _Images | EmbeddedSettings
AnyData: TypeAlias = Annotated[DataSettings, Field(discriminator="kind")]
"""The type of the table `[data]` for `parse`; its `kind` selects the variant."""


def directions_of(config: Mapping[str, Any]) -> tuple[list[Direction], bool]:
    """The directions of a run, and whether sources need a language tag."""
    data = config.get("data", {})
    languages = data.get("languages")
    if languages is None and isinstance(data.get("direction"), str):
        languages = data["direction"].split("-")
    if not isinstance(languages, list | tuple) or len(languages) != 2:
        return [], False
    source, target = (str(language) for language in languages)
    both = data.get("both") is True
    return [(source, target), (target, source)] if both else [(source, target)], both or data.get("tagged") is True
