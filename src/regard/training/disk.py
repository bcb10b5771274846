"""What is said when the disk refuses: it is full, or may not be written."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from regard.errors import RunError


@contextmanager
def writing(path: Path, remedy: str) -> Iterator[None]:
    """Turns what goes wrong in here into a sentence about `path`, what is free, and the remedy."""
    try:
        yield
    except (OSError, SafetensorError) as error:  # safetensors wraps what the system says
        raise RunError(f"{path} cannot be written ({reason(error, path)}); {remedy}") from error


def reason(error: Exception, path: Path) -> str:
    """The system's own words, and how much room there is where `path` is, or would be."""
    words = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    if isinstance(error, PermissionError):
        return words
    for place in (path.absolute(), *path.absolute().parents):
        try:
            return f"{words}; {shutil.disk_usage(place).free / 1e6:,.1f} MB are free there"
        except OSError:
            continue  # it does not exist, or is closed to us
    return words
