"""Batches as tensors: what the examples of one forward pass become, in any family and either layout.

A batch is a plain value. It moves as a whole, from pinned memory without waiting, and its counts are kept apart from it
(`loader.Step`), since a number that changes from batch to batch would have compiled code made anew.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Self, TypeAlias

import torch
from torch import Tensor

from regard.blocks.layout import Layout

IGNORED = -100
"""The label of a cell that no loss reads: padding, fillers, tokens that were not chosen."""


class _Movable:
    def to(self, device: torch.device) -> Self:
        """The batch on a device; from pinned memory the copy runs while the program goes on."""
        return self._mapped(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> Self:
        return self._mapped(lambda tensor: tensor.pin_memory())

    def _mapped(self, change: Any) -> Self:
        changed: dict[str, Any] = {}
        for field in fields(self):  # type: ignore[arg-type]  # every subclass is a dataclass
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                changed[field.name] = change(value)
            elif isinstance(value, _Movable):
                changed[field.name] = value._mapped(change)
            elif isinstance(value, Layout):
                changed[field.name] = _map_layout(value, change)
        return replace(self, **changed)  # type: ignore[type-var]


def _map_layout(layout: Layout, change: Any) -> Layout:
    tensors = {field.name: getattr(layout, field.name) for field in fields(layout)}
    return replace(layout, **{name: change(value) for name, value in tensors.items() if isinstance(value, Tensor)})


@dataclass(frozen=True)
class Sequences(_Movable):
    """Token numbers, padded `[B, T]` or packed `[N]`, and how they lie."""

    tokens: Tensor
    layout: Layout

    def twice(self) -> Sequences:
        """The same followed by itself."""
        return Sequences(torch.cat([self.tokens, self.tokens]), self.layout.twice())


@dataclass(frozen=True)
class PairBatch(_Movable):
    """Sources, the targets that a decoder reads (all but their last token), and what follows each of their tokens."""

    source: Sequences
    target: Sequences
    labels: Tensor
    """Shaped as the target's tokens; `IGNORED` where nothing is to be predicted."""


@dataclass(frozen=True)
class TextBatch(_Movable):
    """Texts, and a label for each of their tokens (the next one), or for chosen ones (the one that was hidden)."""

    text: Sequences
    labels: Tensor
    """Shaped as the tokens; or `[K]`, for the chosen ones."""
    chosen: Tensor | None = None
    """`[K]`: which tokens are predicted, counted through the flattened batch; none: every one."""


@dataclass(frozen=True)
class ImageBatch(_Movable):
    """Images `[B, C, height, width]` as bytes, and the class of each `[B]`."""

    images: Tensor
    labels: Tensor


Batch: TypeAlias = PairBatch | TextBatch | ImageBatch
