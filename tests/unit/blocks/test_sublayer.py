"""Add & norm: the equations of the three places, and what dropout, layer scale and stochastic depth fall on."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from packing_cases import pack
from torch import Tensor, nn
from torch.nn import functional
from torch.testing import assert_close

from regard.blocks import settings
from regard.blocks.layers import Residual
from regard.blocks.layout import Layout, Padded
from regard.models.build import build
from regard.models.settings import Encoder

WIDTH = 6


def randomised(module: nn.Module) -> nn.Module:
    for parameter in module.double().parameters():
        nn.init.normal_(parameter)
    return module


def residual_of(place: settings.NormPlace, drop_path: float = 0.0, **changes: float | None) -> Residual:
    chosen = {"width": WIDTH, "attention": settings.Attention(heads=1), "norm_place": place, "dropout": 0.0}
    return Residual(settings.Body(**{**chosen, **changes}), drop_path)


def layer_norm(x: Tensor, norm: nn.Module) -> Tensor:
    return functional.layer_norm(x, (WIDTH,), norm.weight, norm.bias, 1e-5)


def test_the_equation_of_each_place() -> None:
    """post: norm(x + f(x)); pre: x + f(norm(x)); output: x + norm(f(x)); sandwich: x + after(f(norm(x))).

    Layer scale multiplies f(…).
    """
    for place, scale in itertools.product(("pre", "post", "sandwich", "output"), (None, 0.1)):
        residual = randomised(residual_of(place, layer_scale=scale))
        assert (residual.after is not None) is (place == "sandwich")
        f, x = nn.Linear(WIDTH, WIDTH).double(), torch.randn(2, 3, WIDTH, dtype=torch.float64)
        by = 1.0 if scale is None else residual.scale
        if place == "post":
            wanted = layer_norm(x + by * f(x), residual.norm)
        elif place == "pre":
            wanted = x + by * f(layer_norm(x, residual.norm))
        elif place == "output":
            wanted = x + by * layer_norm(f(x), residual.norm)
        else:
            wanted = x + by * layer_norm(f(layer_norm(x, residual.norm)), residual.after)
        assert_close(residual(x, f), wanted, rtol=0, atol=1e-12)


def test_dropout_falls_on_what_the_sublayer_adds_alone() -> None:
    """Section 5.4 of the paper: on the output of each sublayer, before it is added and normed."""
    rate = 0.3
    residual = residual_of("pre", dropout=rate)
    x = torch.randn(500, 10, WIDTH, dtype=torch.float64)
    added = residual.double()(x, lambda y: torch.ones_like(y)) - x
    kept = added.abs() > 1e-12
    assert_close(added[kept], torch.full_like(added[kept], 1 / (1 - rate)), rtol=0, atol=1e-12)
    assert abs(kept.double().mean().item() - (1 - rate)) < 5 * math.sqrt(rate * (1 - rate) / added.numel())


def added_by(layout: Layout | None, x: Tensor, rate: float) -> Tensor:
    """What a sublayer that gives ones adds to each token."""
    residual = residual_of("pre", rate, width=x.shape[-1]).double()
    return residual(x, torch.ones_like, layout) - x


@pytest.mark.parametrize("kind", ["none", "padded", "packed", "rows"])
def test_stochastic_depth_leaves_out_whole_sequences(kind: str) -> None:
    """Each sequence skips with the given rate; the others are divided by 1 − rate, so the expectation stays."""
    rate, count = 0.4, 4000
    lengths = [s % 3 + 1 for s in range(count)]
    if kind in ("none", "padded"):
        layout: Layout = Padded.of(torch.tensor(lengths))
        cells = [[(s, t) for t in range(3)] for s in range(count)]
    else:
        packing = pack([[n] for n in lengths], [None if kind == "packed" else 7])
        layout = packing.layouts[0]
        starts = [int(layout.offsets_S1[s]) for s in packing.sequences]
        cells = [[(start + t,) for t in range(n)] for start, n in zip(starts, lengths, strict=True)]
    x = torch.zeros(*layout.shape, 2, dtype=torch.float64)
    added = added_by(None if kind == "none" else layout, x, rate)
    factors = []
    for tokens in cells:
        values = {value for cell in tokens for value in added[cell].tolist()}
        assert len(values) == 1, "a sequence is left out in part"
        factors.append(values.pop())
    assert {round(factor, 12) for factor in factors} == {0.0, round(1 / (1 - rate), 12)}
    deviation = math.sqrt(rate / (1 - rate) / count)  # of a mean of variables that are 1 / (1 − rate) or 0
    assert abs(sum(factors) / count - 1) < 5 * deviation


def test_its_rate_grows_from_layer_to_layer() -> None:
    """Huang et al. 2016: from 0 at the first layer to the given rate at the last."""
    model = build(
        Encoder(width=8, depth=5, vocabulary=3, attention=settings.Attention(heads=2), stochastic_depth=0.2), "meta"
    )
    for i, rate in enumerate((0.0, 0.05, 0.1, 0.15, 0.2)):
        layer = model.encoder[i]
        assert layer.attention_residual.drop_path == layer.ffn_residual.drop_path == pytest.approx(rate)
