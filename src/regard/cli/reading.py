"""Lines that come in: of a file as fast as they can be read, of a pipe or a keyboard as they come.

A pipe is read by a thread of its own, so that what is there can be translated while nothing more comes. It reads a
duplicate of standard input: whoever ends while the thread still waits closes nothing that it holds.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from threading import Condition, Thread

from regard.errors import DataError

WAIT = 0.1
"""Seconds without a further line after which those that are there are taken."""
CHARACTERS = 200_000
"""Characters that are read ahead at most, but for the last line."""
FIRST = 64
"""Lines of the first chunk; each has up to twice as many as the one before."""


def lines_of(file: str, stream: io.BufferedReader | None = None) -> Iterator[str]:
    r"""Lines of a file or of standard input (-), as they come, without their ends: \n or \r\n and nothing else.

    `stream` is what to read in place of standard input itself.
    """
    from regard.data.examples import shown_name
    from regard.data.files import open_text

    if _is_empty(file, stream):
        return
    with open_text(file, stream) as opened:
        for number, line in enumerate(opened, 1):
            try:
                yield line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
            except UnicodeDecodeError as error:
                byte = f"byte {error.start + 1} of it is 0x{line[error.start]:02x}"
                raise DataError(
                    f"{shown_name(file)}: line {number:,} is not UTF-8 ({byte}); convert it: iconv -f LATIN1 -t UTF-8"
                ) from None


def _is_empty(file: str, stream: io.BufferedReader | None) -> bool:
    """Whether there is nothing at all, which as a text is no mistake."""
    if file != "-":
        return Path(file).is_file() and Path(file).stat().st_size == 0
    buffer = stream or sys.stdin.buffer
    return isinstance(buffer, io.BufferedReader) and not buffer.peek(1)


def require(file: str) -> None:
    """Refuses what is not there to be read."""
    if file == "-" and sys.stdin is None:
        raise DataError("standard input is closed; give texts, or a file of them: --input FILE")
    if file != "-" and not Path(file).exists():
        raise DataError(f"{file} does not exist; check the name after --input")


def own_input() -> io.BufferedReader | None:
    """Standard input once more, for a thread; None where it is no file of the system's."""
    try:
        return os.fdopen(os.dup(sys.stdin.fileno()), "rb")
    except (OSError, ValueError, AttributeError):  # closed, or put there by a program
        return None


class Coming(Iterator[list[str]]):
    """Chunks of lines that a thread reads: `ahead` of them, or as many as there are when no more come for a while.

    An error of the reading is raised when the lines before it were taken.
    """

    def __init__(self, lines: Iterable[str], ahead: int, wait: float = WAIT) -> None:
        self._ahead, self._wait = ahead, wait
        self._room = min(FIRST, ahead)  # the first chunks are small, so that something is seen soon
        self._lines: list[str] = []
        self._size = 0
        self._ended = False
        self._error: BaseException | None = None
        self._changed = Condition()
        # A daemon, since nothing can call it back from waiting for a line.
        Thread(target=self._read, args=(lines,), daemon=True, name="reading lines").start()

    def __next__(self) -> list[str]:
        with self._changed:
            while not self._lines and not self._ended:
                self._changed.wait(1)  # in turns, so that Ctrl-C is heard on every system
            before = 0
            while before < len(self._lines) and not self._ended and not self._full:
                before = len(self._lines)
                self._changed.wait(self._wait)
            taken, self._lines, self._size = self._lines, [], 0
            self._room = min(2 * self._room, self._ahead)
            self._changed.notify_all()
        if taken:
            return taken
        if self._error is not None:
            raise self._error
        raise StopIteration

    @property
    def _full(self) -> bool:
        return len(self._lines) >= self._room or self._size >= CHARACTERS

    def _read(self, lines: Iterable[str]) -> None:
        try:
            for line in lines:
                with self._changed:
                    while self._full:
                        self._changed.wait()
                    self._lines.append(line)
                    self._size += len(line)
                    self._changed.notify_all()
        except BaseException as error:  # for whoever takes the lines
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()
