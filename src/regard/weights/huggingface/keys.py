"""Key tables: how tensors lie in our files and in theirs. One table serves both directions.

A `Rule` says which of our tensors make one of theirs. What else may be in their files is said beside the rules:
copies of tied matrices, values that are computed and not learned, tensors that must be there and are not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from regard.errors import WeightsError
from regard.weights.tensors import check

Tensors = tuple[Tensor, ...]


@dataclass(frozen=True)
class Rule:
    """Our tensors `ours` are their tensor `theirs`."""

    ours: tuple[str, ...]
    theirs: str
    write: Callable[[Tensors], Tensor]
    """Ours to theirs; it must work on the meta device, since it also tells which shapes are expected."""
    read: Callable[[Tensor], Tensors]
    """Theirs to ours; views will do, since a model copies what it is given."""


def same(ours: str, theirs: str) -> Rule:
    """One tensor under two names."""
    return Rule((ours,), theirs, lambda tensors: tensors[0], lambda tensor: (tensor,))


def linear(ours: str, theirs: str, bias: bool = True) -> list[Rule]:
    """A linear map, or a norm: weight and bias under the same two names."""
    return [same(f"{ours}.{part}", f"{theirs}.{part}") for part in (("weight", "bias") if bias else ("weight",))]


def transposed(ours: str, theirs: str) -> Rule:
    """A weight that they keep as [in, out]."""
    return Rule((ours,), theirs, lambda tensors: tensors[0].mT, lambda tensor: (tensor.mT,))


def joined(ours: tuple[str, ...], theirs: str, transpose: bool = False) -> Rule:
    """Several of ours, all of one shape, that they keep as one, row under row; [in, out] with `transpose`."""

    def write(tensors: Tensors) -> Tensor:
        rows = torch.cat(tensors)
        return rows.mT if transpose else rows

    def read(tensor: Tensor) -> Tensors:
        rows = tensor.mT if transpose else tensor
        return rows.chunk(len(ours))

    return Rule(ours, theirs, write, read)


def with_leading(ours: str, theirs: str, ones: int) -> Rule:
    """A tensor that they keep with `ones` leading dimensions of size one."""

    def write(tensors: Tensors) -> Tensor:
        return tensors[0].reshape((1,) * ones + tensors[0].shape)

    return Rule((ours,), theirs, write, lambda tensor: (tensor.reshape(tensor.shape[ones:]),))


def place_table(first: str, weight: str, theirs: str) -> Rule:
    """The class token's place [D] and the patches' [P, D], which they keep as [1, 1 + P, D]."""

    def write(tensors: Tensors) -> Tensor:
        return torch.cat([tensors[0][None], tensors[1]])[None]

    return Rule((first, weight), theirs, write, lambda tensor: (tensor[0, 0], tensor[0, 1:]))


@dataclass(frozen=True)
class Table:
    """Everything that may be in a file of one model."""

    rules: list[Rule]
    copies: Mapping[str, str] = field(default_factory=dict)
    """Tied matrices: their name of a copy, and of what it copies. Not written; in a file, it must be equal."""
    spares: Mapping[str, str] = field(default_factory=dict)
    """Further places of a tensor, which their present version needs filled. Written; in a file, only a substitute."""
    fixed: Mapping[str, Tensor] = field(default_factory=dict)
    """What they keep and we compute or leave out. Written; in a file, it must be equal."""

    def to_theirs(self, ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Our tensors in their layout; works on the meta device too."""
        placed = {name for rule in self.rules for name in rule.ours}
        if placed != set(ours):
            raise AssertionError(f"the key table and the model differ in {sorted(placed ^ set(ours))}")
        return {rule.theirs: rule.write(tuple(ours[name] for name in rule.ours)) for rule in self.rules}

    def to_file(self, ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """All that a file needs."""
        theirs = self.to_theirs(ours)
        spares = {name: theirs[place].clone() for name, place in self.spares.items()}
        like = next(iter(theirs.values()))
        return theirs | spares | {name: value.to(like, copy=True) for name, value in self.fixed.items()}

    def to_ours(self, theirs: Mapping[str, Tensor], shapes: Mapping[str, Tensor], source: str) -> dict[str, Tensor]:
        """The tensors of a file in our layout, after every check. `shapes` are our parameters, without memory."""
        tensors = dict(theirs)
        for copy, original in self.copies.items():
            if copy in tensors:
                self._drop_copy(tensors, copy, original, source)
        for name, value in self.fixed.items():
            if name in tensors:
                _compare_fixed(tensors.pop(name), value, name, source)
        expected = {name: tuple(tensor.shape) for name, tensor in self.to_theirs(shapes).items()}
        for spare, place in self.spares.items():
            if spare in tensors:
                tensors.setdefault(place, tensors.pop(spare))
        check(expected, tensors, source, "config.json must be the one that belongs to these weights")
        return {
            name: tensor
            for rule in self.rules
            for name, tensor in zip(rule.ours, rule.read(tensors[rule.theirs]), strict=True)
        }

    def _drop_copy(self, tensors: dict[str, Tensor], copy: str, original: str, source: str) -> None:
        tensor = tensors.pop(copy)
        if original not in tensors:
            tensors[original] = tensor
        elif not torch.equal(tensors[original], tensor):
            raise WeightsError(
                f"{source} has different values in {copy} and {original}, which config.json says are tied; "
                "set tie_word_embeddings to false in config.json if they are meant to differ"
            )


def _compare_fixed(found: Tensor, value: Tensor, name: str, source: str) -> None:
    """Refuse a stored constant that is not ours, but for its rounding."""
    rounding = 2 * torch.finfo(found.dtype).eps if found.is_floating_point() else 0.0
    if found.shape == value.shape and torch.allclose(found.double(), value.double(), rtol=rounding, atol=rounding):
        return
    if found.shape != value.shape:
        problem = f"its shape is {list(found.shape)} and should be {list(value.shape)}"
    else:
        problem = f"it differs by up to {(found.double() - value.double()).abs().max().item():.3g}"
    raise WeightsError(
        f"{name} in {source} is not the fixed table that is computed here ({problem}); "
        "it was changed or learned, which the settings cannot express"
    )
