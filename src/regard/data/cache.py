"""The cache: what is made once from data and found again, by a name that its content decides.

It lies in `$REGARD_CACHE`, else where the system keeps caches, and may be removed at any time. What is being made has
a hidden name beside its place and moves there in one step: so two processes may make the same at once, and what is
there is whole. What a dead process left is swept away.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from regard.data.files import open_bytes
from regard.data.settings import SPLITS, STANDARD_INPUT, DataSettings, EmbeddedSettings
from regard.errors import DataError
from regard.files import flush_directory, write_text

VARIABLE = "REGARD_CACHE"
MEMO = "checksums.json"
REMEMBERED = 4_000
"""Files and folders whose checksums are remembered."""
FRESH_S = 2.0
"""A file changed this lately may change again within the same tick of its clock, so its checksum is not remembered."""
STALE_S = 7 * 24 * 3600.0
"""What has not been touched for so long was left by a process that nobody can ask any more."""
BLOCK = 1 << 20


def cache_directory() -> Path:
    """`$REGARD_CACHE`, else `regard` in the folder that the system has for caches."""
    if found := os.environ.get(VARIABLE):
        return Path(found).expanduser()
    if os.name == "nt":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "regard"
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "regard"


class Cache:
    """A folder with one room for each sort of thing that is kept: prepared data, tokenizers, standard input."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = cache_directory() if root is None else root

    def room(self, name: str) -> Path:
        """The folder for one sort of thing. It is made if need be, and leftovers in it are removed."""
        with self.writing():
            (self.root / name).mkdir(parents=True, exist_ok=True)
            sweep(self.root / name)
        return self.root / name

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Says of what the system refuses within that it is the cache, and how another one is chosen."""
        try:
            yield
        except OSError as error:
            raise DataError(
                f"the cache ({self.root}) cannot be written: {error.strerror or error}; make room there, or set "
                f"{VARIABLE} to a folder that can be written"
            ) from error

    # ------------------------------------------------------------------------------------------------------ content

    def checksums(self, paths: Iterable[Path]) -> list[str]:
        """The content of files and folders, each in 32 hexadecimal digits.

        A file is read when it is first met, and again only when its size, time or inode differ.
        """
        memo = self._read_memo()
        found: list[str] = []
        fresh: dict[str, list[str]] = {}
        for path in paths:
            name, mark = str(path.absolute()), _mark(path)
            if name not in memo or memo[name][0] != mark:
                memo[name] = [mark, _checksum(path)]
                if _mark(path) == mark and not _changed_lately(path):
                    fresh[name] = memo[name]
            found.append(memo[name][1])
        if fresh:
            self._write_memo({**self._read_memo(), **fresh})
        return found

    def _read_memo(self) -> dict[str, list[str]]:
        try:
            found = json.loads((self.root / MEMO).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        rows = found.items() if isinstance(found, dict) else ()
        return {name: row for name, row in rows if isinstance(row, list) and list(map(type, row)) == [str, str]}

    def _write_memo(self, memo: dict[str, list[str]]) -> None:
        """What cannot be remembered is worked out again: nothing is lost but time."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            write_text(self.root / MEMO, json.dumps(dict(list(memo.items())[-REMEMBERED:]), indent=0))
        except OSError:
            return

    # ----------------------------------------------------------------------------------------------- standard input

    def keep_input(self, settings: DataSettings) -> DataSettings:
        """The settings with a file in place of `-`: standard input, read now and kept under its content's name.

        Data are read more than once (for the tokenizer, then to be prepared, then by a run that goes on).
        """
        if isinstance(settings, EmbeddedSettings):
            return settings
        changes: dict[str, Any] = {}
        for split in SPLITS:
            files = settings.files(split)
            if STANDARD_INPUT in files:
                kept = str(self._kept_input())
                changes[split] = [kept if file == STANDARD_INPUT else file for file in files]
        return settings.changed(changes) if changes else settings

    def _kept_input(self) -> Path:
        room = self.room("input")
        digest = hashlib.blake2b(digest_size=16)
        with self.writing(), unfinished(room / "standard-input") as beside:
            beside.mkdir()
            with (beside / "all").open("wb") as file:
                while block := sys.stdin.buffer.read(BLOCK):
                    digest.update(block)
                    file.write(block)
                _flush(file)
            place = room / digest.hexdigest()
            (beside / "all").replace(place)
            flush_directory(room)
        if not place.stat().st_size:
            raise DataError("standard input is empty, or was read before; give it data")
        return place.absolute()


def refuse_input(files: Sequence[str]) -> None:
    """What is read more than once cannot come from standard input."""
    if STANDARD_INPUT in files:
        raise DataError("standard input can be read only once, and data are read several times; put it into a file")


def _checksum(path: Path) -> str:
    """Of a file its bytes; of a folder the names and bytes of all files in it."""
    digest = hashlib.blake2b(digest_size=16)
    if path.is_dir():
        for file in _files_in(path):
            digest.update(f"{file.relative_to(path).as_posix()}\0{_checksum(file)}\0".encode())
        return digest.hexdigest()
    try:
        with path.open("rb") as opened:
            return hashlib.file_digest(opened, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    except OSError:
        with open_bytes(str(path)):  # which says what is wrong with it
            raise


def _mark(path: Path) -> str:
    """What changes whenever a file does: its size, time and inode; of a folder those of all its files."""
    try:
        if not path.is_dir():
            return _mark_of(path)
        digest = hashlib.blake2b(digest_size=16)
        for file in _files_in(path):
            digest.update(f"{file.relative_to(path).as_posix()}\0{_mark_of(file)}\0".encode())
        return digest.hexdigest()
    except OSError:
        return ""


def _mark_of(file: Path) -> str:
    found = file.stat()
    return f"{found.st_size} {found.st_mtime_ns} {found.st_ino}"


def _changed_lately(path: Path) -> bool:
    files = _files_in(path) if path.is_dir() else [path]
    return max((file.stat().st_mtime for file in files), default=0.0) > time.time() - FRESH_S


def _files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


# -------------------------------------------------------------------------------------------------- made in one step


@contextmanager
def unfinished(place: Path) -> Iterator[Path]:
    """A hidden name beside `place`, of this process alone, for what is to be there; what is left of it is removed."""
    beside = beside_name(place)
    try:
        yield beside
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def beside_name(place: Path) -> Path:
    """`.NAME.HOST.PROCESS.CHANCE`: it says who is at work, and no other work has it."""
    return place.with_name(f".{place.name}.{_host()}.{os.getpid()}.{secrets.token_hex(4)}")


def move(beside: Path, place: Path) -> None:
    """Puts a whole folder in its place. Where another process was quicker, its work stays: it is as good."""
    try:
        beside.rename(place)
    except OSError:
        if not place.is_dir():
            raise
        shutil.rmtree(beside)
    else:
        flush_directory(place.parent)


def sweep(room: Path) -> None:
    """Removes what dead processes of this machine left unfinished, and what nobody has touched for a week."""
    for path in room.glob(".*"):
        named = re.fullmatch(r"\..*\.([^.]+)\.(\d+)\.[0-9a-f]{8}", path.name)
        if named is None:
            continue
        host, process = named.groups()
        try:
            newest = max(file.stat().st_mtime for file in (path, *path.iterdir()))
        except OSError:  # its owner has just moved or removed it
            continue
        if (host == _host() and not _alive(int(process))) or newest < time.time() - STALE_S:
            shutil.rmtree(path, ignore_errors=True)


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())


def _alive(process: int) -> bool:
    if os.name == "nt":  # no way to ask that would not end it
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
