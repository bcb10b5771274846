"""Heads of attention by their addresses, the same in all families."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.look.edits import Ablate
from regard.look.names import names_of
from regard.look.network import network_of
from regard.look.record import record
from regard.tasks.loaded import Loaded

_WEIGHTS = ".weights"


class Head(NamedTuple):
    """Where a head is."""

    stack: str
    """encoder or decoder."""
    layer: int
    kind: str
    """attention, or cross where it looks at what an encoder gave."""
    number: int

    @property
    def attention(self) -> str:
        """Of all heads of its layer and kind: `decoder.1.cross`."""
        return f"{self.stack}.{self.layer}.{self.kind}"

    def __str__(self) -> str:
        return f"{self.attention}.{self.number}"


def attentions_of(model: nn.Module | Loaded) -> list[str]:
    """The attentions of a model, such as `decoder.1.cross`, in the order in which they are computed."""
    return [name.removesuffix(_WEIGHTS) for name in names_of(model) if name.endswith(_WEIGHTS)]


def heads_in(model: nn.Module | Loaded, attention: str) -> list[Head]:
    """The heads of one attention."""
    stack, layer, kind = attention.split(".")
    return [Head(stack, int(layer), kind, number) for number in range(network_of(model).settings.attention.heads)]


def heads_of(model: nn.Module | Loaded) -> list[Head]:
    """Every head of a model, in the order in which they are computed."""
    return [head for attention in attentions_of(model) for head in heads_in(model, attention)]


def ablation(heads: Iterable[Head], means: Mapping[str, Tensor] | None = None) -> dict[str, Ablate]:
    """The edit for `regard.record` that silences heads; with means, of `mean_outputs`, they give these instead."""
    chosen: dict[str, list[int]] = {}
    for head in heads:
        chosen.setdefault(head.attention, []).append(head.number)
    return {
        f"{attention}.heads": Ablate(sorted(numbers), None if means is None else means[attention])
        for attention, numbers in chosen.items()
    }


def mean_outputs(model: nn.Module | Loaded, run: Callable[[], object]) -> dict[str, Tensor]:
    """`[H, V]` of each attention: what its heads give on average while `run` runs the model.

    Positions that see nothing, such as padding, give exactly zero and are left out.
    """
    with torch.no_grad(), record(model, "*.heads") as seen:
        run()
    means = {}
    for attention in attentions_of(model):
        rows_NHV = torch.cat([call.flatten(0, -3) for call in seen.calls(f"{attention}.heads")])
        means[attention] = rows_NHV[rows_NHV.ne(0).any(-1).any(-1)].mean(0)
    return means
