"""Feed-forward: activations from their formulas, dense and gated maps as matrix products in NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from regard.blocks import settings
from regard.blocks.layers import ACTIVATIONS, FeedForward

FORMULAS: dict[settings.Activation, Callable[[float], float]] = {
    "relu": lambda x: max(x, 0.0),
    "gelu": lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2,
    "gelu-tanh": lambda x: x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + math.exp(-x)),
    "relu2": lambda x: max(x, 0.0) ** 2,
    "gelu-quick": lambda x: x / (1 + math.exp(-1.702 * x)),
}


def by_formula(name: settings.Activation, x: np.ndarray) -> np.ndarray:
    return np.vectorize(FORMULAS[name])(x)


def linear(x: np.ndarray, layer: nn.Linear) -> np.ndarray:
    y = x @ layer.weight.detach().numpy().T
    return y if layer.bias is None else y + layer.bias.detach().numpy()


def test_every_activation_dense_and_gated() -> None:
    """Gated is activation(x W) · (x V): the activation belongs to the gate, not to the value."""
    assert set(FORMULAS) == set(settings.Activation.__args__) == set(ACTIVATIONS)
    for name in FORMULAS:
        x = torch.linspace(-6, 6, 121, dtype=torch.float64)
        np.testing.assert_allclose(ACTIVATIONS[name](x).numpy(), by_formula(name, x.numpy()), rtol=1e-12, atol=1e-15)
        for bias in (True, False):
            x = torch.randn(2, 3, 5, dtype=torch.float64)
            dense = FeedForward(settings.Dense(hidden=9, activation=name, bias=bias), width=5).double()
            assert (dense.up.bias is not None, dense.down.bias is not None, dense.gate) == (bias, bias, None)
            wanted = linear(by_formula(name, linear(x.numpy(), dense.up)), dense.down)
            np.testing.assert_allclose(dense(x).detach().numpy(), wanted, rtol=1e-10, err_msg=name)
            gated = FeedForward(settings.Gated(hidden=9, activation=name, bias=bias), width=5).double()
            hidden = by_formula(name, linear(x.numpy(), gated.gate)) * linear(x.numpy(), gated.up)
            np.testing.assert_allclose(gated(x).detach().numpy(), linear(hidden, gated.down), rtol=1e-10, err_msg=name)


@pytest.mark.parametrize("chosen", [settings.Dense, settings.Gated])
def test_dropout_falls_on_the_hidden_vector(chosen: type[settings.Dense] | type[settings.Gated]) -> None:
    """With a hidden vector of ones and a down map that copies it, every channel is 0 or 1 / (1 − rate)."""
    width, rate = 1000, 0.2
    ffn = FeedForward(chosen(hidden=width, activation="relu", bias=True, dropout=rate), width)
    for name, layer in ffn.named_children():
        nn.init.zeros_(layer.weight)
        nn.init.constant_(layer.bias, float(name != "down"))
    nn.init.eye_(ffn.down.weight)
    out = ffn(torch.randn(20, width))
    dropped = (out == 0).double().mean().item()
    np.testing.assert_allclose(out[out != 0].detach().numpy(), 1 / (1 - rate), rtol=1e-6)
    assert abs(dropped - rate) < 5 * math.sqrt(rate * (1 - rate) / out.numel())
    assert torch.equal(ffn.eval()(torch.randn(20, width)), torch.ones(20, width))
