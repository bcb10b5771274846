"""Types of numbers: products in 16 bits, weights and sums in 32, and the scaling that float16 needs."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch.amp import GradScaler

from regard.errors import SettingsError
from regard.training.settings import Precision


@dataclass(frozen=True)
class Numbers:
    """The types that a run computes with."""

    device: torch.device
    weights: torch.dtype
    """Of parameters, gradients and the optimiser's state."""
    products: torch.dtype
    """Of matrix products."""

    def autocast(self) -> AbstractContextManager[object]:
        if self.products == self.weights:
            return nullcontext()
        return torch.autocast(self.device.type, self.products)

    def scaler(self, tokens: int) -> GradScaler:
        """Keeps float16's gradients from vanishing; with any other type it does nothing.

        Gradients are sums over a step's tokens, so the usual first factor is divided by about as many.
        """
        first = 65536.0 / 2 ** math.ceil(math.log2(max(tokens, 1)))
        return GradScaler(self.device.type, init_scale=max(first, 1.0), enabled=self.products == torch.float16)


def numbers(precision: Precision, device: torch.device) -> Numbers:
    """The types that a setting means on a device."""
    if precision == "auto":
        precision = "bfloat16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "float32"
    if precision == "float64" and device.type == "mps":
        raise SettingsError("train.precision (float64) is not there on mps; choose float32, or --device cpu")
    products: torch.dtype = getattr(torch, precision)
    return Numbers(device, products if precision == "float64" else torch.float32, products)
