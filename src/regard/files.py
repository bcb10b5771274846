"""Atomic writes: after a kill at any moment, the file is either the old one or the new one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    def write(partial: Path) -> None:
        partial.write_text(text, encoding="utf-8", newline="\n")

    write_beside(path, write)


def write_beside(path: Path, write: Callable[[Path], None]) -> None:
    """Call `write` with a temporary path in the same folder, flush that file to disk, and rename it to `path`."""
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
    """Flush the entries of a directory, such as a renamed file, to disk."""
    if os.name == "nt":  # Windows cannot flush a directory; its rename is journaled
        return
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
