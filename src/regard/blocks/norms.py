"""Norms over the features of one token."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.blocks import settings


class RmsNorm(nn.Module):
    """x / √(mean of squares + eps) · weight. 16-bit inputs are squared and averaged in float32."""

    def __init__(self, width: int, eps: float, unit_offset: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.eps = eps
        self.unit_offset = unit_offset
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The scale starts at one."""
        nn.init.constant_(self.weight, 0.0 if self.unit_offset else 1.0)

    def forward(self, x: Tensor) -> Tensor:
        weight = 1 + self.weight if self.unit_offset else self.weight
        return functional.rms_norm(x, weight.shape, weight, self.eps)


def build_norm(norm: settings.Norm, width: int) -> nn.Module:
    if isinstance(norm, settings.RmsNorm):
        return RmsNorm(width, norm.eps, norm.unit_offset)
    return nn.LayerNorm(width, norm.eps, bias=norm.bias)
