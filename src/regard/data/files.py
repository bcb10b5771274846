"""Opens data files, plain or compressed (gzip, xz, bzip2, recognized by their first bytes), and reads their lines."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import BinaryIO, TypeAlias, cast

from regard.data.examples import Problem, shown_name
from regard.data.settings import STANDARD_INPUT
from regard.errors import DataError

HEAD = 8192
"""Bytes inspected to tell text from a binary file, as git does."""
BLOCK = 1 << 20
"""Bytes decoded at once: whole blocks are about five times faster than single lines."""
COMPRESSED = ((b"\x1f\x8b", gzip.open), (b"\xfd7zXZ\x00", lzma.open), (b"BZh", bz2.open))

Line: TypeAlias = str | Problem


def require_there(files: Iterable[str]) -> None:
    """Raises an error for a missing file, before hours of work on the files before it."""
    for file in files:
        if file != STANDARD_INPUT and not Path(file).exists():
            raise _missing(file)


@contextmanager
def open_bytes(file: str, stream: io.BufferedReader | None = None) -> Iterator[BinaryIO]:
    """Opens a file and decompresses it. An empty, missing or damaged file raises a `DataError` with its name.

    `stream` is read in its place if it is open already.
    """
    try:
        with _opened(file) if stream is None else nullcontext(stream) as raw:
            start = raw.peek(6)[:6]  # standard input cannot be rewound
            if not start:
                again = " or was already read" if file == STANDARD_INPUT else ""
                raise DataError(f"{shown_name(file)} is empty{again}; give a file with data")
            opener = next((opener for magic, opener in COMPRESSED if start.startswith(magic)), None)
            if opener is None:
                yield raw
            else:
                with opener(raw) as decompressed:
                    yield cast(BinaryIO, decompressed)
    except FileNotFoundError:
        raise _missing(file) from None
    except (EOFError, lzma.LZMAError, zlib.error, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise DataError(f"{shown_name(file)} cannot be read: {error.strerror}") from None
        # An OSError without a number is how gzip and bzip2 report damage.
        message = f"{shown_name(file)} is compressed, but damaged or incomplete ({error}); download it again"
        raise DataError(message) from None


def _missing(file: str) -> DataError:
    return DataError(f"{shown_name(file)} does not exist; check the name (in a recipe it is relative to data.root)")


@contextmanager
def open_text(file: str, stream: io.BufferedReader | None = None) -> Iterator[BinaryIO]:
    """Like `open_bytes`, for UTF-8 text: refuses a binary file and skips a byte order mark."""
    with open_bytes(file, stream) as found:
        buffered = found if isinstance(found, io.BufferedReader) else io.BufferedReader(cast(io.RawIOBase, found))
        start = buffered.peek(HEAD)[:HEAD]
        if not start:
            raise DataError(f"{shown_name(file)} is empty after decompression; give a file with data")
        if start.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise DataError(f"{shown_name(file)} is UTF-16 text; convert it: iconv -f UTF-16 -t UTF-8")
        if b"\0" in start:
            position = start.index(b"\0")
            raise DataError(f"{shown_name(file)} is a binary file (byte {position:,} is zero); give UTF-8 text")
        if start.startswith(b"\xef\xbb\xbf"):
            buffered.read(3)
        yield buffered


@contextmanager
def _opened(file: str) -> Iterator[io.BufferedReader]:
    """Opens a file; standard input stays open afterwards."""
    if file == STANDARD_INPUT:
        buffer = sys.stdin.buffer
        reader = buffer if isinstance(buffer, io.BufferedReader) else io.BufferedReader(cast(io.RawIOBase, buffer))
        yield reader
        if reader is not buffer:
            reader.detach()
        return
    with Path(file).open("rb") as opened:
        yield opened


def read_lines(file: str) -> Iterator[Line]:
    r"""Yields the lines of a file without their ends; a line that is not UTF-8 text comes as a `Problem`.

    Lines end with \n or \r\n only, as `wc -l` counts them. `str.splitlines` also splits at U+2028, U+0085 and form
    feeds, so that two parallel files would no longer match if one of them contains such a character.
    """
    with open_text(file) as stream:
        rest: list[bytes] = []
        while chunk := stream.read(BLOCK):
            cut = chunk.rfind(b"\n")
            if cut < 0:
                rest.append(chunk)
                continue
            yield from _decoded(b"".join((*rest, chunk[:cut])))
            rest = [chunk[cut + 1 :]] if cut + 1 < len(chunk) else []
        if rest:
            yield from _decoded(b"".join(rest))


def _decoded(block: bytes) -> Iterable[Line]:
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
