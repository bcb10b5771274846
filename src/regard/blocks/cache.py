"""Key/value caches: what earlier tokens said, kept so that each new token costs one step.

Three kinds, for padded batches whose rows may differ in length:

- growing: as long as it must be, allocated in doubling steps; the default;
- fixed: a constant capacity and static shapes, so that a step can be compiled once or replayed as a graph;
- windowed: a ring of the last `capacity` tokens, for attention with a window.

A `Cache` belongs to one batch. Each forward pass calls `plan` and then, when nothing was refused, `commit`; then each
layer in turn calls `append`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from regard.blocks.layout import Layout, Padded, readable
from regard.errors import InputError

CacheKind: TypeAlias = Literal["growing", "fixed", "windowed"]


@dataclass(frozen=True)
class CacheShape:
    """What one layer of a cache holds."""

    layers: int
    batch: int
    heads: int
    head_size: int
    value_size: int


class CrossCache:
    """Keys and values of the encoder's output, projected at the first step and kept."""

    def __init__(self) -> None:
        self.stored: tuple[Tensor, Tensor] | None = None

    def get(self, project: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        if self.stored is None:
            self.stored = project()
        return self.stored

    def select(self, rows_N: Tensor) -> None:
        """Keeps the given rows, in the given order."""
        if self.stored is not None:
            k, v = self.stored
            self.stored = k.index_select(0, rows_N), v.index_select(0, rows_N)


class SelfCache:
    """One layer's keys `[B, C, G, E]` and values `[B, C, G, V]`."""

    def __init__(self, cache: Cache, k_BCGE: Tensor, v_BCGV: Tensor) -> None:
        self.cache = cache
        self.k_BCGE, self.v_BCGV = k_BCGE, v_BCGV

    def append(self, k_BTGE: Tensor, v_BTGV: Tensor) -> tuple[Tensor, Tensor]:
        """Stores what `Cache.commit` has made room for, and returns all that the new queries may attend to."""
        return self.cache.store(self, k_BTGE, v_BTGV)


class Cache:
    """The caches of all layers of a decoder, and how far each row has come."""

    def __init__(
        self, kind: CacheKind, shape: CacheShape, capacity: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.kind = kind
        self.capacity = capacity
        self.batch = shape.batch
        self.used = 0
        """A bound on the tokens of every row, known without looking at tensors."""
        self.lengths_B = torch.zeros(shape.batch, dtype=torch.long, device=device)
        self.ragged = kind != "growing"
        """Whether rows may differ in length, so that `lengths_B` must be asked."""
        k = (shape.batch, capacity, shape.heads, shape.head_size)
        v = (shape.batch, capacity, shape.heads, shape.value_size)
        self.layers = [
            SelfCache(self, torch.zeros(k, device=device, dtype=dtype), torch.zeros(v, device=device, dtype=dtype))
            for _ in range(shape.layers)
        ]
        self.cross = [CrossCache() for _ in range(shape.layers)]
        self._starts_B = self.lengths_B
        self._start = 0
        self._new = Padded(shape.batch, 0)

    def plan(self, new: Layout, prefix: Tensor | None = None) -> tuple[Padded, Padded]:
        """The layouts of queries and keys when `new` tokens come; refuses what does not fit, and stores nothing.

        So a call that is refused, here or by an embedding that is told these layouts, can be repeated.
        """
        if not isinstance(new, Padded) or not new.plain or new.batch != self.batch:
            raise InputError(f"a cache takes padded batches of {self.batch} rows from place 0; make a new cache")
        used = self.used + new.time
        if self.kind == "fixed" and used > self.capacity:
            raise InputError(
                f"{used} tokens are beyond the cache's capacity ({self.capacity}); make it larger, or growing"
            )
        if prefix is not None:
            self._require_whole(prefix, new)
        self._new = new
        if not self._is_ragged(new):
            return Padded(self.batch, new.time, start=self.used), Padded(self.batch, used)
        places_BT = self._new_places(new)
        bound = self.capacity if self.kind == "fixed" else used
        queries = Padded(self.batch, new.time, places_BT=places_BT, bound=bound)
        if self.kind == "windowed":
            places_BK = torch.cat([self._ring_places(self.lengths_B), places_BT], dim=1)
            return queries, Padded(self.batch, places_BK.shape[1], places_BT=places_BK, bound=used)
        return queries, Padded(self.batch, bound, self._lengths_after(new))

    def commit(self) -> None:
        """Makes room for what was planned last; the layers append it next."""
        new = self._new
        self._start, self._starts_B = self.used, self.lengths_B
        self.used += new.time
        if self.kind == "growing" and self.used > self.capacity:
            self._grow()
        self.ragged = self._is_ragged(new)
        if self.kind == "fixed":  # in its place, as all of it, so that a step can be recorded and replayed
            self._starts_B = self.lengths_B.clone()
            self.lengths_B.copy_(self._lengths_after(new))
        else:
            self.lengths_B = self._lengths_after(new)

    def select(self, rows_N: Tensor) -> None:
        """Row n goes on where row `rows_N[n]` had come to: rows may change places, be doubled, or go.

        What the encoder said belongs to sources, not to rows, and stays: see `CrossCache.select`. A fixed cache keeps
        its memory as long as it keeps its number of rows.
        """
        kept, filled = len(rows_N), self.capacity if self.kind != "growing" else self.used
        for layer in self.layers:
            for name in ("k_BCGE", "v_BCGV"):
                old = getattr(layer, name)
                chosen = old[:, :filled].index_select(0, rows_N)
                if kept == self.batch:
                    old[:, :filled] = chosen
                    continue
                new = chosen if filled == self.capacity else old.new_zeros(kept, *old.shape[1:])
                new[:, :filled] = chosen
                setattr(layer, name, new)
        lengths_N = self.lengths_B.index_select(0, rows_N)
        if kept == self.batch:
            self.lengths_B.copy_(lengths_N)
        else:
            self.batch, self.lengths_B = kept, lengths_N

    def _is_ragged(self, new: Padded) -> bool:
        return self.ragged or new.lengths_B is not None

    def _lengths_after(self, new: Padded) -> Tensor:
        return self.lengths_B + (new.time if new.lengths_B is None else new.lengths_B)

    def _require_whole(self, prefix_B: Tensor, new: Padded) -> None:
        """Refuses a prefix that goes beyond the first call: its tokens see all of it, and it is not there yet."""
        if not readable(prefix_B):
            return
        given_B = torch.full_like(prefix_B, new.time) if new.lengths_B is None else new.lengths_B
        early_B = (self.lengths_B == 0) & (given_B > 0) & (prefix_B > given_B)
        if bool(early_B.any()):
            row = int(early_B.nonzero()[0])
            raise InputError(
                f"a prefix of {int(prefix_B[row])} tokens needs them all in the first call with a cache, which has "
                f"{int(given_B[row])}; give the whole prefix at once"
            )

    def _new_places(self, new: Padded) -> Tensor:
        """`[B, T]`: the place of each new token, −1 for padding."""
        within_1T = torch.arange(new.time, device=self.lengths_B.device)[None]
        places_BT = self.lengths_B[:, None] + within_1T
        return places_BT if new.lengths_B is None else torch.where(within_1T < new.lengths_B[:, None], places_BT, -1)

    def _ring_places(self, lengths_B: Tensor) -> Tensor:
        """`[B, C]`: which place each column of the ring holds when so many tokens have passed; negative for none."""
        column_1C = torch.arange(self.capacity, device=lengths_B.device)[None]
        last_B1 = lengths_B[:, None] - 1
        return last_B1 - (last_B1 - column_1C) % self.capacity

    def store(self, layer: SelfCache, k_BTGE: Tensor, v_BTGV: Tensor) -> tuple[Tensor, Tensor]:
        """Writes one layer's new keys and values; returns those to attend to, in the order that `plan` told."""
        if self.kind == "windowed":
            return self._store_ring(layer, k_BTGE, v_BTGV)
        start, end = self._start, self.used
        if not self.ragged:
            layer.k_BCGE[:, start:end] = k_BTGE
            layer.v_BCGV[:, start:end] = v_BTGV
        else:
            row_B1 = torch.arange(self.batch, device=k_BTGE.device)[:, None]
            column_BT = self._starts_B[:, None] + torch.arange(self._new.time, device=k_BTGE.device)
            layer.k_BCGE[row_B1, column_BT] = k_BTGE
            layer.v_BCGV[row_B1, column_BT] = v_BTGV
        seen = self.capacity if self.kind == "fixed" else end
        return layer.k_BCGE[:, :seen], layer.v_BCGV[:, :seen]

    def _store_ring(self, layer: SelfCache, k_BTGE: Tensor, v_BTGV: Tensor) -> tuple[Tensor, Tensor]:
        """Attends to ring and new tokens together, then lets each column take the last token that falls on it."""
        keys, values = torch.cat([layer.k_BCGE, k_BTGE], dim=1), torch.cat([layer.v_BCGV, v_BTGV], dim=1)
        new_BC = self._ring_places(self.lengths_B) - self._starts_B[:, None]
        source_BC = torch.where(
            new_BC >= 0, self.capacity + new_BC, torch.arange(self.capacity, device=new_BC.device)[None]
        )
        row_B1 = torch.arange(self.batch, device=new_BC.device)[:, None]
        layer.k_BCGE, layer.v_BCGV = keys[row_B1, source_BC], values[row_B1, source_BC]
        return keys, values

    def _grow(self) -> None:
        capacity = max(self.used, 2 * self.capacity)
        for layer in self.layers:
            for name in ("k_BCGE", "v_BCGV"):
                old = getattr(layer, name)
                grown = old.new_zeros(self.batch, capacity, *old.shape[2:])
                grown[:, : self.capacity] = old
                setattr(layer, name, grown)
        self.capacity = capacity
