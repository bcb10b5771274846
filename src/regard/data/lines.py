r"""Lines of text: strict UTF-8, ended by \n or \r\n and by nothing else.

`str.splitlines` also cuts at U+2028, U+0085, form feeds and others, so that two parallel files drift apart where only
one has such a character; the lines here are those that `wc -l` counts. A line that is no UTF-8 does not end the file:
it comes as a `BadLine` that says why.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import BinaryIO, Literal, TypeAlias

from regard.data.files import open_text

BLOCK = 1 << 20
"""Bytes decoded at once: whole blocks are some five times faster than single lines."""


@dataclass(frozen=True)
class BadLine:
    """A line that cannot be decoded. It is false, as an empty line is, so that one test finds both."""

    reason: str
    detail: str

    def __bool__(self) -> Literal[False]:
        return False


Line: TypeAlias = str | BadLine


def read_lines(file: str) -> Iterator[Line]:
    """The lines of a file, without their ends."""
    with open_text(file) as stream:
        for block in _blocks(stream):
            yield from _decoded(block)


def read_numbered(file: str) -> Iterator[tuple[int, Line]]:
    """The lines of a file with their numbers, counted from 1."""
    return enumerate(read_lines(file), 1)


def count_rest(lines: Iterator[Line]) -> int:
    """How many lines are left."""
    count = 0
    while found := sum(1 for _ in islice(lines, BLOCK)):
        count += found
    return count


def _blocks(stream: BinaryIO) -> Iterator[bytes]:
    """Whole lines, about `BLOCK` bytes at a time, without the end of the last."""
    rest: list[bytes] = []
    while chunk := stream.read(BLOCK):
        cut = chunk.rfind(b"\n")
        if cut < 0:
            rest.append(chunk)
            continue
        yield b"".join((*rest, chunk[:cut]))
        rest = [chunk[cut + 1 :]] if cut + 1 < len(chunk) else []
    if rest:
        yield b"".join(rest)


def _decoded(block: bytes) -> list[Line]:
    try:
        text = block.decode("utf-8")
    except UnicodeDecodeError:
        return [_decode_line(line.removesuffix(b"\r")) for line in block.split(b"\n")]
    if "\0" in text:
        return [_decode_line(line.removesuffix(b"\r")) for line in block.split(b"\n")]
    lines: list[Line] = text.split("\n")  # type: ignore[assignment]
    return [line.removesuffix("\r") for line in text.split("\n")] if "\r" in text else lines


def _decode_line(line: bytes) -> Line:
    if b"\0" in line:
        return BadLine("holds a zero byte", f"byte {line.index(0) + 1}")
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        return BadLine("is not UTF-8", f"byte {error.start + 1} is 0x{line[error.start]:02x}")
