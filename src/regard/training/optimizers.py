"""Optimizers: parameter groups, PyTorch's optimizers, a batched Muon, and a moving average of the weights."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from regard.errors import WeightsError
from regard.training import settings

_TABLES = (".tokens.weight", ".segments.weight", ".position.weight", "output.weight")
"""Matrices that are looked up or produce logits."""


def group_parameters(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The trained parameters: matrices inside layers, which have weight decay and are updated by Muon; all others.

    The matrices of experts are three-dimensional and have decay, but Muon takes single matrices.
    """
    matrices: list[nn.Parameter] = []
    tables: list[nn.Parameter] = []
    vectors: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            vector = parameter.dim() < 2 or name.endswith((".relative.content", ".relative.distance"))
            experts = name.endswith((".ffn.gate", ".ffn.up", ".ffn.down"))
            table = f".{name}".endswith(_TABLES) or (parameter.dim() > 2 and not experts)
            (vectors if vector else tables if table else matrices).append(parameter)
    return matrices, [*tables, *vectors]


def layer_factors(names: Iterable[str], decay: float) -> dict[str, float]:
    """The factor of the learning rate of each parameter: 1 for heads, outputs and the last layer of each stack."""
    parts = [(name, name.split(".")) for name in names]
    depths: dict[str, int] = {}
    for _, (stack, *rest) in parts:
        if rest and rest[0].isdigit():
            depths[stack] = max(depths.get(stack, 0), int(rest[0]) + 1)
    factors = {}
    for name, (part, *rest) in parts:
        if part in depths:
            below = depths[part] - 1 - int(rest[0]) if rest[0].isdigit() else 0
        else:  # embeddings of the source or target, or an output
            below = 0 if part in ("heads", "output") else max(depths.values(), default=0)
        factors[name] = decay**below
    return factors


def build_optimizers(optimizer: settings.Optimizer, model: nn.Module, layer_decay: float = 1.0) -> Optimizers:
    """The optimizers of a model. Only matrices inside layers have weight decay."""
    matrices, rest = group_parameters(model)
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    by_name = layer_factors(names.values(), layer_decay)

    def groups(parameters: list[nn.Parameter], rate: float, decay: float) -> list[dict[str, Any]]:
        """One for each learning rate, the highest first."""
        found: dict[float, list[nn.Parameter]] = defaultdict(list)
        for parameter in parameters:
            found[by_name[names[parameter]]].append(parameter)
        return [
            {"params": found[factor], "lr": rate * factor, "weight_decay": decay}
            for factor in sorted(found, reverse=True)
        ]

    parts: list[Optimizer] = []
    if isinstance(optimizer, settings.Muon):
        plain = [parameter for parameter in matrices if parameter.dim() == 2]
        matrices = [parameter for parameter in matrices if parameter.dim() > 2]
        if plain:  # all of them can be frozen
            parts.append(Muon(groups(plain, optimizer.rate, optimizer.decay), momentum=optimizer.momentum))
    other = optimizer.rest if isinstance(optimizer, settings.Muon) else optimizer
    rate = other.rate or settings.USUAL_RATE
    entries = [*groups(matrices, rate, other.decay), *groups(rest, rate, 0.0)]
    if isinstance(other, settings.Sgd):
        parts.append(torch.optim.SGD(entries, lr=rate, momentum=other.momentum))
    else:
        kind = torch.optim.AdamW if isinstance(other, settings.AdamW) else torch.optim.Adam
        # The fused kernels are faster on a CPU, too.
        parts.append(kind(entries, lr=rate, betas=(other.beta1, other.beta2), eps=other.eps, fused=True))
    return Optimizers(parts, names)


