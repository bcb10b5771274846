"""The peak speed of devices, for model FLOPs utilization."""

from __future__ import annotations

import time
from functools import cache

import torch

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


@cache
def peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """The highest number of FLOPs per second of a device: from its datasheet, or of the fastest of some products."""
    name = str(dtype).removeprefix("torch.")
    listed = datasheet(torch.cuda.get_device_name(device), name) if device.type == "cuda" else None
    if listed:
        return listed
    best = 0.0
    for size in (256, 512, 1024, 2048, 4096, 8192):
        square = torch.ones(size, size, dtype=dtype, device=device)
        for _ in range(4):  # the first one loads kernels
            start = time.perf_counter()
            square @ square
            if device.type != "cpu":
                torch.accelerator.synchronize(device)
            seconds = time.perf_counter() - start
            best = max(best, 2 * size**3 / seconds)
        if seconds > 0.01:
            break
    return best


def datasheet(name: str, dtype: str) -> float | None:
    """The peak of the GPU with this name in its datasheet, or None if it is not listed."""
    words = set(name.upper().replace("-", " ").split())
    found = (peaks for entry, peaks in DATASHEETS.items() if set(entry.upper().split()) <= words)
    return next(found, {}).get(dtype)
