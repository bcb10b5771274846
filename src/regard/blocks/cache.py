"""Key/value caches of decoders, so that each new token costs one step.

`RowCache` keeps the keys and values of each row of a batch:

- growing: as long as needed, allocated in doubling steps;
- fixed: a constant capacity and static shapes, so that a step can be compiled once;
- windowed: a ring of the last `capacity` tokens, for attention with a window.

`BeamCache` serves searches. The beams of an input are several queries of one row, at the same position, and share
columns of keys and values; a mask selects the columns that a beam descends from.

A cache belongs to one batch. Each forward pass calls `plan` and then, if nothing raised, `commit`; then each layer
calls `append`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from regard.blocks.layout import Layout, Padded, readable
from regard.blocks.visibility import Visibility
from regard.errors import InputError

CacheKind: TypeAlias = Literal["growing", "fixed", "windowed"]

DROP_EVERY = 8
"""Steps of a beam search after which columns that no beam sees are dropped."""
LEAST_ROOM = 32
"""Smallest number of columns to allocate at a time."""


@dataclass(frozen=True)
class CacheShape:
    """Sizes of a cache. `batch` is the number of rows."""

    layers: int
    batch: int
    heads: int
    head_size: int
    value_size: int


class CrossCache:
    """Keys and values of the encoder's output, projected once."""

    def __init__(self, by_heads: bool = False) -> None:
        self.by_heads = by_heads
        self.stored: tuple[Tensor, Tensor] | None = None

    def get(self, project: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        if self.stored is None:
            k, v = project()
            self.stored = (_by_heads(k), _by_heads(v)) if self.by_heads else (k, v)
        return self.stored

    def select(self, rows_N: Tensor) -> None:
        """Keeps the given rows, in the given order."""
        if self.stored is not None:
            k, v = self.stored
            self.stored = _select_rows(k, rows_N), _select_rows(v, rows_N)


class SelfCache:
    """Keys `[B, C, G, E]` and values `[B, C, G, V]` of one layer."""

    def __init__(self, cache: Cache, k_BCGE: Tensor, v_BCGV: Tensor) -> None:
        self.cache = cache
        self.k_BCGE, self.v_BCGV = k_BCGE, v_BCGV

    def append(self, k_BTGE: Tensor, v_BTGV: Tensor) -> tuple[Tensor, Tensor]:
        """Stores new keys and values, and returns all that the new queries attend to."""
        return self.cache.store(self, k_BTGE, v_BTGV)


class Cache:
    """The caches of all layers of a decoder."""

    layers: list[SelfCache]
    cross: list[CrossCache]
    mask: Tensor | None = None
    """`[B, Q, K]`, true where a query sees a key; None: the positions in the layouts decide."""
    fixed = False
    """Whether all memory stays in place."""

    def plan(self, new: Layout, prefix: Tensor | None = None) -> tuple[Padded, Padded]:
        """Returns the layouts of queries and keys for `new` tokens. Raises if they do not fit, and stores nothing.

        So a call that raises, here or in an embedding that gets these layouts, can be repeated.
        """
        raise NotImplementedError

    def commit(self) -> None:
        """Makes room for the planned tokens, which the layers append next."""
        raise NotImplementedError

    def store(self, layer: SelfCache, k_BTGE: Tensor, v_BTGV: Tensor) -> tuple[Tensor, Tensor]:
        """Writes the new keys and values of a layer; returns those to attend to, in the order of `plan`."""
        raise NotImplementedError

    def cross_visibility(self, queries: Padded, memory: Layout) -> Visibility:
        """Visibility of the encoder's output."""
        return Visibility(queries, memory)


class RowCache(Cache):
    """One sequence in each row; rows may differ in length."""

    def __init__(
        self, kind: CacheKind, shape: CacheShape, capacity: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.kind = kind
        self.capacity = capacity
        self.batch = shape.batch
        self.used = 0
        """A bound on the tokens of every row, known without reading tensors."""
        self.lengths_B = torch.zeros(shape.batch, dtype=torch.long, device=device)
        self.ragged = kind != "growing"
        """Whether rows may differ in length, so that `lengths_B` is needed."""
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
        if not isinstance(new, Padded) or not new.plain or new.batch != self.batch:
            raise InputError(f"this cache takes padded batches of {self.batch} rows that start at position 0")
        used = self.used + new.time
        if self.kind == "fixed" and used > self.capacity:
            raise InputError(f"{used} tokens exceed the cache's capacity ({self.capacity}); raise it, or use growing")
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
        new = self._new
        self._start, self._starts_B = self.used, self.lengths_B
        self.used += new.time
        if self.kind == "growing" and self.used > self.capacity:
            self._grow()
        self.ragged = self._is_ragged(new)
        self.lengths_B = self._lengths_after(new)

    def store(self, layer: SelfCache, k_BTGE: Tensor, v_BTGV: Tensor) -> tuple[Tensor, Tensor]:
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
        visible = self.capacity if self.kind == "fixed" else end
        return layer.k_BCGE[:, :visible], layer.v_BCGV[:, :visible]

    def _is_ragged(self, new: Padded) -> bool:
        return self.ragged or new.lengths_B is not None

    def _lengths_after(self, new: Padded) -> Tensor:
        return self.lengths_B + (new.time if new.lengths_B is None else new.lengths_B)

    def _require_whole(self, prefix_B: Tensor, new: Padded) -> None:
        """Raises if a prefix extends beyond the first call: its tokens see all of it."""
        if not readable(prefix_B):
            return
        given_B = torch.full_like(prefix_B, new.time) if new.lengths_B is None else new.lengths_B
        early_B = (self.lengths_B == 0) & (given_B > 0) & (prefix_B > given_B)
        if bool(early_B.any()):
            row = int(early_B.nonzero()[0])
            raise InputError(
                f"prefix ({int(prefix_B[row])}) of row {row} exceeds the {int(given_B[row])} tokens of the first call "
                "with a cache; give the whole prefix at once"
            )

    def _new_places(self, new: Padded) -> Tensor:
        """`[B, T]`: the position of each new token, −1 for padding."""
        within_1T = torch.arange(new.time, device=self.lengths_B.device)[None]
        places_BT = self.lengths_B[:, None] + within_1T
        return places_BT if new.lengths_B is None else torch.where(within_1T < new.lengths_B[:, None], places_BT, -1)

    def _ring_places(self, lengths_B: Tensor) -> Tensor:
        """`[B, C]`: the position that each column of the ring holds after so many tokens; negative if none."""
        column_1C = torch.arange(self.capacity, device=lengths_B.device)[None]
        last_B1 = lengths_B[:, None] - 1
        return last_B1 - (last_B1 - column_1C) % self.capacity

    def _store_ring(self, layer: SelfCache, k_BTGE: Tensor, v_BTGV: Tensor) -> tuple[Tensor, Tensor]:
        """Returns ring and new tokens together; then each column takes the last token that falls on it."""
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


class BeamCache(Cache):
    """Beams of an input share columns, so that reordering beams changes a mask and moves no keys or values.

    The first call reads a prompt `[B, T]` (of an encoder-decoder, the start token). Each later call reads `[B, K]`: one
    token for each of the K beams of an input, all at the same position. It writes K columns. A beam sees the columns
    that it descends from, so the common beginning of beams is stored once.

    A growing cache drops columns that no beam sees from time to time. With `steps` and `beams`, memory is fixed: it is
    allocated once, and every call changes it in place and reads nothing back, so that a GPU can replay a step.

    B: inputs, K: beams of each, N = B × K, C: columns, G: key/value heads.
    """

    def __init__(
        self,
        shape: CacheShape,
        device: torch.device,
        dtype: torch.dtype,
        longest: int | None = None,
        steps: int | None = None,
        beams: int = 1,
    ) -> None:
        """`longest` is the number of learned positions, if there is such a bound.

        `steps` fixes the memory: the number of tokens to write at most.
        """
        self.shape, self.device, self.dtype = shape, device, dtype
        self.longest, self.steps, self.beams = longest, steps, beams
        self.fixed = steps is not None
        self.inputs = shape.batch
        self.rows = 1
        """Beams of each input at present."""
        self.columns = 0
        """Columns in use."""
        self.room = 0
        """Columns allocated."""
        self.time = 0
        """A bound on the next position of every input, known without reading tensors."""
        self.place_B1 = torch.zeros(1, 1, dtype=torch.long, device=device)
        """`[B or 1, 1]`: the next position of each input."""
        self.blocks_1 = torch.zeros(1, dtype=torch.long, device=device)
        """Of a fixed cache: blocks of K columns in use."""
        self.seen_NC = torch.zeros(self.inputs, 0, dtype=torch.bool, device=device)
        """Which columns each beam descends from."""
        self.places_BC = torch.zeros(self.inputs, 0, dtype=torch.long, device=device)
        """Position of the token in each column, −1 if none."""
        none = torch.empty(0, device=device, dtype=dtype)
        self.layers = [SelfCache(self, none, none) for _ in range(shape.layers)]
        self.cross = [CrossCache(by_heads=device.type == "cpu") for _ in range(shape.layers)]
        self._new = Padded(self.inputs, 0)
        self._cross_visibility: Visibility | None = None

    def plan(self, new: Layout, prefix: Tensor | None = None) -> tuple[Padded, Padded]:
        assert isinstance(new, Padded) and new.plain and new.batch == self.inputs
        self._new = new
        if self.time == 0:
            return new, new
        # A copy where `commit` changes it in place.
        place_BK = (self.place_B1.clone() if self.fixed else self.place_B1).expand(self.inputs, new.time)
        if not self.fixed:
            if self.columns + new.time > self.room:
                self._drop(new.time)
            own_NK = torch.eye(new.time, dtype=torch.bool, device=self.device).repeat(self.inputs, 1)
            self._next = torch.cat([self.seen_NC, own_NK], dim=1), torch.cat([self.places_BC, place_BK], dim=1)
        bound = self._bound(self.time + 1)
        places_BC = self.places_BC if self.fixed else self._next[1]
        queries = Padded(self.inputs, new.time, places_BT=place_BK, bound=bound)
        return queries, Padded(self.inputs, places_BC.shape[1], places_BT=places_BC, bound=bound)

    def _bound(self, time: int) -> int:
        """A bound on all positions; constant where memory is fixed."""
        if self.steps is not None:
            time = self._prompt + self.steps
        return time if self.longest is None else min(time, self.longest)

    def commit(self) -> None:
        if self.time == 0:
            self._commit_prompt()
            return
        if not self.fixed:
            self.seen_NC, self.places_BC = self._next
            self.columns += self._new.time
        else:
            index_K = self._own_columns()
            self.seen_NC.scatter_(1, index_K.repeat(self.inputs)[:, None], True)
            self.places_BC.index_copy_(1, index_K, self.place_B1.expand(self.inputs, self.rows))
        self.mask = self.seen_NC.view(self.inputs, self._new.time, -1)
        self.advance()

    def advance(self) -> None:
        """Goes to the next position. Inputs that ended earlier than others may stay at the last learned position."""
        self.time += 1
        place_B1 = self.place_B1 + 1 if self.longest is None else (self.place_B1 + 1).clamp(max=self.longest - 1)
        if self.fixed:
            self.place_B1.copy_(place_B1)
            self.blocks_1 += 1
        else:
            self.place_B1 = place_B1

    def _commit_prompt(self) -> None:
        new, device = self._new, self.device
        self.time = self._prompt = new.time
        places_BT = new.places(device).expand(self.inputs, new.time)
        if new.lengths_B is None:
            self.place_B1 = torch.full((1, 1), new.time, device=device)
        else:
            self.place_B1 = new.lengths_B[:, None].clone()
        if self.steps is None:
            self.columns, self.room = new.time, new.time + LEAST_ROOM
            self.places_BC, self.seen_NC = places_BT, places_BT >= 0
        else:
            blocks = -(-new.time // self.beams)
            self.room = self.columns = (blocks + self.steps) * self.beams
            self.blocks_1 += blocks
            self.places_BC = torch.full((self.inputs, self.room), -1, device=device)
            self.places_BC[:, : new.time] = places_BT
            self.seen_NC = (self.places_BC >= 0).repeat_interleave(self.beams, 0)
        for layer in self.layers:
            layer.k_BCGE, layer.v_BCGV = self._empty(self.shape.head_size), self._empty(self.shape.value_size)

    def _empty(self, size: int) -> Tensor:
        """`[B, C, G, size]`; on a CPU with the columns of a head next to each other in memory, for matrix products."""
        heads, room = self.shape.heads, self.room
        if self.device.type != "cpu":
            return torch.zeros(self.inputs, room, heads, size, device=self.device, dtype=self.dtype)
        # Unused columns of a fixed cache are read, with weight 0, so they must be finite.
        make = torch.zeros if self.fixed else torch.empty
        return make(self.inputs, heads, room, size, dtype=self.dtype).transpose(1, 2)

    def _own_columns(self) -> Tensor:
        """`[K]`: the columns that the beams of an input write in this step."""
        return self.blocks_1 * self.rows + torch.arange(self.rows, device=self.device)

    def store(self, layer: SelfCache, k_BTGE: Tensor, v_BTGV: Tensor) -> tuple[Tensor, Tensor]:
        if self.mask is None:  # a prompt sees itself only
            layer.k_BCGE[:, : self._new.time], layer.v_BCGV[:, : self._new.time] = k_BTGE, v_BTGV
            return k_BTGE, v_BTGV
        keys, values, rows = layer.k_BCGE, layer.v_BCGV, k_BTGE.shape[1]
        if self.fixed:
            index_K = self._own_columns() - rows  # `commit` has advanced
            keys.index_copy_(1, index_K, k_BTGE)
            values.index_copy_(1, index_K, v_BTGV)
            return keys, values
        end = self.columns
        keys[:, end - rows : end], values[:, end - rows : end] = k_BTGE, v_BTGV
        return keys[:, :end], values[:, :end]

    def cross_visibility(self, queries: Padded, memory: Layout) -> Visibility:
        """Visibility of the encoder's output; kept between steps, since its masks stay the same.

        Not with fixed memory, since a replayed graph gets other lengths in the same memory.
        """
        if self.fixed:
            return Visibility(Padded(queries.batch, queries.time), memory)
        known = self._cross_visibility
        if known is None or known.keys is not memory or known.queries.shape != queries.shape:
            known = self._cross_visibility = Visibility(Padded(queries.batch, queries.time), memory, beams=True)
        return known

    def select(self, rows_N: Tensor, inputs_B: Tensor | None = None) -> None:
        """Beam n continues beam `rows_N[n]`. If inputs are dropped, `inputs_B` are those that stay."""
        inputs = self.inputs if inputs_B is None else len(inputs_B)
        rows = len(rows_N) // inputs
        widened = self.fixed and self.rows == 1 < self.beams  # after the prompt, when all beams of an input are equal
        self.rows = rows
        if widened:
            assert rows == self.beams
            if inputs_B is None:
                return
            rows_N = _beams_of(inputs_B, rows)
        if self.fixed and inputs_B is None:
            self.seen_NC.copy_(self.seen_NC.index_select(0, rows_N))
            return
        self.seen_NC = self.seen_NC.index_select(0, rows_N)
        if inputs_B is None:
            return
        self.inputs = inputs
        self.places_BC = self.places_BC.index_select(0, inputs_B)
        if len(self.place_B1) > 1:
            self.place_B1 = self.place_B1.index_select(0, inputs_B)
        for layer in self.layers:
            layer.k_BCGE, layer.v_BCGV = (_select_rows(x, inputs_B) for x in (layer.k_BCGE, layer.v_BCGV))
        for cross in self.cross:
            cross.select(inputs_B)

    def tensors(self) -> list[Tensor]:
        """All memory that steps read and write; it stays in place in a fixed cache."""
        own = [x for layer in self.layers for x in (layer.k_BCGE, layer.v_BCGV)]
        cross = [x for each in self.cross if each.stored is not None for x in each.stored]
        return [self.seen_NC, self.places_BC, self.place_B1, self.blocks_1, *own, *cross]

    def _drop(self, rows: int) -> None:
        """Keeps the columns that some beam sees, in new memory with room for the next steps."""
        columns = self.columns
        seen_BKC = self.seen_NC.view(self.inputs, -1, columns)
        needed_BC = seen_BKC.any(1)
        width = int(needed_BC.sum(1).max())
        # The needed columns first and in their order; inputs that need fewer keep some that no beam sees.
        order_BC = needed_BC.int().argsort(dim=1, descending=True, stable=True)[:, :width]
        self.seen_NC = seen_BKC.gather(2, order_BC[:, None].expand(-1, seen_BKC.shape[1], -1)).flatten(0, 1)
        self.places_BC = self.places_BC.gather(1, order_BC)
        self.columns, self.room = width, width + max(DROP_EVERY * rows, LEAST_ROOM, width // 4)
        groups = self.shape.heads
        # Rows of `[B, G, C]` flattened: far faster than an index with three dimensions.
        first_BG = torch.arange(self.inputs * groups, device=self.device).view(self.inputs, groups)
        for layer in self.layers:
            for name in ("k_BCGE", "v_BCGV"):
                old_BGCE = getattr(layer, name).transpose(1, 2)
                index_BGC = old_BGCE.shape[2] * first_BG[..., None] + order_BC[:, None]
                new = self._empty(old_BGCE.shape[3])
                new.transpose(1, 2)[:, :, :width] = old_BGCE.flatten(0, 2)[index_BGC]
                setattr(layer, name, new)


def _beams_of(inputs_B: Tensor, beams: int) -> Tensor:
    """`[N]`: all beams of some inputs."""
    return (inputs_B[:, None] * beams + torch.arange(beams, device=inputs_B.device)).flatten()


def _by_heads(x_BCGE: Tensor) -> Tensor:
    """The same values, with the columns of a head next to each other in memory."""
    return x_BCGE.transpose(1, 2).contiguous().transpose(1, 2)


def _select_rows(x_BCGE: Tensor, rows_N: Tensor) -> Tensor:
    """Some rows, in the same memory order."""
    if x_BCGE.is_contiguous():
        return x_BCGE.index_select(0, rows_N)
    return x_BCGE.transpose(1, 2).index_select(0, rows_N).transpose(1, 2)
