"""What keeps a process that decodes for long from growing. No torch in here.

Batches of ever new shapes fill two caches of ready-made kernels, oneDNN's own and PyTorch's above it, with a thousand
entries each: hundreds of MiB that come slowly and look like a leak. A few entries serve about as well, since a decoder
repeats a shape at once or hardly ever.
"""

from __future__ import annotations

import os

CACHES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64", "LRU_CACHE_CAPACITY": "16"}
"""Entries of the two caches; they are read when the first kernel is made."""


def bound_caches() -> None:
    """Bounds the caches of this process; for a command, before it computes. Who set another bound keeps it."""
    for name, entries in CACHES.items():
        os.environ.setdefault(name, entries)
