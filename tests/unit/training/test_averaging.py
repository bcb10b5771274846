"""The moving average of the weights, held against its formula in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from regard.errors import WeightsError
from regard.training.averaging import Ema


def test_the_formula() -> None:
    """d = min(decay, (1 + step) / (10 + step)), average ← d · average + (1 − d) · weights."""
    weights = {"a": torch.randn(3, 4, dtype=torch.float64), "b": torch.randn(2, dtype=torch.float64)}
    ema = Ema(0.5, weights)
    expected = {name: tensor.numpy().copy() for name, tensor in weights.items()}
    for step in range(1, 20):
        for tensor in weights.values():
            tensor.add_(torch.randn_like(tensor))
        ema.update(step)
        decay = min(0.5, (1 + step) / (10 + step))
        expected = {name: decay * expected[name] + (1 - decay) * weights[name].numpy() for name in weights}
    assert (1 + 8) / (10 + 8) == 0.5  # so both sides of the minimum were taken
    for name, tensor in ema.tensors().items():
        np.testing.assert_allclose(tensor.numpy(), expected[name], rtol=1e-14)


def test_weights_and_averages_change_places_exactly() -> None:
    model = nn.Linear(7, 5)
    parameters = dict(model.named_parameters())
    ema = Ema(0.9, parameters)
    with torch.no_grad():
        model.weight.mul_(torch.randn(5, 7))
        model.bias[0] = float("nan")
        model.bias[1] = -0.0
    weights = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    averages = {name: tensor.clone() for name, tensor in ema.tensors().items()}
    places = [parameter.data_ptr() for parameter in parameters.values()]

    def evaluate() -> None:
        with ema.swapped():
            for name, parameter in parameters.items():
                assert same_bits(parameter, averages[name])
            raise KeyboardInterrupt  # whatever happens in there

    with pytest.raises(KeyboardInterrupt):
        evaluate()
    for name, parameter in parameters.items():
        assert same_bits(parameter, weights[name])
        assert same_bits(ema.tensors()[name], averages[name])
        assert parameter.requires_grad
    assert [parameter.data_ptr() for parameter in parameters.values()] == places


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    return torch.equal(left.detach().view(torch.int32), right.detach().view(torch.int32))


def test_half_swapped_is_swapped_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory may run out on the way, and the loop then goes on with smaller batches."""
    weights = {"a": torch.ones(2), "b": torch.ones(2)}
    ema = Ema(0.9, weights)
    for tensor in weights.values():
        tensor.zero_()
    plain = Ema._swap_one

    def fail(self: Ema, name: str) -> None:
        if name == "b":
            raise torch.OutOfMemoryError
        plain(self, name)

    monkeypatch.setattr(Ema, "_swap_one", fail)
    with pytest.raises(torch.OutOfMemoryError), ema.swapped():
        pass
    assert [tensor.tolist() for tensor in weights.values()] == [[0, 0], [0, 0]]
    assert [tensor.tolist() for tensor in ema.tensors().values()] == [[1, 1], [1, 1]]


def test_a_resumed_average_goes_on_alike() -> None:
    weights = {"a": torch.randn(6)}
    ema = Ema(0.99, weights)
    changes = torch.randn(10, 6)
    for step in range(1, 6):
        weights["a"].add_(changes[step - 1])
        ema.update(step)
    other_weights = {"a": weights["a"].clone()}
    other = Ema(0.99, other_weights)
    other.load({name: tensor.clone() for name, tensor in ema.tensors().items()})
    for step in range(6, 11):
        for each, average in ((weights, ema), (other_weights, other)):
            each["a"].add_(changes[step - 1])
            average.update(step)
    assert same_bits(ema.tensors()["a"], other.tensors()["a"])


def test_averages_of_another_model() -> None:
    with pytest.raises(WeightsError, match="the averages are those of another model: b is on one side only"):
        Ema(0.9, {"a": torch.ones(1)}).load({"a": torch.ones(1), "b": torch.ones(1)})


def test_averages_in_the_model_are_not_taken_for_weights() -> None:
    ema = Ema(0.9, {"a": torch.ones(1)})
    with ema.swapped():
        with pytest.raises(AssertionError, match="the averages are in the model"):
            ema.update(1)
        with pytest.raises(AssertionError, match="the averages are in the model"):
            ema.tensors()
        with pytest.raises(AssertionError, match="the averages are in the model"), ema.swapped():
            pass
