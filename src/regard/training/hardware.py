"""What a device could do at its best, what a step of training asks for, and the share of the one in the other.

The share counts the model's own operations (Chowdhery et al. 2022: model FLOPs utilisation): fillers of padded batches
and what is computed twice to save memory are time lost, not work done.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Literal, TypeAlias

from regard.errors import InputError

if TYPE_CHECKING:
    import torch

Product: TypeAlias = Literal["bfloat16", "float16", "tf32", "float32", "float64"]
"""Type of a matrix product; tf32 is float32 in and out, rounded on the way through the tensor cores."""
Origin: TypeAlias = Literal["datasheet", "measured"]

MEASURED_SECONDS = 0.2
"""How long a measurement takes, once for a device and type."""

DATASHEETS: dict[str, dict[Product, float]] = {
    "H200": {"bfloat16": 989e12, "float16": 989e12, "tf32": 494e12, "float32": 67e12, "float64": 67e12},
    "H100 PCIe": {"bfloat16": 756e12, "float16": 756e12, "tf32": 378e12, "float32": 51e12, "float64": 51e12},
    "H100": {"bfloat16": 989e12, "float16": 989e12, "tf32": 494e12, "float32": 67e12, "float64": 67e12},
    "A100": {"bfloat16": 312e12, "float16": 312e12, "tf32": 156e12, "float32": 19.5e12, "float64": 19.5e12},
    "L40S": {"bfloat16": 362e12, "float16": 362e12, "tf32": 183e12, "float32": 91.6e12},
    "L4": {"bfloat16": 121e12, "float16": 121e12, "tf32": 60e12, "float32": 30.3e12},
    "A10": {"bfloat16": 125e12, "float16": 125e12, "tf32": 62.5e12, "float32": 31.2e12},
    "T4": {"float16": 65e12, "float32": 8.1e12},
    "V100 PCIE": {"float16": 112e12, "float32": 14e12, "float64": 7e12},
    "V100": {"float16": 125e12, "float32": 15.7e12, "float64": 7.8e12},
    "RTX 3090": {"bfloat16": 71e12, "float16": 71e12, "tf32": 35.6e12, "float32": 35.6e12},
    "RTX 4090": {"bfloat16": 165e12, "float16": 165e12, "tf32": 82.6e12, "float32": 82.6e12},
}
"""Dense products a second times two, float32 sums, as NVIDIA's datasheets say; those with sparsity are twice as high.
The first entry all of whose words are in a device's name is taken. What is missing is measured."""


# --------------------------------------------------------------------------------------------------- what there is


def peak_flops(device: torch.device | str, dtype: torch.dtype | Product) -> tuple[float, Origin]:
    """The most floating-point operations a second of a device, and where the figure is from.

    Measured ones are kept for as long as the process lives, by device, type and number of threads.
    """
    import torch

    device, product = torch.device(device), _product(dtype)
    if device.type == "cuda":
        listed = datasheet(torch.cuda.get_device_name(device), product)
        if listed is not None:
            return listed, "datasheet"
    return _measured(str(device), product, torch.get_num_threads()), "measured"


def datasheet(name: str, product: Product) -> float | None:
    """What the datasheet of a GPU of this name says, or None where it is not listed here."""
    words = set(name.upper().replace("-", " ").split())
    for entry, figures in DATASHEETS.items():
        if set(entry.upper().split()) <= words:
            return figures.get(product)
    return None


def _product(dtype: torch.dtype | Product) -> Product:
    known: tuple[Product, ...] = ("bfloat16", "float16", "tf32", "float32", "float64")
    name = str(dtype).removeprefix("torch.")
    for product in known:
        if product == name:
            return product
    raise InputError(f"dtype ({name}) has no peak here; choose one of {', '.join(known)}")


@cache
def _measured(device: str, product: Product, threads: int) -> float:
    """The best rate of square products, of a size that takes some milliseconds. `threads` is here for the cache."""
    import torch

    kind = torch.float32 if product == "tf32" else getattr(torch, product)
    size = 256
    while True:
        multiply = _multiplication(torch.ones(size, size, dtype=kind, device=device))
        multiply()  # the first one loads kernels
        seconds = multiply()
        if seconds > MEASURED_SECONDS / 20 or size >= 8192:
            break
        size *= 2
    best, end = seconds, time.perf_counter() + MEASURED_SECONDS
    while time.perf_counter() < end:
        best = min(best, multiply())
    return 2 * size**3 / best


def _multiplication(square: torch.Tensor) -> Callable[[], float]:
    """A call that multiplies the matrix with itself and says how many seconds that took."""
    import torch

    result = torch.empty_like(square)

    def multiply() -> float:
        start = time.perf_counter()
        torch.mm(square, square, out=result)
        if square.device.type != "cpu":
            torch.accelerator.synchronize(square.device)
        return time.perf_counter() - start

    return multiply


# ---------------------------------------------------------------------------------------------------- what is asked


def share_of_peak(flops: float, seconds: float, peak: float) -> float:
    """Which part of the device's best was used: operations a second over `peak`, the sum over all devices."""
    return flops / seconds / peak if seconds > 0 and peak > 0 else 0.0
