"""What a device can do and what training asks of it, against datasheets, `count` and formulas of the literature."""

from __future__ import annotations

import time

import pytest
import torch

from regard.errors import InputError
from regard.training.hardware import datasheet, peak_flops, share_of_peak

# -------------------------------------------------------------------------------------------------------------- peaks


@pytest.mark.parametrize(
    ("name", "product", "peak"),
    [
        ("NVIDIA H200", "bfloat16", 989e12),
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989e12),
        ("NVIDIA H100 PCIe", "bfloat16", 756e12),
        ("NVIDIA A100-SXM4-80GB", "tf32", 156e12),
        ("NVIDIA A100-PCIE-40GB", "float32", 19.5e12),
        ("NVIDIA A10", "bfloat16", 125e12),
        ("NVIDIA L4", "float16", 121e12),
        ("NVIDIA L40S", "float16", 362e12),
        ("Tesla T4", "float16", 65e12),
        ("Tesla V100-SXM2-16GB", "float16", 125e12),
        ("Tesla V100-PCIE-16GB", "float16", 112e12),
        ("NVIDIA GeForce RTX 3090", "bfloat16", 71e12),
        ("NVIDIA GeForce RTX 4090", "bfloat16", 165e12),
    ],
)
def test_datasheets_by_the_names_that_drivers_give(name: str, product: str, peak: float) -> None:
    assert datasheet(name, product) == peak  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["NVIDIA A10G", "NVIDIA L40", "NVIDIA A1000", "NVIDIA GeForce GTX 1080"])
def test_a_name_that_only_resembles_one_is_not_listed(name: str) -> None:
    assert datasheet(name, "float16") is None


def test_a_type_that_a_gpu_has_no_units_for_is_not_listed() -> None:
    assert datasheet("Tesla T4", "bfloat16") is None


def test_a_cpu_is_measured_once_and_near_what_a_product_takes() -> None:
    start = time.perf_counter()
    peak, origin = peak_flops("cpu", torch.float32)
    first = time.perf_counter() - start
    assert origin == "measured"
    assert first < 10
    start = time.perf_counter()
    assert peak_flops(torch.device("cpu"), "float32") == (peak, origin)
    assert time.perf_counter() - start < first / 5

    a, b = torch.randn(512, 512), torch.randn(512, 512)
    rates = []
    for _ in range(20):
        start = time.perf_counter()
        a @ b
        rates.append(2 * 512**3 / (time.perf_counter() - start))
    assert peak > 0.2 * max(rates)
    assert peak < 20 * max(rates)


def test_a_type_without_products() -> None:
    with pytest.raises(InputError, match=r"^dtype \(int64\) has no peak here; choose one of bfloat16, "):
        peak_flops("cpu", torch.int64)


@pytest.mark.gpu
def test_a_gpu_does_not_beat_its_datasheet() -> None:
    from regard.training.hardware import _measured

    listed, origin = peak_flops("cuda", torch.bfloat16)
    measured = _measured("cuda", "bfloat16", 1)
    assert origin == "measured" or 0.4 * listed < measured < 1.05 * listed


def test_share_of_peak() -> None:
    assert share_of_peak(flops=5e12, seconds=0.5, peak=40e12) == 0.25
    assert share_of_peak(1.0, 0.0, 1.0) == 0.0
