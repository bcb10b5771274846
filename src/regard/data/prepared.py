"""Prepared data: examples as token numbers in memory-mapped arrays, made once and found again by their fingerprint.

A directory holds, for each side of the examples (a text, or source and target), all tokens one behind the other and
where each example begins, and `about.json`, written last: with it the directory is whole. Nothing is read into memory
before it is asked for, so a corpus may be larger than it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.data.cache import beside_name, move
from regard.data.ragged import Integers, Ragged, spread
from regard.errors import DataError

VERSION = 1
ABOUT = "about.json"


class Prepared:
    """The examples of one split. Opening it reads `about.json` and maps the rest."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        about = _read_about(directory)
        self.about: Mapping[str, Any] = about
        """All that was noted when it was made."""
        self.sides: tuple[str, ...] = tuple(about["sides"])
        self.size: int = about["examples"]
        """Number of examples."""
        dtypes = {side: np.dtype(about["dtype"][side]) for side in self.sides}
        self._tokens = {side: _map(directory / f"{side}.tokens", dtypes[side]) for side in self.sides}
        self._offsets = {side: _map(directory / f"{side}.offsets", np.dtype(np.int64)) for side in self.sides}
        for side in self.sides:
            held, offsets = len(self._tokens[side]), self._offsets[side]
            if len(offsets) != self.size + 1 or held != offsets[-1]:
                raise DataError(f"{directory} is damaged: {side} is cut short; remove it, and it is made again")

    def __len__(self) -> int:
        return self.size

    def __reduce__(self) -> tuple[type[Prepared], tuple[Path]]:
        """By its directory: another process maps the same files."""
        return Prepared, (self.directory,)

    def mapped(self, side: str) -> tuple[NDArray[Any], Integers]:
        """All tokens of a side as they lie in the file, and where each example begins; nothing is read yet."""
        return self._tokens[side], self._offsets[side]

    def lengths(self, side: str) -> Integers:
        """Tokens of each example."""
        return np.diff(self._offsets[side])

    def tokens(self, side: str) -> int:
        """Tokens of all examples."""
        return len(self._tokens[side])

    def gather(self, side: str, examples: Integers) -> tuple[Integers, Integers]:
        """The tokens of some examples one behind the other, and how many each has."""
        starts = self._offsets[side][examples]
        lengths = self._offsets[side][examples + 1] - starts
        return self._tokens[side][spread(starts, lengths)].astype(np.int64), lengths


class Writer:
    """Writes a directory of prepared data beside its place and moves it there when it is whole."""

    def __init__(self, directory: Path, sides: Sequence[str], vocabulary: int | Mapping[str, int]) -> None:
        """`vocabulary`, of all sides or of each, decides whether a token takes one byte, two or four."""
        self.directory = directory
        self.sides = tuple(sides)
        sizes = dict.fromkeys(self.sides, vocabulary) if isinstance(vocabulary, int) else vocabulary
        self.dtypes = {side: np.min_scalar_type(max(1, sizes[side]) - 1) for side in self.sides}
        self.size = 0
        self._unfinished = beside_name(directory)
        self._unfinished.mkdir(parents=True)
        self._tokens = {side: (self._unfinished / f"{side}.tokens").open("wb") for side in self.sides}
        self._offsets = {side: (self._unfinished / f"{side}.offsets").open("wb") for side in self.sides}
        self._ends = dict.fromkeys(self.sides, 0)
        for file in self._offsets.values():
            file.write(np.zeros(1, np.int64).tobytes())

    def append(self, examples: Mapping[str, Ragged | Sequence[Sequence[int]]]) -> None:
        """Adds examples: for each side the tokens of each of them."""
        given = {side: examples[side] for side in self.sides}
        sides = {side: found if isinstance(found, Ragged) else Ragged.of(found) for side, found in given.items()}
        counts = {side: len(found.lengths) for side, found in sides.items()}
        if len(set(counts.values())) > 1:
            raise DataError(f"every side must have as many examples, not {counts}; check the source")
        for side, (tokens, lengths) in sides.items():
            largest = int(tokens.max(initial=0))
            if largest > np.iinfo(self.dtypes[side]).max:
                raise DataError(f"{side} has the token {largest}, which its vocabulary has not; check the tokenizer")
            self._tokens[side].write(np.ascontiguousarray(tokens, self.dtypes[side]).data)
            self._offsets[side].write((self._ends[side] + np.cumsum(lengths)).data)
            self._ends[side] += int(lengths.sum())
        self.size += counts[self.sides[0]]

    @property
    def tokens(self) -> Mapping[str, int]:
        """Tokens written so far, by side."""
        return dict(self._ends)

    def renumber(self, side: str, numbers: Sequence[int]) -> None:
        """Puts `numbers[n]` in place of each n that was written for a side."""
        self._tokens[side].flush()
        path = self._unfinished / f"{side}.tokens"
        if path.stat().st_size:
            written = np.memmap(path, self.dtypes[side], mode="r+")
            written[:] = np.asarray(numbers, self.dtypes[side])[written]
            written.flush()

    def finish(self, about: Mapping[str, Any] | None = None) -> Prepared:
        """Puts the directory in its place; `about` is kept with it."""
        self._close()
        dtypes = {side: dtype.name for side, dtype in self.dtypes.items()}
        told = {"version": VERSION, "sides": self.sides, "examples": self.size, "dtype": dtypes}
        with (self._unfinished / ABOUT).open("w", encoding="utf-8") as file:
            json.dump({**(about or {}), **told}, file, indent=1, ensure_ascii=False)
            file.flush()
            os.fsync(file.fileno())
        move(self._unfinished, self.directory)
        return Prepared(self.directory)

    def abandon(self) -> None:
        """Removes what was written."""
        for file in (*self._tokens.values(), *self._offsets.values()):
            with suppress(OSError):  # a full disk refuses what was not written yet
                file.close()
        shutil.rmtree(self._unfinished, ignore_errors=True)

    def _close(self) -> None:
        for file in (*self._tokens.values(), *self._offsets.values()):
            file.flush()
            os.fsync(file.fileno())
            file.close()


def fingerprint(contents: Iterable[str], settings: Mapping[str, Any]) -> str:
    """A name for what is made of these contents (checksums of files) with these settings: any change changes it."""
    told = json.dumps([VERSION, settings, list(contents)], sort_keys=True)
    return hashlib.blake2b(told.encode(), digest_size=16).hexdigest()


def _read_about(directory: Path) -> dict[str, Any]:
    try:
        about: dict[str, Any] = json.loads((directory / ABOUT).read_text(encoding="utf-8"))
        about["sides"], about["examples"], about["dtype"]
    except (OSError, ValueError, KeyError, TypeError):
        raise DataError(f"{directory} holds no whole prepared data; remove it, and it is made again") from None
    if about.get("version") != VERSION:
        raise DataError(
            f"{directory} was prepared in version {about.get('version')} of the format, and this is {VERSION}; "
            "remove it, and it is made again"
        )
    return about


def _map(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    """A file as an array that is read where it is looked at. An empty file cannot be mapped."""
    if not path.is_file():
        raise DataError(f"{path} is missing; remove its directory, and it is made again")
    whole = path.stat().st_size // dtype.itemsize
    return np.memmap(path, dtype, mode="r", shape=(whole,)) if whole else np.empty(0, dtype)
