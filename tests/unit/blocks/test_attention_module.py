"""The attention module against torch.nn.MultiheadAttention, and its variants against the formula in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from regard.blocks import settings
from regard.blocks.layers import Attention
from regard.blocks.layout import Padded
from regard.blocks.visibility import Visibility

WIDTH, HEADS = 12, 3
TIGHT = {"rtol": 0.0, "atol": 1e-12}


@pytest.fixture
def x() -> Tensor:
    return torch.randn(2, 5, WIDTH, dtype=torch.float64)


@pytest.fixture
def memory() -> Tensor:
    return torch.randn(2, 4, WIDTH, dtype=torch.float64)


def seeing(queries: int = 5, keys: int = 5, causal: bool = False) -> Visibility:
    return Visibility(Padded(2, queries), Padded(2, keys), causal=causal)


def built(**chosen: object) -> Attention:
    attention = Attention(settings.Attention(heads=HEADS, **chosen), WIDTH).double()
    for parameter in attention.parameters():
        nn.init.normal_(parameter, std=0.5)
    return attention


def pair(bias: bool = True) -> tuple[Attention, nn.MultiheadAttention]:
    """Both with the same weights; theirs hold query, key and value in one matrix."""
    ours = built(bias=bias)
    theirs = nn.MultiheadAttention(WIDTH, HEADS, bias=bias, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([ours.q.weight, ours.k.weight, ours.v.weight]))
        theirs.out_proj.weight.copy_(ours.out.weight)
        if bias:
            theirs.in_proj_bias.copy_(torch.cat([ours.q.bias, ours.k.bias, ours.v.bias]))
            theirs.out_proj.bias.copy_(ours.out.bias)
    return ours, theirs


def test_as_in_torch(x: Tensor, memory: Tensor) -> None:
    for bias in (True, False):
        ours, theirs = pair(bias)
        assert_close(ours(x, seeing()), theirs(x, x, x, need_weights=False)[0], **TIGHT)
    ours, theirs = pair()
    hidden = torch.ones(5, 5, dtype=torch.bool).triu(1)
    assert_close(ours(x, seeing(causal=True)), theirs(x, x, x, attn_mask=hidden, need_weights=False)[0], **TIGHT)
    wanted = theirs(x, memory, memory, need_weights=False)[0]
    assert_close(ours(x, seeing(5, 4), memory=memory), wanted, **TIGHT)


def test_rows_of_different_lengths_as_in_torch(x: Tensor, memory: Tensor) -> None:
    ours, theirs = pair()
    layout = Padded.of(torch.tensor([3, 5]))
    padding = ~layout.real(x.device)
    wanted = theirs(x, x, x, key_padding_mask=padding, need_weights=False)[0]
    out = ours(x, Visibility(layout, layout))
    assert_close(out[~padding], wanted[~padding], **TIGHT)
    assert_close(out[padding], ours.out.bias.expand(2, -1), **TIGHT)  # a query that sees nothing gets zero
    sources = Padded.of(torch.tensor([4, 1]))
    wanted = theirs(x, memory, memory, key_padding_mask=~sources.real(x.device), need_weights=False)[0]
    assert_close(ours(x, Visibility(Padded(2, 5), sources), memory=memory), wanted, **TIGHT)


def test_gradients_are_those_of_torch(x: Tensor, memory: Tensor) -> None:
    ours, theirs = pair()
    for out in (ours(x, seeing(5, 4), memory=memory), theirs(x, memory, memory, need_weights=False)[0]):
        out.square().sum().backward()
    joined = torch.cat([ours.q.weight.grad, ours.k.weight.grad, ours.v.weight.grad])
    assert_close(joined, theirs.in_proj_weight.grad)
    assert_close(ours.out.weight.grad, theirs.out_proj.weight.grad)
