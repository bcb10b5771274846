"""Tagged words: CoNLL's columns, and the three files of slot filling."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from regard.data.base_settings import STANDARD_INPUT
from regard.data.examples import Placed, Tagged
from regard.data.files import shown_name
from regard.data.lines import BadLine, Line, count_rest, read_lines, read_numbered
from regard.data.problems import Problems
from regard.data.settings import Columns, Slots
from regard.errors import DataError

SLOT_FILES = ("seq.in", "seq.out", "label")


def read_columns(file: str, settings: Columns, problems: Problems) -> Iterator[Placed[Tagged]]:
    """Sentences of a CoNLL file. One bad line spoils its sentence, which is skipped as a whole and counted once."""
    split = "\t" if settings.separator == "tab" else None
    word_index = settings.word - 1
    tag_index = -1 if settings.tag is None else settings.tag - 1
    width = 0
    words: list[str] = []
    tags: list[str] = []
    spoiled = False
    start = 0
    for number, line in _with_end(file):
        if not isinstance(line, BadLine) and not line.strip():
            if words and not spoiled:
                yield Placed(_sentence(words, tags, settings.scheme), file, start)
            words, tags, spoiled = [], [], False
            continue
        fields = [] if isinstance(line, BadLine) else line.split(split)
        if fields and fields[0] == settings.document_mark:
            continue
        if isinstance(line, BadLine):
            problem = line.reason, line.detail
        else:
            width = width or _checked_width(file, number, len(fields), settings)
            problem = (f"has not {width} columns as the first has", f"it has {len(fields)}")
        start = start if words or spoiled else number
        if not isinstance(line, BadLine) and len(fields) == width:
            words.append(fields[word_index])
            tags.append(fields[tag_index])
        elif not spoiled:
            problems.add(file, f"line {number}", *problem)
            spoiled = True


def _with_end(file: str) -> Iterator[tuple[int, Line]]:
    """The lines, and an empty one after the last: a file need not end with one."""
    number = 0
    for number, line in read_numbered(file):
        yield number, line
    yield number + 1, ""


def _checked_width(file: str, number: int, width: int, settings: Columns) -> int:
    for name, column in (("word", settings.word), ("tag", settings.tag or 2)):
        if column > width:
            raise DataError(
                f"{shown_name(file)}, line {number} has {width} columns, but data.{name} is column {column}; "
                "choose another, or another data.separator"
            )
    return width


def _sentence(words: Sequence[str], tags: Sequence[str], scheme: str, label: str | None = None) -> Tagged:
    return Tagged(tuple(words), tuple(begin_entities(tags) if scheme == "iob1" else tags), label)


def begin_entities(tags: Sequence[str]) -> list[str]:
    """IOB1 as IOB2: an entity's first tag becomes `B-`, also where no neighbour of its kind stands before it."""
    result: list[str] = []
    before = "O"
    for tag in tags:
        opens = tag.startswith("I-") and (before == "O" or before[2:] != tag[2:])
        result.append(f"B-{tag[2:]}" if opens else tag)
        before = tag
    return result


def read_slots(folder: str, settings: Slots, problems: Problems) -> Iterator[Placed[Tagged]]:
    """Sentences of a folder with `seq.in`, `seq.out` and `label`, line by line."""
    if folder == STANDARD_INPUT:
        raise DataError("slots are folders of three files and cannot come from standard input; name the folder")
    files = [str(Path(folder) / name) for name in SLOT_FILES]
    readers = [read_lines(file) for file in files]
    for number, lines in enumerate(zip_longest(*readers), 1):
        if None in lines:
            counts = [
                number - 1 if line is None else number + count_rest(reader)
                for line, reader in zip(lines, readers, strict=True)
            ]
            told = ", ".join(f"{name} has {count:,} lines" for count, name in zip(counts, SLOT_FILES, strict=True))
            raise DataError(f"{folder}: {told}; each needs one line for each sentence")
        texts = []
        for file, line in zip(files, lines, strict=True):
            if isinstance(line, BadLine):
                problems.add(file, f"line {number}", line.reason, line.detail)
                break
            texts.append(line)
        else:
            yield from _slots(texts, files, number, settings, problems)


def _slots(
    texts: list[str], files: list[str], number: int, settings: Slots, problems: Problems
) -> Iterator[Placed[Tagged]]:
    """The sentence of three lines, if they fit together."""
    words, tags, label = texts[0].split(), texts[1].split(), texts[2].strip()
    if words and label and len(words) == len(tags):
        yield Placed(_sentence(words, tags, settings.scheme, label), files[0], number)
    elif not words or not label:
        problems.add(files[2] if words else files[0], f"line {number}", "is empty")
    else:
        problems.add(files[0], f"line {number}", "has not as many words as tags", f"{len(words)} and {len(tags)}")
