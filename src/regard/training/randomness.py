"""Chance, step by step: every step's random numbers follow from the seed, its number and the process.

Nothing has to be kept for a resume, and a step that is taken again (in smaller parts, when memory ran out; uncompiled,
when compiling failed) sees the same dropout as far as its shapes allow.
"""

from __future__ import annotations

import numpy as np
import torch


def seed_step(seed: int, step: int, rank: int) -> None:
    """Sets PyTorch's generators on every device."""
    high, low = np.random.SeedSequence([seed, step, rank]).generate_state(2)
    torch.manual_seed((int(high) << 32 | int(low)) >> 1)
