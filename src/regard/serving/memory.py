"""What the allocator holds between two batches goes back to the system, every now and then. No torch in here.

With the bounds of `regard.decoding.memory` this keeps a server from growing; `bench/serving.py` measures it.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable


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
