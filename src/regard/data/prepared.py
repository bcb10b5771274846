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
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.errors import DataError

VERSION = 1
ABOUT = "about.json"

Integers = NDArray[np.int64]


class Prepared:
    """The examples of one split. Opening it reads `about.json` and maps the rest."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        about = _read_about(directory)
        self.sides: tuple[str, ...] = tuple(about["sides"])
        self.size: int = about["examples"]
        """Number of examples."""
        dtype = np.dtype(about["dtype"])
        self._tokens = {side: _map(directory / f"{side}.tokens", dtype) for side in self.sides}
        self._offsets = {side: _map(directory / f"{side}.offsets", np.dtype(np.int64)) for side in self.sides}
        for side in self.sides:
            held, offsets = len(self._tokens[side]), self._offsets[side]
            if len(offsets) != self.size + 1 or held != offsets[-1]:
                raise DataError(f"{directory} is damaged: {side} is cut short; remove it, and it is made again")

    def __len__(self) -> int:
        return self.size

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


def spread(starts: Integers, lengths: Integers) -> Integers:
    """start, start + 1, … start + length − 1 for each pair, one behind the other, without a loop."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    places: Integers = np.arange(total) + np.repeat(starts - (ends - lengths), lengths)
    return places


class Writer:
    """Writes a directory of prepared data beside its place and moves it there when it is whole."""

    def __init__(self, directory: Path, sides: Sequence[str], vocabulary: int) -> None:
        """`vocabulary` is the largest of the sides': it decides whether a token takes two bytes or four."""
        self.directory = directory
        self.sides = tuple(sides)
        self.dtype = np.dtype(np.uint16 if vocabulary <= 1 << 16 else np.uint32)
        self.size = 0
        self._unfinished = directory.with_name(f".{directory.name}.{os.getpid()}")
        shutil.rmtree(self._unfinished, ignore_errors=True)
        self._unfinished.mkdir(parents=True)
        self._tokens = {side: (self._unfinished / f"{side}.tokens").open("wb") for side in self.sides}
        self._offsets = {side: (self._unfinished / f"{side}.offsets").open("wb") for side in self.sides}
        self._ends = dict.fromkeys(self.sides, 0)
        for file in self._offsets.values():
            file.write(np.zeros(1, np.int64).tobytes())

    def append(self, examples: Mapping[str, Sequence[Sequence[int]]]) -> None:
        """Adds examples: for each side the tokens of each of them."""
        counts = {side: len(examples[side]) for side in self.sides}
        if len(set(counts.values())) > 1:
            raise DataError(f"every side must have as many examples, not {counts}; check the source")
        for side in self.sides:
            lengths = np.fromiter(map(len, examples[side]), np.int64, counts[side])
            for tokens in examples[side]:
                self._tokens[side].write(np.asarray(tokens, self.dtype).tobytes())
            self._offsets[side].write((self._ends[side] + np.cumsum(lengths)).tobytes())
            self._ends[side] += int(lengths.sum())
        self.size += counts[self.sides[0]]

    def finish(self, about: Mapping[str, Any] | None = None) -> Prepared:
        """Puts the directory in its place; `about` is kept with it."""
        self._close()
        told = {"version": VERSION, "sides": self.sides, "examples": self.size, "dtype": self.dtype.name}
        with (self._unfinished / ABOUT).open("w", encoding="utf-8") as file:
            json.dump({**(about or {}), **told}, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        try:
            self._unfinished.rename(self.directory)
        except OSError:
            # Another process has made the same meanwhile, and what is there is as good; or it cannot be written at all.
            shutil.rmtree(self._unfinished)
            if not is_whole(self.directory):
                raise
        return Prepared(self.directory)

    def abandon(self) -> None:
        """Removes what was written."""
        self._close()
        shutil.rmtree(self._unfinished, ignore_errors=True)

    def _close(self) -> None:
        for file in (*self._tokens.values(), *self._offsets.values()):
            file.flush()
            os.fsync(file.fileno())
            file.close()


def is_whole(directory: Path) -> bool:
    """Whether prepared data lie there, complete."""
    return (directory / ABOUT).is_file()


def fingerprint(files: Iterable[Path], settings: Mapping[str, Any]) -> str:
    """A name for what is made of these files with these settings: it changes when a byte or a setting does."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(json.dumps([VERSION, settings], sort_keys=True).encode())
    for path in files:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "blake2b").digest())
    return digest.hexdigest()


def _read_about(directory: Path) -> dict[str, Any]:
    try:
        about: dict[str, Any] = json.loads((directory / ABOUT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
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
