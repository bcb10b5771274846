"""The attention module against torch.nn.MultiheadAttention, and its variants against the formula in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
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


def by_formula(attention: Attention, x: Tensor, scale: float, cap: float | None = None) -> Tensor:
    """Head by head; query/key norms and grouped heads as they are in the module."""
    out = []
    for h in range(HEADS):
        g = h // (HEADS // attention.kv_heads)
        q = attention.q(x)[..., h * attention.head_size :][..., : attention.head_size]
        k = attention.k(x)[..., g * attention.head_size :][..., : attention.head_size]
        v = attention.v(x)[..., g * attention.value_size :][..., : attention.value_size]
        if attention.q_norm is not None:
            q, k = normed(q, attention.q_norm), normed(k, attention.k_norm)
        scores = q @ k.mT * scale
        if cap is not None:
            scores = cap * torch.tanh(scores / cap)
        out.append(torch.softmax(scores, dim=-1) @ v)
    return functional.linear(torch.cat(out, dim=-1), attention.out.weight, attention.out.bias)


def normed(x: Tensor, norm: nn.Module) -> Tensor:
    if isinstance(norm, nn.LayerNorm):
        centred = x - x.mean(-1, keepdim=True)
        return centred / (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight + norm.bias
    return x / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight


def test_variants_by_the_formula(x: Tensor) -> None:
    variants: list[tuple[dict[str, object], float, float | None]] = [
        ({"head_size": 7}, 1 / math.sqrt(7), None),
        ({"value_size": 2}, 1 / 2, None),
        ({"value_size": 9}, 1 / 2, None),
        ({"qk_norm": settings.RmsNorm()}, 1 / 2, None),
        ({"qk_norm": settings.LayerNorm()}, 1 / 2, None),
        ({"scale": 0.9}, 0.9, None),
        ({"soft_cap": 0.4}, 1 / 2, 0.4),
        ({"kv_heads": 1}, 1 / 2, None),
        ({"kv_heads": 3}, 1 / 2, None),
    ]
    for chosen, scale, cap in variants:
        attention = built(**chosen)
        assert attention.q.weight.shape == (HEADS * int(chosen.get("head_size", 4)), WIDTH)
        assert attention.out.weight.shape == (WIDTH, HEADS * attention.value_size)
        wanted = by_formula(attention, x, scale, cap)
        assert_close(attention(x, seeing()), wanted, **TIGHT, msg=lambda m, c=chosen: f"{c}: {m}")


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_grouped_heads_are_heads_with_the_same_keys_and_values(x: Tensor, kv_heads: int) -> None:
    """Repeating the projection of each group gives ordinary attention (Ainslie et al. 2023)."""
    grouped = Attention(settings.Attention(heads=4, kv_heads=kv_heads), WIDTH).double()
    plain = Attention(settings.Attention(heads=4), WIDTH).double()
    assert grouped.k.weight.shape == (kv_heads * 3, WIDTH)
    state = grouped.state_dict()
    for name in ("k.weight", "k.bias", "v.weight", "v.bias"):
        by_head = state[name].unflatten(0, (kv_heads, 3))
        state[name] = torch.stack([by_head[h // (4 // kv_heads)] for h in range(4)]).flatten(0, 1)
    plain.load_state_dict(state)
    for causal in (False, True):
        assert_close(grouped(x, seeing(causal=causal)), plain(x, seeing(causal=causal)), **TIGHT)


@pytest.mark.parametrize(
    ("bias", "output_bias", "with_bias"),
    [(True, None, "qkvo"), (False, None, ""), (True, False, "qkv"), (False, True, "o")],
)
def test_which_projections_have_a_bias(bias: bool, output_bias: bool | None, with_bias: str) -> None:
    attention = built(bias=bias, output_bias=output_bias)
    layers = {"q": attention.q, "k": attention.k, "v": attention.v, "o": attention.out}
    assert "".join(name for name, layer in layers.items() if layer.bias is not None) == with_bias


def test_dropout_is_for_training_alone(x: Tensor) -> None:
    attention, plain = built(dropout=0.5), built()
    plain.load_state_dict(attention.state_dict())
    assert not torch.allclose(attention(x, seeing()), attention(x, seeing()))
    assert torch.equal(attention.eval()(x, seeing()), plain(x, seeing()))
