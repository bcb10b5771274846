"""Peaks of devices: datasheets and measurements."""

from __future__ import annotations

import time

import torch

from regard.training.hardware import datasheet, peak_flops


def test_datasheets_by_the_names_that_drivers_give() -> None:
    for name, dtype, peak in (
        ("NVIDIA H200", "bfloat16", 989e12),
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989e12),
        ("NVIDIA H100 PCIe", "bfloat16", 756e12),
        ("NVIDIA A100-PCIE-40GB", "float32", 19.5e12),
        ("Tesla V100-SXM2-16GB", "float16", 125e12),
        ("Tesla V100-PCIE-16GB", "float16", 112e12),
        ("NVIDIA GeForce RTX 4090", "bfloat16", 165e12),
    ):
        assert datasheet(name, dtype) == peak
    for name in ("NVIDIA A10G", "NVIDIA L40", "NVIDIA A1000", "NVIDIA GeForce GTX 1080"):
        assert datasheet(name, "float16") is None  # a similar name is another device
    assert datasheet("Tesla T4", "bfloat16") is None


def test_a_cpu_is_measured_near_what_a_product_takes() -> None:
    peak = peak_flops(torch.device("cpu"), torch.float32)
    a, rates = torch.randn(512, 512), []
    for _ in range(20):
        start = time.perf_counter()
        a @ a
        rates.append(2 * 512**3 / (time.perf_counter() - start))
    assert 0.2 * max(rates) < peak < 20 * max(rates)
