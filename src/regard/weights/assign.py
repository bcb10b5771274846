"""Tensors under canonical names put into a model, each checked by name and shape."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

import torch
from torch import Tensor, nn

from regard.errors import WeightsError
from regard.models.build import Model, build
from regard.models.settings import ModelSettings
from regard.weights.files import listed

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def build_with(
    settings: ModelSettings,
    tensors: Mapping[str, Tensor],
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    source: str = "the weights",
) -> Model:
    """A model with these tensors as its parameters, ready to be called (in evaluation mode).

    It is laid out without memory and then given copies of the tensors, which may still lie in a file: so every weight
    is allocated once, and the model depends on no file.

    Without `dtype` the tensors keep theirs; where a file mixes several, the narrowest that holds them all is taken.
    """
    model = build(settings, device="meta")
    assign(model, tensors, device=device or "cpu", dtype=dtype or common_dtype(tensors, source), source=source)
    return model.eval()


def common_dtype(tensors: Mapping[str, Tensor], source: str) -> torch.dtype:
    """The narrowest floating type that holds all of the tensors."""
    for name, tensor in tensors.items():
        if tensor.dtype not in FLOATS:
            raise WeightsError(
                f"{name} in {source} is {tensor.dtype}, which is no kind of weights known here; "
                "save the model unquantised, in a 16-, 32- or 64-bit floating type"
            )
    # Where there are none at all, `check` will say which are missing.
    return reduce(torch.promote_types, {tensor.dtype for tensor in tensors.values()} or {torch.float32})


def assign(
    model: nn.Module,
    tensors: Mapping[str, Tensor],
    device: torch.device | str,
    dtype: torch.dtype,
    source: str = "the weights",
) -> None:
    """Replace every parameter of `model` by a copy of its tensor. What several modules share stays shared."""
    parameters = dict(model.named_parameters())
    check({name: tuple(parameter.shape) for name, parameter in parameters.items()}, tensors, source)
    names = {id(parameter): name for name, parameter in parameters.items()}
    fresh = {
        name: nn.Parameter(
            tensors[name].to(device=device, dtype=dtype, copy=True, memory_format=torch.contiguous_format),
            requires_grad=parameter.requires_grad,
        )
        for name, parameter in parameters.items()
    }
    for module in model.modules():
        for key, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[key] = fresh[names[id(parameter)]]


def check(shapes: Mapping[str, tuple[int, ...]], tensors: Mapping[str, Tensor], source: str, remedy: str = "") -> None:
    """Refuse tensors that are not exactly those of `shapes`."""
    remedy = remedy or "the settings beside them must be those that the weights were made with"
    missing = [name for name in shapes if name not in tensors]
    surplus = [name for name in tensors if name not in shapes]
    problems = []
    if missing:
        problems.append(f"lacks {count(missing)}: {listed(missing)}")
    if surplus:
        problems.append(f"has {count(surplus)} too many: {listed(surplus)}")
    if not problems:
        wrong = [
            f"{name} is {list(tensors[name].shape)} and must be {list(shape)}"
            for name, shape in shapes.items()
            if tuple(tensors[name].shape) != shape
        ]
        if wrong:
            problems.append(f"has {count(wrong)} of a wrong shape: {listed(wrong)}")
    if problems:
        raise WeightsError(f"{source} {'; it '.join(problems)}; {remedy}")


def count(names: list[str]) -> str:
    return f"{len(names)} tensor{'s' if len(names) != 1 else ''}"
