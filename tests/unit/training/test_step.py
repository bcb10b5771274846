"""One optimizer step against its formula, precision, random seeds of steps, and running out of memory."""

from __future__ import annotations

from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loop_cases import Crash, after, crash, remains
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.amp import GradScaler
from training_cases import FAMILIES, Job, parameters

from regard.errors import RunError
from regard.settings import parse
from regard.training.distribution import Workers
from regard.training.optimizers import Optimizers
from regard.training.run import read_log
from regard.training.settings import Precision, Train
from regard.training.step import (
    Loss,
    MixedPrecision,
    Sums,
    Updater,
    is_out_of_memory,
    mixed_precision,
    seed_step,
)
from regard.weights.checkpoints import list_checkpoints

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
    precise = mixed_precision("float64", CPU)
    return Updater(objective, optimizers, precise, Workers(CPU), precise.scaler(1), clip)


def values(objective: nn.Module) -> np.ndarray:
    """The three slopes, then the constant."""
    assert isinstance(objective, Squares)
    return np.concatenate([objective.line.weight.detach().numpy()[0], objective.line.bias.detach().numpy()])


@pytest.mark.parametrize("clip", [None, 1e-2, 1e6])
def test_a_step_over_batches_of_unlike_sizes(clip: float | None) -> None:
    """Against the gradient of the weighted mean of squares over all rows."""
    made = updater(clip)
    batches = [Batch(1, 1), Batch(50, 2, weight=0.5), Batch(7, 3)]
    before = values(made.objective).copy()
    x, y, weight = (np.concatenate([getattr(b, name).numpy() for b in batches]) for name in ("x", "y", "weight"))
    x = np.concatenate([x, np.ones((len(x), 1))], axis=1)
    wanted = (2 * weight * (x @ before - y)) @ x / weight.sum()
    norm = np.linalg.norm(wanted)
    factor = 1.0 if clip is None else min(1.0, clip / norm)
    window = Sums(CPU)
    with pytest.raises(AttributeError):
        made.update([batches[0], None], 0.25, window)  # nothing remains of a step that fails
    made.update(batches, 0.25, window)
    np.testing.assert_allclose(values(made.objective), before - 0.25 * RATE * factor * wanted, rtol=0, atol=1e-7)
    sums = window.read()
    assert (sums["weight"], sums["rows"], sums["steps"], sums["clipped"]) == (33, 58, 1, clip == 1e-2)
    assert sums["norm"] == pytest.approx(norm, rel=1e-12)
    before = values(made.objective).copy()
    made.update([Batch(3, 1, weight=0.0)], 1.0, Sums(CPU))
    np.testing.assert_array_equal(values(made.objective), before, "without weight nothing changes")


