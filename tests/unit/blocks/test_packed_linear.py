"""Linear layers for a CPU: what nn.Linear computes, exactly or within what 8 bits allow."""

from __future__ import annotations

import pytest
import torch

from regard.errors import InputError
from regard.models import cpu as packed_linear
from regard.models.cpu import EightBitLinear, PackedLinear


def weights(inputs: int, outputs: int, bias: bool, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor | None]:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(outputs, inputs, generator=generator) * torch.rand(outputs, 1, generator=generator)
    return weight, torch.randn(outputs, generator=generator) if bias else None


def expected(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return torch.nn.functional.linear(x.double(), weight.double(), None if bias is None else bias.double())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 24), (7, 24), (0, 24), (3, 5, 24), (200, 24)])
def test_packed_is_linear(shape: tuple[int, ...], bias: bool) -> None:
    weight, offset = weights(24, 40, bias)
    x = torch.randn(shape)
    out = PackedLinear(weight, offset)(x)
    assert out.shape == (*shape[:-1], 40)
    assert torch.allclose(out.double(), expected(x, weight, offset), atol=1e-5)


def test_packed_takes_inputs_that_lie_otherwise_in_memory() -> None:
    weight, _ = weights(24, 40, False)
    x = torch.randn(24, 9).t()
    assert torch.allclose(PackedLinear(weight, None)(x).double(), expected(x, weight, None), atol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 24), (7, 24), (3, 5, 24), (200, 24)])
def test_eight_bits_err_by_no_more_than_their_rounding(shape: tuple[int, ...], bias: bool) -> None:
    weight, offset = weights(24, 40, bias)
    x = torch.randn(shape) * torch.logspace(-3, 3, shape[-2] if len(shape) > 1 else 1)[:, None]
    layer = EightBitLinear(weight, offset)
    out = layer(x)
    assert out.shape == (*shape[:-1], 40)
    largest, heaviest = x.abs().amax(-1, keepdim=True).double(), weight.abs().amax(1).double()
    half_x, half_w = largest / layer.reach / 2, heaviest / 127 / 2
    sums = (
        x.abs().double().sum(-1, keepdim=True) * half_w + half_x * weight.abs().double().sum(1) + 24 * half_x * half_w
    )
    error = (out.double() - expected(x, weight, offset)).abs()
    assert bool((error <= sums * 1.001 + 1e-6).all())
    assert float(error.max()) > 0


def test_a_row_does_not_depend_on_the_others() -> None:
    weight, offset = weights(64, 33, True)
    layer = EightBitLinear(weight, offset)
    x = torch.randn(9, 64) * torch.logspace(-4, 4, 9)[:, None]
    assert torch.equal(layer(x)[4:5], layer(x[4:5]))


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_the_largest_numbers_do_not_overflow(sign: float) -> None:
    layer = EightBitLinear(torch.full((16, 2048), sign * 3.0), None)
    assert torch.allclose(layer(torch.full((2, 2048), 5.0)), torch.full((2, 16), sign * 2048 * 15.0), rtol=1e-5)
    assert torch.allclose(layer(torch.full((2, 2048), -5.0)), torch.full((2, 16), -sign * 2048 * 15.0), rtol=1e-5)


def test_zeros_stay_zero() -> None:
    weight, offset = weights(24, 40, True)
    assert offset is not None
    weight[3] = 0.0
    layer = EightBitLinear(weight, offset)
    assert torch.equal(layer(torch.zeros(2, 24)), offset.expand(2, -1))
    assert torch.equal(layer(torch.randn(5, 24))[:, 3], offset[3].expand(5))


def test_eight_bits_need_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_linear, "packs", lambda: False)
    with pytest.raises(InputError, match=r'numbers \("int8"\) needs oneDNN.*leave it at "float32"'):
        EightBitLinear(torch.ones(2, 2), None)
