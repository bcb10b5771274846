"""Feed-forward: activations from their formulas, dense and gated maps as matrix products in NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

from regard.blocks import settings
from regard.blocks.layers import Dense, Gated, activation, build_feed_forward

FORMULAS: dict[settings.Activation, Callable[[float], float]] = {
    "relu": lambda x: max(x, 0.0),
    "gelu": lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2,
    "gelu-tanh": lambda x: x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + math.exp(-x)),
    "relu2": lambda x: max(x, 0.0) ** 2,
}
names = pytest.mark.parametrize("name", FORMULAS)


def by_formula(name: settings.Activation, x: np.ndarray) -> np.ndarray:
    return np.vectorize(FORMULAS[name])(x)


def linear(x: np.ndarray, layer: nn.Linear) -> np.ndarray:
    y = x @ layer.weight.detach().numpy().T
    return y if layer.bias is None else y + layer.bias.detach().numpy()


def test_every_activation_of_the_settings_has_a_formula_here() -> None:
    assert set(FORMULAS) == set(settings.Activation.__args__)


@names
def test_activation(name: settings.Activation) -> None:
    x = torch.linspace(-6, 6, 121, dtype=torch.float64)
    np.testing.assert_allclose(activation(name)(x).numpy(), by_formula(name, x.numpy()), rtol=1e-12, atol=1e-15)


@names
@pytest.mark.parametrize("bias", [True, False])
def test_dense(name: settings.Activation, bias: bool) -> None:
    ffn = build_feed_forward(settings.Dense(hidden=9, activation=name, bias=bias), width=5).double()
    assert isinstance(ffn, Dense)
    assert (ffn.up.bias is not None, ffn.down.bias is not None) == (bias, bias)
    x = torch.randn(2, 3, 5, dtype=torch.float64)
    wanted = linear(by_formula(name, linear(x.numpy(), ffn.up)), ffn.down)
    np.testing.assert_allclose(ffn(x).detach().numpy(), wanted, rtol=1e-10)


@names
@pytest.mark.parametrize("bias", [True, False])
def test_gated(name: settings.Activation, bias: bool) -> None:
    """activation(x W) · (x V): the activation is the gate's, not the value's."""
    ffn = build_feed_forward(settings.Gated(hidden=9, activation=name, bias=bias), width=5).double()
    assert isinstance(ffn, Gated)
    x = torch.randn(2, 3, 5, dtype=torch.float64)
    hidden = by_formula(name, linear(x.numpy(), ffn.gate)) * linear(x.numpy(), ffn.up)
    np.testing.assert_allclose(ffn(x).detach().numpy(), linear(hidden, ffn.down), rtol=1e-10)


def test_a_dense_one_is_four_times_as_wide() -> None:
    assert Dense(settings.Dense(), width=6).up.weight.shape == (24, 6)
    assert Dense(settings.Dense(hidden=7), width=6).up.weight.shape == (7, 6)


def test_a_gated_one_has_as_many_weights_as_a_dense_one() -> None:
    """8/3 of the width, up to the next multiple of 8: three maps of 8/3 are two of 4."""
    for width in range(1, 1000):
        hidden = settings.Gated().hidden_for(width)
        assert hidden % 8 == 0
        assert hidden - 8 < Fraction(8 * width, 3) <= hidden
    assert settings.Gated(hidden=7).hidden_for(6) == 7


@pytest.mark.parametrize("chosen", [settings.Dense, settings.Gated])
def test_dropout_falls_on_the_hidden_vector(chosen: type[settings.Dense] | type[settings.Gated]) -> None:
    """With a hidden vector of ones and a down map that copies it, every channel is 0 or 1 / (1 − rate)."""
    width, rate = 1000, 0.2
    ffn = build_feed_forward(chosen(hidden=width, activation="relu", bias=True, dropout=rate), width)
    for name, layer in ffn.named_children():
        nn.init.zeros_(layer.weight)
        nn.init.constant_(layer.bias, float(name != "down"))
    nn.init.eye_(ffn.down.weight)
    out = ffn(torch.randn(20, width))
    dropped = (out == 0).double().mean().item()
    np.testing.assert_allclose(out[out != 0].detach().numpy(), 1 / (1 - rate), rtol=1e-6)
    assert abs(dropped - rate) < 5 * math.sqrt(rate * (1 - rate) / out.numel())
    assert torch.equal(ffn.eval()(torch.randn(20, width)), torch.ones(20, width))