def test_out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60)
    for error in (torch.OutOfMemoryError("CUDA out of memory."), MemoryError(), caught.value):
        assert is_out_of_memory(error)
    for error in (RuntimeError("shapes cannot be multiplied"), ValueError("can't allocate memory")):
        assert not is_out_of_memory(error)
    made = updater()

    def step(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(made.optimizers.parts[0], "step", step)  # some weights are changed by then
    with pytest.raises(RunError, match=r"memory ran out in the optimizer"):
        made.update([Batch(4, 1)], 1.0, Sums(CPU))


def drawn(seed: int, step: int, rank: int = 0) -> tuple[float, ...]:
    seed_step(seed, step, rank)
    return tuple(torch.rand(4, dtype=torch.float64).tolist())


def test_each_step_draws_its_own_numbers() -> None:
    first = drawn(1, 17, 2)
    torch.rand(1000)
    drawn(1, 18, 2)
    assert drawn(1, 17, 2) == first  # whatever came before
    # Also for numbers with the same sum or the same digits, such as (1, 11) and (11, 1).
    places = [*product((0, 1, 2, 11, 111, 2**40 + 1, 2**62, 2**63), (1, 2, 11, 12, 111), (0, 1, 2, 11))]
    assert len({drawn(*place) for place in places}) == len(places)


def job(directory: Path, precision: Precision, family: str = "language", **train: Any) -> Job:
    usual = {"steps": 6, "tokens": 96, "evaluate_every": 3, "schedule": {"kind": "constant"}}
    return Job(family, parse(Train, {**usual, "precision": precision, **train}), directory, model_changes={"depth": 1})


def test_dtypes_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dtypes themselves are checked by training in them."""
    assert mixed_precision("auto", CPU).products == torch.float32
    assert [mixed_precision(each, CPU).scaler(9).is_enabled() for each in ("float16", "bfloat16")] == [True, False]
    for supported in (True, False):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: supported)  # noqa: B023
        expected = torch.bfloat16 if supported else torch.float32
        assert mixed_precision("auto", torch.device("cuda")).products == expected
    for tokens, scale in ((1, 65536.0), (1000, 64.0), (1024, 64.0), (10**9, 1.0)):
        assert mixed_precision("float16", CPU).scaler(tokens).get_scale() == scale


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_sixteen_bits_learn_about_the_same(precision: Precision, tmp_path: Path) -> None:
    """Gradients are those of float32 up to the rounding of products: float16's scale is taken out again."""
    found = []
    for each in ("float32", precision):
        made = job(tmp_path, each, steps=3, log_every=1, optimizer={"kind": "sgd", "rate": 0.1})
        trainer = made.trainer(run=tmp_path / each)
        trainer.run()
        lines = [record for record in read_log(trainer.reporter.run.log) if record["kind"] == "train"]
        found.append([(record["loss"], record["norm"]) for record in lines])
    np.testing.assert_allclose(found[1], found[0], rtol=0.03)


@pytest.mark.parametrize("precision", ["bfloat16", "float16", "float64"])
def test_every_family_trains_in_every_precision(precision: Precision, tmp_path: Path) -> None:
    held = torch.float64 if precision == "float64" else torch.float32
    for family in FAMILIES:
        trainer = job(tmp_path / family, precision, family, steps=2, ema=0.9).trainer()
        first = parameters(trainer.model)
        products: set[torch.dtype] = set()
        for module in trainer.model.modules():
            if isinstance(module, torch.nn.Linear):
                module.register_forward_hook(lambda _, __, output, found=products: found.add(output.dtype))
        trainer.run()
        assert products == {getattr(torch, precision)}
        kept = load_file(tmp_path / family / "run" / "weights.safetensors")
        state = [tensor for tensor in trainer.optimizers.tensors().values() if tensor.dim()]
        assert {tensor.dtype for tensor in (*trainer.model.parameters(), *state, *kept.values())} == {held}
        assert any(not torch.equal(first[name], kept[name]) for name in kept)


@pytest.mark.parametrize("at", [2, 11])
def test_steps_whose_gradients_overflow_are_left_out_also_after_a_resume(
    at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first scale is far too large, and doubles after every second step without an overflow."""
    scaler = partial(GradScaler, "cpu", init_scale=2.0**20, growth_interval=2)
    monkeypatch.setattr(MixedPrecision, "scaler", lambda self, tokens: scaler())
    made = job(tmp_path, "float16", steps=14, evaluate_every=20, save_every=1, log_every=1)
    trainer = made.trainer(run=tmp_path / "straight")
    weights, plain = [parameters(trainer.model)], trainer._after_step
    trainer._after_step = lambda: (weights.append(parameters(trainer.model)), plain())[1]  # type: ignore[method-assign]
    trainer.run()
    norms = [record["norm"] for record in read_log(trainer.reporter.run.log) if record["kind"] == "train"]
    assert norms[0] is None  # infinite, and so written as null
    assert sum(norm is not None for norm in norms) > 2, norms
    for step, norm in enumerate(norms, 1):
        same = all(torch.equal(weights[step][name], weights[step - 1][name]) for name in weights[0])
        assert same == (norm is None), step
    broken = made.trainer(run=tmp_path / "broken")
    after(broken.updater, "update", at, crash)
    with pytest.raises(Crash):
        broken.run()
    assert list_checkpoints(tmp_path / "broken")[0].state["scaler"]["scale"] < 2.0**20
    made.trainer(resume=True, run=tmp_path / "broken").run()
    assert remains(tmp_path / "broken") == remains(tmp_path / "straight")
