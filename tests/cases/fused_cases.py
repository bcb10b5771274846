"""Where kernels of Triton can be tried: on a GPU, or in Triton's interpreter (TRITON_INTERPRET=1) on a CPU."""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
HAS_TRITON = importlib.util.find_spec("triton") is not None

needs_triton = pytest.mark.skipif(
    not HAS_TRITON or not (INTERPRETED or DEVICE == "cuda"),
    reason="needs Triton, and a CUDA device or TRITON_INTERPRET=1",
)
