"""Attributions: exact where a model is linear, and complete where it is not."""

from __future__ import annotations

from typing import Any

import family_cases as cases
import pytest
import torch
from torch.testing import assert_close

from regard.errors import InputError
from regard.look.attribution import TOLERANCE, gradient_times_input, integrated_gradients
from regard.models.build import build

TOKENS = torch.tensor([[1, 5, 3, 7]])
SOURCE = torch.tensor([[4, 8, 1]])


def linear() -> Any:
    """A decoder whose sublayers say nothing and that has no norm at its end: scores are linear in the embeddings."""
    model: Any = cases.unsettled(build(cases.decoder(norm_place="pre", final_norm=False)))
    with torch.no_grad():
        for layer in model.decoder:
            for last in (layer.attention.out, layer.ffn.down):
                last.weight.zero_()
                last.bias.zero_()
    return model


def test_a_linear_model_is_explained_exactly() -> None:
    model = linear()
    found = [method(model, lambda: model(TOKENS)[0, 2, 6]) for method in (gradient_times_input, integrated_gradients)]
    vectors = model.embedding.tokens(TOKENS)[0] * model.embedding.scale
    wanted = torch.zeros(1, 4)
    wanted[0, 2] = vectors[2] @ model.output.matrix[6]  # all others are not read here
    for each in found:
        assert_close(each.scores, wanted, rtol=1e-4, atol=1e-5)
        assert each.error < 1e-4
        assert each.complete
        assert each.figure == pytest.approx(float(model(TOKENS)[0, 2, 6].detach()), rel=1e-5)


@pytest.mark.parametrize("family", list(cases.FAMILIES))
def test_integrated_gradients_add_up_in_every_family(family: str) -> None:
    torch.manual_seed(5)
    model: Any = cases.unsettled(build(cases.FAMILIES[family](norm_place="pre")))
    images = torch.randn(1, 2, 8, 12)
    figures = {
        "encoder-decoder": lambda: model(SOURCE, TOKENS)[0, 2, 6],
        "decoder": lambda: model(TOKENS)[0, 3, 2],
        "encoder": lambda: model.heads["class"](model(TOKENS))[0, 1],
        "vision": lambda: model.heads["class"](model(images))[0, 1],
    }
    rough = integrated_gradients(model, figures[family], steps=1)
    fine = integrated_gradients(model, figures[family], steps=96)
    assert fine.complete
    assert fine.error < 1e-3 < TOLERANCE
    assert fine.error < rough.error
    assert float(fine.scores.sum()) == pytest.approx(
        fine.figure - fine.baseline, abs=2e-3 * float(fine.scores.abs().sum())
    )
    assert fine.scores.shape[0] == 1
    assert not model.training


def test_a_baseline_and_another_input() -> None:
    model: Any = cases.unsettled(build(cases.encoder_decoder(norm_place="pre")))

    def figure() -> torch.Tensor:
        return model(SOURCE, TOKENS)[0, 1].log_softmax(-1)[4]

    baseline = torch.randn(16)
    found = integrated_gradients(model, figure, at="target.tokens", baseline=baseline, steps=96)
    assert found.scores.shape == (1, 4)
    assert found.complete
    assert_close(found.scores[0, 2:], torch.zeros(2))  # a decoder does not see what comes later
    again = integrated_gradients(model, figure, at="target.tokens", baseline=baseline.expand(1, 4, 16), steps=96)
    assert_close(again.scores, found.scores)


def test_gradient_times_input_against_differences() -> None:
    """In float64: a little more of each vector changes the figure by its score times as much."""
    model: Any = cases.unsettled(build(cases.decoder())).double()
    found = gradient_times_input(model, lambda: model(TOKENS)[0, 3, 2])
    table, step = model.embedding.tokens.weight, 1e-6
    with torch.no_grad():
        before = float(model(TOKENS)[0, 3, 2])
        for place, token in enumerate(TOKENS[0].tolist()):
            kept = table[token].clone()
            table[token] *= 1 + step
            # The output may share the table: only what the input does counts.
            matrix = table.clone()
            matrix[token] = kept
            hidden = model.states(TOKENS)
            after = float(hidden[0, 3] @ matrix[2] + (0 if model.output.bias is None else model.output.bias[2]))
            table[token] = kept
            assert (after - before) / step == pytest.approx(float(found.scores[0, place]), rel=1e-3, abs=1e-4)


def test_frozen_weights_are_no_hindrance() -> None:
    model = linear().requires_grad_(False)
    assert integrated_gradients(model, lambda: model(TOKENS)[0, 2, 6]).complete


def test_what_cannot_be_explained() -> None:
    model = linear()
    for figure, message in (
        (lambda: model(TOKENS)[0, 2], "must be one number"),
        (lambda: model(TOKENS)[0, 2, 6].detach(), "does not depend on embedding.tokens, or was computed without"),
        (lambda: (model(TOKENS) + model(TOKENS)).sum(), "embedding.tokens was computed 2 times"),
        (lambda: torch.zeros((), requires_grad=True), "embedding.tokens was computed 0 times"),
    ):
        with pytest.raises(InputError, match=message):
            gradient_times_input(model, figure)
    with pytest.raises(InputError, match=r"steps \(0\) must be at least 1"):
        integrated_gradients(model, lambda: model(TOKENS).sum(), steps=0)
    with pytest.raises(InputError, match=r"baseline of shape \[5\] does not fit embedding.tokens"):
        integrated_gradients(model, lambda: model(TOKENS).sum(), baseline=torch.zeros(5))
    with pytest.raises(InputError, match=r"call model\.eval"):
        integrated_gradients(model.train(), lambda: model(TOKENS).sum())
