"""The peak speed of devices, for model FLOPs utilization."""

from __future__ import annotations

import time
from functools import cache

import torch

MEASURED_SECONDS = 0.2
"""Duration of a measurement. It is made once for each device, dtype and number of threads."""

DATASHEETS: dict[str, dict[str, float]] = {
    "H200": {"bfloat16": 989e12, "float16": 989e12, "float32": 67e12, "float64": 67e12},
    "H100 PCIe": {"bfloat16": 756e12, "float16": 756e12, "float32": 51e12, "float64": 51e12},
    "H100": {"bfloat16": 989e12, "float16": 989e12, "float32": 67e12, "float64": 67e12},
    "A100": {"bfloat16": 312e12, "float16": 312e12, "float32": 19.5e12, "float64": 19.5e12},
    "L40S": {"bfloat16": 362e12, "float16": 362e12, "float32": 91.6e12},
    "L4": {"bfloat16": 121e12, "float16": 121e12, "float32": 30.3e12},
    "A10": {"bfloat16": 125e12, "float16": 125e12, "float32": 31.2e12},
    "T4": {"float16": 65e12, "float32": 8.1e12},
    "V100 PCIE": {"float16": 112e12, "float32": 14e12, "float64": 7e12},
    "V100": {"float16": 125e12, "float32": 15.7e12, "float64": 7.8e12},
    "RTX 3090": {"bfloat16": 71e12, "float16": 71e12, "float32": 35.6e12},
    "RTX 4090": {"bfloat16": 165e12, "float16": 165e12, "float32": 82.6e12},
}
"""FLOPs per second of dense matrix products with float32 sums, from NVIDIA's datasheets (with sparsity they are twice
as high). The first entry whose words are all in the name of a device is used. Other devices are measured."""


def peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """The highest number of FLOPs per second of a device, from its datasheet or measured."""
    name = str(dtype).removeprefix("torch.")
    listed = datasheet(torch.cuda.get_device_name(device), name) if device.type == "cuda" else None
    return listed or _measure(device, dtype, torch.get_num_threads())


def datasheet(name: str, dtype: str) -> float | None:
    """The peak of the GPU with this name in its datasheet, or None if it is not listed."""
    words = set(name.upper().replace("-", " ").split())
    for entry, peaks in DATASHEETS.items():
        if set(entry.upper().split()) <= words:
            return peaks.get(dtype)
    return None


@cache
def _measure(device: torch.device, dtype: torch.dtype, threads: int) -> float:
    """The best speed of square products of a size that takes some milliseconds. `threads` is a key of the cache."""

    def seconds(square: torch.Tensor, result: torch.Tensor) -> float:
        start = time.perf_counter()
        torch.mm(square, square, out=result)
        if square.device.type != "cpu":
            torch.accelerator.synchronize(square.device)
        return time.perf_counter() - start

    size = 256
    while True:
        square = torch.ones(size, size, dtype=dtype, device=device)
        result = torch.empty_like(square)
        seconds(square, result)  # the first one loads kernels
        best = seconds(square, result)
        if best > MEASURED_SECONDS / 20 or size >= 8192:
            break
        size *= 2
    end = time.perf_counter() + MEASURED_SECONDS
    while time.perf_counter() < end:
        best = min(best, seconds(square, result))
    return 2 * size**3 / best
