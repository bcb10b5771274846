"""Low-rank adaptation (Hu et al. 2022): the weights of a model stay, and small matrices that are added to them learn.

A weight W becomes W + (alpha / rank) · up · down, with up `[out, rank]` and down `[rank, in]`. The final weights of a
run contain the sum, so that they are used like any others; `adapter.safetensors` has the small matrices alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

from torch import Tensor, nn
from torch.nn.utils import parametrize

from regard.errors import SettingsError
from regard.training.settings import Lora

ADAPTER = "adapter.safetensors"
_ORIGINAL = ".parametrizations.weight.original"


class LowRank(nn.Module):
    """Adds a product of two small matrices to a weight. At first it is zero."""

    def __init__(self, weight: Tensor, rank: int, scale: float) -> None:
        super().__init__()
        out, into = weight.shape
        self.down = nn.Parameter(weight.new_empty(rank, into))
        self.up = nn.Parameter(weight.new_zeros(out, rank))
        self.scale = scale
        nn.init.kaiming_uniform_(self.down, a=5**0.5)

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.scale * (self.up @ self.down)


def add_lora(model: nn.Module, settings: Lora) -> None:
    """Adds small matrices to the linear layers that the settings name. Only they and the heads are trained."""
    layers = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    chosen = {
        name: module
        for name, module in layers.items()
        if not name.startswith("heads.") and any(fnmatchcase(name, pattern) for pattern in settings.layers)
    }
    if not chosen:
        known = ", ".join(sorted({name.rpartition(".")[2] for name in layers}))
        raise SettingsError(
            f"train.lora.layers ({list(settings.layers)}) matches no layer; parts are {known}: write *.q"
        )
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith("heads."))
    for module in chosen.values():
        low_rank = LowRank(module.weight.detach(), settings.rank, settings.alpha / settings.rank)
        parametrize.register_parametrization(module, "weight", low_rank)


def merged(weights: Mapping[str, Tensor], settings: Lora) -> dict[str, Tensor]:
    """The weights of a model under their usual names, with the small matrices added."""
    found = {}
    for name, tensor in weights.items():
        if name.endswith(_ORIGINAL):
            place = name.removesuffix("original") + "0."
            product = weights[place + "up"].double() @ weights[place + "down"].double()
            whole = tensor.double() + settings.alpha / settings.rank * product
            found[name.removesuffix(_ORIGINAL) + ".weight"] = whole.to(tensor.dtype)
        elif ".parametrizations.weight.0." not in name:
            found[name] = tensor
    return found


def adapter(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The small matrices alone, such as `encoder.0.attention.q.down`."""
    marker = ".parametrizations.weight.0."
    return {name.replace(marker, "."): tensor.contiguous() for name, tensor in weights.items() if marker in name}
