"""The key/value cache of a decoder, so that each new token costs one step.

The beams of an input are several queries of one row, at the same position, and share columns of keys and values; a mask
selects the columns that a beam descends from. Without a search, each input has one beam.

A cache belongs to one batch. Each forward pass calls `plan` and then, if nothing raised, `commit`; then each layer
calls `append`.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from regard.blocks.layout import Layout, Padded
from regard.blocks.visibility import Visibility
from regard.errors import InputError

DROP_EVERY = 8
"""Steps of a beam search after which columns that no beam sees are dropped."""
LEAST_ROOM = 32
"""Smallest number of columns to allocate at a time."""


class CrossCache:
    """Keys and values of the encoder's output, projected once."""

    stored: tuple[Tensor, Tensor] | None = None

    def get(self, project: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        if self.stored is None:
            k, v = project()
            self.stored = (_by_heads(k), _by_heads(v)) if k.device.type == "cpu" else (k, v)
        return self.stored

    def select(self, rows_N: Tensor) -> None:
        """Keeps the given rows, in the given order."""
        if self.stored is not None:
            k, v = self.stored
            self.stored = _select_rows(k, rows_N), _select_rows(v, rows_N)


class SelfCache:
    """Keys `[B, C, G, E]` and values `[B, C, G, V]` of one layer."""

    def __init__(self, cache: Cache, k_BCGE: Tensor, v_BCGV: Tensor) -> None:
        self._cache = weakref.ref(cache)  # no cycle, so that the memory of a cache is freed at once
        self.k_BCGE, self.v_BCGV = k_BCGE, v_BCGV

    def append(self, k_BTGE: Tensor, v_BTGV: Tensor) -> tuple[Tensor, Tensor]:
        """Stores new keys and values, and returns all that the new queries attend to."""
        cache = self._cache()
        assert cache is not None
        return cache.store(self, k_BTGE, v_BTGV)


class Cache:
    """The caches of all layers of a decoder. Reordering beams changes a mask and moves no keys or values.

    The first call reads a prompt `[B, T]` (of an encoder-decoder, the start token). Each later call reads `[B, K]`: one
    token for each of the K beams of an input, all at the same position. It writes K columns. A beam sees the columns
    that it descends from, so the common beginning of beams is stored once. A growing cache without beams also reads
    several further tokens in a call, as many as the layout states for each row, and can `forget` the last ones.

    A growing cache drops columns that no beam sees from time to time. With `steps` and `beams`, memory is fixed: it is
    allocated once, and every call changes it in place and reads nothing back, so that a GPU can replay a step.

    B: inputs, K: beams of each, N = B × K, C: columns, G: key/value heads.
    """

    def __init__(
        self,
        layers: int,
        batch: int,
        heads: int,
        sizes: tuple[int, int],
        like: Tensor,
        longest: int | None = None,
        steps: int | None = None,
        beams: int = 1,
    ) -> None:
        """`sizes` are those of a head's keys and values. The cache has the device and the dtype of `like`.

        Beyond `longest` positions, positions stay at the last one. `steps`, the number of tokens to write at most,
        fixes the memory.
        """
        device, dtype = like.device, like.dtype
        self.heads, self.sizes, self.device, self.dtype = heads, sizes, device, dtype
        self.longest, self.steps, self.beams = longest, steps, beams
        self.fixed = steps is not None
        self.mask: Tensor | None = None
        """`[B, K, C]`, true where a beam sees a column; None in the first call, where layouts decide."""
        self.inputs = batch
        self.rows = 1
        """Beams of each input at present."""
        self.columns = 0
        self.room = 0
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
        self.layers = [SelfCache(self, none, none) for _ in range(layers)]
        self.cross = [CrossCache() for _ in range(layers)]
        self._new = Padded(self.inputs, 0)
        self._cross_visibility: Visibility | None = None

    def plan(self, new: Layout) -> tuple[Padded, Padded]:
        """Returns the layouts of queries and keys for `new` tokens. Raises if they do not fit, and stores nothing.

        So a call that raises, here or in an embedding that gets these layouts, can be repeated.
        """
        if not isinstance(new, Padded) or new.places_BT is not None or new.batch != self.inputs:
            raise InputError(f"this cache takes padded batches of {self.inputs} rows that start at position 0")
        several = self.time > 0 and (new.time != self.rows or new.lengths_B is not None)
        if several and (self.rows > 1 or self.fixed):
            raise InputError(f"{new.time} tokens in each row; after the first call, give one at a time")
        self._new = new
        if self.time == 0:
            return new, new
        time = self.time + (new.time if several else 1)
        if self.fixed:
            place_BT = self.place_B1.clone().expand(self.inputs, new.time)  # a copy: `commit` changes it in place
            places_BC = self.places_BC
        else:
            if self.columns + new.time > self.room:
                self._drop(new.time)
            place_BT, places_BC = self._grown(new, several, time)
        bound = self._bound(time)
        queries = Padded(self.inputs, new.time, places_BT=place_BT, bound=bound)
        return queries, Padded(self.inputs, places_BC.shape[1], places_BT=places_BC, bound=bound)

    def _grown(self, new: Padded, several: bool, time: int) -> tuple[Tensor, Tensor]:
        """Positions of the new tokens and of all columns with theirs; prepares what `commit` stores."""
        itself_TT = torch.eye(new.time, dtype=torch.bool, device=self.device)
        if several:  # each sees the earlier ones and itself; padding too, since a query must see something
            real_BT = new.places(self.device).expand(self.inputs, new.time) >= 0
            place_BT = torch.where(
                real_BT, self._clamped(self.place_B1 + torch.arange(new.time, device=self.device)), -1
            )
            own_BTT = torch.ones_like(itself_TT).tril() & real_BT[:, None] | itself_TT
            next_B1 = self.place_B1 + (new.time if new.lengths_B is None else new.lengths_B[:, None])
        else:
            place_BT, own_BTT = self.place_B1.expand(self.inputs, new.time), itself_TT.expand(self.inputs, -1, -1)
            next_B1 = self._clamped(self.place_B1 + 1)
        old_BTC = self.seen_NC.view(self.inputs, self.rows, -1).expand(-1, new.time, -1)
        mask_BTC = torch.cat([old_BTC, own_BTT], dim=2)
        seen_NC = torch.cat([self.seen_NC, real_BT], dim=1) if several else mask_BTC.flatten(0, 1)
        places_BC = torch.cat([self.places_BC, place_BT], dim=1)
        self._next = mask_BTC, seen_NC, places_BC, next_B1, time
        return place_BT, places_BC

    def _bound(self, time: int) -> int:
        """A bound on all positions; constant where memory is fixed."""
        if self.steps is not None:
            time = self._prompt + self.steps
        return time if self.longest is None else min(time, self.longest)

    def _clamped(self, places: Tensor) -> Tensor:
        """Inputs that ended earlier than others may stay at the last learned position."""
        return places if self.longest is None else places.clamp(max=self.longest - 1)

    def commit(self) -> None:
        """Makes room for the planned tokens, which the layers append next."""
        if self.time == 0:
            self._commit_prompt()
        elif self.fixed:
            index_K = self._own_columns()
            self.seen_NC.scatter_(1, index_K.repeat(self.inputs)[:, None], True)
            self.places_BC.index_copy_(1, index_K, self.place_B1.expand(self.inputs, self.rows))
            self.mask = self.seen_NC.view(self.inputs, self._new.time, -1)
            self.place_B1.copy_(self._clamped(self.place_B1 + 1))
            self.blocks_1 += 1
            self.time += 1
        else:
            self.mask, self.seen_NC, self.places_BC, self.place_B1, self.time = self._next
            self.columns += self._new.time

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
            layer.k_BCGE, layer.v_BCGV = map(self._empty, self.sizes)

    def _empty(self, size: int) -> Tensor:
        """`[B, C, G, size]`; on a CPU with the columns of a head next to each other in memory, for matrix products."""
        heads, room = self.heads, self.room
        if self.device.type != "cpu":
            return torch.zeros(self.inputs, room, heads, size, device=self.device, dtype=self.dtype)
        # Unused columns of a fixed cache are read, with weight 0, so they must be finite.
        make = torch.zeros if self.fixed else torch.empty
        return make(self.inputs, heads, room, size, dtype=self.dtype).transpose(1, 2)

    def _own_columns(self) -> Tensor:
        """`[K]`: the columns that the beams of an input write in this step."""
        return self.blocks_1 * self.rows + torch.arange(self.rows, device=self.device)

    def store(self, layer: SelfCache, k_BTGE: Tensor, v_BTGV: Tensor) -> tuple[Tensor, Tensor]:
        """Writes the new keys and values of a layer; returns those to attend to, in the order of `plan`."""
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
            rows_N = (inputs_B[:, None] * rows + torch.arange(rows, device=inputs_B.device)).flatten()
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

    def forget(self, counts_B: Tensor) -> None:
        """Removes the last tokens of each row, such as drafts that were not accepted."""
        assert not self.fixed and self.rows == 1
        self.place_B1 = self.place_B1 - counts_B[:, None]
        self.seen_NC = self.seen_NC & (self.places_BC < self.place_B1)

    @staticmethod
    def joined(parts: Sequence[tuple[Cache, int, int]]) -> Cache:
        """A new cache whose rows are the first tokens of rows of other caches: (cache, row, tokens) for each."""
        new = copy.copy(next((cache for cache, _, length in parts if length), parts[0][0]))
        lengths_B = torch.tensor([length for *_, length in parts], device=new.device)
        new.inputs, new.columns = len(parts), max(length for *_, length in parts)
        new.time, new.room, new.mask = new.columns, new.columns + LEAST_ROOM, None
        new.place_B1 = lengths_B[:, None]
        new.places_BC = Padded.of(lengths_B, new.columns).places(new.device)
        new.seen_NC = new.places_BC >= 0
        # Zeros, since columns that a row does not see are read with weight 0.
        new.layers = [SelfCache(new, *(new._empty(size).zero_() for size in new.sizes)) for _ in new.layers]
        for row, (cache, old, length) in enumerate(parts):
            if length:
                columns_C = (cache.seen_NC[old] & (cache.places_BC[old] < length)).nonzero()[:, 0]
                for into, out in zip(new.layers, cache.layers, strict=True):
                    into.k_BCGE[row, :length] = out.k_BCGE[old, columns_C]
                    into.v_BCGV[row, :length] = out.v_BCGV[old, columns_C]
        return new

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
        groups = self.heads
        # Rows of `[B, G, C]` flattened: far faster than an index with three dimensions.
        first_BG = torch.arange(self.inputs * groups, device=self.device).view(self.inputs, groups)
        for layer in self.layers:
            for name in ("k_BCGE", "v_BCGV"):
                old_BGCE = getattr(layer, name).transpose(1, 2)
                index_BGC = old_BGCE.shape[2] * first_BG[..., None] + order_BC[:, None]
                new = self._empty(old_BGCE.shape[3])
                new.transpose(1, 2)[:, :, :width] = old_BGCE.flatten(0, 2)[index_BGC]
                setattr(layer, name, new)


class SlotCache(Cache):
    """Fixed memory whose rows have lengths of their own, so that sequences join and leave while others go on.

    Column c of a row holds its token at position c. A call reads one token in every row, at the position `place_B1`,
    which the owner moves. All memory stays in place, so that a GPU can replay a call.
    """

    def __init__(self, layers: int, batch: int, heads: int, sizes: tuple[int, int], like: Tensor, columns: int) -> None:
        super().__init__(layers, batch, heads, sizes, like)
        self.fixed, self.room, self.columns, self.time = True, columns, columns, 1
        self.place_B1 = torch.zeros(batch, 1, dtype=torch.long, device=self.device)
        self.places_BC = torch.arange(columns, device=self.device).expand(batch, -1)
        self.seen_NC = self.places_BC >= 0
        self.row_B = torch.arange(batch, device=self.device)
        shapes = [(batch, columns, heads, size) for size in sizes]
        self.layers = [SelfCache(self, *(like.detach().new_zeros(shape) for shape in shapes)) for _ in range(layers)]

    def plan(self, new: Layout) -> tuple[Padded, Padded]:
        """The layouts of one token in every row and of all columns."""
        assert new.shape == (self.inputs, 1)
        queries = Padded(self.inputs, 1, places_BT=self.place_B1, bound=self.columns)
        return queries, Padded(self.inputs, self.columns, places_BT=self.places_BC, bound=self.columns)

    def commit(self) -> None:
        """Sees the columns up to the new token, which the layers append next."""
        self.mask = (self.places_BC <= self.place_B1)[:, None]

    def store(self, layer: SelfCache, k_BTGE: Tensor, v_BTGV: Tensor) -> tuple[Tensor, Tensor]:
        index = self.row_B, self.place_B1[:, 0]
        layer.k_BCGE[index], layer.v_BCGV[index] = k_BTGE[:, 0], v_BTGV[:, 0]
        return layer.k_BCGE, layer.v_BCGV

    def load(self, rows: Sequence[int], other: Cache) -> None:
        """Copies the sequences of another cache into the given rows."""
        row_M, column_M = (other.seen_NC & (other.places_BC >= 0)).nonzero(as_tuple=True)
        into_M = torch.tensor(rows, device=self.device)[row_M]
        place_M = other.places_BC.expand_as(other.seen_NC)[row_M, column_M]
        for mine, its in zip(self.layers, other.layers if len(row_M) else (), strict=False):
            mine.k_BCGE[into_M, place_M] = its.k_BCGE[row_M, column_M]
            mine.v_BCGV[into_M, place_M] = its.v_BCGV[row_M, column_M]

    def __copy__(self) -> Cache:
        """An empty cache of the same kind without slots, for `joined`."""
        return Cache(len(self.layers), self.inputs, self.heads, self.sizes, self.layers[0].k_BCGE)


class StateCache:
    """The state of a decoder without self-attention: what its next step needs, for each beam and for each input.

    It is used as a `Cache`: a prompt in the first call, then one token for each beam of an input.
    """

    fixed = False

    def __init__(self, batch: int, device: torch.device, longest: int | None = None) -> None:
        """Beyond `longest` positions, positions stay at the last one."""
        self.inputs, self.device, self.longest = batch, device, longest
        self.time = 0
        """The next position."""
        self.beams: dict[str, Tensor] = {}
        """`[N, ...]`: the state of each beam."""
        self.sources: dict[str, Tensor] = {}
        """`[B, ...]`: the source of each input."""

    def plan(self, new: Layout) -> tuple[Padded, Padded]:
        """Returns the layout of `new` tokens, as queries and as keys. Raises if they do not fit, and stores nothing."""
        plain = isinstance(new, Padded) and new.places_BT is None and new.lengths_B is None
        if not isinstance(new, Padded) or not plain or new.batch != self.inputs:
            raise InputError(f"this cache takes batches of {self.inputs} rows of one length that start at position 0")
        if self.time == 0:
            return new, new
        rows = len(next(iter(self.beams.values()))) // self.inputs
        if new.time != rows:
            raise InputError(f"{new.time} tokens in each row; after the first call, give one at a time")
        place = self.time if self.longest is None else min(self.time, self.longest - 1)
        places_BK = torch.full((self.inputs, new.time), place, device=self.device)
        layout = Padded(self.inputs, new.time, places_BT=places_BK, bound=place + 1)
        return layout, layout

    def select(self, rows_N: Tensor, inputs_B: Tensor | None = None) -> None:
        """Beam n continues beam `rows_N[n]`. If inputs are dropped, `inputs_B` are those that stay."""
        self.beams = {name: x.index_select(0, rows_N) for name, x in self.beams.items()}
        if inputs_B is not None:
            self.inputs = len(inputs_B)
            self.sources = {name: x.index_select(0, inputs_B) for name, x in self.sources.items()}


def _by_heads(x_BCGE: Tensor) -> Tensor:
    """The same values, with the columns of a head next to each other in memory."""
    return x_BCGE.transpose(1, 2).contiguous().transpose(1, 2)


def _select_rows(x_BCGE: Tensor, rows_N: Tensor) -> Tensor:
    """Some rows, in the same memory order."""
    if x_BCGE.is_contiguous():
        return x_BCGE.index_select(0, rows_N)
    return x_BCGE.transpose(1, 2).index_select(0, rows_N).transpose(1, 2)
