"""What the loop does when memory runs out, numbers go wrong or a model cannot be compiled."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from loop_cases import Heard, after
from safetensors.torch import load_file
from training_cases import FAMILIES, Job, parameters

from regard.data.columns import Batch
from regard.errors import RunError
from regard.settings import parse
from regard.training.loop import Trainer
from regard.training.run import read_log
from regard.training.settings import Train
from regard.training.step import Loss
from regard.weights.checkpoints import list_checkpoints

SGD = {"optimizer": {"kind": "sgd", "rate": 0.1}, "precision": "float32"}
ADAMW = {"optimizer": {"kind": "adamw", "rate": 1e-3, "decay": 0.1}, "precision": "float64"}


def job(family: str, directory: Path, **train: Any) -> Job:
    usual = {"steps": 6, "tokens": 96, "evaluate_every": 1000, "schedule": {"kind": "constant"}}
    return Job(family, parse(Train, {**usual, **train}), directory, model_changes={"depth": 1})


def events(trainer: Trainer) -> list[dict[str, Any]]:
    log = trainer.reporter.run.log
    return [record for record in read_log(log) if record["kind"] == "event"] if log.exists() else []


def heard(trainer: Trainer) -> list[str]:
    """What the trainer says out of the ordinary, as it says it."""
    display = Heard()
    trainer.reporter.display = display
    return display.events


def apart(one: Trainer, other: Trainer) -> float:
    left, right = parameters(one.model), parameters(other.model)
    return max(float((left[name] - right[name]).abs().max()) for name in left)


def cells(batch: Batch) -> int:
    """Cells of a batch on its last side."""
    if "pixels" in batch.values:
        return 5 * len(batch.values["pixels"])  # four patches and the class token
    return int([*batch.sequences.values()][-1].tokens.numel())


def runs_out(trainer: Trainer, most: Callable[[bool], float]) -> None:
    """Lets memory run out with batches of more cells than `most` says for training, or for evaluation."""
    plain = trainer.objective._loss

    def loss(model: Any, batch: Any) -> Loss:
        found = plain(model, batch)
        if cells(batch) > most(model.training):
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return found

    trainer.objective._loss = loss


@pytest.mark.parametrize("family", FAMILIES)
def test_out_of_memory_takes_the_same_steps_in_smaller_parts(family: str, tmp_path: Path) -> None:
    """A step fails in its middle, after gradients of its first parts were added up; nothing of them may stay."""
    small = job(family, tmp_path, steps=4, micro=24, **ADAMW).trainer(run=tmp_path / "small")
    small.run()
    trainer = job(family, tmp_path, steps=4, **ADAMW).trainer()
    messages = heard(trainer)
    runs_out(trainer, lambda training: 25)
    outcome = trainer.run()
    assert outcome.step == 4
    assert trainer.state.micro == 24
    expected = [f"memory ran out; continuing with {held} tokens at once" for held in (48, 24)]
    assert [text.partition(",")[0] for text in messages] == expected
    assert [(event["what"], event["text"]) for event in events(trainer)] == [
        ("out-of-memory", text) for text in messages
    ]
    assert apart(small, trainer) < 1e-9
    if family == "language":
        assert job(family, tmp_path, steps=6, **ADAMW).trainer(resume=True).state.micro == 24
        assert job(family, tmp_path, steps=6, micro=60, **ADAMW).trainer(resume=True).state.micro == 60


def test_out_of_memory_in_an_evaluation_or_with_a_single_example(tmp_path: Path) -> None:
    plain = job("language", tmp_path, evaluate_every=2).trainer(run=tmp_path / "plain")
    plain.run()
    trainer = job("language", tmp_path, evaluate_every=2).trainer()
    runs_out(trainer, lambda training: math.inf if training else 50)
    trainer.run()
    assert trainer.state.micro == 48
    found, expected = (
        {record["step"]: record["loss"] for record in read_log(each.reporter.run.log) if record["kind"] == "valid"}
        for each in (trainer, plain)
    )
    assert found.keys() == {2, 4, 6}
    assert found == pytest.approx(expected, rel=1e-5)
    trainer = job("language", tmp_path).trainer(run=tmp_path / "none")
    runs_out(trainer, lambda training: 0)
    longest = trainer.task.data.examples["train"].lengths.longest[0]
    with pytest.raises(RunError, match=rf"memory ran out with {longest} tokens at once"):
        trainer.run()
    assert trainer.state.step == 0


def test_what_is_not_finite_ends_the_run_before_it_is_saved(tmp_path: Path) -> None:
    """The loss; its gradient (the square root's slope at 0 is infinite, its value is not); or only the weights."""
    root = "the square root of a weight times 0"
    cases: list[tuple[str, Any, dict[str, int], int | None]] = [
        ("the loss is", math.nan, {"save_every": 2}, 4),
        ("the loss is", math.inf, {"evaluate_every": 3}, 3),
        ("the loss is", math.nan, {"log_every": 5}, None),
        ("the gradient is", root, {"save_every": 1}, 4),
        ("the weights are", None, {"evaluate_every": 1}, 4),
    ]
    for number, (what, bad, saved, good) in enumerate(cases):
        trainer = job("language", tmp_path / str(number), steps=20, **saved).trainer()
        weight, plain, steps = trainer.model.embedding.tokens.weight, trainer.objective._loss, count(1)

        def loss(model: Any, batch: Any, plain: Any = plain, steps: Any = steps, bad: Any = bad) -> Loss:
            found = plain(model, batch)
            if not model.training or next(steps) != 5:
                return found
            if bad == root:
                return found._replace(total=found.total + (model.embedding.tokens.weight[0, 0] * 0).sqrt())
            return found._replace(total=found.total * (1 if bad is None else bad))

        trainer.objective._loss = loss
        if bad is None:
            after(trainer.updater, "update", 5, lambda weight=weight: weight.data[3, 3:5].fill_(torch.inf))
        expected = "no checkpoint was written yet" if good is None else f"good checkpoint is that of step {good} in"
        with pytest.raises(RunError, match=f"{what} not finite .*{expected}.* Lower train.optimizer.rate"):
            trainer.run()
        run = tmp_path / str(number) / "run"
        assert max([checkpoint.step for checkpoint in list_checkpoints(run)], default=None) == good
        for path in run.rglob("*.safetensors"):
            assert all(bool(torch.isfinite(tensor).all()) for tensor in load_file(path).values())


def compiled(family: str, directory: Path, run: str, **train: Any) -> Trainer:
    """A job that asks for compiling, of shapes that never change, without validation data."""
    made = job(family, directory, compile="on", layout="packed", row=96, **train)
    made.valid = 0
    return made.trainer(run=directory / run)


def test_what_cannot_be_compiled_runs_uncompiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from torch._dynamo.exc import BackendCompilerFailed

    def compile_(function: Any, **_: Any) -> Any:
        def failing(*_: Any) -> Any:
            torch.rand(7)  # what was drawn before it failed must not count
            raise BackendCompilerFailed(compile_, RuntimeError("no kernel for this"), None)

        return failing

    monkeypatch.setattr(torch, "compile", compile_)
    trainer = compiled("language", tmp_path, "run")
    messages = heard(trainer)
    assert trainer.run().step == 6
    assert len(messages) == 1
    assert messages[0].startswith("compilation failed, training uncompiled: ")
    assert "no kernel for this" in messages[0]
    assert [(event["what"], event["step"], event["text"]) for event in events(trainer)] == [
        ("compile-fallback", 0, messages[0])
    ]
    plain = compiled("language", tmp_path, "plain")
    plain.objective.set_compiled(False)
    plain.run()
    assert apart(plain, trainer) == 0


TORCHS_OWN = pytest.mark.filterwarnings(r"ignore:`torch\.jit\..*` is deprecated:DeprecationWarning")


@pytest.mark.slow
@TORCHS_OWN
@pytest.mark.skipif(shutil.which("g++") is None and shutil.which("clang++") is None, reason="needs a C++ compiler")
def test_a_compiled_run_is_the_uncompiled_run(tmp_path: Path) -> None:
    trainer = compiled("language", tmp_path, "run", **SGD)
    trainer.run()
    assert events(trainer) == []
    assert trainer.objective.compiled
    plain = compiled("language", tmp_path, "plain", **SGD)
    plain.objective.set_compiled(False)
    plain.run()
    assert apart(plain, trainer) < 1e-5
