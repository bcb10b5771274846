"""A lock on a run directory: one process at a time trains in it, and the system ends the lock with the process."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import time
import weakref
from pathlib import Path

from regard.errors import RunError

PATIENCE = 0.5
"""Seconds to wait for a lock that may only be held by someone who looks whether it is."""


class Lock:
    """Held while it is entered. The file stays: to remove it would let two processes lock two files of one name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None

    def __enter__(self) -> Lock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def acquire(self) -> None:
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            self._wait(self._file)
            os.lseek(self._file, 0, os.SEEK_SET)
            os.ftruncate(self._file, 0)
            os.write(self._file, f"{os.getpid()} {platform.node()}\n".encode())
        except BaseException:
            self.release()
            raise
        _release_in_children(self)

    def _wait(self, file: int) -> None:
        until = time.monotonic() + PATIENCE
        while not _take(file, exclusive=True):
            if time.monotonic() > until:
                raise RunError(
                    f"{self.path.parent} is in use: {_told(self.path)} trains in it; wait until it ends, or stop it, "
                    "or choose another train.directory"
                )
            time.sleep(0.02)

    def release(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def holder(path: Path) -> str | None:
    """Who holds the lock, in words, or None where nobody does."""
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        return None if _take(file, exclusive=False) else _told(path)
    finally:
        os.close(file)


def _told(path: Path) -> str:
    """The process that wrote its number into the file."""
    with contextlib.suppress(OSError, ValueError):
        number, _, machine = path.read_text(encoding="utf-8").strip().partition(" ")
        return f"process {int(number)} on {machine}"
    return "another process"


def _release_in_children(lock: Lock) -> None:
    """A process that is forked off (to make batches, say) would else hold the lock for longer than this one lives."""
    if not hasattr(os, "register_at_fork"):
        return
    reference = weakref.ref(lock)

    def release() -> None:
        if (held := reference()) is not None:
            held.release()

    os.register_at_fork(after_in_child=release)


if sys.platform == "win32":
    import msvcrt

    def _take(file: int, exclusive: bool) -> bool:
        """Locks a byte far behind the end, so that the file can still be read."""
        os.lseek(file, 1 << 30, os.SEEK_SET)
        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def _take(file: int, exclusive: bool) -> bool:
        """Whether the lock is ours now. A disk that knows no locks (some networks') gives it to everybody."""
        try:
            fcntl.flock(file, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True
