"""Changes to what flows through a model: values for `regard.record(model, edit={name: change})`.

Any function from a tensor to one of the same shape is a change as well. Gradients flow through all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from regard.errors import InputError
from regard.look.names import Tap


@dataclass(frozen=True)
class Ablate:
    """Silences heads, at `….heads`: they give nothing or, with `mean`, what they give on average.

    The mean, `[H, V]`, comes from a recording of other inputs: `seen["decoder.3.attention.heads"].mean((0, 1))`.
    """

    heads: Sequence[int]
    mean: Tensor | None = None

    def bind(self, name: str, tap: Tap, heads: int) -> Callable[[Tensor], Tensor]:
        _require("Ablate", name, tap, "heads")
        chosen = _heads(self.heads, name, heads)
        return lambda x: _replaced(x, -2, chosen, self._given(x, name, chosen))

    def _given(self, x: Tensor, name: str, chosen: list[int]) -> Tensor:
        if self.mean is None:
            return x.new_zeros(())
        if self.mean.shape != x.shape[-2:]:
            raise InputError(
                f"mean of shape {list(self.mean.shape)} does not fit {name}; give {list(x.shape[-2:])}: a vector for "
                "each head"
            )
        return self.mean.to(x)[chosen]


@dataclass(frozen=True)
class Scale:
    """Multiplies what heads give, at `….heads`."""

    heads: Sequence[int]
    factor: float

    def bind(self, name: str, tap: Tap, heads: int) -> Callable[[Tensor], Tensor]:
        _require("Scale", name, tap, "heads")
        chosen = _heads(self.heads, name, heads)
        return lambda x: _replaced(x, -2, chosen, self.factor * x[..., chosen, :])


@dataclass(frozen=True)
class Force:
    """Makes heads look where they are told, at `….weights`: all heads, unless some are named.

    The weights are `[T, K]`, or anything that can be expanded to `[B, heads named, T, K]`. What the heads take is then
    weights · values, computed plainly.
    """

    weights: Tensor
    heads: Sequence[int] | None = None

    def bind(self, name: str, tap: Tap, heads: int) -> Callable[[Tensor], Tensor]:
        _require("Force", name, tap, "weights")
        chosen = list(range(heads)) if self.heads is None else _heads(self.heads, name, heads)

        def force(x: Tensor) -> Tensor:
            wanted = x[:, chosen]
            return _replaced(x, 1, chosen, _expanded(self.weights.to(x), wanted, "weights", name))

        return force


@dataclass(frozen=True)
class Patch:
    """Replaces what tokens carry, such as the residual stream, by what was recorded from another input.

    With `positions` only there, of every sequence, counted in the tensor that flows by (of a packed batch, over all of
    it). `taken` are the positions of `value` that go there, where they are others.
    """

    value: Tensor
    positions: Sequence[int] | None = None
    taken: Sequence[int] | None = None

    def bind(self, name: str, tap: Tap, heads: int) -> Callable[[Tensor], Tensor]:
        if tap.sizes[:2] not in (("B", "T"), ("B", "K")):
            raise InputError(f"{name} has no tokens to patch; give a function of the tensor instead")
        if self.taken is not None and len(self.taken) != len(self.positions or ()):
            raise InputError(
                f"taken ({list(self.taken)}) and positions ({list(self.positions or ())}) must be as many; name both"
            )
        padded = len(tap.sizes)

        def patch(x: Tensor) -> Tensor:
            value = self.value.to(x)
            if self.positions is None:
                return _expanded(value, x, "value", name)
            dim = 1 if x.dim() == padded else 0
            there = _positions(self.positions, x, dim, name)
            taken = _positions(self.taken or self.positions, value, dim, name)
            old, new = x.index_select(dim, _index(there, x)), value.index_select(dim, _index(taken, x))
            return _replaced(x, dim, there, _expanded(new, old, "value", name))

        return patch


Edit: TypeAlias = Ablate | Scale | Force | Patch | Callable[[Tensor], Tensor]


def bound(edit: Edit, name: str, tap: Tap, heads: int) -> Callable[[Tensor], Tensor]:
    """The change as a function of the tensor, when it fits the name it is for."""
    if isinstance(edit, Ablate | Scale | Force | Patch):
        return edit.bind(name, tap, heads)
    if not callable(edit):
        raise InputError(f"edit of {name} ({edit!r}) must be one of regard.edits or a function of a tensor; give one")
    return edit


def _require(kind: str, name: str, tap: Tap, wanted: str) -> None:
    if tap.name != wanted:
        raise InputError(f"{kind} is a change of {wanted}, not of {name}; write {name.rpartition('.')[0]}.{wanted}")


def _heads(chosen: Sequence[int], name: str, heads: int) -> list[int]:
    wrong = [head for head in chosen if not 0 <= head < heads]
    if wrong:
        raise InputError(f"head {wrong[0]} of {name} is not there: the model has {heads}, from 0 to {heads - 1}")
    return list(chosen)


def _positions(chosen: Sequence[int], x: Tensor, dim: int, name: str) -> list[int]:
    time = x.shape[dim] if x.dim() > dim else 0
    wrong = [position for position in chosen if not 0 <= position < time]
    if wrong:
        raise InputError(f"position {wrong[0]} of {name} is not there: a tensor of {time} positions, counted from 0")
    return list(chosen)


def _index(chosen: Sequence[int], like: Tensor) -> Tensor:
    return torch.tensor(chosen, device=like.device, dtype=torch.long)


def _expanded(value: Tensor, like: Tensor, what: str, name: str) -> Tensor:
    try:
        return value.expand_as(like)
    except RuntimeError:
        raise InputError(
            f"{what} of shape {list(value.shape)} does not fit {name}, which is {list(like.shape)} here; record it "
            "from an input of the same shape"
        ) from None


def _replaced(x: Tensor, dim: int, chosen: list[int], value: Tensor) -> Tensor:
    """x with other values at some places of a dimension."""
    index = _index(chosen, x)
    return x.index_copy(dim, index, value.expand_as(x.index_select(dim, index)))
