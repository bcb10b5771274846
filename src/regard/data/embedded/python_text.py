"""The Python standard library as raw text: the source and the documentation strings that are on every machine.

Documents come in the order of their names, each with its path below the library (`json/decoder.py`). A hash of the name
decides the split, so it is the same on every machine and under every version that has the file.
"""

from __future__ import annotations

import ast
import os
import sysconfig
import tokenize
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple
from zlib import crc32

from regard.errors import InputError

Part = Literal["train", "valid"]
PARTS: tuple[Part, ...] = ("train", "valid")
FOLD = 20
"""One of so many documents is for validation."""
SKIPPED = {"__pycache__", "idle_test", "lib2to3", "site-packages", "test", "tests", "turtledemo", "ensurepip"}
"""Tests, what is not part of the library, and what is left out of many installations."""
SHORTEST = 200
"""Characters: shorter files say nothing."""


class Document(NamedTuple):
    """A file of the library: its path below the library's folder, and its text."""

    name: str
    text: str


def library() -> Path:
    """Where the standard library lies: a folder, or a zip file in embeddable installations."""
    folder = Path(sysconfig.get_path("stdlib"))
    if (folder / "json" / "decoder.py").is_file():
        return folder
    zipped = folder.parent / f"python{sysconfig.get_config_var('py_version_nodot')}.zip"
    return zipped if zipped.is_file() else folder


def sources(root: Path | None = None) -> list[Path]:
    """The files that documents are read from."""
    place = library() if root is None else root
    return [place] if zipfile.is_zipfile(place) else [place / name for name in _names(place)]


def split_of(name: str) -> Part:
    return "valid" if crc32(name.encode()) % FOLD == 0 else "train"


def documents(split: Part, root: Path | None = None, docstrings_only: bool = False) -> Iterator[Document]:
    """The documents of a split. With `docstrings_only`, prose alone: the documentation strings of each file."""
    if split not in PARTS:
        raise InputError(f"split ({split}) is not known; choose one of {', '.join(PARTS)}")
    place = library() if root is None else root
    read = _read_zip if zipfile.is_zipfile(place) else _read_folder
    found = False
    for name, content in read(place):
        found = True
        if split_of(name) != split:
            continue
        text = _decoded(content)
        if text is not None and docstrings_only:
            text = docstrings(text)
        if text is not None and len(text) >= SHORTEST:
            yield Document(name, text)
    if not found:
        raise InputError(
            f"{place} holds no Python source; this installation has the standard library in compiled form only, "
            "so run with a Python from python.org, conda or the system, or give another source of text"
        )


def docstrings(source: str) -> str:
    """All documentation strings of a file, one below the other; nothing where the file does not parse."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return ""
    holders = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = [ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, holders)]
    return "\n\n".join(text for text in texts if text)


def _wanted(name: str) -> bool:
    path = PurePosixPath(name)
    return path.suffix == ".py" and not SKIPPED.intersection(path.parts[:-1])


def _names(root: Path) -> list[str]:
    names = []
    for folder, below, files in os.walk(root):
        below[:] = [name for name in below if name not in SKIPPED]  # site-packages may be very large
        names += [(Path(folder) / file).relative_to(root).as_posix() for file in files]
    return list(filter(_wanted, sorted(names)))


def _read_folder(root: Path) -> Iterator[tuple[str, bytes]]:
    for name in _names(root):
        yield name, (root / name).read_bytes()


def _read_zip(root: Path) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(root) as archive:
        for name in filter(_wanted, sorted(archive.namelist())):
            yield name, archive.read(name)


def _decoded(content: bytes) -> str | None:
    """The text by the encoding that the file declares; None for the few that do not keep to it."""
    lines = iter(content.splitlines(keepends=True))
    try:
        encoding, _ = tokenize.detect_encoding(lambda: next(lines, b""))
        return content.decode(encoding)
    except (SyntaxError, UnicodeDecodeError):
        return None
