"""Parallel text: two files line by line, two columns of a TSV file, two keys of a JSONL file."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

from regard.data.examples import Pair, Placed
from regard.data.files import shown_name
from regard.data.lines import BadLine, Line, count_rest, read_lines
from regard.data.problems import Problems
from regard.data.settings import ParallelJsonl, ParallelTsv
from regard.data.tables import read_objects, read_rows, text_at
from regard.errors import DataError


def read_parallel(source: str, target: str, problems: Problems) -> Iterator[Placed[Pair]]:
    """Pairs from two files of as many lines; another number of lines is an error at the end, which names both."""
    sources, targets = read_lines(source), read_lines(target)
    number = 0
    for number, (one, other) in enumerate(zip_longest(sources, targets), 1):
        if one and other and not one.isspace() and not other.isspace():
            yield Placed(Pair(one, other), source, number)
        elif one is None:
            raise _unequal(source, number - 1, target, number + count_rest(targets))
        elif other is None:
            raise _unequal(source, number + count_rest(sources), target, number - 1)
        else:
            _refuse(problems, number, (source, one), (target, other))


def _unequal(source: str, sources: int, target: str, targets: int) -> DataError:
    return DataError(
        f"{shown_name(source)} has {sources:,} lines, but {shown_name(target)} has {targets:,}; "
        "parallel files need the same number, so that line n translates line n"
    )


def _refuse(problems: Problems, number: int, *sides: tuple[str, Line]) -> None:
    """Says of the first side that cannot be used why."""
    for file, line in sides:
        if isinstance(line, BadLine):
            return problems.add(file, f"line {number}", line.reason, line.detail)
        if not line.strip():
            return problems.add(file, f"line {number}", "is empty")
    return None


def read_parallel_tsv(file: str, settings: ParallelTsv, problems: Problems) -> Iterator[Placed[Pair]]:
    columns = (settings.source, settings.target)
    for number, (source, target) in read_rows(file, columns, settings.header, problems):
        if source and target and not source.isspace() and not target.isspace():
            yield Placed(Pair(source, target), file, number)
        else:
            problems.add(file, f"line {number}", "has an empty side", "target" if source.strip() else "source")


def read_parallel_jsonl(file: str, settings: ParallelJsonl, problems: Problems) -> Iterator[Placed[Pair]]:
    for number, found in read_objects(file, problems):
        source = text_at(found, settings.source, file, number, problems)
        target = source and text_at(found, settings.target, file, number, problems)
        if source and target:
            yield Placed(Pair(source, target), file, number)
