"""Columns on disk: values of all examples in memory-mapped arrays.

A directory holds two files for each column: the values of all examples, one example after the other, and the offset
where each example begins; and `about.json`, written last. Opening a store reads only `about.json`, so a corpus can be
larger than the memory.

Stores and tokenizers are kept in a cache folder, under a fingerprint of everything that decides them. It is
`$REGARD_CACHE`, or the system's folder for caches, and can be removed at any time. An entry is made under a hidden name
next to its final one, flushed and renamed. So an entry is always complete, and two processes can make the same one.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import platformdirs
from numpy.typing import NDArray

from regard.errors import DataError
from regard.files import flush_directory, parse_json, write_text

ABOUT = "about.json"
CACHE_VERSION = 2
"""Raise it when the same files and settings give other entries of the cache, or entries of another format."""
VARIABLE = "REGARD_CACHE"
REMEDY = "remove it, and it is made again"
STALE_S = 2 * 24 * 3600.0
"""Age after which an unfinished entry of the cache is taken for the leftover of a dead process."""

T = TypeVar("T")

Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]


class Ragged(NamedTuple):
    """Sequences of unequal lengths in one array, so that operations on thousands of them need no loop."""

    values: NDArray[Any]
    lengths: Integers

    @classmethod
    def of(cls, sequences: Sequence[Sequence[int]]) -> Ragged:
        lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
        return cls(np.fromiter(chain.from_iterable(sequences), np.uint32, int(lengths.sum())), lengths)

    @classmethod
    def joined(cls, parts: Iterable[NDArray[Any]]) -> Ragged:
        found = list(parts)
        lengths = np.fromiter(map(len, found), np.int64, len(found))
        return cls(np.concatenate(found) if found else np.empty(0, np.uint32), lengths)

    @property
    def ends(self) -> Integers:
        return np.cumsum(self.lengths)

    def parts(self) -> Iterator[NDArray[Any]]:
        for end, length in zip(self.ends.tolist(), self.lengths.tolist(), strict=True):
            yield self.values[end - length : end]

    def only(self, kept: Mask) -> Ragged:
        starts = (self.ends - self.lengths)[kept]
        return Ragged(self.values[spread(starts, self.lengths[kept])], self.lengths[kept])

    def cut(self, limit: int) -> Ragged:
        if not len(self.lengths) or self.lengths.max() <= limit:
            return self
        lengths = np.minimum(self.lengths, limit)
        return Ragged(self.values[spread(self.ends - self.lengths, lengths)], lengths)

    def split(self, limit: int) -> Ragged:
        """Each sequence in pieces of `limit` values; the last piece has the rest. An empty sequence stays."""
        pieces = np.maximum(1, -(-self.lengths // limit))
        lengths = np.full(int(pieces.sum()), limit, np.int64)
        lengths[np.cumsum(pieces) - 1] = self.lengths - (pieces - 1) * limit
        return Ragged(self.values, lengths)

    def framed(self, first: int | None, last: int | None, ended: Mask | None = None) -> Ragged:
        """Each sequence with a value before it and one after it (only where `ended` is true, if given)."""
        before = 0 if first is None else 1
        after = np.full(len(self.lengths), last is not None) if ended is None else ended
        lengths = self.lengths + before + after
        ends = np.cumsum(lengths)
        values = np.empty(int(lengths.sum()), self.values.dtype)
        values[spread(ends - lengths + before, self.lengths)] = self.values
        if first is not None:
            values[ends - lengths] = first
        if last is not None:
            values[ends[after] - 1] = last
        return Ragged(values, lengths)


def spread(starts: Integers, lengths: Integers) -> Integers:
    """start, start + 1, …, start + length − 1 of each pair, one after the other, without a loop."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    indices: Integers = np.arange(total) + np.repeat(starts - (ends - lengths), lengths)
    return indices


