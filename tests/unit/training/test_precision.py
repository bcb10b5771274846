"""Types of numbers: products in 16 bits over weights in 32, float16's scaling, and float64 throughout."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loop_cases import Crash, after, crash, remains
from safetensors.torch import load_file
from torch.amp import GradScaler
from training_cases import FAMILIES, Job, parameters

from regard.errors import SettingsError
from regard.settings import parse
from regard.training.loop import Trainer
from regard.training.precision import Numbers, numbers
from regard.training.run import read_log
from regard.training.settings import Precision, Train
from regard.weights.checkpoints import list_checkpoints

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _not_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk takes most of the time, and no test could see a difference."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def job(directory: Path, precision: Precision, family: str = "language", **train: Any) -> Job:
    usual = {"steps": 6, "tokens": 96, "evaluate_every": 3, "schedule": {"kind": "constant"}}
    return Job(family, parse(Train, {**usual, "precision": precision, **train}), directory, model_changes={"depth": 1})


@pytest.mark.parametrize(
    ("precision", "weights", "products"),
    [
        ("auto", torch.float32, torch.float32),
        ("float32", torch.float32, torch.float32),
        ("bfloat16", torch.float32, torch.bfloat16),
        ("float16", torch.float32, torch.float16),
        ("float64", torch.float64, torch.float64),
    ],
)
def test_what_a_setting_means_on_a_cpu(precision: Precision, weights: torch.dtype, products: torch.dtype) -> None:
    found = numbers(precision, CPU)
    assert (found.weights, found.products) == (weights, products)
    with found.autocast():
        made = torch.ones(2, 2, dtype=weights) @ torch.ones(2, 2, dtype=weights)
    assert made.dtype == products
    assert found.scaler(100).is_enabled() == (precision == "float16")


def test_auto_is_bfloat16_on_a_gpu_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    assert numbers("auto", torch.device("cuda")).products == torch.bfloat16
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: False)
    assert numbers("auto", torch.device("cuda")).products == torch.float32


def test_float64_is_refused_where_it_is_missing() -> None:
    with pytest.raises(SettingsError, match=r"train\.precision \(float64\) is not there on mps; choose float32, or"):
        numbers("float64", torch.device("mps"))


@pytest.mark.parametrize(("tokens", "scale"), [(1, 65536.0), (1000, 64.0), (1024, 64.0), (10**9, 1.0)])
def test_the_first_scale_allows_for_sums_over_tokens(tokens: int, scale: float) -> None:
    assert numbers("float16", CPU).scaler(tokens).get_scale() == scale


def products(trainer: Trainer) -> set[torch.dtype]:
    """The types that linear layers give, as a run goes on."""
    found: set[torch.dtype] = set()
    for module in trainer.model.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(lambda _, __, output: found.add(output.dtype))
    return found


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("precision", ["bfloat16", "float16", "float64"])
def test_every_family_trains_in_every_precision(precision: Precision, family: str, tmp_path: Path) -> None:
    trainer = job(tmp_path, precision, family, steps=2, ema=0.9).trainer()
    first, found = parameters(trainer.model), products(trainer)
    trainer.run()
    held = torch.float64 if precision == "float64" else torch.float32
    assert found == {getattr(torch, precision)}
    assert {parameter.dtype for parameter in trainer.model.parameters()} == {held}
    assert {tensor.dtype for tensor in trainer.optimizers.tensors().values() if tensor.dim()} == {held}
    kept = load_file(tmp_path / "run" / "weights.safetensors")
    assert {tensor.dtype for tensor in kept.values()} == {held}
    assert any(not torch.equal(first[name], kept[name]) for name in kept)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_sixteen_bits_learn_about_the_same(precision: Precision, tmp_path: Path) -> None:
    """Gradients are those of float32 up to the rounding of products: float16's scale is taken out again."""
    figures = []
    for each in ("float32", precision):
        made = job(tmp_path, each, log_every=1, optimizer={"kind": "sgd", "rate": 0.1})
        trainer = made.trainer(run=tmp_path / each)
        trainer.run()
        lines = [record for record in read_log(trainer.records.run.log) if record["kind"] == "train"]
        figures.append([(record["loss"], record["norm"]) for record in lines])
    np.testing.assert_allclose(figures[1], figures[0], rtol=0.03)


# -------------------------------------------------------------------------------------------------- float16's scaling


@pytest.fixture
def overflowing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first scale that is far too large, which doubles after every second step without an overflow."""

    def scaler(self: Numbers, tokens: int) -> GradScaler:
        return GradScaler("cpu", init_scale=2.0**20, growth_interval=2)

    monkeypatch.setattr(Numbers, "scaler", scaler)


@pytest.mark.usefixtures("overflowing")
def test_steps_whose_gradients_overflow_are_left_out(tmp_path: Path) -> None:
    trainer = job(tmp_path, "float16", steps=16, evaluate_every=16, log_every=1).trainer()
    weights = [parameters(trainer.model)]
    after_each(trainer, lambda: weights.append(parameters(trainer.model)))
    trainer.run()
    norms = [record["norm"] for record in read_log(trainer.records.run.log) if record["kind"] == "train"]
    assert norms[0] is None  # infinite, and so written as null
    assert sum(norm is not None for norm in norms) > 2, norms
    for step, norm in enumerate(norms, 1):
        same = all(torch.equal(weights[step][name], weights[step - 1][name]) for name in weights[0])
        assert same == (norm is None), step
    assert trainer.updater.scaler.get_scale() < 2.0**20


def after_each(trainer: Trainer, act: Any) -> None:
    plain = trainer.updater.update

    def update(*arguments: Any) -> None:
        plain(*arguments)
        act()

    trainer.updater.update = update  # type: ignore[method-assign]


@pytest.mark.usefixtures("overflowing")
@pytest.mark.parametrize("at", [2, 11])
def test_the_scale_is_kept_over_a_resume(at: int, tmp_path: Path) -> None:
    """Interrupted while steps are still left out, and later, when the scale grows now and then."""
    made = job(tmp_path, "float16", steps=14, evaluate_every=20, save_every=1, log_every=4)
    made.trainer(run=tmp_path / "straight").run()
    broken = made.trainer(run=tmp_path / "broken")
    after(broken.updater, "update", at, crash)
    with pytest.raises(Crash):
        broken.run()
    if at > 1:
        assert list_checkpoints(tmp_path / "broken")[0].state["scaler"]["scale"] != 2.0**20
    made.trainer(resume=True, run=tmp_path / "broken").run()
    assert remains(tmp_path / "broken") == remains(tmp_path / "straight")
