"""Readers of text formats: parallel, raw and labelled text, tagged words, questions.

Each takes the settings and a file, or two that belong together, and yields located examples in the order of the file. A
line that cannot be used is yielded as a located `Problem`; a file that cannot be used raises a `DataError`.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

from regard.data.examples import Answer, Example, Labelled, Located, Pair, Problem, Question, Tagged, Text, shown_name
from regard.data.files import Line, open_text, read_lines
from regard.data.settings import (
    STANDARD_INPUT,
    Columns,
    LabelledCsv,
    LabelledJsonl,
    LabelledTsv,
    Parallel,
    ParallelJsonl,
    ParallelTsv,
    RawJsonl,
    RawText,
    Slots,
    Squad,
    TableFile,
)
from regard.errors import DataError
from regard.settings import did_you_mean

E = TypeVar("E", bound=Example)
Found: TypeAlias = Iterator[Located[E | Problem]]

PIECE = 1 << 16
"""A file that is one document is cut at the first line end after this many characters, to bound memory."""
SLOT_FILES = ("seq.in", "seq.out", "label")


# ------------------------------------------------------------------------------------------------------- parallel text


def read_parallel(_: Parallel, source: str, target: str) -> Found[Pair]:
    readers = read_lines(source), read_lines(target)
    for number, (one, other) in enumerate(zip_longest(*readers), 1):
        if one and other and not one.isspace() and not other.isspace():
            yield Located(Pair(one, other), source, number)
        elif one is None or other is None:
            raise _unequal((source, target), readers, (one, other), number)
        else:
            file, line = (source, one) if not one or one.isspace() else (target, other)
            yield Located(line if isinstance(line, Problem) else Problem("is empty"), file, number)


def read_pairs(settings: ParallelTsv | ParallelJsonl, file: str) -> Found[Pair]:
    for number, found in _records(settings, file, source=settings.source, target=settings.target):
        yield Located(found if isinstance(found, Problem) else Pair(found["source"], found["target"]), file, number)


def _unequal(
    files: Sequence[str], readers: Sequence[Iterator[Line]], lines: Sequence[Line | None], number: int
) -> DataError:
    """The error for files of which some end at line `number`, and others do not."""
    counts = [
        f"{shown_name(file)} has {number - 1 if line is None else number + sum(1 for _ in reader):,} lines"
        for file, reader, line in zip(files, readers, lines, strict=True)
    ]
    return DataError(f"{', '.join(counts)}; line n of each file must belong to line n of the others")


# ------------------------------------------------------------------------------------------------------------ raw text


def read_text(settings: RawText, file: str) -> Found[Text]:
    """Yields documents. Empty lines only separate documents that are lines or paragraphs."""
    if settings.document != "line":
        yield from _read_long(file, settings.document == "paragraph")
        return
    for number, line in enumerate(read_lines(file), 1):
        if isinstance(line, Problem):
            yield Located(line, file, number)
        elif line and not line.isspace():
            yield Located(Text(line), file, number)


def _read_long(file: str, paragraphs: bool) -> Found[Text]:
    """Yields documents of several lines with their line ends; a whole file in pieces of about `PIECE` characters.

    A piece is held back until the next line is read, so that the last one is marked as the end of the document.
    """
    lines: list[str] = []
    size = start = 0
    for number, line in enumerate(read_lines(file), 1):
        if isinstance(line, Problem):
            yield Located(line, file, number)
            continue
        empty = not line or line.isspace()
        if lines and ((paragraphs and empty) or (not paragraphs and size >= PIECE)):
            yield Located(Text("".join(lines), ends=paragraphs), file, start)
            lines, size = [], 0
        if paragraphs and empty:
            continue
        start = start if lines else number
        lines.append(f"{line}\n")
        size += len(line) + 1
    if lines:
        yield Located(Text("".join(lines)), file, start)


def read_text_jsonl(settings: RawJsonl, file: str) -> Found[Text]:
    for number, found in _records(settings, file, text=settings.text):
        yield Located(found if isinstance(found, Problem) else Text(found["text"]), file, number)


# ------------------------------------------------------------------------------------------------------- labelled text


def read_labelled(settings: LabelledTsv | LabelledCsv | LabelledJsonl, file: str) -> Found[Labelled]:
    column = None if settings.labels == "absent" else settings.label
    for number, found in _records(settings, file, text=settings.text, second=settings.second, label=column):
        if isinstance(found, Problem):
            yield Located(found, file, number)
            continue
        label = _label(found.get("label"), settings.labels)
        example = label if isinstance(label, Problem) else Labelled(found["text"], found.get("second"), label)
        yield Located(example, file, number)


def _label(value: Any, labels: Literal["classes", "numbers", "absent"]) -> str | float | Problem | None:
    if labels == "absent":
        return None
    if labels == "classes":
        if isinstance(value, list | dict | float):
            return Problem("has a label that is not the name of a class", repr(value))
        return str(value).lower() if isinstance(value, bool) else str(value).strip()  # as JSON writes true
    try:
        label = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        label = math.nan
    return label if math.isfinite(label) else Problem("has a label that is not a number", repr(value))


# -------------------------------------------------------------------------------------------------------- tagged words


def read_columns(settings: Columns, file: str) -> Found[Tagged]:
    """Yields the sentences of a CoNLL file. A bad line makes its whole sentence unusable; it is reported once."""
    split = "\t" if settings.separator == "tab" else None
    tag_index = -1 if settings.tag is None else settings.tag - 1
    words: list[str] = []
    tags: list[str] = []
    problem: Problem | None = None
    width = start = 0
    for number, line in _with_end(file):
        if isinstance(line, str) and not line.strip():
            if words and problem is None:
                yield Located(_sentence(words, tags, settings.scheme), file, start)
            words, tags, problem = [], [], None
            continue
        fields = line.split(split) if isinstance(line, str) else []
        if fields and fields[0] == settings.document_mark:
            continue
        start = start if words or problem else number
        if fields:
            width = width or _checked_width(file, number, len(fields), settings)
        if fields and len(fields) == width:
            words.append(fields[settings.word - 1])
            tags.append(fields[tag_index])
        elif problem is None:
            problem = line if isinstance(line, Problem) else _wrong_width(len(fields), width)
            yield Located(problem, file, number)


def _with_end(file: str) -> Iterator[tuple[int, Line]]:
    """Yields the lines, and an empty one after the last, which ends the last sentence."""
    number = 0
    for number, line in enumerate(read_lines(file), 1):
        yield number, line
    yield number + 1, ""


def _checked_width(file: str, number: int, width: int, settings: Columns) -> int:
    for name, column in (("word", settings.word), ("tag", settings.tag or 2)):
        if column > width:
            raise DataError(
                f"{shown_name(file)}, line {number} has {width} columns, but data.{name} is column {column}; "
                f"change data.{name} or data.separator"
            )
    return width


def _sentence(words: Sequence[str], tags: Sequence[str], scheme: str, label: str | None = None) -> Tagged:
    return Tagged(tuple(words), tuple(begin_entities(tags) if scheme == "iob1" else tags), label)


def begin_entities(tags: Sequence[str]) -> list[str]:
    """Converts IOB1 to IOB2: the first tag of each entity becomes `B-`."""
    result: list[str] = []
    before = "O"
    for tag in tags:
        opens = tag.startswith("I-") and (before == "O" or before[2:] != tag[2:])
        result.append(f"B-{tag[2:]}" if opens else tag)
        before = tag
    return result


def read_slots(settings: Slots, folder: str) -> Found[Tagged]:
    if folder == STANDARD_INPUT:
        raise DataError("data of kind slots are folders and cannot come from standard input; give the folder")
    files = [str(Path(folder) / name) for name in SLOT_FILES]
    readers = [read_lines(file) for file in files]
    for number, lines in enumerate(zip_longest(*readers), 1):
        if None in lines:
            raise _unequal(files, readers, lines, number)
        for file, line in zip(files, lines, strict=True):
            if isinstance(line, Problem) or (file != files[1] and not line.strip()):
                yield Located(line if isinstance(line, Problem) else Problem("is empty"), file, number)
                break
        else:
            words, tags = str(lines[0]).split(), str(lines[1]).split()
            if len(words) == len(tags):
                yield Located(_sentence(words, tags, settings.scheme, str(lines[2]).strip()), files[0], number)
            else:
                detail = f"{len(words)} words, {len(tags)} tags"
                yield Located(Problem("has different numbers of words and tags", detail), files[0], number)


# ----------------------------------------------------------------------------------------------------------- questions


def read_squad(_: Squad, file: str) -> Found[Question]:
    """Yields the questions of a file in the JSON of SQuAD. The file is read as a whole."""
    with open_text(file) as stream:
        try:
            found = json.load(stream)
            asked = [
                (paragraph.get("context"), dict(question))
                for article in found["data"]
                for paragraph in article["paragraphs"]
                for question in paragraph["qas"]
            ]
        except UnicodeDecodeError as error:
            raise DataError(f"{shown_name(file)} is not UTF-8 (byte {error.start + 1:,}); save it as UTF-8") from None
        except (json.JSONDecodeError, RecursionError) as error:
            raise DataError(f"{shown_name(file)} is not JSON: {error}; give a file in SQuAD's format") from None
        except (KeyError, TypeError, AttributeError, ValueError):
            raise DataError(
                f"{shown_name(file)} is not in SQuAD's format: it needs data, a list of articles with paragraphs, each "
                "with a context and qas"
            ) from None
    for number, (context, question) in enumerate(asked, 1):
        yield Located(_question(context, question, str(question.get("id", number))), file, number, "question")


def _question(context: Any, asked: dict[str, Any], name: str) -> Question | Problem:
    question = asked.get("question")
    for part, value in (("context", context), ("question", question)):
        if not isinstance(value, str) or not value.strip():
            return Problem(f"has no {part}", name)
    answers: list[Answer] = []
    for found in asked.get("answers", ()):
        text, start = (found.get("text"), found.get("answer_start")) if isinstance(found, dict) else (None, None)
        if not (isinstance(text, str) and text and isinstance(start, int) and start >= 0):
            return Problem("has an answer without text and answer_start", name)
        if not context.startswith(text, start):
            return Problem("has an answer that is not in its context", f"{name}: {text}")
        answers.append(Answer(text, start))
    # Annotators agree more often than not; one copy of each answer is enough.
    return Question(name, str(question), context, tuple(dict.fromkeys(answers)))


# ----------------------------------------------------------------------------------------------------- columns and keys


def _records(
    settings: TableFile | ParallelJsonl | RawJsonl | LabelledJsonl, file: str, **columns: int | str | None
) -> Iterator[tuple[int, dict[str, Any] | Problem]]:
    """Yields the given columns of each row, or keys of each JSON object, by name. All but the label must be text."""
    wanted = {name: column for name, column in columns.items() if column is not None}
    return _rows(settings, file, wanted) if isinstance(settings, TableFile) else _objects(file, wanted)


def _checked(found: dict[str, Any], wanted: Mapping[str, int | str]) -> dict[str, Any] | Problem:
    for name, value in found.items():
        if isinstance(value, str):
            if not value or value.isspace():
                return Problem(f"has an empty {name}")
            if not value.isascii() and not _encodes(value):
                return Problem("holds half a character", name)
        elif value is None:
            return Problem(f"has no key {wanted[name]}")
        elif name != "label":
            return Problem(f"has no text at {wanted[name]}", f"but {type(value).__name__}")
    return found


def _objects(file: str, wanted: Mapping[str, int | str]) -> Iterator[tuple[int, dict[str, Any] | Problem]]:
    """Yields the values of keys, whose dots lead into nested objects, on each line. Skips empty lines."""
    for number, line in enumerate(read_lines(file), 1):
        if isinstance(line, Problem):
            yield number, line
        elif line and not line.isspace():
            try:
                found = json.loads(line)
            except (json.JSONDecodeError, RecursionError) as error:
                yield number, Problem("is not JSON", str(error))
                continue
            if isinstance(found, dict):
                yield number, _checked({name: _value_at(found, str(key)) for name, key in wanted.items()}, wanted)
            else:
                yield number, Problem("is not a JSON object", type(found).__name__)


def _value_at(found: dict[str, Any], key: str) -> Any:
    value: Any = found
    for part in [key] if key in found else key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _rows(
    settings: TableFile, file: str, wanted: Mapping[str, int | str]
) -> Iterator[tuple[int, dict[str, Any] | Problem]]:
    """Yields the wanted columns of each row; every row must have as many columns as the first."""
    indices: dict[str, int] | None = None
    width = 0
    for number, fields in _csv(file, settings.separator) if isinstance(settings, LabelledCsv) else _tsv(file):
        if isinstance(fields, Problem):
            yield number, fields
            continue
        if indices is None:
            indices = {name: _index(file, column, fields, settings.header) for name, column in wanted.items()}
            width = len(fields)
            if settings.header:
                continue
        if len(fields) == width:
            yield number, _checked({name: fields[index] for name, index in indices.items()}, wanted)
        else:
            yield number, _wrong_width(len(fields), width)


def _index(file: str, column: int | str, first: list[str], header: bool) -> int:
    if isinstance(column, int):
        if column > len(first):
            line = "header" if header else "first line"
            raise DataError(f"{shown_name(file)} has no column {column}; its {line} has {len(first)}")
        return column - 1
    if column not in first:
        near = did_you_mean(column, first)
        raise DataError(f"{shown_name(file)} has no column {column}{near}; its header has {', '.join(first)}")
    return first.index(column)


def _wrong_width(width: int, expected: int) -> Problem:
    return Problem(f"does not have {expected} columns, as the first line has", f"it has {width}")


def _tsv(file: str) -> Iterator[tuple[int, list[str] | Problem]]:
    for number, line in enumerate(read_lines(file), 1):
        yield number, line if isinstance(line, Problem) else line.split("\t")


def _csv(file: str, separator: str) -> Iterator[tuple[int, list[str] | Problem]]:
    """Yields rows of CSV: a quoted field may hold separators, quotes (doubled) and line ends. Skips empty rows."""
    with open_text(file) as stream:
        # A quoted field may go over lines, so a row is checked as a whole: invalid bytes are carried along.
        lines = (line.decode("utf-8", "surrogateescape") for line in stream)
        rows = csv.reader(lines, delimiter=separator, strict=True)
        while True:
            number = rows.line_num + 1
            try:
                fields = next(rows)
            except StopIteration:
                return
            except csv.Error as error:
                yield number, Problem("is not CSV", str(error))
                continue
            if fields:
                yield number, fields if all(map(_encodes, fields)) else Problem("is not UTF-8")


def _encodes(text: str) -> bool:
    r"""Whether a text is complete: JSON may hold half of a surrogate pair (`"\ud83d"`)."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
