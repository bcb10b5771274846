"""Readers of text formats: parallel, raw and labelled text, tagged words, questions.

Each takes the settings and a file, or two that belong together, and yields located examples in the order of the file. A
line that cannot be used is yielded as a located `Problem`; a file that cannot be used raises a `DataError`.
Files compressed with gzip, xz or bzip2 are decompressed.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import lzma
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, zip_longest
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias, TypeVar, cast

from regard.data import settings as kinds
from regard.data.examples import Answer, Chat, Choice, Example, Labelled, Located, Pair, Problem, Question, Tagged, Text
from regard.errors import DataError
from regard.files import parse_json
from regard.settings import Settings, did_you_mean

E = TypeVar("E", bound=Example)
Found: TypeAlias = Iterator[Located[E | Problem]]
Line: TypeAlias = str | Problem
Records: TypeAlias = Iterator[tuple[int, Sequence[Any] | Problem]]
"""The number of each line, and the wanted values on it."""

HEAD = 8192
"""Bytes inspected to tell text from a binary file, as git does."""
BLOCK = 1 << 20
"""Bytes decoded at once: whole blocks are about five times faster than single lines."""
LONGEST = 1 << 27
"""Most bytes of a line; a small compressed file may contain a line that does not fit into memory."""
PIECE = 1 << 16
"""A file that is one document is cut at the first line end after this many characters, to bound memory."""
LARGEST_LABEL = 1e15
"""The square of a larger error, times the examples of a batch, can exceed a float32."""
HEADER_TEXTS, HEADER_LABELS = ("text", "sentence", "sentence1"), ("label", "labels", "class", "category")
"""Usual names of columns. A header that is read as an example would be a class of its own."""
ROLES = ("system", "user", "assistant")
COMPRESSED = ((b"\x1f\x8b", gzip.open), (b"\xfd7zXZ\x00", lzma.open), (b"BZh", bz2.open))

TOO_LONG = Problem("is too long", f"more than {LONGEST:,} bytes")


def require_there(files: Iterable[str]) -> None:
    """Raises an error for a missing file, before hours of work on the files before it."""
    for file in files:
        if not Path(file).exists():
            raise DataError(f"{file} does not exist; check the name (in a recipe it is relative to data.root)")


@contextmanager
def open_bytes(file: str) -> Iterator[BinaryIO]:
    """Opens a file and decompresses it. An empty, missing or damaged file raises a `DataError` with its name."""
    require_there([file])
    try:
        with Path(file).open("rb") as raw:
            start = raw.peek(6)[:6]  # a pipe cannot be rewound
            if not start:
                raise DataError(f"{file} is empty; give a file with data")
            opener = next((opener for magic, opener in COMPRESSED if start.startswith(magic)), None)
            if opener is None:
                yield raw
            else:
                with opener(raw) as decompressed:
                    yield cast(BinaryIO, decompressed)
    except (EOFError, lzma.LZMAError, zlib.error, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise DataError(f"{file} cannot be read: {error.strerror}") from None
        # An OSError without a number is how gzip and bzip2 report damage.
        message = f"{file} is compressed, but damaged or incomplete ({error}); download it again"
        raise DataError(message) from None


@contextmanager
def open_text(file: str) -> Iterator[BinaryIO]:
    """Like `open_bytes`, for UTF-8 text: refuses a binary file and skips a byte order mark."""
    with open_bytes(file) as found:
        buffered = found if isinstance(found, io.BufferedReader) else io.BufferedReader(cast(io.RawIOBase, found))
        start = buffered.peek(HEAD)[:HEAD]
        if not start:
            raise DataError(f"{file} is empty after decompression; give a file with data")
        if start.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise DataError(f"{file} is UTF-16 text; convert it: iconv -f UTF-16 -t UTF-8")
        if b"\0" in start:
            position = start.index(b"\0")
            raise DataError(f"{file} is a binary file (byte {position:,} is zero); give UTF-8 text")
        if start.startswith(b"\xef\xbb\xbf"):
            buffered.read(3)
        yield buffered


def read_lines(file: str) -> Iterator[Line]:
    r"""Yields the lines of a file without their ends; a line that is not UTF-8 text comes as a `Problem`.

    Lines end with \n or \r\n only, as `wc -l` counts them. `str.splitlines` also splits at U+2028, U+0085 and form
    feeds, so that two parallel files would no longer match if one of them contains such a character.
    """
    with open_text(file) as stream:
        rest: list[bytes] = []
        size = 0
        while chunk := stream.read(BLOCK):
            if size > LONGEST:
                _, end, chunk = chunk.partition(b"\n")
                if not end:
                    continue
                yield TOO_LONG
                size = 0
            cut = chunk.rfind(b"\n")
            if cut >= 0:
                yield from decode_lines(b"".join((*rest, chunk[:cut])))
                rest, size, chunk = [], 0, chunk[cut + 1 :]
            size += len(chunk)
            rest = [*rest, chunk] if chunk and size <= LONGEST else []
        if size:
            yield from [TOO_LONG] if size > LONGEST else decode_lines(b"".join(rest))


def decode_lines(block: bytes) -> Iterable[Line]:
    """The lines of some bytes, which end between two lines."""
    try:
        text = block.decode("utf-8")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        return [_decode_line(line.removesuffix(b"\r")) for line in block.split(b"\n")]
    lines = text.split("\n")
    return [line.removesuffix("\r") for line in lines] if "\r" in text else lines


def _decode_line(line: bytes) -> Line:
    if b"\0" in line:
        return Problem("holds a zero byte", f"byte {line.index(0) + 1}")
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        return Problem("is not UTF-8", f"byte {error.start + 1} is 0x{line[error.start]:02x}")


def read_parallel(_: kinds.Parallel, source: str, target: str) -> Found[Pair]:
    return _side_by_side([source, target], Pair)


def _side_by_side(files: Sequence[str], make: Callable[..., E | Problem]) -> Found[E]:
    """Yields an example from line n of each file."""
    readers = [read_lines(file) for file in files]
    together: Iterator[tuple[Any, ...]] = zip_longest(*readers)
    for number, lines in enumerate(together, 1):
        if all(lines) and not any(map(str.isspace, lines)):
            yield Located(make(*lines), files[0], number)
        elif None in lines:
            counts = [
                f"{file} has {number - 1 if line is None else number + sum(1 for _ in reader):,} lines"
                for file, reader, line in zip(files, readers, lines, strict=True)
            ]
            raise DataError(f"{', '.join(counts)}; line n of each file must belong to line n of the others")
        else:
            file, line = next(each for each in zip(files, lines, strict=True) if not each[1] or each[1].isspace())
            yield Located(line if isinstance(line, Problem) else Problem("is empty"), file, number)


def read_text(settings: kinds.RawText, file: str) -> Found[Text]:
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


def read_labelled(settings: kinds.LabelledTsv | kinds.LabelledCsv | kinds.LabelledJsonl, file: str) -> Found[Labelled]:
    labelled, paired = settings.labels != "absent", settings.second is not None

    def make(text: str, *more: Any) -> Labelled | Problem:
        label = _label(more[-1], settings.labels) if labelled else None
        if text.lower() in HEADER_TEXTS and str(label).lower() in HEADER_LABELS:
            return Problem("looks like a header; set data.header = true")
        return label if isinstance(label, Problem) else Labelled(text, more[0] if paired else None, label)

    return read_records(settings, file, ["text", *["second"] * paired, *["label"] * labelled], make)


def _label(value: Any, labels: Literal["classes", "numbers", "absent"]) -> str | float | Problem:
    if labels == "classes":
        if isinstance(value, list | dict | float):
            return Problem("has a label that is not the name of a class", repr(value))
        return str(value).lower() if isinstance(value, bool) else str(value).strip()  # as JSON writes true
    try:
        label = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        label = math.nan
    if not math.isfinite(label):
        return Problem("has a label that is not a number", repr(value))
    return label if abs(label) <= LARGEST_LABEL else Problem(f"has a label beyond {LARGEST_LABEL:g}", repr(value))


def read_columns(settings: kinds.Columns, file: str) -> Found[Tagged]:
    """Yields the sentences of a CoNLL file. A bad line makes its whole sentence unusable; it is reported once."""
    split = "\t" if settings.separator == "tab" else None
    tag_index = -1 if settings.tag is None else settings.tag - 1
    words: list[str] = []
    tags: list[str] = []
    problem: Problem | None = None
    width = start = 0
    for number, line in enumerate(chain(read_lines(file), [""]), 1):  # an empty line ends the last sentence
        if isinstance(line, str) and not line.strip():
            if words and problem is None:
                yield Located(_sentence(words, tags, settings.scheme), file, start)
            words, tags, problem = [], [], None
            continue
        fields = line.split(split) if isinstance(line, str) else []
        if fields and fields[0] == settings.document_mark:
            continue
        start = start if words or problem else number
        if fields and not width:
            width = len(fields)
            for name, column in (("word", settings.word), ("tag", settings.tag or 2)):
                if column > width:
                    raise DataError(
                        f"{file}, line {number} has {width} columns, but data.{name} is column {column}; "
                        f"change data.{name} or data.separator"
                    )
        if fields and len(fields) == width:
            words.append(fields[settings.word - 1])
            tags.append(fields[tag_index])
        elif problem is None:
            problem = line if isinstance(line, Problem) else _wrong_width(len(fields), width)
            yield Located(problem, file, number)


def _sentence(words: Sequence[str], tags: Sequence[str], scheme: str, label: str | None = None) -> Tagged:
    return Tagged(tuple(words), tuple(begin_entities(tags) if scheme == "iob1" else tags), label)


def begin_entities(tags: Sequence[str]) -> list[str]:
    """Converts IOB1 to IOB2: the first tag of each entity becomes `B-`."""
    return [
        f"B-{tag[2:]}" if tag.startswith("I-") and (before == "O" or before[2:] != tag[2:]) else tag
        for before, tag in zip(["O", *tags], tags, strict=False)
    ]


def read_slots(settings: kinds.Slots, folder: str) -> Found[Tagged]:
    def make(sentence: str, slots: str, label: str) -> Tagged | Problem:
        words, tags = sentence.split(), slots.split()
        if len(words) != len(tags):
            return Problem("has different numbers of words and tags", f"{len(words)} words, {len(tags)} tags")
        return _sentence(words, tags, settings.scheme, label.strip())

    return _side_by_side([str(Path(folder) / name) for name in ("seq.in", "seq.out", "label")], make)


def read_squad(_: kinds.Squad, file: str) -> Found[Question]:
    """Yields the questions of a file in the JSON of SQuAD. The file is read as a whole."""
    with open_text(file) as stream:
        try:
            found = parse_json(stream.read())
        except ValueError as error:
            raise DataError(f"{file} is not JSON ({error}); give a file in SQuAD's format") from None
    try:
        asked = [
            (paragraph.get("context"), dict(question))
            for article in found["data"]
            for paragraph in article["paragraphs"]
            for question in paragraph["qas"]
        ]
    except (KeyError, TypeError, AttributeError, ValueError):
        raise DataError(
            f"{file} is not in SQuAD's format: it needs data, a list of articles with paragraphs, each "
            "with a context and qas"
        ) from None
    for number, (context, question) in enumerate(asked, 1):
        yield Located(_question(context, question, str(question.get("id", number))), file, number, "question")


def _question(context: Any, asked: dict[str, Any], name: str) -> Question | Problem:
    question = asked.get("question")
    for part, value in (("context", context), ("question", question)):
        if not isinstance(value, str) or not value.strip():
            return Problem(f"has no {part}", name)
        if not _encodes(value):
            return Problem("contains a lone surrogate", f"{name}: {part}")
    answers: list[Answer] = []
    listed = asked.get("answers", ())
    for found in listed if isinstance(listed, list) else (listed,):
        text, start = (found.get("text"), found.get("answer_start")) if isinstance(found, dict) else (None, None)
        if not (isinstance(text, str) and text.strip() and isinstance(start, int) and start >= 0):
            return Problem("has an answer without text and answer_start", name)
        if not context.startswith(text, start):
            return Problem("has an answer that is not in its context", f"{name}: {text}")
        answers.append(Answer(text, start))
    # Annotators agree more often than not; one copy of each answer is enough.
    return Question(name, str(question), context, tuple(dict.fromkeys(answers)))


def read_choices(settings: kinds.Choices, file: str) -> Found[Choice]:
    expected = 0

    def make(text: str, options: Any, label: Any) -> Choice | Problem:
        nonlocal expected
        if not isinstance(options, list) or not all(isinstance(each, str) and each.strip() for each in options):
            return Problem("has options that are not a list of texts")
        if not all(map(_encodes, options)):
            return Problem("contains a lone surrogate", "options")
        expected = expected or len(options)
        if len(options) != expected or expected < 2:
            return Problem(f"does not have {max(expected, 2)} options, as the first line has", f"it has {len(options)}")
        if isinstance(label, bool) or not isinstance(label, int) or not 0 <= label < expected:
            return Problem(f"has a label that is not an index from 0 to {expected - 1}", repr(label))
        return Choice(text, tuple(options), label)

    return read_records(settings, file, ["text", "options", "label"], make)


def read_chats(settings: kinds.Chats, file: str) -> Found[Chat]:
    def make(messages: Any) -> Chat | Problem:
        if not isinstance(messages, list) or not all(isinstance(each, dict) for each in messages):
            return Problem("has messages that are not a list of objects")
        found = tuple((each.get("role"), each.get("content")) for each in messages)
        for role, content in found:
            if role not in ROLES:
                return Problem(f"has a message whose role is not {', '.join(ROLES[:-1])} or {ROLES[-1]}", repr(role))
            if not isinstance(content, str) or not _encodes(content):
                return Problem("has a message whose content is not a text")
        if not any(role == "assistant" and content.strip() for role, content in found):
            return Problem("has no answer of the assistant")
        return Chat(found)

    return read_records(settings, file, ["messages"], make)


def read_records(settings: Settings, file: str, names: Sequence[str], make: Callable[..., E | Problem]) -> Found[E]:
    """Yields an example from the columns of each row, or the keys of each JSON object, that these settings name."""
    columns = [getattr(settings, name) for name in names]
    rows = _rows(settings, file, names, columns) if isinstance(settings, kinds.TableFile) else None
    for number, found in rows or _objects(file, names, columns):
        yield Located(found if isinstance(found, Problem) else make(*found), file, number)


def _objects(file: str, names: Sequence[str], keys: Sequence[str]) -> Records:
    """Yields the values of keys, whose dots lead into nested objects, on each line. Skips empty lines."""
    for number, line in enumerate(read_lines(file), 1):
        if isinstance(line, Problem):
            yield number, line
        elif line and not line.isspace():
            try:
                found = parse_json(line)
            except ValueError as error:
                yield number, Problem("is not JSON", str(error))
                continue
            if isinstance(found, dict):
                values = [_value_at(found, name, key) for name, key in zip(names, keys, strict=True)]
                yield number, next((value for value in values if isinstance(value, Problem)), values)
            else:
                yield number, Problem("is not a JSON object", type(found).__name__)


def _value_at(found: dict[str, Any], name: str, key: str) -> Any:
    """The value of a key; a `Problem` if it is missing, or is not a text. Labels and options may have any type."""
    value: Any = found
    for part in [key] if key in found else key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if value is None:
        return Problem(f"has no key {key}")
    if isinstance(value, str):
        if not value or value.isspace():
            return Problem(f"has an empty {name}")
        return value if _encodes(value) else Problem("contains a lone surrogate", name)
    if name in ("label", "options", "messages"):
        return value
    return Problem(f"has no text at {key}", f"but {type(value).__name__}")


def _rows(settings: kinds.TableFile, file: str, names: Sequence[str], columns: Sequence[int | str]) -> Records:
    """Yields the columns of each row; every row must have as many columns as the first."""
    width = 0
    numbered = _csv(file, settings.separator) if isinstance(settings, kinds.CsvFile) else enumerate(read_lines(file), 1)
    for number, row in numbered:
        if isinstance(row, Problem):
            yield number, row
            continue
        fields = row.split("\t") if isinstance(row, str) else row
        if not width:
            width = len(fields)
            indices = [_index(file, column, fields, settings.header) for column in columns]
            # A slice, so that one column is a sequence too. A list comprehension would take four times as long.
            take = itemgetter(*indices) if len(indices) > 1 else itemgetter(slice(indices[0], indices[0] + 1))
            if settings.header:
                continue
        if len(fields) != width:
            yield number, _wrong_width(len(fields), width)
            continue
        values = take(fields)
        for value in values:
            if not value or value.isspace():
                yield number, Problem(f"has an empty {names[values.index(value)]}")
                break
        else:
            yield number, values


def _index(file: str, column: int | str, first: list[str], header: bool) -> int:
    if isinstance(column, int):
        if column > len(first):
            line = "header" if header else "first line"
            raise DataError(f"{file} has no column {column}; its {line} has {len(first)}")
        return column - 1
    if column not in first:
        near = did_you_mean(column, first)
        raise DataError(f"{file} has no column {column}{near}; its header has {', '.join(first)}")
    return first.index(column)


def _wrong_width(width: int, expected: int) -> Problem:
    return Problem(f"does not have {expected} columns, as the first line has", f"it has {width}")


def _csv(file: str, separator: str) -> Iterator[tuple[int, list[str] | Problem]]:
    """Yields rows of CSV: a quoted field may hold separators, quotes (doubled) and line ends. Skips empty rows."""
    with open_text(file) as stream:
        # A quoted field may go over lines, so a row is checked as a whole: invalid bytes are carried along.
        lines = (line.decode("utf-8", "surrogateescape") for line in iter(lambda: stream.readline(LONGEST), b""))
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
