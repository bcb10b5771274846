"""Heads of attention by their addresses, the same in all families."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.blocks.edits import Ablate
from regard.blocks.recording import names_of, network_of, record
from regard.errors import InputError
from regard.use.model import Loaded

_WEIGHTS = ".weights"
_WRITTEN = re.compile(r"(encoder|decoder)\.(\d{1,4})\.(attention|cross)\.(\d{1,4})")


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


def head_named(model: nn.Module | Loaded, word: str) -> Head:
    """The head of a model that is written as `decoder.1.cross.0`; one that is not there is refused."""
    found = _WRITTEN.fullmatch(word)
    attentions = attentions_of(model)
    if found is None or word.rpartition(".")[0] not in attentions:
        raise InputError(
            f"head ({word[:40]}) is not in this model; write stack.layer.kind.head, such as {attentions[0]}.0"
        )
    heads = heads_in(model, f"{found[1]}.{int(found[2])}.{found[3]}")
    if int(found[4]) >= len(heads):
        raise InputError(
            f"head ({word}) is not there: layers have {len(heads)}, from 0 to {len(heads) - 1}; choose one"
        )
    return heads[int(found[4])]


class Where(NamedTuple):
    """Attention of one kind, and a head of it where one is chosen."""

    stack: str
    kind: str
    layer: int | None = None
    head: int | None = None


def where_named(model: nn.Module | Loaded, word: str) -> Where:
    """What is written as `decoder.cross`, all of its layers, or as `decoder.1.cross.0`, one head."""
    stack, _, kind = word.partition(".")
    if f"{stack}.0.{kind}" in attentions_of(model):
        return Where(stack, kind)
    head = head_named(model, word)
    return Where(head.stack, head.kind, head.layer, head.number)


def ablation(heads: Iterable[Head], means: Mapping[str, Tensor] | None = None) -> dict[str, Ablate]:
    """The edit for `regard.record` that silences heads; with means, of `mean_outputs`, they give these instead."""
    chosen: dict[str, list[int]] = {}
    for head in heads:
        chosen.setdefault(head.attention, []).append(head.number)
    return {
        f"{attention}.heads": Ablate(sorted(set(numbers)), None if means is None else means[attention])
        for attention, numbers in chosen.items()
    }


def mean_outputs(
    model: nn.Module | Loaded, run: Callable[[], object], attentions: Iterable[str] | None = None
) -> dict[str, Tensor]:
    """`[H, V]` of each attention, or of those named: what its heads give on average while `run` runs the model.

    Positions that see nothing, such as padding, give exactly zero and are left out.
    """
    chosen = attentions_of(model) if attentions is None else list(attentions)
    with torch.no_grad(), record(model, *(f"{attention}.heads" for attention in chosen)) as seen:
        run()
    means = {}
    for attention in chosen:
        rows_NHV = torch.cat([call.flatten(0, -3) for call in seen.calls(f"{attention}.heads")])
        means[attention] = rows_NHV[rows_NHV.ne(0).any(-1).any(-1)].mean(0)
    return means
