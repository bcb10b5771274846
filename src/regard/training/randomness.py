"""Chance, step by step: every step's random numbers follow from the seed, its number and the process.

Nothing has to be kept for a resume, and a step that is taken again (in smaller parts, when memory ran out; uncompiled,
when compiling failed) sees the same dropout as far as its shapes allow.
"""

from __future__ import annotations

import numpy as np
import torch


def seed_step(seed: int, step: int, rank: int, device: torch.device | None = None) -> None:
    """Sets PyTorch's generators of the CPU and of the device; `torch.manual_seed` visits all there might be."""
    high, low = np.random.SeedSequence([seed, step, rank]).generate_state(2)
    number = (int(high) << 32 | int(low)) >> 1
    torch.default_generator.manual_seed(number)
    if device is not None and device.type != "cpu":
        getattr(torch, device.type).manual_seed(number)
