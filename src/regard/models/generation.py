"""What the two families that write text need for it."""

from __future__ import annotations

from typing import get_args

from torch import Tensor

from regard.blocks.cache import Cache, CacheKind, CacheShape
from regard.errors import InputError
from regard.models.settings import Body

_FIRST_CAPACITY = 64
"""Tokens that a growing cache has room for at first."""


def new_cache(
    body: Body, layers: int, like: Tensor, batch: int, kind: CacheKind = "growing", capacity: int | None = None
) -> Cache:
    """An empty cache for a decoder of so many layers, on the device and in the precision of `like`."""
    window = body.attention.window
    if kind not in get_args(CacheKind):
        raise InputError(f"cache kind ({kind}) is not known; choose one of {', '.join(get_args(CacheKind))}")
    if capacity is not None and capacity < 1:
        raise InputError(f"capacity ({capacity}) must be at least 1; give the largest number of tokens it shall hold")
    if kind == "fixed" and capacity is None:
        raise InputError("a fixed cache needs a capacity; give the largest number of tokens it shall hold")
    if kind == "windowed":
        if window is None:
            raise InputError("a windowed cache needs attention.window, or tokens would be lost; choose another kind")
        capacity = max(capacity or window, window)
    shape = CacheShape(layers, batch, body.kv_heads, body.head_size, body.value_size)
    return Cache(kind, shape, capacity or _FIRST_CAPACITY, like.device, like.dtype)
