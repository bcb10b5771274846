"""Optimisers from their settings: which parameters belong together, and PyTorch's own classes over them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from regard.errors import WeightsError
from regard.training import settings
from regard.training.muon import Muon

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

    def __init__(self, parts: list[Optimizer], names: Mapping[Tensor, str]) -> None:
        """`names` says what each parameter is called, which is how its state is found again."""
        self.parts = parts
        self._names = names
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

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All that are trained."""
        return [parameter for part in self.parts for entry in part.param_groups for parameter in entry["params"]]

    def tensors(self) -> dict[str, Tensor]:
        """All that is remembered from step to step, as `PARAMETER:KEY` (`decoder.0.ffn.up.weight:exp_avg`)."""
        return {
            f"{self._names[parameter]}:{key}": value
            for part in self.parts
            for parameter, memory in part.state.items()
            for key, value in memory.items()
            if isinstance(value, Tensor)
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Remembers what `tensors` gave; where a parameter is shared out among processes, each takes its part."""
        by_name: dict[str, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            parameter, _, key = name.rpartition(":")
            by_name.setdefault(parameter, {})[key] = tensor
        known = {self._names[parameter] for parameter in self.parameters}
        if strange := sorted(set(by_name) - known):
            raise WeightsError(
                f"the optimiser's state has {strange[0]}, which is no trained parameter of this model; "
                "resume with the settings that the run began with"
            )
        for part in self.parts:
            for entry in part.param_groups:
                for parameter in entry["params"]:
                    memory = by_name.get(self._names[parameter], {})
                    part.state[parameter] = {key: like(tensor, parameter) for key, tensor in memory.items()}


def like(tensor: Tensor, parameter: Tensor) -> Tensor:
    """A copy of `tensor` that lies as the parameter does: on its device, and shared out as it is."""
    placed = tensor.to(parameter.device, copy=True)
    if isinstance(parameter, DTensor) and placed.shape == parameter.shape:
        return distribute_tensor(placed, parameter.device_mesh, parameter.placements)
    return placed


def build_optimizers(optimizer: settings.Optimizer, model: nn.Module) -> Optimizers:
    """The optimisers for a model; matrices inside layers are decayed, nothing else is."""
    groups = group(model)
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    if isinstance(optimizer, settings.Muon):
        muon = Muon(
            groups.matrices,
            lr=optimizer.rate,
            weight_decay=optimizer.decay,
            momentum=optimizer.momentum,
            ns_steps=optimizer.iterations,
            adjust_lr_fn="original" if optimizer.adjust == "original" else "match_rms_adamw",
        )
        return Optimizers([muon, _plain(optimizer.rest, [], [*groups.tables, *groups.vectors])], names)
    return Optimizers([_plain(optimizer, groups.matrices, [*groups.tables, *groups.vectors])], names)


def _plain(
    optimizer: settings.AdamW | settings.Adam | settings.Sgd,
    decayed: Iterable[nn.Parameter],
    kept: Iterable[nn.Parameter],
) -> Optimizer:
    """One of PyTorch's optimisers over a group that is decayed and one that is not."""
    groups = [([*decayed], optimizer.decay), ([*kept], 0.0)]
    entries = [{"params": held, "weight_decay": decay} for held, decay in groups if held]
    if isinstance(optimizer, settings.Sgd):
        return torch.optim.SGD(entries, lr=optimizer.rate, momentum=optimizer.momentum)
    # One kernel for all parameters instead of several for each: on a CPU too.
    fused = all(parameter.device.type in ("cpu", "cuda") for held, _ in groups for parameter in held)
    kind = torch.optim.AdamW if isinstance(optimizer, settings.AdamW) else torch.optim.Adam
    return kind(entries, lr=optimizer.rate, betas=(optimizer.beta1, optimizer.beta2), eps=optimizer.eps, fused=fused)
