"""Every family learns eight examples by heart, and its gradients are those of its loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from training_cases import FAMILIES, VOCABULARY, Job, examples, prepare

from regard.data.batches import Share
from regard.data.columns import Examples, TokenColumn
from regard.settings import parse
from regard.tasks.masked import MaskedColumn
from regard.training.settings import Train


@pytest.mark.slow
@pytest.mark.parametrize(("family", "layout"), [*zip(FAMILIES, ["packed", "padded"] * 2, strict=True)])
def test_learns_eight_examples_by_heart(family: str, layout: str, tmp_path: Path) -> None:
    """Text to continue is one window: of texts that begin alike, or cut anywhere, nobody could tell the first word."""
    steps = 300 if family == "masked" else 100  # other tokens are hidden in each epoch
    optimizer, schedule = {"kind": "adamw", "rate": 1e-2}, {"kind": "linear", "warmup": 10}
    table = {"steps": steps, "tokens": 192, "layout": layout, "row": 128, "optimizer": optimizer, "schedule": schedule}
    train = parse(Train, {**table, "evaluate_every": steps})
    wider: dict[str, Any] = {"width": 64, "ffn": {"kind": "dense", "hidden": 128}}
    if family != "image":
        wider["position"] = {"kind": "learned", "length": 128}
    job = Job(family, train, tmp_path, examples=8, valid=0, model_changes=wider)
    # Long enough that what is hidden follows from the rest.
    prepared = prepare(family, tmp_path / "train", 8, lengths=(12, 16))
    trainer = job.trainer()
    found = examples(family, prepared)
    if family == "language":
        whole = len(prepared.values("text")) - 1
        found = Examples(prepared, {"text": TokenColumn(VOCABULARY, predict=True, window=whole)})
    elif family == "masked":
        found = Examples(prepared, {"text": MaskedColumn(VOCABULARY, mask=3, special=(0, 1, 2), rate=0.4)})
    trainer.task.data.examples.update(train=found, valid=found)
    outcome = trainer.run()
    assert outcome.step == steps
    assert outcome.scores["loss"] < 0.05
    assert outcome.scores["accuracy"] == 1


@pytest.mark.parametrize("layout", ["padded", "packed"])
@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_are_those_of_the_loss(family: str, layout: str, tmp_path: Path) -> None:
    """Along random directions in the space of all parameters, in float64, by central differences."""
    train = parse(Train, {"steps": 1, "tokens": 64, "layout": layout, "precision": "float64"})
    job = Job(family, train, tmp_path, examples=6, valid=0)
    model, task = job.model(), job.task()
    batch = next(task.batches("train", Share()).steps()).batches[0]
    loss = task.loss(model, batch)
    loss.total.backward()
    named = dict(model.named_parameters())
    assert all(parameter.grad is not None for parameter in named.values())
    generator = torch.Generator().manual_seed(1)
    for name, parameter in named.items():
        direction = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        assert parameter.grad is not None
        slope = float((parameter.grad * direction).sum())
        with torch.no_grad():
            size = 1e-6
            parameter.add_(size * direction)
            above = float(task.loss(model, batch).total)
            parameter.sub_(2 * size * direction)
            below = float(task.loss(model, batch).total)
            parameter.add_(size * direction)
        assert (above - below) / (2 * size) == pytest.approx(slope, rel=1e-5, abs=1e-6), name
