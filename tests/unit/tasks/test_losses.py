"""The cross-entropy and its metrics against PyTorch's own and against counting by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from regard.data.columns import IGNORED
from regard.tasks.losses import cross_entropy, cross_entropy_metrics


@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    classes=st.integers(1, 9),
    smoothing=st.sampled_from([0.0, 0.1, 0.5]),
    ignored=st.floats(0, 1),
    seed=st.integers(0, 10_000),
    scale=st.sampled_from([1.0, 50.0]),
)
def test_values_and_gradients_are_pytorchs(
    shape: list[int], classes: int, smoothing: float, ignored: float, seed: int, scale: float
) -> None:
    chance = torch.Generator().manual_seed(seed)
    logits = (scale * torch.randn([*shape, classes], generator=chance, dtype=torch.float64)).requires_grad_()
    labels = torch.randint(classes, shape, generator=chance)
    labels = torch.where(torch.rand(shape, generator=chance) < ignored, IGNORED, labels)
    loss = cross_entropy(logits, labels, smoothing, training=True)
    (gradient,) = torch.autograd.grad(loss.total, logits)
    expected = functional.cross_entropy(
        logits.flatten(0, -2), labels.flatten(), ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing
    )
    (wanted,) = torch.autograd.grad(expected, logits)
    torch.testing.assert_close(loss.total, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient, wanted, rtol=1e-12, atol=1e-12)
    assert int(loss.weight) == int((labels != IGNORED).sum())
    assert "right" not in loss.sums
    if smoothing:
        plain = functional.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=IGNORED, reduction="sum")
        torch.testing.assert_close(loss.sums["plain"], plain.detach(), rtol=1e-12, atol=1e-12)
        assert not loss.sums["plain"].requires_grad


def test_correct_answers_are_counted_in_evaluation() -> None:
    logits = torch.tensor([[[3.0, 1.0], [0.0, 2.0]], [[0.0, 5.0], [1.0, 0.0]]])
    labels = torch.tensor([[0, 0], [1, IGNORED]])
    loss = cross_entropy(logits, labels, 0.0, training=False)
    assert int(loss.sums["right"]) == 2
    assert int(loss.weight) == 3


def test_sums_are_in_float32_for_any_dtype() -> None:
    """16 bits cannot hold the sum of 40,000 equal shares."""
    for dtype in (torch.bfloat16, torch.float16):
        loss = cross_entropy(torch.zeros(2, 40_000, dtype=dtype), torch.tensor([5, 7]), 0.1, training=True)
        assert loss.total.dtype == torch.float32
        assert float(loss.total) == pytest.approx(2 * math.log(40_000), rel=1e-6)


def test_metrics_by_hand() -> None:
    assert cross_entropy_metrics(12.0, 4.0, {}) == {"loss": 3.0}
    assert cross_entropy_metrics(12.0, 4.0, {"plain": 8.0}) == {"loss": 2.0, "objective": 3.0}
    found = cross_entropy_metrics(12.0, 4.0, {"plain": 8.0, "right": 3.0})
    assert found == {"loss": 2.0, "objective": 3.0, "perplexity": pytest.approx(math.exp(2)), "accuracy": 0.75}
    assert math.isfinite(cross_entropy_metrics(1e9, 1.0, {"right": 0.0})["perplexity"])
    # A loss of 0 would be the best possible one.
    found = cross_entropy_metrics(0.0, 0.0, {"right": 0.0})
    assert math.isnan(found["loss"])
    assert found["accuracy"] == 0
