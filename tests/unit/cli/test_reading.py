"""Lines of a pipe come as they are there, and never too many of them."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator

import pytest

from regard.cli.reading import CHARACTERS, Coming

SOON = 0.05


class Slow(Iterator[str]):
    """Gives what it is given, when it is given it."""

    def __init__(self) -> None:
        self.given: queue.Queue[str | Exception | None] = queue.Queue()
        self.read = 0

    def __next__(self) -> str:
        line = self.given.get(timeout=30)
        if isinstance(line, Exception):
            raise line
        if line is None:
            raise StopIteration
        self.read += 1
        return line

    def give(self, *lines: str | Exception | None) -> None:
        for line in lines:
            self.given.put(line)


def test_lines_are_taken_when_no_more_come() -> None:
    source = Slow()
    coming = Coming(source, 1000, SOON)
    source.give("a", "b")
    assert next(coming) == ["a", "b"]
    source.give("c", None)
    assert list(coming) == [["c"]]
    assert list(coming) == []


def test_lines_that_are_there_are_taken_together_and_in_order() -> None:
    lines = [str(number) for number in range(5_000)]
    found = list(Coming(iter(lines), 1000))
    assert [line for some in found for line in some] == lines
    assert max(map(len, found)) <= 1000
    assert len(found) < 100


def test_an_error_comes_behind_the_lines_before_it() -> None:
    source = Slow()
    source.give("a", "b", ValueError("no"))
    coming = Coming(source, 1000)
    assert next(coming) == ["a", "b"]
    with pytest.raises(ValueError, match="no"):
        next(coming)


def test_no_more_is_read_than_is_asked_for() -> None:
    source = Slow()
    source.give(*["x" * (CHARACTERS // 2)] * 10, None)
    coming = Coming(source, 1000)
    time.sleep(0.2)
    assert source.read == 3  # two that fill it, and one in the reader's hand
    assert sum(map(len, coming)) == 10
