"""Checksums of the files of a directory, kept beside them: damage is found before a file is used.

`checksums.json` is written after the files that it names, so that a directory that holds it is whole.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from regard.files import write_text

FILE = "checksums.json"
FORMAT = 1
"""The version of everything in a run directory: what is laid out otherwise must have another number."""


class Checksum(NamedTuple):
    """What a file must be like."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Checksums:
    """The content of `checksums.json`."""

    files: dict[str, Checksum]
    """By name."""
    before: dict[str, Checksum] = field(default_factory=dict)
    """What may still be there, while a file is being replaced."""
    step: int | None = None
    """The step of a checkpoint."""


def checksum(path: Path) -> Checksum:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return Checksum(file.tell(), digest)


def difference(path: Path, expected: Checksum, thorough: bool = True) -> str | None:
    """In words, how a file differs from what was written; only its size is looked at unless `thorough`."""
    if not path.is_file():
        return f"{path.name} is missing"
    size = path.stat().st_size
    if size != expected.size:
        return f"{path.name} has {size:,} bytes and had {expected.size:,} when it was written"
    if thorough and checksum(path) != expected:
        return f"{path.name} is damaged: its checksum is not the one of what was written"
    return None


def write(directory: Path, checksums: Checksums) -> None:
    content: dict[str, Any] = {"format": FORMAT}
    if checksums.step is not None:
        content["step"] = checksums.step
    content["files"] = _plain(checksums.files)
    if checksums.before:
        content["before"] = _plain(checksums.before)
    write_text(directory / FILE, json.dumps(content, indent=1) + "\n")


def read(directory: Path) -> Checksums:
    """Raises `ValueError`, which says why, for a file that is missing or no whole list of checksums."""
    path = directory / FILE
    if not path.is_file():
        raise ValueError(f"{FILE} is missing")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise ValueError(f"{FILE} is damaged: it is no JSON") from None
    if not isinstance(content, dict) or not isinstance(content.get("files"), dict):
        raise ValueError(f"{FILE} is damaged: it lists no files")
    if content.get("format") != FORMAT:
        raise ValueError(f"{FILE} has format {content.get('format')!r}, and this version of regard reads {FORMAT}")
    return Checksums(_parse(content["files"]), _parse(content.get("before", {})), content.get("step"))


def _plain(files: Mapping[str, Checksum]) -> dict[str, dict[str, Any]]:
    return {name: entry._asdict() for name, entry in files.items()}


def _parse(files: Any) -> dict[str, Checksum]:
    try:
        return {name: Checksum(int(entry["size"]), str(entry["sha256"])) for name, entry in files.items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ValueError(f"{FILE} is damaged: it does not give a size and a checksum for each file") from None
