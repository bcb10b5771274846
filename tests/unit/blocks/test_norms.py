"""Norms, from their formulas in float64 and against torch.nn."""

from __future__ import annotations

import itertools

import numpy as np
import torch

from regard.blocks import settings
from regard.blocks.layers import build_norm


def rms(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight


def test_rms_norm_by_its_formula() -> None:
    for eps, unit_offset in itertools.product((1e-6, 0.1), (False, True)):
        norm = build_norm(settings.RmsNorm(eps=eps, unit_offset=unit_offset), width=7).double()
        x, weight = torch.randn(2, 3, 7, dtype=torch.float64), torch.randn(7, dtype=torch.float64)
        norm.load_state_dict({"weight": weight})
        wanted = rms(x.numpy(), weight.numpy() + unit_offset, eps)
        np.testing.assert_allclose(norm(x).detach().numpy(), wanted, rtol=1e-12)


def test_rms_norm_squares_16_bits_in_float32() -> None:
    """300² is beyond float16, and a sum of 4096 squares is too large for bfloat16."""
    for dtype in (torch.float16, torch.bfloat16):
        norm = build_norm(settings.RmsNorm(), width=4096).to(dtype)
        x = (300 * torch.randn(3, 4096)).to(dtype)
        wanted = rms(x.double().numpy(), np.ones(4096), 1e-6)
        assert norm(x).dtype == dtype
        got = norm(x).detach().double().numpy()
        np.testing.assert_allclose(got, wanted, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)
