"""Training view: losses, gradients and updates against autograd and plain formulas in float64."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run_cases import write_run
from study_cases import run_of
from torch.nn import functional

from regard.decoding.settings import Absolute, Rules, Sampling
from regard.errors import InputError
from regard.look.study import Study
from regard.look.views.decode import decode_steps
from regard.look.views.training import TrainingRequest, training


def exact(study: Study) -> Any:
    """A copy of the network in float64."""
    return copy.deepcopy(study.network).double()


def test_a_step_of_gradient_descent_is_the_formula(studies: dict[str, Study]) -> None:
    rate = 0.05
    for family in ("translator", "decoder"):
        study, run = run_of(studies, family, "ein Hund läuft")
        found = training(study, run, TrainingRequest(run=run.key, steps=1, rate=rate))
        network = exact(study)
        ids = [torch.tensor([side.ids]) for side in run.sides.values()]
        truth = torch.tensor(run.read.follows[:-1] if family == "decoder" else run.read.follows)

        def losses(network: Any = network, ids: Any = ids, truth: Any = truth) -> Any:
            logits = network(*ids)[0, : len(truth)]
            return -logits.log_softmax(-1)[torch.arange(len(truth)), truth]

        before = losses()
        assert [row["before"]["loss"] for row in found["rows"]] == pytest.approx(before.tolist(), abs=1e-5)
        assert [row["id"] for row in found["rows"]] == truth.tolist()
        assert found["losses"][0] == pytest.approx(float(before.detach().mean()), abs=1e-6)
        names, parameters = zip(*network.named_parameters(), strict=True)
        slopes = torch.autograd.grad(before.mean(), parameters)
        squares: dict[str, float] = {}
        for name, slope in zip(names, slopes, strict=True):
            part = next(each["name"] for each in found["parts"] if name.startswith(each["name"].split(", ")[0]))
            squares[part] = squares.get(part, 0) + float(slope.square().sum())
        for part in found["parts"]:
            assert part["gradient"] == pytest.approx(math.sqrt(squares[part["name"]]), rel=1e-3)
            assert part["change"] == pytest.approx(rate * part["gradient"], rel=1e-3, abs=1e-7), "w' = w − rate · g"
        assert found["expected"] == pytest.approx(-rate * sum(squares.values()), rel=1e-3)
        with torch.no_grad():
            for parameter, slope in zip(parameters, slopes, strict=True):
                parameter -= rate * slope
        assert [row["after"]["loss"] for row in found["rows"]] == pytest.approx(losses().tolist(), abs=1e-4)
        again = training(study, run, TrainingRequest(run=run.key))
        assert again["losses"] == found["losses"][:1], "the model itself is not changed"
        assert all(parameter.grad is None for parameter in study.network.parameters())


def test_adam_moves_each_weight_by_the_rate(studies: dict[str, Study]) -> None:
    study, run = run_of(studies, "decoder")
    found = training(study, run, TrainingRequest(run=run.key, steps=1, optimizer="adamw", rate=1e-3))
    network = exact(study)
    ids = torch.tensor([run.sides["decoder"].ids])
    logits = network(ids)[0, :-1]
    slopes = torch.autograd.grad(functional.cross_entropy(logits, ids[0, 1:]), list(network.parameters()))
    moved = sum(int((slope.abs() > 1e-6).sum()) for slope in slopes)
    change = math.sqrt(sum(part["change"] ** 2 for part in found["parts"]))
    assert change == pytest.approx(1e-3 * math.sqrt(moved), rel=0.02), "the first step has the size of the rate"
    many = training(study, run, TrainingRequest(run=run.key, steps=5, optimizer="adamw", rate=1e-2))
    assert len(many["losses"]) == 6
    assert many["losses"][5] < many["losses"][0]


def test_inference_reads_what_it_wrote(studies: dict[str, Study]) -> None:
    study, run = run_of(studies, "translator", target="a dog runs in the snow")
    found = training(study, run, TrainingRequest(run=run.key))
    steps = decode_steps(study, run, Sampling(), Rules(longest=Absolute(tokens=len(found["free"]))))["steps"]
    count = min(len(steps), len(found["free"]))
    assert count > 1
    assert [each["id"] for each in found["free"][:count]] == [step["token"]["id"] for step in steps[:count]]
    ids = list(run.sides["encoder"].ids)
    written = [run.sides["decoder"].ids[0]]
    for each in found["free"][:3]:
        logits = exact(study)(torch.tensor([ids]), torch.tensor([written]))[0, -1]
        assert each["model"] == pytest.approx(float(logits.detach().softmax(-1)[each["id"]]), abs=1e-5)
        written.append(each["id"])


def test_masked_tokens_and_classes(studies: dict[str, Study]) -> None:
    study, run = run_of(studies, "encoder", "ein Hund läuft durch den Schnee")
    tokenizers = study.loaded.tokenizers
    assert tokenizers is not None
    ids, mask = run.sides["encoder"].ids, tokenizers.source.roles["mask"]
    for places in ([], [2], [1, 3]):
        found = training(study, run, TrainingRequest(run=run.key, masked=places))
        chosen = [row["place"] for row in found["rows"]]
        assert chosen == (places or chosen)
        assert found["free"] == []
        hidden = torch.tensor([[mask if i in chosen else token for i, token in enumerate(ids)]])
        network = exact(study)
        logs = network.heads["masked"](network(hidden))[0].log_softmax(-1).detach()
        assert [row["before"]["loss"] for row in found["rows"]] == pytest.approx(
            [-float(logs[i, ids[i]]) for i in chosen], abs=1e-5
        )
    study, run = run_of(studies, "vision")
    found = [training(study, run, TrainingRequest(run=run.key, answer=answer))["rows"][0] for answer in range(3)]
    assert sum(math.exp(-row["before"]["loss"]) for row in found) == pytest.approx(1, abs=1e-5), "over three classes"
    with pytest.raises(InputError, match="number of classes"):
        training(study, run, TrainingRequest(run=run.key, answer=3))


def test_the_curve_is_that_of_the_log(studies: dict[str, Study], tmp_path: Path) -> None:
    study, run = run_of(studies, "decoder")
    assert training(study, run, TrainingRequest(run=run.key))["curve"] is None
    losses = [4.0 - 0.1 * i for i in range(20)]
    records = [{"kind": "train", "step": 10 * i, "loss": loss} for i, loss in enumerate(losses, 1)]
    records += [{"kind": "valid", "step": step, "loss": loss} for step, loss in ((100, 3.5), (200, 2.5))]
    study = copy.copy(study)
    study.loaded = copy.copy(study.loaded)
    study.loaded.directory = write_run(tmp_path / "run", records)
    curve = training(study, run, TrainingRequest(run=run.key))["curve"]
    assert curve["steps"] == [record["step"] for record in records[:20]]
    assert np.array(curve["train"]) == pytest.approx(np.array(losses))
    assert curve["valid"][curve["steps"].index(150)] == pytest.approx(3.0)
