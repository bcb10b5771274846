"""Rollout: against products in float64 numpy."""

from __future__ import annotations

from typing import Any

import family_cases as cases
import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

import regard
from regard.errors import InputError
from regard.look.rollout import rolled, rollout
from regard.models.build import build


def step(weights_HTT: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    both = weights_HTT.mean(0) + np.eye(weights_HTT.shape[-1])
    return both / both.sum(-1, keepdims=True)


def test_two_layers_by_hand() -> None:
    first = np.array([[[1.0, 0.0], [0.5, 0.5]], [[1.0, 0.0], [0.1, 0.9]]])  # two heads
    second = np.array([[[1.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]])
    # Means [[1, 0], [.3, .7]] and [[1, 0], [.5, .5]]; half of each is the identity.
    wanted = np.array([[1.0, 0.0], [0.25, 0.75]]) @ np.array([[1.0, 0.0], [0.15, 0.85]])
    found = rolled([torch.tensor(first)[None], torch.tensor(second)[None]])
    assert_allclose(found[0].numpy(), wanted, atol=1e-12)
    assert_allclose(wanted, [[1.0, 0.0], [0.3625, 0.6375]])


@pytest.mark.parametrize("family", ["encoder", "decoder", "vision"])
def test_models_of_one_stack(family: str) -> None:
    model: Any = cases.unsettled(build(cases.FAMILIES[family]()))
    batch = (torch.randn(2, 2, 8, 12),) if family == "vision" else (torch.tensor([[1, 5, 3], [2, 2, 9]]),)
    stack = "decoder" if family == "decoder" else "encoder"
    with torch.no_grad(), regard.record(model, "*.weights") as seen:
        model(*batch)
    found = rollout(model, *batch)
    assert found.source_BTS is None
    for row in range(2):
        one, two = (seen[f"{stack}.{layer}.attention.weights"][row].double().numpy() for layer in (0, 1))
        assert_allclose(found.own_BTT[row].numpy(), step(two) @ step(one), atol=1e-6)
    assert_allclose(found.own_BTT.sum(-1).numpy(), 1.0, atol=1e-6)


def test_an_encoder_decoder_is_one_stream_of_target_and_source() -> None:
    """Written as one matrix over both: target rows mix, source rows stay; then source rows are rolled out."""
    model: Any = cases.unsettled(build(cases.encoder_decoder()))
    source, target = torch.tensor([[4, 8, 1, 7]]), torch.tensor([[1, 5, 3]])
    with torch.no_grad(), regard.record(model, "*.weights") as seen:
        model(source, target)
    weights = {name: seen[name][0].double().numpy() for name in seen}
    total = np.eye(7)
    for layer in (0, 1):
        own, cross = np.eye(7), np.eye(7)
        own[:3, :3] = step(weights[f"decoder.{layer}.attention.weights"])
        cross[:3, :3] = 0.5 * np.eye(3)
        cross[:3, 3:] = 0.5 * weights[f"decoder.{layer}.cross.weights"].mean(0)
        total = cross @ own @ total
    read = step(weights["encoder.1.attention.weights"]) @ step(weights["encoder.0.attention.weights"])
    found = rollout(model, source, target)
    assert found.source_BTS is not None
    assert_allclose(found.own_BTT[0].numpy(), total[:3, :3], atol=1e-6)
    assert_allclose(found.source_BTS[0].numpy(), total[:3, 3:] @ read, atol=1e-6)
    assert_allclose(rollout(model, source, target, stack="encoder").own_BTT[0].numpy(), read, atol=1e-6)


def test_padding_has_nothing_and_gives_nothing() -> None:
    model: Any = cases.unsettled(build(cases.encoder()))
    laid = cases.padded(cases.sentences([4, 2]))
    found = rollout(model, laid.tokens, laid.layout).own_BTT
    assert_allclose(found.sum(-1).numpy(), [[1, 1, 1, 1], [1, 1, 0, 0]], atol=1e-6)
    assert float(found[1, :, 2:].abs().max()) == 0
    alone = rollout(model, laid.tokens[1:, :2]).own_BTT
    assert_allclose(found[1, :2, :2].numpy(), alone[0].numpy(), atol=1e-6)


def test_what_cannot_be_rolled_out() -> None:
    with pytest.raises(InputError, match=r"stack \(encoder\) is not in this model; choose decoder"):
        rollout(build(cases.decoder()).eval(), torch.tensor([[1]]), stack="encoder")
    with pytest.raises(InputError, match="no layer to roll out"):
        rolled([])
