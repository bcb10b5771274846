"""Opening files as they are: plain, gzip, xz or bzip2, told apart by their first bytes and not by their names."""

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
from typing import BinaryIO, cast

from regard.data.base_settings import STANDARD_INPUT
from regard.errors import DataError

HEAD = 8192
"""Bytes looked at to tell text from a binary file, as git does."""


def full_name(root: str, file: str) -> str:
    """A file's name with its root before it; standard input stays what it is."""
    return file if file == STANDARD_INPUT else str(Path(root) / file)


def shown_name(file: str) -> str:
    """A file as messages call it."""
    return "standard input" if file == STANDARD_INPUT else file


@contextmanager
def open_bytes(file: str, stream: io.BufferedReader | None = None) -> Iterator[BinaryIO]:
    """The bytes of a file, decompressed; an empty, missing or damaged one is a `DataError` that names it.

    `stream` is read in its place where it is open already.
    """
    try:
        with _opened(file) if stream is None else nullcontext(stream) as raw:
            # `peek` is all that standard input allows: it cannot be rewound.
            start = raw.peek(6)[:6]
            if not start:
                again = ", or was read before" if file == STANDARD_INPUT else ""
                raise DataError(f"{shown_name(file)} is empty{again}; give a file with data")
            with _decompressed(raw, start) as decompressed:
                yield decompressed
    except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
        raise _damaged(file, error) from None
    except FileNotFoundError:
        raise _missing(file) from None
    except OSError as error:
        if error.errno is None:  # bzip2's way to say that its data are damaged
            raise _damaged(file, error) from None
        raise DataError(f"{shown_name(file)} cannot be read: {error.strerror}; give a file that can") from None


def require_there(files: Iterable[str]) -> None:
    """Refuses a file that is missing, before hours of work on those before it."""
    for file in files:
        if file != STANDARD_INPUT and not Path(file).exists():
            raise _missing(file)


def _missing(file: str) -> DataError:
    return DataError(f"{shown_name(file)} does not exist; check the name (in a recipe data.root stands before it)")


def _damaged(file: str, error: Exception) -> DataError:
    return DataError(f"{shown_name(file)} is compressed, but damaged or cut short ({error}); fetch it again")


@contextmanager
def open_text(file: str, stream: io.BufferedReader | None = None) -> Iterator[BinaryIO]:
    """As `open_bytes`, for text: a binary file is refused, and a byte order mark is passed over."""
    with open_bytes(file, stream) as found:
        buffered = found if isinstance(found, io.BufferedReader) else io.BufferedReader(cast(io.RawIOBase, found))
        start = buffered.peek(HEAD)[:HEAD]
        if not start:
            raise DataError(f"{shown_name(file)} is empty once decompressed; give a file with data")
        if start.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise DataError(f"{shown_name(file)} is UTF-16 text; save it as UTF-8: iconv -f UTF-16 -t UTF-8")
        if b"\0" in start:
            place = start.index(b"\0")
            raise DataError(f"{shown_name(file)} is a binary file (byte {place:,} is zero), not text; give UTF-8 text")
        if start.startswith(b"\xef\xbb\xbf"):
            buffered.read(3)
        yield buffered


@contextmanager
def _opened(file: str) -> Iterator[io.BufferedReader]:
    """The file itself; standard input is left open, since it is not ours to close."""
    if file == STANDARD_INPUT:
        buffer = sys.stdin.buffer
        reader = buffer if isinstance(buffer, io.BufferedReader) else io.BufferedReader(cast(io.RawIOBase, buffer))
        yield reader
        if reader is not buffer:
            reader.detach()
        return
    with Path(file).open("rb") as opened:
        yield opened


@contextmanager
def _decompressed(raw: io.BufferedReader, start: bytes) -> Iterator[BinaryIO]:
    if start.startswith(b"\x1f\x8b"):
        with gzip.open(raw) as stream:
            yield cast(BinaryIO, stream)
    elif start.startswith(b"\xfd7zXZ\x00"):
        with lzma.open(raw) as stream:
            yield cast(BinaryIO, stream)
    elif start.startswith(b"BZh"):
        with bz2.open(raw) as stream:
            yield cast(BinaryIO, stream)
    else:
        yield raw
