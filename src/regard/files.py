"""Atomic writes: after a kill at any moment, the file is either the old one or the new one. And reading of JSON."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from regard.errors import InputError, RegardError, WeightsError


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text. Every problem is a `ValueError`, also nesting that is too deep for Python."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_json(path: Path, error: type[RegardError] = WeightsError) -> dict[str, Any]:
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise error(f"{path} cannot be read ({problem.strerror}); change its permissions, or copy it again") from None
    except ValueError as problem:
        raise error(f"{path} is not valid JSON ({problem}); copy or download it again") from None
    if not isinstance(content, dict):
        raise error(f"{path} contains a JSON {type(content).__name__}, expected an object; copy or download it again")
    return content


def silence(stream: IO[str]) -> None:
    """Discard what this process writes to a stream from now on, also what its buffer holds."""
    with suppress(OSError, ValueError), open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), stream.fileno())


def write_text(path: Path, text: str) -> None:
    write_beside(path, lambda partial: partial.write_text(text, encoding="utf-8", newline="\n"))


def require_writable(path: Path, option: str, folder: bool = False) -> None:
    """Raises an error before the work if a file cannot be written, or a folder made. Devices are not tried."""
    try:
        if folder:
            path.mkdir(parents=True, exist_ok=True)
        elif path.is_dir():
            raise IsADirectoryError(None, "it is a directory")
        if folder or path.is_file() or not path.exists():
            with tempfile.TemporaryFile(dir=path if folder else path.parent):
                pass
    except OSError as error:
        raise InputError(f"{option} ({path}) cannot be written: {error.strerror}; choose another place") from None


def write_beside(path: Path, write: Callable[[Path], object]) -> None:
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
