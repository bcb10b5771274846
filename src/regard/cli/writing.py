"""Lines that go out: to standard output as they come, or into a file that is whole or not there at all."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from regard.errors import InputError
from regard.files import write_beside


def print_lines(lines: Iterable[str]) -> None:
    """To standard output, each as it comes."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # a file is the same wherever it is written
    for line in lines:
        try:
            sys.stdout.write(line)
            sys.stdout.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            _forget_output()
            raise InputError(f"standard output cannot be written: {error.strerror}; send it elsewhere") from None


def _forget_output() -> None:
    """What could not be written is not tried again when Python ends."""
    with open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), sys.stdout.fileno())


def save_lines(lines: Iterable[str], path: Path) -> None:
    """Beside the file and renamed when it is whole, so that an old one stays until then.

    What is no plain file, such as /dev/null or a named pipe, is written itself.
    """

    def write(partial: Path) -> None:
        with partial.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(lines)

    try:
        if path.is_dir():
            raise IsADirectoryError(None, "it is a directory")
        if path.exists() and not path.is_file():
            write(path)
        else:
            write_beside(path, write)
    except OSError as error:
        raise InputError(f"--output ({path}) cannot be written: {error.strerror}; choose another file") from None
