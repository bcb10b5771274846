"""Weights kept small on the disk: int8 with a scale for each row, or bfloat16. Reading gives float32 back.

A matrix of int8 lies under its own name and its scales under `NAME.scale`; vectors (biases, norms) and small matrices,
which are few numbers and matter most, stay float32. So the tensors themselves tell how they are stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from regard.errors import WeightsError

Storage: TypeAlias = Literal["int8", "bf16"]

SCALE = ".scale"
LARGEST = 127
"""−128 is not used, so that the range is the same on both sides of zero."""
LEAST = 1024
"""A matrix of fewer numbers stays as it is."""


class Quantized(NamedTuple):
    """values · scale, row by row."""

    values: Tensor
    """int8, of the shape of what was quantised."""
    scale: Tensor
    """`[rows]`, float32."""

    def tensor(self) -> Tensor:
        """What they stand for, in float32."""
        return self.values.float() * self.scale.view(-1, *[1] * (self.values.dim() - 1))


def quantize(tensor: Tensor) -> Quantized:
    """Each row (all of a first index) on a grid that reaches its largest number, so no error exceeds half a step.

    Grids that cut the largest numbers off were tried: with 8 bits they leave no less squared error.
    """
    rows = tensor.detach().float().flatten(1)
    scale = rows.abs().amax(1) / LARGEST
    scale = torch.where(scale > 0, scale, 1.0)
    values = (rows / scale[:, None]).round().clamp(-LARGEST, LARGEST)
    return Quantized(values.to(torch.int8).view(tensor.shape), scale)


def packed(tensors: Mapping[str, Tensor], storage: Storage) -> dict[str, Tensor]:
    """The tensors as a file keeps them."""
    stored: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.dim() < 2 or tensor.numel() < LEAST:
            stored[name] = tensor.detach().float()
        elif storage == "bf16":
            stored[name] = tensor.detach().bfloat16()
        else:
            stored[name], stored[name + SCALE] = quantize(tensor)
    return stored


def unpacked(tensors: Mapping[str, Tensor], source: str) -> dict[str, Tensor]:
    """The tensors of a file, int8 ones multiplied by their scales; others as they are."""
    whole = dict(tensors)
    for name, tensor in tensors.items():
        if tensor.dtype == torch.int8:
            scale = whole.pop(name + SCALE, None)
            if scale is None or scale.shape != tensor.shape[:1] or scale.dtype != torch.float32:
                told = "is missing" if scale is None else f"is {scale.dtype} of shape {list(scale.shape)}"
                raise WeightsError(
                    f"{name} in {source} is int8, and {name}{SCALE}, which must hold a float32 for each of its "
                    f"{len(tensor):,} rows, {told}; save the model again"
                )
            whole[name] = Quantized(tensor, scale).tensor()
    return whole
