"""Visibility: who may see whom. One value, from which every attention backend takes what it needs.

A query sees a key when both are real, both belong to the same sequence, and every rule that is set allows it:

- `causal`: the key is not later than the query, or lies in the sequence's `prefix`;
- `window`: the two are fewer than `window` places apart.

Padding sees nothing and is seen by nothing, and what sees nothing gets zero, in every backend.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from regard.blocks.layout import Layout, Packed, Padded
from regard.errors import InputError


class Fused(NamedTuple):
    """What a fused kernel needs: a flag or a mask, and the rows to be zeroed afterwards."""

    causal: bool
    mask: Tensor | None
    """`[R or 1, Q or 1, K]`, true where a key is seen; open in blind rows: a softmax over nothing is undefined."""
    blind: Tensor | None
    """`[R, Q]`, true for queries that see nothing; None when there are none."""


class Cells(NamedTuple):
    """What the rules ask of a token: its place, its sequence where a row holds several, its sequence's prefix."""

    place: Tensor
    sequence: Tensor | None
    prefix: Tensor | None

    def at(self, *index: Tensor | slice | None) -> Cells:
        return self.map(lambda value: value[index])

    def map(self, change: Callable[[Tensor], Tensor]) -> Cells:
        """The same change to all that is there."""
        sequence = None if self.sequence is None else change(self.sequence)
        return Cells(change(self.place), sequence, None if self.prefix is None else change(self.prefix))


@dataclass(frozen=True)
class Visibility:
    """The rules for one call of attention. Made inside a forward pass, since it keeps what it works out in `memo`."""

    queries: Layout
    keys: Layout
    causal: bool = False
    window: int | None = None
    prefix: Tensor | None = None
    """Length of the prefix of each sequence: `[B]`, or `[S]` of a packed batch."""
    memo: dict[str, Tensor | Fused] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.queries, Packed) is not isinstance(self.keys, Packed):
            raise InputError("queries and keys must both be padded or both be packed; pack or pad the other side")
        if self.queries.count != self.keys.count:
            raise InputError(
                f"queries hold {self.queries.count} sequences and keys {self.keys.count}; each needs its partner"
            )
        if self.prefix is not None and tuple(self.prefix.shape) != (self.queries.count,):
            raise InputError(
                f"prefix of shape {list(self.prefix.shape)} must be [{self.queries.count}]; "
                "give each sequence its length, 0 where it has none"
            )

    @property
    def rows(self) -> int:
        """Rows of the scores: sequences, or the rows of a packed batch where both sides have as many."""
        return self.queries.rows if self.queries.rows == self.keys.rows else 1

    @property
    def reach(self) -> int | None:
        """The window, if it hides anything at all."""
        longest = max(self.queries.longest, self.keys.longest)
        return self.window if self.window is not None and self.window < longest else None

    def grid(self, x: Tensor) -> Tensor:
        """`[B, T, ...]` or `[N, ...]` as `[R, T, ...]`."""
        return x if isinstance(self.queries, Padded) else x.reshape(self.rows, -1, *x.shape[1:])

    def ungrid(self, x: Tensor) -> Tensor:
        """Back from `[R, T, ...]` to the layout."""
        return x if isinstance(self.queries, Padded) else x.flatten(0, 1)

    def grid_places(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Places of queries and keys, `[R or 1, Q]` and `[R or 1, K]`."""
        return self.grid(self.queries.places(device)), self.grid(self.keys.places(device))

    def cells(self, device: torch.device) -> tuple[Cells, Cells]:
        """What the rules ask of queries, `[R or 1, Q]`, and of keys, `[R or 1, K]`."""
        places_q, places_k = self.grid_places(device)
        packed = isinstance(self.queries, Packed)
        sequences_q = self.grid(self.queries.sequences(device))
        sequences_k = self.grid(self.keys.sequences(device)) if packed else None
        prefix = None if self.prefix is None else self.prefix[sequences_q]
        return Cells(places_q, sequences_q if packed else None, prefix), Cells(places_k, sequences_k, None)

    def allows(self, query: Cells, key: Cells) -> Tensor:
        """The definition of visibility, cell by cell; shapes are broadcast."""
        allowed = (query.place >= 0) & (key.place >= 0)
        if query.sequence is not None and key.sequence is not None:
            allowed = allowed & (query.sequence == key.sequence)
        if self.causal:
            earlier = key.place <= query.place
            allowed = allowed & (earlier if query.prefix is None else earlier | (key.place < query.prefix))
        if self.reach is not None:
            allowed = allowed & ((query.place - key.place).abs() < self.reach)
        return allowed

    def visible(self, device: torch.device) -> Tensor:
        """`[R or 1, Q, K]`, true where the query sees the key."""
        known = self.memo.get("visible")
        if isinstance(known, Tensor):
            return known
        query, key = self.cells(device)
        visible = self.allows(query.at(slice(None), slice(None), None), key.at(slice(None), None, slice(None)))
        self.memo["visible"] = visible
        return visible

    def fused(self, device: torch.device) -> Fused:
        """The same as flag, mask and blind rows, with the cheapest form that is exact."""
        known = self.memo.get("fused")
        if isinstance(known, Fused):
            return known
        fused = self._cheap(device)
        if fused is None:
            visible = self.visible(device)
            blind = ~visible.any(-1)
            fused = Fused(False, visible | blind[..., None], blind)
        self.memo["fused"] = fused
        return fused

    def _cheap(self, device: torch.device) -> Fused | None:
        """The forms that need no `[R, Q, K]` mask; None when one is needed."""
        queries, keys = self.queries, self.keys
        if isinstance(queries, Packed) or isinstance(keys, Packed):
            return None
        if self.reach is not None or self.prefix is not None or keys.places_BT is not None:
            return None
        real = queries.real(device)
        blind = None if real is None else ~real
        if self.causal:
            same = queries.time == keys.time and queries.lengths_B is keys.lengths_B
            if queries.plain and keys.plain and same:
                # Padding lies behind every real token, so the causal flag alone already hides it.
                return Fused(True, None, blind)
            sees_all = queries.time == 1 and queries.start == keys.longest - 1 and queries.places_BT is None
            return Fused(False, None, blind) if sees_all and keys.lengths_B is None else None
        if keys.lengths_B is None:
            return Fused(False, None, blind)
        empty_B1 = (keys.lengths_B == 0)[:, None]
        real_BK = torch.arange(keys.time, device=device) < keys.lengths_B[:, None]
        blind = empty_B1.expand(-1, queries.time) if blind is None else blind | empty_B1
        return Fused(False, (real_BK | empty_B1)[:, None, :], blind)
