"""The cache folder: prepared data and tokenizers, found again by a fingerprint of everything that decides them.

It is `$REGARD_CACHE`, or the system's folder for caches, and can be removed at any time. An entry is made under a
hidden name next to its final one, flushed and renamed. So an entry is always complete, and two processes can make the
same one.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import platformdirs

from regard.data.settings import SPLITS, STANDARD_INPUT, DataSettings, EmbeddedSettings
from regard.errors import DataError
from regard.files import flush_directory

VARIABLE = "REGARD_CACHE"
VERSION = 2
"""Raise it when the same files and settings give other entries."""
BLOCK = 1 << 20
STALE_S = 2 * 24 * 3600.0
"""Age after which an unfinished entry is taken for the leftover of a dead process."""

T = TypeVar("T")


def cache_folder() -> Path:
    found = os.environ.get(VARIABLE)
    return Path(found).expanduser() if found else platformdirs.user_cache_path("regard", appauthor=False)


def fingerprint(files: Iterable[Path], settings: Mapping[str, Any]) -> str:
    """The name of an entry that is made from these files and folders with these settings."""
    content = json.dumps([VERSION, settings, [_checksum(path) for path in files]], sort_keys=True)
    return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


def cached(
    folder: str,
    name: str,
    make: Callable[[Path], None],
    read: Callable[[Path], T],
    warn: Callable[[str], None] = lambda text: None,
) -> T:
    """Reads an entry of the cache. If it is missing or damaged, `make` writes it into an empty directory first."""
    place = cache_folder() / folder / name
    if place.exists():
        try:
            return read(place)
        except DataError as error:
            warn(f"{str(error).partition(';')[0]}; it was made again")
            shutil.rmtree(place, ignore_errors=True)
    partial = place.with_name(f".{name}.{secrets.token_hex(4)}")
    with _writing():
        place.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(place.parent)
        try:
            partial.mkdir()
            make(partial)
            partial.rename(place)
            flush_directory(place.parent)
        except OSError:
            if not place.is_dir():  # otherwise another process was faster, and its entry is the same
                raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return read(place)


@contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(
            f"the cache ({cache_folder()}) cannot be written: {error.strerror or error}; free some space, or set "
            f"{VARIABLE} to a folder that can be written"
        ) from error


def keep_standard_input(settings: DataSettings) -> DataSettings:
    """Copies standard input to the cache and replaces `-` by the copy, because data is read more than once."""
    if isinstance(settings, EmbeddedSettings):
        return settings
    changes: dict[str, Any] = {}
    for split in SPLITS:
        files = settings.files(split)
        if STANDARD_INPUT in files:
            kept = str(_kept_input())
            changes[split] = [kept if file == STANDARD_INPUT else file for file in files]
    return settings.changed(changes) if changes else settings


def _kept_input() -> Path:
    """The copy of standard input, named by its content; copied in blocks, since it can be larger than the memory."""
    folder = cache_folder() / "input"
    partial = folder / f".input.{secrets.token_hex(4)}"
    digest = hashlib.blake2b(digest_size=16)
    with _writing():
        folder.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(folder)
        try:
            with partial.open("wb") as file:
                while block := sys.stdin.buffer.read(BLOCK):
                    digest.update(block)
                    file.write(block)
                if not file.tell():
                    raise DataError("standard input is empty, or was read before; give it data")
                file.flush()
                os.fsync(file.fileno())
            return partial.replace(folder / digest.hexdigest()).absolute()
        finally:
            partial.unlink(missing_ok=True)


def _checksum(path: Path) -> str:
    """Of a file its bytes; of a folder the names and bytes of all files in it."""
    digest = hashlib.blake2b(digest_size=16)
    if path.is_dir():
        for file in sorted(file for file in path.rglob("*") if file.is_file() and "__pycache__" not in file.parts):
            digest.update(f"{file.relative_to(path).as_posix()}\0{_checksum(file)}\0".encode())
        return digest.hexdigest()
    try:
        with path.open("rb") as opened:
            return hashlib.file_digest(opened, lambda: digest).hexdigest()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}; check the path and its permissions") from None


def _remove_leftovers(folder: Path) -> None:
    for path in folder.glob(".*"):
        with suppress(OSError):  # its owner can rename or remove it at any moment
            if path.stat().st_mtime < time.time() - STALE_S:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
