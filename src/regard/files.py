"""Files written so that a kill at any moment leaves the old one or the new one, never half of one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    def write(partial: Path) -> None:
        partial.write_text(text, encoding="utf-8", newline="\n")

    write_beside(path, write)


def write_beside(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` make a file beside `path`, flush it to the disk, then rename it over `path` in one step."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        write(partial)
        with open(partial, "r+b") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    flush_directory(path.parent)


def flush_directory(path: Path) -> None:
    """Let the names in a directory, renamed ones above all, reach the disk."""
    if os.name == "nt":  # Windows cannot flush a directory; its rename is journaled
        return
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
