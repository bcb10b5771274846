"""Heads that work otherwise, as they are written in requests and addresses.

`decoder.1.cross.3` is silent, `decoder.1.cross.3*0.5` gives half of what it would, and `decoder.1.cross.3=mean` gives
at every place what it gives on average over the places of the input.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from torch import Tensor, nn

from regard.blocks.edits import Edit, Scale, bound
from regard.blocks.recording import names_of, network_of
from regard.errors import InputError
from regard.look.addresses import Head, ablation, head_named
from regard.use.model import Loaded

LARGEST = 100.0
"""The largest factor, either way."""
MEAN, _TIMES = "=mean", "*"


class Change(NamedTuple):
    """What is done to a head: silenced, unless it is scaled or gives its mean."""

    head: Head
    factor: float | None = None
    mean: bool = False

    def __str__(self) -> str:
        if self.mean:
            return f"{self.head}{MEAN}"
        return str(self.head) if self.factor is None else f"{self.head}{_TIMES}{self.factor:g}"


def change_named(model: nn.Module | Loaded, word: str) -> Change:
    """The change that is written so; one of a head that is not there is refused."""
    if word.endswith(MEAN):
        return Change(head_named(model, word.removesuffix(MEAN)), mean=True)
    address, times, written = word.partition(_TIMES)
    if not times:
        return Change(head_named(model, word))
    try:
        factor = float(written)
    except ValueError:
        factor = math.nan
    if not abs(factor) <= LARGEST:
        raise InputError(
            f"the factor of {address[:40]} ({written[:20]}) must be a number between −{LARGEST:g} and {LARGEST:g}; "
            f"write {address[:40]}*0.5"
        )
    return Change(head_named(model, address), factor)


def edits_for(
    model: nn.Module | Loaded,
    changes: Sequence[Change],
    means: Callable[[Iterable[str]], Mapping[str, Tensor]],
) -> dict[str, Edit]:
    """The edits for `regard.record`. `means` is asked for what the heads of some attentions give on average."""
    silent = ablation(each.head for each in changes if not each.mean and each.factor is None)
    found: dict[str, list[Edit]] = {name: [edit] for name, edit in silent.items()}
    for each in changes:
        if each.factor is not None:
            found.setdefault(f"{each.head.attention}.heads", []).append(Scale([each.head.number], each.factor))
    average = [each.head for each in changes if each.mean]
    if average:
        for name, edit in ablation(average, means({head.attention for head in average})).items():
            found.setdefault(name, []).append(edit)
    known, heads = names_of(model), network_of(model).settings.attention.heads
    return {name: _all([bound(each, name, known[name], heads) for each in edits]) for name, edits in found.items()}


def _all(edits: Sequence[Callable[[Tensor], Tensor]]) -> Edit:
    def change(x: Tensor) -> Tensor:
        for edit in edits:
            x = edit(x)
        return x

    return change