class Store:
    """The examples of one split."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.about = _read_about(directory)
        self.remade = ""
        """Why the store was made again, if it was."""
        self.size: int = self.about["examples"]
        self._columns: dict[str, tuple[NDArray[Any], Integers]] = {
            name: (_map(directory / f"{name}.values", dtype), _map(directory / f"{name}.offsets", "int64"))
            for name, dtype in self.about["columns"].items()
        }

    @classmethod
    def checked(cls, directory: Path) -> Store:
        """The store, after every byte of it was compared with its checksums."""
        for name, expected in _read_about(directory)["checksums"].items():
            if not (directory / name).is_file() or _checksum(directory / name) != expected:
                raise DataError(f"{directory} is damaged: {name} is missing or has another checksum; {REMEDY}")
        return cls(directory)

    def __len__(self) -> int:
        return self.size

    def __reduce__(self) -> tuple[type[Store], tuple[Path]]:
        """Pickled as its directory: another process maps the same files."""
        return Store, (self.directory,)

    def values(self, column: str) -> NDArray[Any]:
        """The values of all examples, one after the other, memory-mapped."""
        return self._columns[column][0]

    def offsets(self, column: str) -> Integers:
        """`[examples + 1]`: where each example begins, and the end of the last."""
        return self._columns[column][1]


class StoreWriter:
    """Writes a store into an empty directory."""

    def __init__(self, directory: Path, sizes: Mapping[str, int]) -> None:
        """`sizes` is the number of different values of each column, which decides the bytes of one value."""
        self.directory = directory
        self.dtypes = {name: np.min_scalar_type(max(1, size) - 1) for name, size in sizes.items()}
        self.size = 0
        directory.mkdir(parents=True, exist_ok=True)
        self._values = {name: (directory / f"{name}.values").open("wb") for name in sizes}
        self._offsets = {name: (directory / f"{name}.offsets").open("wb") for name in sizes}
        self._files = (*self._values.values(), *self._offsets.values())
        self.written = dict.fromkeys(sizes, 0)
        """Values written so far, by column."""
        for file in self._offsets.values():
            file.write(np.zeros(1, np.int64).tobytes())

    def append(self, columns: Mapping[str, Ragged]) -> None:
        """Adds examples: one sequence of values for each, in every column."""
        counts = {len(columns[name].lengths) for name in self.dtypes}
        assert len(counts) == 1, f"columns have unequal numbers of examples: {counts}"
        for name, dtype in self.dtypes.items():
            values, lengths = columns[name]
            largest = int(values.max(initial=0))
            if largest > np.iinfo(dtype).max:
                raise DataError(f"{name} has the value {largest}, outside of its vocabulary; check the tokenizer")
            self._values[name].write(np.ascontiguousarray(values, dtype).data)
            self._offsets[name].write((self.written[name] + np.cumsum(lengths)).data)
            self.written[name] += int(lengths.sum())
        self.size += counts.pop()

    def renumber(self, column: str, numbers: Sequence[int]) -> None:
        """Replaces each value n of a column by `numbers[n]`; a value beyond the numbers stays."""
        self._values[column].flush()
        path = self.directory / f"{column}.values"
        if path.stat().st_size:
            written = np.memmap(path, self.dtypes[column], mode="r+")
            known = written < len(numbers)
            written[known] = np.asarray(numbers, self.dtypes[column])[written[known]]
            written.flush()

    def finish(self, about: Mapping[str, Any] | None = None) -> None:
        """Flushes everything to disk; `about` is stored with it."""
        for file in self._files:
            file.flush()
            os.fsync(file.fileno())
            file.close()
        columns = {name: dtype.name for name, dtype in self.dtypes.items()}
        content = {**(about or {}), "columns": columns, "examples": self.size}
        content["checksums"] = {Path(file.name).name: _checksum(Path(file.name)) for file in self._files}
        content = json.loads(json.dumps(content))
        content["checksum"] = _about_checksum(content)
        write_text(self.directory / ABOUT, json.dumps(content, indent=1, ensure_ascii=False))

    def close(self) -> None:
        """Closes the files, also after an error; without `finish`, their directory is useless."""
        for file in self._files:
            with suppress(OSError):  # a full disk refuses to take the rest
                file.close()


def _read_about(directory: Path) -> dict[str, Any]:
    try:
        about: dict[str, Any] = parse_json((directory / ABOUT).read_text(encoding="utf-8"))
        if about.pop("checksum") != _about_checksum(about):
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise DataError(f"{directory} is not a complete store; {REMEDY}") from None
    return about


def _about_checksum(about: Mapping[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(about, sort_keys=True).encode(), digest_size=16).hexdigest()


def _map(path: Path, dtype: str) -> NDArray[Any]:
    count = path.stat().st_size // np.dtype(dtype).itemsize
    # An empty file cannot be mapped. A plain array view of the map is faster to index.
    return np.asarray(np.memmap(path, dtype, mode="r", shape=(count,))) if count else np.empty(0, dtype)


def cache_folder() -> Path:
    found = os.environ.get(VARIABLE)
    return Path(found).expanduser() if found else platformdirs.user_cache_path("regard", appauthor=False)


def fingerprint(files: Iterable[Path], settings: Mapping[str, Any]) -> str:
    """The name of an entry that is made from these files and folders with these settings."""
    content = json.dumps([CACHE_VERSION, settings, [_checksum(path) for path in files]], sort_keys=True)
    return hashlib.blake2b(content.encode(), digest_size=16).hexdigest()


def cached(folder: str, name: str, make: Callable[[Path], None], read: Callable[[Path], T]) -> tuple[T, str]:
    """Reads an entry of the cache. If it is missing or damaged, `make` writes it into an empty directory first.

    The second value is the damage; empty if there was none.
    """
    place, damage = cache_folder() / folder / name, ""
    if place.exists():
        try:
            return read(place), ""
        except DataError as error:
            damage = str(error).partition(";")[0]
            shutil.rmtree(place, ignore_errors=True)
    partial = place.with_name(f".{name}.{secrets.token_hex(4)}")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(place.parent)
        partial.mkdir()
        with _locked(partial):
            make(partial)
            partial.rename(place)
        flush_directory(place.parent)
    except OSError as error:
        if not place.is_dir():  # otherwise another process was faster, and its entry is the same
            raise DataError(
                f"the cache ({cache_folder()}) cannot be written: {error.strerror or error}; free some space, or set "
                f"{VARIABLE} to a folder that can be written"
            ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return read(place), damage


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


@contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Holds a lock on an entry, and yields whether it could: not if a process holds it, in any container."""
    if sys.platform == "win32":
        yield True
        return
    import fcntl

    opened, locked = os.open(path, os.O_RDONLY), False
    try:
        with suppress(OSError):  # held, or a file system without locks
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            locked = True
        yield locked
    finally:
        os.close(opened)


def _remove_leftovers(folder: Path) -> None:
    """Removes entries that nobody finishes: nothing in them was written for long, and no process holds their lock."""
    for path in folder.glob(".*"):
        with suppress(OSError):  # its owner can rename or remove it at any moment
            newest = max(each.stat().st_mtime for each in (path, *path.glob("*")))
            if newest < time.time() - STALE_S:
                with _locked(path) as unused:
                    if unused:
                        shutil.rmtree(path) if path.is_dir() else path.unlink()
