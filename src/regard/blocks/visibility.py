"""Visibility: which keys each query sees. Every attention backend takes what it needs from this one value.

A query sees a key if both are real tokens of the same sequence and every rule that is set allows it:

- `causal`: the key is not after the query;
- `window`: the two are fewer than `window` positions apart;
- `mask`: an explicit mask in place of `causal`, for beams that share keys.

Padding sees nothing and is seen by nothing. A query that sees nothing gets zero in every backend.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.blocks.layout import Layout, Packed, Padded
from regard.errors import InputError


class Fused(NamedTuple):
    """The form that fused kernels need: a flag or a mask, and the queries whose output is set to zero."""

    causal: bool
    mask: Tensor | None
    """`[R or 1, Q or 1, K]`, true where a key is seen; all true for blind queries, whose softmax is undefined."""
    blind: Tensor | None
    """`[R, Q]`, true for queries that see nothing; None if there are none."""


class Cells(NamedTuple):
    """Position of each token, and its sequence if a row holds several."""

    place: Tensor
    sequence: Tensor | None

    def at(self, *index: Tensor | slice | None) -> Cells:
        return self.map(lambda value: value[index])

    def map(self, change: Callable[[Tensor], Tensor]) -> Cells:
        return Cells(change(self.place), None if self.sequence is None else change(self.sequence))


@dataclass(frozen=True)
class Visibility:
    """The rules for one attention call. Create it inside a forward pass: it caches masks in `memo`."""

    queries: Layout
    keys: Layout
    causal: bool = False
    window: int | None = None
    mask: Tensor | None = None
    """`[B, Q, K]`: an explicit mask in place of `causal`."""
    beams: bool = False
    """Whether queries are beams, few and at one position, outside of a replayed graph."""
    memo: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        if isinstance(self.queries, Packed) is not isinstance(self.keys, Packed):
            raise InputError("queries and keys must both be padded or both be packed; pack or pad the other side")
        if self.queries.count != self.keys.count:
            raise InputError(f"queries have {self.queries.count} sequences and keys {self.keys.count}; give as many")

    @property
    def rows(self) -> int:
        """Rows of the scores: sequences, or the rows of a packed batch if both sides have as many."""
        return self.queries.rows if self.queries.rows == self.keys.rows else 1

    @property
    def reach(self) -> int | None:
        """The window, if it hides anything."""
        longest = max(self.queries.longest, self.keys.longest)
        return self.window if self.window is not None and self.window < longest else None

    def grid(self, x: Tensor) -> Tensor:
        """`[B, T, ...]` or `[N, ...]` as `[R, T, ...]`."""
        return x if isinstance(self.queries, Padded) else x.reshape(self.rows, -1, *x.shape[1:])

    def ungrid(self, x: Tensor) -> Tensor:
        """Back from `[R, T, ...]` to the layout."""
        return x if isinstance(self.queries, Padded) else x.flatten(0, 1)

    def grid_places(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Positions of queries and keys, `[R or 1, Q]` and `[R or 1, K]`."""
        return self.grid(self.queries.places(device)), self.grid(self.keys.places(device))

    def cells(self, device: torch.device) -> tuple[Cells, Cells]:
        """The cells of queries, `[R or 1, Q]`, and of keys, `[R or 1, K]`."""
        places_q, places_k = self.grid_places(device)
        if not isinstance(self.queries, Packed):
            return Cells(places_q, None), Cells(places_k, None)
        sequences_q, sequences_k = (self.grid(side.sequences(device)) for side in (self.queries, self.keys))
        return Cells(places_q, sequences_q), Cells(places_k, sequences_k)

    def allows(self, query: Cells, key: Cells) -> Tensor:
        """The definition of visibility without a mask, cell by cell; shapes are broadcast."""
        allowed = (query.place >= 0) & (key.place >= 0)
        if query.sequence is not None and key.sequence is not None:
            allowed = allowed & (query.sequence == key.sequence)
        if self.causal:
            allowed = allowed & (key.place <= query.place)
        if self.reach is not None:
            allowed = allowed & ((query.place - key.place).abs() < self.reach)
        return allowed

    def visible(self, device: torch.device) -> Tensor:
        """`[R or 1, Q, K]`, true where the query sees the key."""
        if "visible" not in self.memo:
            if self.mask is not None and self.reach is None:
                visible = self.mask
            else:
                query, key = self.cells(device)
                visible = self.allows(query.at(slice(None), slice(None), None), key.at(slice(None), None, slice(None)))
                visible = visible if self.mask is None else visible & self.mask
            self.memo["visible"] = visible
        visible_RQK: Tensor = self.memo["visible"]
        return visible_RQK

    def fused(self, device: torch.device) -> Fused:
        """Flag, mask and blind queries, in the cheapest form that is exact."""
        if "fused" not in self.memo:
            fused = self._cheap(device)
            if fused is None:
                visible = self.visible(device)
                blind = ~visible.any(-1)
                fused = Fused(False, visible | blind[..., None], blind)
            self.memo["fused"] = fused
        found: Fused = self.memo["fused"]
        return found

    def additive(self, device: torch.device, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
        """A mask to add to the scores, 0 where a key is seen and −∞ elsewhere, and the blind queries, if there are any.

        It reads them, so it is for a CPU.
        """
        if "additive" not in self.memo:
            causal, mask, blind = self.fused(device)
            assert not causal
            if mask is not None:
                mask = torch.zeros(mask.shape, dtype=dtype, device=device).masked_fill_(~mask, -torch.inf)
            self.memo["additive"] = mask, blind if blind is not None and bool(blind.any()) else None
        found: tuple[Tensor | None, Tensor | None] = self.memo["additive"]
        return found

    def _cheap(self, device: torch.device) -> Fused | None:
        """The forms that need no `[R, Q, K]` mask of their own; None if one is needed."""
        queries, keys = self.queries, self.keys
        if isinstance(queries, Packed) or isinstance(keys, Packed) or self.reach is not None:
            return None
        if self.mask is not None:
            return Fused(False, self.mask, None)  # each beam sees itself
        if keys.places_BT is not None:
            return None
        real = queries.real(device)
        blind = None if real is None else ~real
        if self.causal:
            same = queries.time == keys.time and queries.lengths_B is keys.lengths_B
            # Padding follows the real tokens, so the causal flag already hides it.
            return Fused(True, None, blind) if queries.places_BT is None and same else None
        if keys.lengths_B is None:
            return Fused(False, None, blind)
        empty_B1 = (keys.lengths_B == 0)[:, None]
        real_BK = torch.arange(keys.time, device=device) < keys.lengths_B[:, None]
        blind = empty_B1.expand(-1, queries.time) if blind is None else blind | empty_B1
        return Fused(False, (real_BK | empty_B1)[:, None, :], blind)
