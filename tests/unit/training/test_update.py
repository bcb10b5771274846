"""One step of the optimiser against its formula: summed gradients by summed weight, clipped, applied."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from regard.errors import RunError
from regard.training.distribution import Workers
from regard.training.optimizers import Optimizers
from regard.training.precision import numbers
from regard.training.tally import Tally
from regard.training.task import Loss
from regard.training.update import Updater

CPU = torch.device("cpu")
RATE = 0.5


class Batch:
    """Rows of inputs and the wanted outputs; a weight for each."""

    def __init__(self, rows: int, seed: int, weight: float = 1.0) -> None:
        chance = np.random.default_rng(seed)
        self.x = torch.tensor(chance.normal(size=(rows, 3)))
        self.y = torch.tensor(chance.normal(size=rows))
        self.weight = torch.full((rows,), weight, dtype=torch.float64)

    def to(self, device: torch.device) -> Batch:
        return self


class Squares(nn.Module):
    """Least squares, as a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(3, 1, dtype=torch.float64)

    def forward(self, batch: Batch) -> Loss:
        errors: Tensor = self.line(batch.x)[:, 0] - batch.y
        return Loss((batch.weight * errors**2).sum(), batch.weight.sum(), {"rows": torch.tensor(len(batch.y))})


def updater(clip: float | None = None) -> Updater:
    objective = Squares()
    names: dict[Tensor, str] = {parameter: name for name, parameter in objective.named_parameters()}
    optimizers = Optimizers([torch.optim.SGD(objective.parameters(), lr=RATE)], names)
    precise = numbers("float64", CPU)
    return Updater(objective, optimizers, precise, Workers(CPU), precise.scaler(1), clip)


def gradient(objective: Squares, batches: list[Batch]) -> np.ndarray:
    """Of the weighted mean of squares over all rows: the three slopes, then the constant."""
    x = np.concatenate([batch.x.numpy() for batch in batches])
    x = np.concatenate([x, np.ones((len(x), 1))], axis=1)
    y = np.concatenate([batch.y.numpy() for batch in batches])
    weight = np.concatenate([batch.weight.numpy() for batch in batches])
    values = np.concatenate([objective.line.weight.detach().numpy()[0], objective.line.bias.detach().numpy()])
    return (2 * weight * (x @ values - y)) @ x / weight.sum()


def state(objective: Squares) -> np.ndarray:
    return np.concatenate([objective.line.weight.detach().numpy()[0], objective.line.bias.detach().numpy()]).copy()


@pytest.mark.parametrize("clip", [None, 1e-2, 1e6])
def test_a_step_over_batches_of_unlike_sizes(clip: float | None) -> None:
    made = updater(clip)
    assert isinstance(made.objective, Squares)
    batches = [Batch(1, 1), Batch(50, 2, weight=0.5), Batch(7, 3)]
    wanted, before = gradient(made.objective, batches), state(made.objective)
    norm = np.linalg.norm(wanted)
    factor = 1.0 if clip is None else min(1.0, clip / norm)
    window = Tally(CPU)
    made.update(batches, 0.25, window)
    np.testing.assert_allclose(state(made.objective), before - 0.25 * RATE * factor * wanted, rtol=0, atol=1e-7)
    sums = window.read()
    assert sums["weight"] == 1 + 25 + 7
    assert sums["rows"] == 58
    assert sums["norm"] == pytest.approx(norm, rel=1e-12)
    assert sums["clipped"] == (clip == 1e-2)
    assert sums["steps"] == 1


def test_how_a_step_is_split_does_not_matter() -> None:
    whole, parts = Batch(12, 1), []
    for start, end in ((0, 2), (2, 3), (3, 12)):
        part = Batch(0, 1)
        part.x, part.y, part.weight = whole.x[start:end], whole.y[start:end], whole.weight[start:end]
        parts.append(part)
    torch.manual_seed(3)
    one = updater()
    torch.manual_seed(3)
    other = updater()
    one.update([whole], 1.0, Tally(CPU))
    other.update(parts, 1.0, Tally(CPU))
    assert isinstance(one.objective, Squares)
    assert isinstance(other.objective, Squares)
    np.testing.assert_allclose(state(one.objective), state(other.objective), rtol=0, atol=1e-12)


def test_a_step_without_weight_changes_nothing() -> None:
    made = updater()
    assert isinstance(made.objective, Squares)
    before, window = state(made.objective), Tally(CPU)
    made.update([Batch(3, 1, weight=0.0)], 1.0, window)
    np.testing.assert_array_equal(state(made.objective), before)
    assert window.read()["norm"] == 0


def test_a_step_that_fails_half_way_can_be_taken_again() -> None:
    torch.manual_seed(5)
    plain = updater()
    torch.manual_seed(5)
    failing = updater()
    batches = [Batch(4, 1), Batch(9, 2)]
    window = Tally(CPU)
    with pytest.raises(AttributeError):
        failing.update([batches[0], None], 1.0, window)
    assert window.read() == {}
    for made in (plain, failing):
        made.update(batches, 1.0, window)
    assert isinstance(plain.objective, Squares)
    assert isinstance(failing.objective, Squares)
    np.testing.assert_array_equal(state(plain.objective), state(failing.objective))


def test_memory_that_runs_out_while_weights_change_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some are changed by then, so the step must not be taken again."""
    made = updater()

    def step(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(made.optimizers.parts[0], "step", step)
    with pytest.raises(RunError, match=r"memory ran out while the optimiser changed the weights.*a smaller model"):
        made.update([Batch(4, 1)], 1.0, Tally(CPU))
