"""Positions against transformers' own functions, against the papers' definitions, and at their edges."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from packing_cases import pack
from torch import Tensor, nn
from torch.testing import assert_close
from transformers import LlamaConfig, ViTConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.t5.modeling_t5 import T5Attention
from transformers.models.vit.modeling_vit import ViTEmbeddings

from regard.blocks import settings
from regard.blocks.layout import Layout, Padded
from regard.blocks.positions import (
    LearnedGridPosition,
    alibi_slopes,
    bucket,
    build_attended,
    build_embedded,
    rotary_frequencies,
    rotate,
    sinusoidal,
)
from regard.blocks.visibility import Visibility
from regard.errors import InputError

CPU = torch.device("cpu")
DOUBLE = torch.float64


@pytest.mark.parametrize("width", [1, 2, 5, 8])
@pytest.mark.parametrize("order", ["interleaved", "halves"])
@pytest.mark.parametrize("base", [10_000.0, 100.0])
def test_sinusoids_by_their_formula(width: int, order: settings.ChannelOrder, base: float) -> None:
    """sin and cos of t / base^(2j/d); of an odd width the last cosine is left out."""
    positions = torch.tensor([[0, 1, 2], [17, 400, -3]])
    encoding = sinusoidal(positions, width, base, order, DOUBLE)
    pairs = (width + 1) // 2
    for cell in np.ndindex(2, 3):
        angles = [positions[cell].item() / base ** (2 * j / width) for j in range(pairs)]
        if order == "interleaved":
            wanted = [f(angle) for angle in angles for f in (math.sin, math.cos)][:width]
        else:
            wanted = [f(angle) for f in (math.sin, math.cos) for angle in angles][:width]
        np.testing.assert_allclose(encoding[cell].numpy(), wanted, rtol=0, atol=1e-12)


def test_far_places_are_exact_in_float32() -> None:
    """An angle of a million, rounded to float32, would already be wrong by a thirtieth."""
    place = 1_000_003
    encoding = sinusoidal(torch.tensor([place]), 2, dtype=torch.float32)[0]
    assert_close(encoding, torch.tensor([math.sin(place), math.cos(place)]), rtol=0, atol=1e-7)


def one_cell(place: int) -> Padded:
    """One token at a position, as in decoding with a cache."""
    return Padded(1, 1, places_BT=torch.tensor([[place]]), bound=place + 1)


def test_learned_positions_serve_their_whole_length_and_no_more() -> None:
    position = build_embedded(settings.Learned(length=6), 3)
    nn.init.normal_(position.weight)
    for layout in (Padded(1, 6), one_cell(5), pack([[6], [2]], [6]).layouts[0]):
        position.embed(layout, CPU, torch.float32)
    for layout in (Padded(1, 7), one_cell(6), pack([[7]], [None]).layouts[0]):
        with pytest.raises(InputError) as caught:
            position.embed(layout, CPU, torch.float32)
        assert "7 tokens exceeds position.length (6)" in str(caught.value)


def from_transformers(kind: str, channels: int, fraction: float, seq_len: int | None = None, **parameters: Any) -> Any:
    """Frequencies and attention factor; since v5 a configuration holds all of it in `rope_parameters`."""
    config = LlamaConfig(
        hidden_size=2 * channels,
        num_attention_heads=2,
        max_position_embeddings=4096,
        rope_parameters={"rope_type": kind, "rope_theta": 5000.0, "partial_rotary_factor": fraction, **parameters},
    )
    return ROPE_INIT_FUNCTIONS[kind](config, CPU, seq_len)


SIZES = ((64, 1.0), (128, 0.5), (20, 0.3))
"""Head sizes and rotated fractions."""


def check_scaling(scaling: Any, head_size: int, fraction: float, wanted: tuple[Tensor, float]) -> None:
    position = settings.Rotary(base=5000.0, fraction=fraction, scaling=scaling)
    got, factor = rotary_frequencies(position, position.channels(head_size))
    assert_close(got, wanted[0].double(), rtol=3e-6, atol=0)
    assert factor == pytest.approx(wanted[1], rel=1e-12)


def test_scalings_as_in_transformers() -> None:
    for size, fraction in SIZES:
        wanted = from_transformers("linear", size, fraction, factor=3.0)
        check_scaling(settings.LinearScaling(factor=3.0), size, fraction, wanted)
        for factor in (1.0, 4.0, 32.0):
            for betas in ({}, {"beta_fast": 16.0, "beta_slow": 2.0}):
                theirs = {"factor": factor, "original_max_position_embeddings": 1024, **betas}
                scaling: Any = settings.YarnScaling(factor=factor, original_length=1024, **betas)
                check_scaling(scaling, size, fraction, from_transformers("yarn", size, fraction, **theirs))
        for factor in (1.0, 8.0):
            for low, high in ((1.0, 4.0), (2.0, 10.0)):
                theirs = {"factor": factor, "low_freq_factor": low, "high_freq_factor": high}
                theirs["original_max_position_embeddings"] = 1024
                scaling = settings.Llama3Scaling(
                    factor=factor, low_frequency_factor=low, high_frequency_factor=high, original_length=1024
                )
                check_scaling(scaling, size, fraction, from_transformers("llama3", size, fraction, **theirs))


def test_dynamic_scaling_as_in_transformers() -> None:
    """By the length of each sequence: as trained up to the original length, then with a larger base."""
    for size, fraction in SIZES:
        position = settings.Rotary(
            base=5000.0, fraction=fraction, scaling=settings.DynamicScaling(factor=3.0, original_length=4096)
        )
        lengths = torch.tensor([[1], [4096], [4097], [20_000]])
        got, factor = rotary_frequencies(position, position.channels(size), length=lengths)
        assert factor == 1.0
        for row, length in zip(got, lengths.flatten().tolist(), strict=True):
            wanted, _ = from_transformers("dynamic", size, fraction, seq_len=length, factor=3.0)
            assert_close(row, wanted.double(), rtol=3e-6, atol=0)


def test_dynamic_scaling_does_not_depend_on_the_batch() -> None:
    """Rows of a padded batch, and sequences of a packed one, turn as they do alone."""
    scaling = settings.DynamicScaling(factor=2.0, original_length=4)
    position = build_attended(settings.Rotary(scaling=scaling), 8, 1, 8, causal=True)

    def turned(layout: Layout) -> Tensor:
        return position.signals(Visibility(layout, layout, True), CPU, DOUBLE).rotation.cos

    lengths = (3, 9, 5)
    padded = turned(Padded.of(torch.tensor(lengths), 9))
    packing = pack([[length] for length in lengths], [None])
    packed = turned(packing.layouts[0])
    for row, (length, s) in enumerate(zip(lengths, packing.sequences, strict=True)):
        alone = turned(Padded(1, length))[0]
        start = int(packing.layouts[0].offsets_S1[s])
        assert_close(padded[row, :length], alone, rtol=0, atol=0)
        assert_close(packed[start : start + length], alone, rtol=0, atol=0)


def test_16_bit_channels_turn_by_exact_angles() -> None:
    """At place 4000 the angle itself has no place in bfloat16; only the channels are rounded."""
    module = build_attended(settings.Rotary(), width=8, heads=1, head_size=8, causal=True)
    layout = one_cell(4000)
    x = torch.randn(1, 1, 1, 8).bfloat16()
    turned = rotate(x, module.signals(Visibility(layout, layout), CPU, torch.bfloat16).rotation)
    exact = rotate(x.double(), module.signals(Visibility(layout, layout), CPU, DOUBLE).rotation)
    assert turned.dtype == torch.bfloat16
    assert_close(turned.double(), exact, rtol=2**-8, atol=2**-9)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("buckets", "longest"), [(32, 128), (8, 20), (4, 5), (64, 1000)])
def test_buckets_are_those_of_t5(causal: bool, buckets: int, longest: int) -> None:
    distance = torch.arange(-2 * longest, 2 * longest)
    wanted = T5Attention._relative_position_bucket(
        -distance, bidirectional=not causal, num_buckets=buckets, max_distance=longest
    )
    assert torch.equal(bucket(distance, buckets, longest, causal), wanted)


def slopes_of_the_paper(heads: int) -> list[float]:
    """Press et al. 2022: a geometric series for a power of two; for others, every second slope of the next power."""
    if math.log2(heads).is_integer():
        ratio = 2 ** (-8 / heads)
        return [ratio ** (head + 1) for head in range(heads)]
    below = 2 ** math.floor(math.log2(heads))
    return slopes_of_the_paper(below) + slopes_of_the_paper(2 * below)[0::2][: heads - below]


@pytest.mark.parametrize("heads", [*range(1, 34), 40, 112])
def test_alibi_slopes_are_those_of_the_paper(heads: int) -> None:
    assert_close(alibi_slopes(heads), torch.tensor(slopes_of_the_paper(heads)))


@pytest.mark.parametrize("size", [(24, 24), (48, 48), (36, 24), (12, 60), (6, 6), (18, 18)])
def test_learned_grids_are_resized_as_in_vit(size: tuple[int, int]) -> None:
    """Made for 4 × 4 patches of 6 pixels; used for larger, smaller and non-square images."""
    theirs = ViTEmbeddings(ViTConfig(hidden_size=8, image_size=24, patch_size=6, num_attention_heads=2))
    ours = LearnedGridPosition((4, 4), 8, class_token=True)
    with torch.no_grad():
        ours.first.copy_(theirs.position_embeddings[0, 0])
        ours.weight.copy_(theirs.position_embeddings[0, 1:])
    grid = (size[0] // 6, size[1] // 6)
    wanted = theirs.interpolate_pos_encoding(torch.zeros(1, grid[0] * grid[1] + 1, 8), *size)
    assert_close(ours.embed(grid, CPU, torch.float32), wanted[0])


def test_a_grid_of_the_same_size_is_not_touched_and_a_turned_one_is_resized() -> None:
    ours = LearnedGridPosition((2, 3), 4, class_token=False)
    nn.init.normal_(ours.weight)
    assert ours.embed((2, 3), CPU, torch.float32) is ours.weight
    turned = ours.embed((3, 2), CPU, torch.float32)  # as many patches, and yet another grid
    assert turned.shape == (6, 4)
    assert not torch.allclose(turned, ours.weight)