class Optimizers:
    """One or two PyTorch optimizers that step together under one schedule."""

    def __init__(self, parts: list[Optimizer], names: Mapping[Tensor, str]) -> None:
        """`names` maps parameters to their names, under which a checkpoint stores their state."""
        self.parts = parts
        self._names = names
        self._rates = [[float(entry["lr"]) for entry in part.param_groups] for part in parts]

    def set_factor(self, factor: float) -> None:
        """Set the learning rate of every group to its highest rate times `factor`."""
        for part, rates in zip(self.parts, self._rates, strict=True):
            for entry, rate in zip(part.param_groups, rates, strict=True):
                entry["lr"] = rate * factor

    @property
    def rate(self) -> float:
        """The learning rate of the first group, which is the one to show."""
        return float(self.parts[0].param_groups[0]["lr"])

    def zero_grad(self) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none=True)

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [parameter for part in self.parts for entry in part.param_groups for parameter in entry["params"]]

    def tensors(self) -> dict[str, Tensor]:
        return {
            f"{self._names[parameter]}:{key}": value
            for part in self.parts
            for parameter, memory in part.state.items()
            for key, value in memory.items()
            if isinstance(value, Tensor)
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        by_name: dict[str, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            parameter, _, key = name.rpartition(":")
            by_name.setdefault(parameter, {})[key] = tensor
        if unknown := sorted(set(by_name) - {self._names[parameter] for parameter in self.parameters}):
            raise WeightsError(
                f"the optimizer state contains {unknown[0]}, which is not a trained parameter of this model; "
                "resume with the settings that the run started with"
            )
        for part in self.parts:
            for entry in part.param_groups:
                for parameter in entry["params"]:
                    memory = by_name.get(self._names[parameter], {})
                    part.state[parameter] = {key: placed_like(tensor, parameter) for key, tensor in memory.items()}


def placed_like(tensor: Tensor, parameter: Tensor) -> Tensor:
    """A copy of `tensor` on the device of the parameter, sharded in the same way."""
    placed = tensor.to(parameter.device, copy=True)
    if isinstance(parameter, DTensor) and placed.shape == parameter.shape:
        return distribute_tensor(placed, parameter.device_mesh, parameter.placements)
    return placed


class Muon(torch.optim.Muon):
    """Muon (Jordan et al. 2024) that orthogonalizes matrices of equal shape together.

    PyTorch's version takes one matrix after the other with 15 small products each, so a GPU waits for a thousand
    kernel launches in each step. Settings and state are those of PyTorch.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        assert closure is None
        for group in self.param_groups:
            parameters: list[Tensor] = []
            gradients: list[Tensor] = []
            momenta: list[Tensor] = []
            self._init_group(group, parameters, gradients, momenta)
            if not parameters:
                continue
            torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
            updates = torch._foreach_lerp(gradients, momenta, group["momentum"])
            torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
            by_shape: dict[torch.Size, list[int]] = defaultdict(list)
            for index, parameter in enumerate(parameters):
                by_shape[parameter.shape].append(index)
            for (rows, columns), indices in by_shape.items():
                stacked = torch.stack([updates[index] for index in indices])
                found = orthogonal(stacked, group["ns_coefficients"], group["ns_steps"], group["eps"])
                torch._foreach_add_(
                    [parameters[index] for index in indices],
                    list(found.to(parameters[indices[0]].dtype).unbind()),
                    alpha=-group["lr"] * math.sqrt(max(1.0, rows / columns)),
                )


def orthogonal(x_NRC: Tensor, coefficients: tuple[float, float, float], iterations: int, eps: float) -> Tensor:
    """Matrices with the same singular vectors and singular values near 1, by Newton–Schulz iterations in bfloat16."""
    a, b, c = coefficients
    tall = x_NRC.shape[1] > x_NRC.shape[2]
    x = x_NRC.bfloat16()
    x = x.mT if tall else x
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=eps)
    for _ in range(iterations):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class Ema:
    """An exponential moving average of the weights (Polyak and Juditsky 1992), updated after each step."""

    def __init__(self, decay: float, parameters: Mapping[str, Tensor]) -> None:
        """`parameters` are changed in place by training. The average starts with their current values."""
        self.decay = decay
        self._parameters = {name: parameter.detach() for name, parameter in parameters.items()}
        self._averages = {name: parameter.clone() for name, parameter in self._parameters.items()}

    def update(self, step: int) -> None:
        """average = decay · average + (1 − decay) · weights. The decay is lower in the first steps."""
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_([*self._averages.values()], [*self._parameters.values()], weight=1 - decay)

    def tensors(self) -> dict[str, Tensor]:
        return dict(self._averages)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        for name, average in self._averages.items():
            average.copy_(placed_like(tensors[name], average))

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """In this context the weights of the model are the averages; afterwards they are restored exactly.

        Values are exchanged and tensors stay, so compiled and recorded computations stay valid.
        """
        with ExitStack() as swapped:  # the weights are restored even if memory runs out in between
            for name in self._parameters:
                self._swap(name)
                swapped.callback(self._swap, name)
            yield

    def _swap(self, name: str) -> None:
        parameter, average = self._parameters[name], self._averages[name]
        with torch.no_grad():
            kept = parameter.clone()
            parameter.copy_(average)
            average.copy_(kept)
