"""The log of a run: `log.jsonl`, one JSON object a line, in the order in which things happened."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.errors import RunError
from regard.training.disk import writing

TIMES = frozenset({"seconds", "tokens_per_second", "wait", "peak", "time", "memory"})
"""Fields that tell of the machine and the hour. All others are the same, bit by bit, in a run that was interrupted."""


class Log:
    """Grows line by line. A line that a kill tore is cut off when the log is opened to go on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.is_file():
            self._cut_to_whole_lines()

    @property
    def bytes(self) -> int:
        """The length of the file."""
        return self.path.stat().st_size if self.path.is_file() else 0

    def append(self, record: Mapping[str, Any]) -> None:
        """One line, at once in the hands of the system. Numbers come back exactly; NaN and infinity become null."""
        line = (json.dumps(finite(record), allow_nan=False, ensure_ascii=False) + "\n").encode()
        before = self.bytes
        with writing(self.path, "make room, then go on with --resume"):
            try:
                with open(self.path, "ab", buffering=0) as file:
                    if (written := file.write(line)) != len(line):  # a full disk may take a part of it
                        raise OSError(f"only {written} of {len(line)} bytes of a line fitted")
            except OSError:
                self._shorten(before)
                raise

    def sync(self) -> int:
        """Flushes all lines to the disk, and tells the length that a checkpoint must remember."""
        with writing(self.path, "make room, then go on with --resume"), open(self.path, "ab") as file:
            os.fsync(file.fileno())
        return self.bytes

    def truncate(self, length: int) -> str | None:
        """Cuts the log back to the length that a checkpoint remembers; a log that is shorter gives a warning."""
        found = self.bytes
        if found < length:
            return f"{self.path} has {found:,} bytes, and had {length:,} at the checkpoint: some of its lines are lost"
        self._shorten(length)
        if self._cut_to_whole_lines():
            return f"{self.path} is not what was written: no line ends at byte {length:,}, where the checkpoint stands"
        return None

    def _cut_to_whole_lines(self) -> int:
        """Takes away what follows the last line break, and tells how much that was."""
        content = self.path.read_bytes() if self.path.is_file() else b""
        torn = len(content) - (content.rfind(b"\n") + 1)
        if torn:
            self._shorten(len(content) - torn)
        return torn

    def _shorten(self, length: int) -> None:
        if self.path.is_file():
            with writing(self.path, "make it writable, then go on with --resume"):
                os.truncate(self.path, length)


def read(path: Path) -> list[dict[str, Any]]:
    """All records; a last line that was torn by a kill, or is being written, is left out."""
    if not path.is_file():
        raise RunError(f"{path} does not exist; give the log of a run, {path.name}")
    records = []
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines[:-1], start=1):
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if not isinstance(record, dict):
            raise RunError(f"{path}, line {number}, is no JSON object: {line[:40]!r}; remove that line")
        records.append(record)
    return records


def finite(value: Any) -> Any:
    """The same, with null for every number that JSON has no word for."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
