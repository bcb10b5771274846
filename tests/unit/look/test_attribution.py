"""Attribution: exact for a linear model, complete for each token otherwise."""

from __future__ import annotations

from functools import partial
from typing import Any

import family_cases as cases
import pytest
import torch
from torch.testing import assert_close

from regard.blocks.layout import layout_of
from regard.errors import InputError
from regard.look.attribution import TOLERANCE, attribute
from regard.models.build import build

TOKENS = torch.tensor([[1, 5, 3, 7]])
SOURCE = torch.tensor([[4, 8, 1]])


def linear() -> Any:
    """A decoder without sublayer outputs and final norm: logits are linear in the embeddings."""
    model: Any = cases.unsettled(build(cases.decoder(norm_place="pre", final_norm=False)))
    with torch.no_grad():
        for layer in model.decoder:
            for last in (layer.attention.out, layer.ffn.down):
                last.weight.zero_()
                last.bias.zero_()
    return model


def test_a_linear_model_is_explained_exactly() -> None:
    model = linear().requires_grad_(False)
    vectors = model.embedding.tokens(TOKENS)[0] * model.embedding.scale
    wanted = torch.zeros(1, 4)
    wanted[0, 2] = vectors[2] @ model.output.matrix[6]  # the logit reads no other token
    for method in ("gradient", "integrated"):
        found = attribute(model, lambda: model(TOKENS)[0, 2, 6], method=method)  # type: ignore[arg-type]
        assert_close(found.scores, wanted, rtol=1e-4, atol=1e-5)
        assert found.error < 1e-4
        assert found.complete
        assert found.value == pytest.approx(float(model(TOKENS)[0, 2, 6]), rel=1e-5)


def family_value(family: str, model: Any) -> torch.Tensor:
    if family == "encoder-decoder":
        return model(SOURCE, TOKENS)[0, 2, 6]
    if family == "decoder":
        return model(TOKENS)[0, 3, 2]
    given = TOKENS if family == "encoder" else torch.linspace(-1, 1, 192).reshape(1, 2, 8, 12)
    return model.heads["class"](model(given))[0, 1]


def test_integrated_gradients_are_complete_in_every_family() -> None:
    for family in cases.FAMILIES:
        torch.manual_seed(5)
        model: Any = cases.unsettled(build(cases.FAMILIES[family](norm_place="pre")))
        value = partial(family_value, family, model)
        rough, fine = (attribute(model, value, most_steps=steps) for steps in (2, 2048))
        assert fine.complete, family
        assert fine.error < rough.error
        gain, room = fine.value - fine.baseline, TOLERANCE * float(fine.scores.abs().max())
        assert float(fine.scores.sum()) == pytest.approx(gain, abs=room)
        assert not model.training


def test_each_token_is_complete_and_not_only_the_sum() -> None:
    """Two tokens with steep, opposite effects: their errors cancel in the sum, which says nothing about either."""
    model: Any = cases.unsettled(build(cases.decoder()))
    tokens = torch.tensor([[5, 5]])
    with torch.no_grad():
        vector = model.embedding.tokens(tokens)[0, 0] * model.embedding.scale
        positions = model.embedding(tokens, layout_of(tokens, None))[0] - vector

    def value() -> torch.Tensor:
        """A step of each token at 0.37 of the way from the baseline to the input."""
        way = (model.embedding(tokens, layout_of(tokens, None))[0] - positions) @ (vector / vector.square().sum())
        steps = torch.tanh(400 * (way - 0.37))
        return steps[0] - steps[1]

    found = attribute(model, value)
    assert found.complete
    assert_close(found.scores, torch.tensor([[2.0, -2.0]]), rtol=0.02, atol=0.02)
    assert found.errors.max() <= TOLERANCE * found.scores.abs().max()
    stopped = attribute(model, value, most_steps=32)
    assert abs(stopped.gap) < 1e-4, "the sum is right"
    assert not stopped.complete, "and the tokens are not"


def test_a_baseline_and_another_input() -> None:
    model: Any = cases.unsettled(build(cases.encoder_decoder(norm_place="pre")))

    def value() -> torch.Tensor:
        return model(SOURCE, TOKENS)[0, 1].log_softmax(-1)[4]

    baseline = torch.randn(16)
    found = attribute(model, value, at="target.tokens", baseline=baseline)
    assert found.scores.shape == found.errors.shape == (1, 4)
    assert found.complete
    assert_close(found.scores[0, 2:], torch.zeros(2))  # a decoder does not see later tokens
    again = attribute(model, value, at="target.tokens", baseline=baseline.expand(1, 4, 16))
    assert_close(again.scores, found.scores)


def test_gradient_times_input_against_differences() -> None:
    """In float64: scaling a token's vector changes the value by its score."""
    model: Any = cases.unsettled(build(cases.decoder())).double()
    found = attribute(model, lambda: model(TOKENS)[0, 3, 2], method="gradient")
    table, step = model.embedding.tokens.weight, 1e-6
    with torch.no_grad():
        before = float(model(TOKENS)[0, 3, 2])
        for i, token in enumerate(TOKENS[0].tolist()):
            kept = table[token].clone()
            table[token] *= 1 + step
            matrix = table.clone()  # the output may share the table, and only the input counts
            matrix[token] = kept
            hidden = model.states(TOKENS)
            after = float(hidden[0, 3] @ matrix[2] + (0 if model.output.bias is None else model.output.bias[2]))
            table[token] = kept
            assert (after - before) / step == pytest.approx(float(found.scores[0, i]), rel=1e-3, abs=1e-4)


def test_errors() -> None:
    model = linear()
    for value, message in (
        (lambda: model(TOKENS)[0, 2], "expected one number"),
        (lambda: model(TOKENS)[0, 2, 6].detach(), "does not depend on embedding.tokens"),
        (lambda: (model(TOKENS) + model(TOKENS)).sum(), "computed 2 times"),
    ):
        with pytest.raises(InputError, match=message):
            attribute(model, value, method="gradient")
    for options, message in (
        ({"most_steps": 1}, r"most_steps \(1\)"),
        ({"baseline": torch.zeros(5)}, "baseline"),
        ({"method": "magic"}, r"method \(magic\)"),
    ):
        with pytest.raises(InputError, match=message):
            attribute(model, lambda: model(TOKENS).sum(), **options)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"model\.eval"):
        attribute(model.train(), lambda: model(TOKENS).sum())
