"""Worked numbers on positions: every value was worked by hand in a lecture, and the library's functions give it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn, tensor
from torch.testing import assert_close

from regard.blocks import settings
from regard.blocks.embedding import TextEmbedding
from regard.blocks.layout import Padded
from regard.blocks.positions import SinusoidalGridPosition, frequencies, places_2d, rotate, rotation, sinusoidal

THREE_DIGITS = {"rtol": 0.0, "atol": 0.5e-3}
EXACT = {"rtol": 0.0, "atol": 1e-9}


def wavelengths(width: int, base: float = 10_000.0) -> torch.Tensor:
    """`[⌈width / 2⌉]`: after how many places pair j repeats, 2π · base^(2j / width)."""
    return 2 * math.pi / frequencies(width, base)


def shift_matrix(offset: float, width: int, base: float = 10_000.0) -> torch.Tensor:
    """`[width, width]`: the matrix M with PE(t + offset) = M PE(t) for every t (interleaved order, even width)."""
    angles = offset * frequencies(width, base)
    cos, sin = angles.cos(), angles.sin()
    turns = torch.stack([torch.stack([cos, sin], dim=-1), torch.stack([-sin, cos], dim=-1)], dim=-2)
    return torch.block_diag(*turns)


# -------------------------------------------------------------------------- the sinusoidal table for d_model = 5


def test_sinusoidal_table() -> None:
    """The five dimensions of the encodings of positions 0 to 4."""
    dimensions = [
        [0.000, 0.841, 0.909, 0.141, -0.757],
        [1.000, 0.540, -0.416, -0.990, -0.654],
        [0.000, 0.025, 0.050, 0.075, 0.100],
        [1.000, 1.000, 0.999, 0.997, 0.995],
        [0.000, 0.001, 0.001, 0.002, 0.003],
    ]
    assert_close(sinusoidal(torch.arange(5), width=5, base=10_000.0).T, tensor(dimensions), **THREE_DIGITS)


# ------------------------------------------------------------------------------------- wavelengths and frequencies


@pytest.mark.parametrize("base", [1_000.0, 10_000.0])
@pytest.mark.parametrize("width", [4, 6, 512])
def test_wavelength_of_pair_j(base: float, width: int) -> None:
    """2π · b^(2j/d), where the base b is a setting."""
    expected = [2 * math.pi * base ** (2 * j / width) for j in range(width // 2)]
    assert_close(wavelengths(width, base), tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("base", [1_000.0, 10_000.0])
def test_every_pair_repeats_after_its_wavelength(base: float) -> None:
    positions = torch.arange(50, dtype=torch.float64)
    for j, length in enumerate(wavelengths(8, base)):
        here, there = (sinusoidal(t, 8, base, dtype=torch.float64)[:, 2 * j] for t in (positions, positions + length))
        assert_close(here, there, **EXACT)


# ------------------------------------------------------------------------------------- what makes sinusoids suitable


@pytest.mark.parametrize("offset", [1, 7, -3, 1000])
@pytest.mark.parametrize("width", [2, 6, 64])
def test_a_shift_is_linear(offset: int, width: int) -> None:
    """PE(t + c) = M_c · PE(t): one matrix for every t, which keeps norms."""
    t = torch.tensor([0.0, 1.0, 5.0, 123.0, 4096.0, 9999.0], dtype=torch.float64)
    matrix = shift_matrix(offset, width)
    shifted = sinusoidal(t + offset, width, dtype=torch.float64)
    assert_close(shifted, sinusoidal(t, width, dtype=torch.float64) @ matrix.T, **EXACT)
    assert_close(matrix @ matrix.T, torch.eye(width, dtype=torch.float64), **EXACT)


def test_every_position_is_unique_and_bounded() -> None:
    encodings = sinusoidal(torch.arange(10_001), width=64, dtype=torch.float64)
    assert encodings.abs().max() <= 1
    assert len(torch.unique(encodings, dim=0)) == 10_001
    assert_close(encodings.norm(dim=1), torch.full((10_001,), math.sqrt(32), dtype=torch.float64))


# ------------------------------------------------------------------------------------- embedding + position = input

EMBEDDING = [171.411, 3276.350, 9192.819, 3633.421, 8390.473]
FIRST_PLACE = [1664.068, 8080.133, 2620.399, 9386.405, 3120.159]
OTHER_PLACE = [1281.458, 7902.890, 912.970, 1659.217, 7018.620]


def test_embedding_plus_position_is_the_encoder_input() -> None:
    """The same word at two places, through an embedding whose vectors are the lecture's."""
    tokens = nn.Embedding.from_pretrained(tensor([EMBEDDING], dtype=torch.float64))
    embedding = TextEmbedding(tokens, settings.Learned(length=2), scaled=False, norm=None, dropout=0.0)
    embedding.position.weight = nn.Parameter(tensor([FIRST_PLACE, OTHER_PLACE], dtype=torch.float64))
    expected = [
        [1835.479, 11356.483, 11813.218, 13019.826, 11510.632],
        [1452.869, 11179.240, 10105.789, 5292.638, 15409.093],
    ]
    out = embedding(tensor([[0, 0]]), Padded(batch=1, time=2))[0].detach()
    assert_close(out, tensor(expected, dtype=torch.float64), **EXACT)


# ------------------------------------------------------------------------------------------------------------ images


def test_an_image_position_joins_column_and_row() -> None:
    """PE(x, y) = concat(PE(x), PE(y)), in the module that a vision model adds."""
    x, y = places_2d((3, 4))
    expected = torch.cat([sinusoidal(x, 8), sinusoidal(y, 8)], dim=-1)
    assert x.tolist() == [0, 1, 2, 3] * 3
    assert y.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    module = SinusoidalGridPosition(settings.Sinusoidal2d(), width=16, class_token=False)
    assert_close(module.embed((3, 4), torch.device("cpu"), torch.float32), expected)


# ------------------------------------------------------------------------------------------------------------ rotary


def turned(x: Tensor, place: int, order: settings.ChannelOrder) -> Tensor:
    """A vector [E] as it is turned at a place."""
    angles = place * frequencies(x.shape[-1])
    return rotate(x[None, None], rotation(angles[None], torch.float64, order))[0, 0]


@pytest.mark.parametrize("order", ["halves", "interleaved"])
@pytest.mark.parametrize(("m", "n"), [(0, 0), (3, 1), (1, 3), (100, 37), (4000, 4095)])
def test_rotary_scores_depend_only_on_the_distance(m: int, n: int, order: settings.ChannelOrder) -> None:
    q, k = torch.randn(2, 64, dtype=torch.float64)
    scores = [turned(q, m + c, order) @ turned(k, n + c, order) for c in (0, 1, 17, 1000)]
    assert_close(torch.stack(scores), scores[0].expand(4), **EXACT)
    assert_close(scores[0], turned(q, m - n, order) @ k, **EXACT)


@pytest.mark.parametrize("order", ["halves", "interleaved"])
def test_rotary_keeps_norms(order: settings.ChannelOrder) -> None:
    q = torch.randn(64, dtype=torch.float64)
    for place in (0, 1, 99, 4095):
        assert_close(turned(q, place, order).norm(), q.norm(), **EXACT)
