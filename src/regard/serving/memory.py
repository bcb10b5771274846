"""What keeps a process that computes for days from growing. No torch in here.

Batches of ever new shapes fill two caches of ready-made kernels, oneDNN's own and PyTorch's above it, with a thousand
entries each: hundreds of MiB that come slowly and look like a leak. A few entries serve as well, since a decoder
repeats a shape at once or hardly ever. And what the allocator holds between two batches goes back to the system, every
now and then. `bench/serving.py` measures it.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable

CACHES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64", "LRU_CACHE_CAPACITY": "16"}
"""Entries of the two caches; they are read when the first kernel is made."""


def bound_caches() -> None:
    """Bounds the caches of this process; for a command, before it computes. Who set another bound keeps it."""
    for name, entries in CACHES.items():
        os.environ.setdefault(name, entries)


class Trim:
    """Gives memory that is free back to the system, at most once in some seconds; nothing happens without glibc."""

    def __init__(self, seconds: float = 1.0) -> None:
        self._seconds = seconds
        self._last = time.monotonic()
        self._trim = _malloc_trim()

    def __call__(self) -> bool:
        """Whether it was time to."""
        now = time.monotonic()
        if self._trim is None or now - self._last < self._seconds:
            return False
        self._trim(0)
        self._last = now
        return True


def _malloc_trim() -> Callable[[int], int] | None:
    try:
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):  # another system's library
        return None
    return found
