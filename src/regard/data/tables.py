"""Rows and objects: the columns of TSV and CSV files, the keys of JSONL files."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any, TypeAlias

from regard.data.files import open_text, shown_name
from regard.data.lines import BadLine, read_numbered
from regard.data.problems import Problems
from regard.errors import DataError
from regard.settings import did_you_mean

Row: TypeAlias = tuple[str, ...]


def read_rows(file: str, columns: Sequence[int | str], header: bool, problems: Problems) -> Iterator[tuple[int, Row]]:
    """The wanted columns of each line of a TSV file; every line must have as many columns as the first."""
    take, width = None, 0
    for number, line in read_numbered(file):
        if isinstance(line, BadLine):
            problems.add(file, f"line {number}", line.reason, line.detail)
            continue
        if take is None:
            first = line.split("\t")
            take, width = _taker(file, columns, first, header), len(first)
            if header:
                continue
        fields = line.split("\t")
        if len(fields) == width:
            yield number, take(fields)
        else:
            _refuse_width(problems, file, number, len(fields), width)


def read_csv_rows(
    file: str, columns: Sequence[int | str], header: bool, separator: str, problems: Problems
) -> Iterator[tuple[int, Row]]:
    """As `read_rows`, for CSV: a quoted field may hold separators, quotes (doubled) and line ends."""
    take, width = None, 0
    with open_text(file) as stream:
        # A quoted field may go over lines, so a row is judged as a whole: bytes that are no UTF-8 are carried along.
        lines = (line.decode("utf-8", "surrogateescape") for line in stream)
        rows = csv.reader(lines, delimiter=separator, strict=True)
        while True:
            number = rows.line_num + 1
            try:
                fields = next(rows)
            except StopIteration:
                return
            except csv.Error as error:
                problems.add(file, f"line {number}", "is not CSV", str(error))
                continue
            if any(not field.isascii() and not _encodes(field) for field in fields):
                problems.add(file, f"line {number}", "is not UTF-8")
                continue
            if take is None:
                take, width = _taker(file, columns, fields, header), len(fields)
                if header:
                    continue
            if len(fields) == width:
                yield number, take(fields)
            elif fields:
                _refuse_width(problems, file, number, len(fields), width)


def read_objects(file: str, problems: Problems) -> Iterator[tuple[int, dict[str, Any]]]:
    """The JSON object on each line; empty lines are passed over."""
    for number, line in read_numbered(file):
        if isinstance(line, BadLine):
            problems.add(file, f"line {number}", line.reason, line.detail)
        elif line and not line.isspace():
            try:
                found = json.loads(line)
            except (json.JSONDecodeError, RecursionError) as error:
                problems.add(file, f"line {number}", "is not JSON", str(error))
                continue
            if isinstance(found, dict):
                yield number, found
            else:
                problems.add(file, f"line {number}", "is no JSON object", type(found).__name__)


def value_at(found: dict[str, Any], key: str, file: str, number: int, problems: Problems) -> Any:
    """The value under a key, whose dots lead into objects inside; None, and a problem, where there is none."""
    value: Any = found
    for part in [key] if key in found else key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if value is None:
        problems.add(file, f"line {number}", f"has no key {key}", f"but {', '.join(found)}" if found else "")
    return value


def text_at(found: dict[str, Any], key: str, file: str, number: int, problems: Problems) -> str | None:
    """The text under a key; None, and a problem, where there is none, or no text, or an empty one."""
    value = value_at(found, key, file, number, problems)
    if isinstance(value, str):
        if value and not value.isspace() and _encodes(value):
            return value
        problems.add(file, f"line {number}", f"has an empty {key}" if _encodes(value) else "holds half a character")
    elif value is not None:
        problems.add(file, f"line {number}", f"has no text at {key}", f"but {type(value).__name__}")
    return None


def _encodes(text: str) -> bool:
    r"""Whether a text is whole: JSON may hold half of a pair of surrogates (`"\ud83d"`), which no file can."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _refuse_width(problems: Problems, file: str, number: int, width: int, wanted: int) -> None:
    problems.add(file, f"line {number}", f"has not {wanted} columns as the first line has", f"it has {width}")


def _taker(file: str, columns: Sequence[int | str], first: list[str], header: bool) -> Any:
    """A function that takes the wanted columns out of a line's fields, as a tuple."""
    indices = [_index(file, column, first, header) for column in columns]
    if len(indices) == 1:
        return lambda fields: (fields[indices[0]],)
    return itemgetter(*indices)


def _index(file: str, column: int | str, first: list[str], header: bool) -> int:
    if isinstance(column, str):
        if column not in first:
            raise DataError(
                f"{shown_name(file)} has no column {column}{did_you_mean(column, first)}; its header names "
                f"{', '.join(first)}"
            )
        return first.index(column)
    if column > len(first):
        told = "its header" if header else "its first line"
        raise DataError(f"{shown_name(file)} has no column {column}: {told} has {len(first)}, parted by the separator")
    return column - 1
