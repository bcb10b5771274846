"""Worked numbers on attention: every value was worked by hand in a lecture, and the library's functions give it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn, tensor
from torch.testing import assert_close

from regard.blocks import settings
from regard.blocks.kernels import Scoring, attend, attention_scores, masked_softmax
from regard.blocks.layers import Attention, Residual, build_norm
from regard.blocks.layout import Padded
from regard.blocks.positions import Signals
from regard.blocks.visibility import Visibility

TWO_DIGITS = {"rtol": 0.0, "atol": 0.5e-2}


def seeing(queries: int, keys: int, causal: bool = False) -> Visibility:
    """One sequence of queries that looks at one of keys."""
    return Visibility(Padded(1, queries), Padded(1, keys), causal=causal)


def as_head(x: Tensor) -> Tensor:
    """`[T, E]` as a batch of one sequence with one head, `[1, T, 1, E]`."""
    return x[None, :, None]


def weights_of(q: Tensor, k: Tensor, causal: bool = False, scale: float | None = None) -> Tensor:
    """`[Q, K]`: the attention weights of one head."""
    visibility = seeing(len(q), len(k), causal)
    scoring = Scoring(q.shape[-1] ** -0.5 if scale is None else scale)
    scores = attention_scores(as_head(q), as_head(k), visibility, scoring)
    return masked_softmax(scores, visibility.visible(q.device)[:, None])[0, 0]


def attended(q: Tensor, k: Tensor, v: Tensor, scale: float = 1.0) -> Tensor:
    """`[Q, V]`: attention of one head, without parameters."""
    return attend(as_head(q), as_head(k), as_head(v), seeing(len(q), len(k)), Scoring(scale))[0, :, 0]


def mix(weights: Tensor, values: Tensor) -> Tensor:
    """`[Q, V]`: values mixed by given weights, whose logarithms are the scores."""
    return attended(weights.log(), torch.eye(len(values)), values)


# ---------------------------------------------------------------------------------------------------------- softmax


def test_scaled_scores() -> None:
    """q·k = 112 and 96 with d_k = 64 are scaled to 14 and 12, and weigh 0.88 and 0.12."""
    q, k = torch.ones(1, 64), torch.stack([torch.full((64,), 112 / 64), torch.full((64,), 96 / 64)])
    scale = Attention(settings.Attention(heads=8), width=512).scale
    assert_close(q @ k.T * scale, tensor([[14.0, 12.0]]))
    assert_close(weights_of(q, k), tensor([[0.88, 0.12]]), **TWO_DIGITS)


def test_masked_softmax() -> None:
    """Scores above the diagonal are hidden, whatever they are, and get exactly nothing."""
    hidden = 9.0
    scores = tensor(
        [[0.7, hidden, hidden, hidden], [0.1, 0.6, hidden, hidden], [0.1, 0.3, 0.6, hidden], [0.1, 0.3, 0.3, 0.3]]
    )
    expected = tensor(
        [[1.00, 0.00, 0.00, 0.00], [0.38, 0.62, 0.00, 0.00], [0.26, 0.32, 0.43, 0.00], [0.21, 0.26, 0.26, 0.26]]
    )
    visible = seeing(4, 4, causal=True).visible(torch.device("cpu"))[0]
    through_keys = weights_of(q=scores, k=torch.eye(4), causal=True, scale=1.0)
    for weights in (masked_softmax(scores, visible), through_keys):
        assert_close(weights, expected, **TWO_DIGITS)
        assert torch.equal(weights.triu(1), torch.zeros(4, 4))


def test_an_attention_matrix() -> None:
    """YOUR CAT IS A LOVELY CAT, with itself: rows sum to 1, the diagonal is largest, equal words have equal columns."""
    words = ["YOUR", "CAT", "IS", "A", "LOVELY", "CAT"]
    vectors = {word: nn.functional.normalize(torch.randn(16), dim=0) * 4 for word in dict.fromkeys(words)}
    x = torch.stack([vectors[word] for word in words])
    weights = weights_of(x, x)
    assert_close(weights.sum(1), torch.ones(6))
    assert (weights.diag()[:, None] >= weights).all()
    assert_close(weights[:, 1], weights[:, 5])


# ------------------------------------------------------------------------------------------------ nothing to learn


def test_parameter_free_self_attention() -> None:
    """z_i = Σ_j softmax_j(x_i·x_j) x_j treats its inputs as a set: permuting them permutes the outputs."""
    x, order = torch.randn(7, 5, dtype=torch.float64), torch.randperm(7)
    assert_close(attended(x, x, x)[order], attended(x[order], x[order], x[order]))
    scores = [math.exp(x[0] @ x[j]) for j in range(7)]
    by_hand = sum(score / sum(scores) * x[j] for j, score in enumerate(scores))
    assert_close(attended(x, x, x)[0], by_hand)


def test_a_soft_dictionary_answers_with_the_value_of_the_equal_key() -> None:
    keys = nn.functional.normalize(torch.randn(10, 8), dim=-1)
    values = torch.randn(10, 3)
    assert_close(attended(keys, keys, values, scale=1000.0), values)


# ------------------------------------------------------------------------------------------------ context moves words

BANK, RIVER, MONEY = tensor([6.0, 6.0]), tensor([0.0, 5.0]), tensor([8.0, 0.0])
APPLE, FRUIT, BRAND = tensor([5.0, 7.0]), tensor([0.0, 8.0]), tensor([6.0, 0.0])


def test_context_moves_words() -> None:
    for weights, values, expected in (
        ([0.9, 0.1], (BANK, RIVER), [5.4, 5.9]),
        ([0.8, 0.2], (BANK, MONEY), [6.4, 4.8]),
        ([0.8, 0.2], (APPLE, FRUIT), [4.0, 7.2]),
        ([0.9, 0.1], (APPLE, BRAND), [5.1, 6.3]),
    ):
        assert_close(mix(tensor([weights]), torch.stack(values)), tensor([expected]))


def test_cross_attention_mixes_the_values() -> None:
    """Weights 0.15, 0.05 and 0.8 over "je suis étudiant" give that weighted sum of the three values."""
    weights, values = tensor([[0.15, 0.05, 0.8]]), torch.randn(3, 4)
    je, suis, etudiant = values
    assert_close(mix(weights, values)[0], 0.15 * je + 0.05 * suis + 0.8 * etudiant)


# -------------------------------------------------------------------------------------------------------- many heads


@pytest.mark.parametrize(
    ("heads", "key_size", "projection", "output"),
    [
        (1, 2, 16 * 1 * 2 + 2, 1 * 2 * 16 + 16),
        (3, 2, 16 * 3 * 2 + 6, 3 * 2 * 16 + 16),
        (3, 5, 16 * 3 * 5 + 15, 3 * 5 * 16 + 16),
    ],
)
def test_shapes_of_many_heads(heads: int, key_size: int, projection: int, output: int) -> None:
    """An input of 6 × 16 gives scores (h, 6, 6), and weights as many as worked out."""
    attention = Attention(settings.Attention(heads=heads, head_size=key_size), width=16)
    sizes = [
        sum(p.numel() for p in part.parameters()) for part in (attention.q, attention.k, attention.v, attention.out)
    ]
    assert sizes == [projection, projection, projection, output]
    x = torch.randn(1, 6, 16)
    visibility = seeing(6, 6)
    q = attention.q(x).unflatten(-1, (heads, key_size))
    k, _ = attention.keys_and_values(x, Signals())
    assert attention_scores(q, k, visibility, Scoring(0.5))[0].shape == (heads, 6, 6)
    assert attention(x, visibility).shape == (1, 6, 16)


def test_heads_are_joined_and_projected_back() -> None:
    """8 heads of 4 make 32 channels, which one 32 × 4 matrix takes back to 4."""
    attention = Attention(settings.Attention(heads=8, head_size=4, bias=False), width=4)
    assert attention.out.weight.T.shape == (32, 4)
    x, visibility = torch.randn(1, 3, 4), seeing(3, 3)
    q = attention.q(x).unflatten(-1, (8, 4))
    k, v = attention.keys_and_values(x, Signals())
    each = [
        attend(q[:, :, [h]], k[:, :, [h]], v[:, :, [h]], visibility, Scoring(q.shape[-1] ** -0.5))[0, :, 0]
        for h in range(8)
    ]
    assert_close(attention(x, visibility)[0], torch.cat(each, dim=-1) @ attention.out.weight.T)


# -------------------------------------------------------------------------------------------------------- add & norm


def test_layer_norm() -> None:
    """(x − μ)/√(σ² + ε)·γ + β over one token's features; batch norm would let the other tokens in."""
    norm = build_norm(settings.LayerNorm(eps=1e-5), width=6).double()
    gamma, beta = torch.randn(2, 6, dtype=torch.float64)
    norm.load_state_dict({"weight": gamma, "bias": beta})
    x = torch.randn(4, 6, dtype=torch.float64)
    for token in x:
        mean, variance = sum(token) / 6, sum((token - sum(token) / 6) ** 2) / 6
        assert_close(norm(token), (token - mean) / torch.sqrt(variance + 1e-5) * gamma + beta)
    assert_close(norm(x)[0], norm(torch.cat([x[:1], 100 * x[1:]]))[0])


def test_add_and_norm() -> None:
    """post: norm(x + f(x)); pre: x + f(norm(x))."""
    sublayer, x = nn.Linear(6, 6), torch.randn(2, 3, 6)
    chosen = {"width": 6, "attention": settings.Attention(heads=1), "dropout": 0.0}
    post, pre = (Residual(settings.Body(norm_place=place, **chosen)) for place in ("post", "pre"))
    assert_close(post(x, sublayer), nn.functional.layer_norm(x + sublayer(x), (6,)))
    assert_close(pre(x, sublayer), x + sublayer(nn.functional.layer_norm(x, (6,))))
