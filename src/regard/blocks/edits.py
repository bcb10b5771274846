"""Edits of recorded values: `regard.record(model, edit={name: edit})`.

Any function from a tensor to a tensor of the same shape is an edit too. Edits get a copy and may write into it.
Gradients flow through all of them.

>>> with regard.record(network, edit={"decoder.0.attention.heads": regard.edits.Ablate([0])}):
...     without = network(tokens)
>>> bool((without == network(tokens)).all())
False
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from torch import Tensor

from regard.blocks.recording import Change, Tap
from regard.errors import InputError


@dataclass(frozen=True)
class Ablate:
    """Replaces the output of heads, at `….heads`, by zero or by `mean`.

    The mean, `[H, V]`, comes from a recording of other inputs: `recording["decoder.3.attention.heads"].mean((0, 1))`.
    """

    heads: Sequence[int]
    mean: Tensor | None = None

    def change(self, chosen: list[int], name: str, x: Tensor) -> Tensor:
        if self.mean is not None and self.mean.shape != x.shape[-2:]:
            raise InputError(f"mean has shape {list(self.mean.shape)}, expected {list(x.shape[-2:])} for {name}")
        x[..., chosen, :] = 0.0 if self.mean is None else self.mean.to(x)[chosen]
        return x


@dataclass(frozen=True)
class Scale:
    """Multiplies the output of heads, at `….heads`."""

    heads: Sequence[int]
    factor: float

    def change(self, chosen: list[int], name: str, x: Tensor) -> Tensor:
        x[..., chosen, :] *= self.factor
        return x


@dataclass(frozen=True)
class Force:
    """Sets attention weights, at `….weights`, of all heads or of the given ones.

    The weights are `[T, K]`, or any shape that expands to `[B, heads given, T, K]`. The heads are then computed as
    weights · values.
    """

    weights: Tensor
    heads: Sequence[int] | None = None

    def change(self, chosen: list[int], name: str, x: Tensor) -> Tensor:
        x[:, chosen] = _expanded(self.weights.to(x), x[:, chosen], "weights", name)
        return x


@dataclass(frozen=True)
class Patch:
    """Replaces values of tokens, such as the residual stream, by values recorded from another input.

    `positions` limits the patch to these positions of every sequence, counted in the tensor at the tap (in a packed
    batch, over the whole batch). `taken` are the positions of `value` to copy from, if they differ.
    """

    value: Tensor
    positions: Sequence[int] | None = None
    taken: Sequence[int] | None = None

    def bind(self, name: str, tap: Tap) -> Change:
        if tap.sizes[:2] not in (("B", "T"), ("B", "K")):
            raise InputError(f"{name} has no token dimension to patch; give a function of the tensor instead")
        if self.taken is not None and len(self.taken) != len(self.positions or ()):
            raise InputError(f"taken ({self.taken}) and positions ({self.positions or ()}) must have the same length")
        padded = len(tap.sizes)

        def patch(x: Tensor) -> Tensor:
            value = self.value.to(x)
            if self.positions is None:
                return _expanded(value, x, "value", name)
            dim = 1 if x.dim() == padded else 0
            to = _checked("position", self.positions, x.shape[dim], name)
            taken = _checked("position", self.taken or self.positions, (*value.shape, 0, 0)[dim], name)
            old, new = x.movedim(dim, 0), value.movedim(dim, 0)
            old[to] = _expanded(new[taken], old[to], "value", name)
            return x

        return patch


Edit: TypeAlias = Ablate | Scale | Force | Patch | Callable[[Tensor], Tensor]


def bound(edit: Edit, name: str, tap: Tap, heads: int) -> Change:
    """The edit as a function of the tensor; raises if it does not fit the name."""
    if isinstance(edit, Patch):
        return edit.bind(name, tap)
    if isinstance(edit, Ablate | Scale | Force):
        wanted = "weights" if isinstance(edit, Force) else "heads"
        if tap.name != wanted:
            place = f"{name.rpartition('.')[0]}.{wanted}"
            raise InputError(f"{type(edit).__name__} edits {wanted}, not {name}; write {place}")
        chosen = list(range(heads)) if edit.heads is None else _checked("head", edit.heads, heads, name)
        return partial(edit.change, chosen, name)
    if not callable(edit):
        raise InputError(f"edit of {name} ({edit!r}) must be one of regard.edits or a function of a tensor")
    return edit


def _checked(what: str, chosen: Sequence[int], count: int, name: str) -> list[int]:
    wrong = [index for index in chosen if not 0 <= index < count]
    if wrong:
        raise InputError(f"{what} {wrong[0]} of {name} does not exist; choose from 0 to {count - 1}")
    return list(chosen)


def _expanded(value: Tensor, like: Tensor, what: str, name: str) -> Tensor:
    try:
        return value.expand_as(like)
    except RuntimeError:
        shapes = f"{what} has shape {list(value.shape)}, but {name} has shape {list(like.shape)} here"
        raise InputError(f"{shapes}; record it from an input of the same shape") from None
