"""Attention heads: their addresses, changes to them, and how much a metric depends on them.

An address is `stack.layer.kind.head`: `decoder.1.cross.3`. A change is written as an address that is silenced, as
`decoder.1.cross.3*0.5` (the output is scaled), or as `decoder.1.cross.3=mean` (the mean over the input's positions).

H: heads, V: size of a head's values.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial, reduce
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from regard.blocks.edits import Ablate, Edit, Scale, bound
from regard.blocks.recording import names_of, network_of, record
from regard.errors import InputError
from regard.use.model import Loaded

MEAN = "=mean"
LARGEST_FACTOR = 100.0
DRAWS = 20
"""Random heads, or sets of heads, of a control."""
Metric: TypeAlias = Callable[[], float]
"""Runs the model and returns a number, such as a loss."""


class HeadAddress(NamedTuple):
    """The position of a head in a model. The stack is encoder or decoder, the kind attention or cross."""

    stack: str
    layer: int
    kind: str
    number: int

    @property
    def attention(self) -> str:
        """The address of its attention: `decoder.1.cross`."""
        return f"{self.stack}.{self.layer}.{self.kind}"

    def __str__(self) -> str:
        return f"{self.attention}.{self.number}"


def attentions_of(model: nn.Module | Loaded) -> list[str]:
    """The attentions of a model (`decoder.1.cross`) in the order of computation."""
    return [name.removesuffix(".weights") for name in names_of(model) if name.endswith(".weights")]


def heads_in(model: nn.Module | Loaded, attention: str) -> list[HeadAddress]:
    """The heads of one attention."""
    stack, layer, kind = attention.split(".")
    return [HeadAddress(stack, int(layer), kind, head) for head in range(network_of(model).settings.attention.heads)]


def heads_of(model: nn.Module | Loaded) -> list[HeadAddress]:
    """Every head of a model in the order of computation."""
    return [head for attention in attentions_of(model) for head in heads_in(model, attention)]


def head_named(model: nn.Module | Loaded, address: str) -> HeadAddress:
    """The head with this address; raises `InputError` if the model has none."""
    attention, attentions = address.rpartition(".")[0], attentions_of(model)
    if attention not in attentions:
        raise InputError(f"head ({address[:40]}) is not in this model; write stack.layer.kind.head: {attentions[0]}.0")
    heads = {str(head): head for head in heads_in(model, attention)}
    if address not in heads:
        raise InputError(f"head ({address[:40]}) is not in this model; heads are 0 to {len(heads) - 1}")
    return heads[address]


class HeadChange(NamedTuple):
    """A change to one head: silenced, unless it is scaled or replaced by its mean."""

    head: HeadAddress
    factor: float | None = None
    mean: bool = False

    def __str__(self) -> str:
        if self.mean:
            return f"{self.head}{MEAN}"
        return str(self.head) if self.factor is None else f"{self.head}*{self.factor:g}"


def change_named(model: nn.Module | Loaded, text: str) -> HeadChange:
    """Parses a change; raises `InputError` for a head that the model does not have."""
    if text.endswith(MEAN):
        return HeadChange(head_named(model, text.removesuffix(MEAN)), mean=True)
    address, times, written = text.partition("*")
    if not times:
        return HeadChange(head_named(model, text))
    try:
        factor = float(written)
    except ValueError:
        factor = math.nan
    if not abs(factor) <= LARGEST_FACTOR:
        raise InputError(
            f"the factor of {address[:40]} ({written[:20]}) must be a number from −{LARGEST_FACTOR:g} to "
            f"{LARGEST_FACTOR:g}: {address[:40]}*0.5"
        )
    return HeadChange(head_named(model, address), factor)


def edits_for(
    model: nn.Module | Loaded, changes: Iterable[HeadChange], means: Callable[[], Mapping[str, Tensor]]
) -> dict[str, Edit]:
    """The edits for `regard.record`. `means` computes the mean outputs of all attentions."""
    known, heads = names_of(model), network_of(model).settings.attention.heads
    found: dict[str, list[Callable[[Tensor], Tensor]]] = {}
    for head, factor, mean in changes:
        name, number = f"{head.attention}.heads", [head.number]
        edit = Ablate(number, means()[head.attention] if mean else None) if factor is None else Scale(number, factor)
        found.setdefault(name, []).append(bound(edit, name, known[name], heads))
    return {name: partial(reduce, lambda x, edit: edit(x), each) for name, each in found.items()}


def ablation(heads: Iterable[HeadAddress], means: Mapping[str, Tensor] | None = None) -> dict[str, Ablate]:
    """The edits for `regard.record` that silence heads, or replace them by the means of `mean_outputs`."""
    chosen: dict[str, list[int]] = {}
    for head in heads:
        chosen.setdefault(head.attention, []).append(head.number)
    return {
        f"{attention}.heads": Ablate(sorted(set(numbers)), None if means is None else means[attention])
        for attention, numbers in chosen.items()
    }


def mean_outputs(model: nn.Module | Loaded, run: Callable[[], object]) -> dict[str, Tensor]:
    """`[H, V]` for each attention: the mean output of its heads while `run` runs the model.

    Positions that see nothing, such as padding, have zero output and are left out.
    """
    with torch.no_grad(), record(model, "*.heads") as seen:
        run()
    means = {}
    for attention in attentions_of(model):
        rows_NHV = torch.cat([call.flatten(0, -3) for call in seen.calls(f"{attention}.heads")])
        means[attention] = rows_NHV[rows_NHV.ne(0).any(-1).any(-1)].mean(0)
    return means


class Importance(NamedTuple):
    """The metric without one head, and its change."""

    head: HeadAddress
    value: float
    change: float


class RandomControl(NamedTuple):
    """The effect of silencing as many random heads: the mean, and each draw."""

    change: float
    changes: list[float]
    drawn: list[tuple[HeadAddress, ...]]


def random_heads(
    heads: Sequence[HeadAddress], excluded: Collection[HeadAddress], count: int = DRAWS, seed: int = 0
) -> list[tuple[HeadAddress, ...]]:
    """`count` random sets of as many heads as `excluded`, drawn from the others; single heads at most once each."""
    others = [head for head in heads if head not in excluded]
    if len(others) < len(excluded) or not excluded:
        raise InputError(f"a control needs 1 to {len(heads) // 2} heads to compare with, got {len(excluded)}")
    draw = random.Random(seed)
    if len(excluded) == 1:
        return [(head,) for head in draw.sample(others, min(count, len(others)))]
    return [tuple(sorted(draw.sample(others, len(excluded)))) for _ in range(count)]


class Ablation:
    """A metric of a model, computed with heads silenced, or replaced by `means` (see `mean_outputs`)."""

    def __init__(self, model: nn.Module | Loaded, metric: Metric, means: Mapping[str, Tensor] | None = None) -> None:
        self.model, self.metric, self.means = model, metric, means
        self.heads = heads_of(model)
        self.plain = self.without(())
        """The metric of the whole model."""

    def without(self, heads: Sequence[HeadAddress]) -> float:
        """The metric without some heads."""
        with torch.no_grad(), record(self.model, edit=ablation(heads, self.means)) if heads else nullcontext():
            return float(self.metric())

    def each(self, heads: Sequence[HeadAddress] | None = None) -> list[Importance]:
        """Each head silenced alone, sorted by the size of the change."""
        values = {head: self.without([head]) for head in (self.heads if heads is None else heads)}
        found = [Importance(head, value, value - self.plain) for head, value in values.items()]
        return sorted(found, key=lambda one: -abs(one.change))

    def control(self, heads: Collection[HeadAddress], count: int = DRAWS, seed: int = 0) -> RandomControl:
        """The effect of as many random other heads."""
        drawn = random_heads(self.heads, heads, count, seed)
        changes = [self.without(chosen) - self.plain for chosen in drawn]
        return RandomControl(sum(changes) / len(changes), changes, drawn)
