"""What a device can do and what training asks of it, against datasheets, `count` and formulas of the literature."""

from __future__ import annotations

import time

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from regard.blocks.settings import Attention
from regard.errors import InputError
from regard.models.build import build
from regard.models.count import count
from regard.models.presets import PRESETS, Preset, preset
from regard.models.settings import EncoderDecoder, ModelSettings
from regard.training.hardware import datasheet, peak_flops, share_of_peak, training_flops

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


# -------------------------------------------------------------------------------------------------------------- FLOPs


@pytest.mark.parametrize("entry", PRESETS, ids=lambda entry: entry.name)
def test_one_sequence_costs_what_count_says(entry: Preset) -> None:
    length = 48 if entry.settings.kind != "vision" else None
    counted = count(entry.settings, length)
    asked = training_flops(entry.settings, 1, counted.length, counted.length)
    assert asked == pytest.approx(3 * counted.flops.sequence, rel=1e-12)


@pytest.mark.parametrize(
    "changes",
    [{"position": {"kind": "transformer-xl"}}, {"attention": {"heads": 8, "window": 7}}],
    ids=["transformer-xl", "window"],
)
@pytest.mark.parametrize("name", ["transformer-tiny", "gpt2", "bert-tiny"])
def test_distances_and_windows_cost_what_count_says(name: str, changes: dict[str, object]) -> None:
    settings: ModelSettings = preset(name).changed({"width": 128, "attention.heads": 8}).changed(changes)
    counted = count(settings, 40)
    assert training_flops(settings, 3, 120, 120) == pytest.approx(9 * counted.flops.sequence, rel=1e-12)


def test_both_sides_against_the_operations_that_torch_counts() -> None:
    settings = EncoderDecoder(
        width=32, depth=2, decoder_depth=1, attention=Attention(heads=4), vocabulary=50, dropout=0.0
    )
    network = build(settings).eval()
    with (
        FlopCounterMode(display=False) as counter,
        torch.no_grad(),
        torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
    ):
        network(torch.zeros(2, 9, dtype=torch.long), torch.zeros(2, 5, dtype=torch.long))
    assert training_flops(settings, 2, 10, 18) == pytest.approx(3 * counter.get_total_flops(), rel=1e-12)


def test_a_long_run_is_about_six_operations_a_parameter_and_token() -> None:
    settings = preset("gpt2")
    matrices = count(settings).parameters - 1024 * 768  # all but the learned positions; the output is tied
    assert training_flops(settings, 1000, 32_000) == pytest.approx(6 * matrices * 32_000, rel=0.01)


def test_share_of_peak() -> None:
    assert share_of_peak(flops=5e12, seconds=0.5, peak=40e12) == 0.25
    assert share_of_peak(1.0, 0.0, 1.0) == 0.0
    assert training_flops(preset("gpt2"), 0, 0) == 0.0
