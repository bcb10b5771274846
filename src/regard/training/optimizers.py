"""Optimisers from their settings: which parameters belong together, and PyTorch's own classes over them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn
from torch.optim import Optimizer

from regard.training import settings

_TABLES = (".tokens.weight", ".segments.weight", ".position.weight", "output.weight")
"""Matrices that are looked up, or score a vocabulary: no maps from vectors to vectors."""


@dataclass(frozen=True)
class Groups:
    """A model's parameters by how they are updated."""

    matrices: list[nn.Parameter]
    """The maps inside layers: decayed, and what Muon is for."""
    tables: list[nn.Parameter]
    """Embeddings, positions and outputs."""
    vectors: list[nn.Parameter]
    """Norms, biases, factors, single tokens."""


def group(model: nn.Module) -> Groups:
    """Sorts the parameters that are trained."""
    groups = Groups([], [], [])
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if parameter.dim() < 2 or name.endswith((".relative.content", ".relative.distance")):
            groups.vectors.append(parameter)
        elif f".{name}".endswith(_TABLES) or parameter.dim() > 2:
            groups.tables.append(parameter)
        else:
            groups.matrices.append(parameter)
    return groups


class Optimizers:
    """One or two PyTorch optimisers that step together, their rates multiplied by one schedule."""

    def __init__(self, parts: list[Optimizer]) -> None:
        self.parts = parts
        self._rates = [[float(entry["lr"]) for entry in part.param_groups] for part in parts]

    def set_factor(self, factor: float) -> None:
        """Every group's rate becomes its highest rate times the schedule's factor."""
        for part, rates in zip(self.parts, self._rates, strict=True):
            for entry, rate in zip(part.param_groups, rates, strict=True):
                entry["lr"] = rate * factor

    @property
    def rate(self) -> float:
        """The rate of the first group, the one to show."""
        return float(self.parts[0].param_groups[0]["lr"])

    def step(self) -> None:
        for part in self.parts:
            part.step()

    def zero_grad(self) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none=True)


def build_optimizers(optimizer: settings.Optimizer, model: nn.Module) -> Optimizers:
    """The optimisers for a model; matrices inside layers are decayed, nothing else is."""
    groups = group(model)
    if isinstance(optimizer, settings.Muon):
        muon = torch.optim.Muon(
            groups.matrices,
            lr=optimizer.rate,
            weight_decay=optimizer.decay,
            momentum=optimizer.momentum,
            ns_steps=optimizer.iterations,
            adjust_lr_fn="original" if optimizer.adjust == "original" else "match_rms_adamw",
        )
        return Optimizers([muon, _plain(optimizer.rest, [], [*groups.tables, *groups.vectors])])
    return Optimizers([_plain(optimizer, groups.matrices, [*groups.tables, *groups.vectors])])


def _plain(
    optimizer: settings.AdamW | settings.Adam | settings.Sgd,
    decayed: Iterable[nn.Parameter],
    kept: Iterable[nn.Parameter],
) -> Optimizer:
    """One of PyTorch's optimisers over a group that is decayed and one that is not."""
    entries = [{"params": [*decayed], "weight_decay": optimizer.decay}, {"params": [*kept], "weight_decay": 0.0}]
    entries = [entry for entry in entries if entry["params"]]
    if isinstance(optimizer, settings.Sgd):
        return torch.optim.SGD(entries, lr=optimizer.rate, momentum=optimizer.momentum)
    kind = torch.optim.AdamW if isinstance(optimizer, settings.AdamW) else torch.optim.Adam
    return kind(entries, lr=optimizer.rate, betas=(optimizer.beta1, optimizer.beta2), eps=optimizer.eps)
