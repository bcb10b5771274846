"""GRPO: the loss against its formula in float64, rewards that fail, and a model that learns from rewards alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import regard
from regard.data.batches import Share
from regard.data.columns import Batch
from regard.errors import RegardError, RunError, SettingsError
from regard.models.families import Decoder
from regard.tasks.grpo import GrpoTask, last_word
from regard.tasks.recipe import make_job
from regard.tasks.run import prepare_job
from regard.training.report import Display
from regard.weights.directory import load_model
from regard.weights.warm_start import read_start

QUIET = Display(quiet=True)
PLAIN = "{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Letters with the answers x, y or z at random: a model that answers, but does not know which answer is right."""
    folder = tmp_path_factory.mktemp("grpo")
    pairs = [(letter, answer) for letter in "abcdef" for answer in "xyz"]
    (folder / "any.tsv").write_text("".join(f"{one}=\t{other}\n" for one, other in pairs * 20), encoding="utf-8")
    right = {letter: "xyz"[number % 3] for number, letter in enumerate("abcdef")}
    (folder / "right.tsv").write_text("".join(f"{one}=\t{other}\n" for one, other in right.items()), encoding="utf-8")
    given = {
        "task": {"kind": "instruct", "template": PLAIN},
        "data": {"kind": "parallel-tsv", "root": str(folder), "train": ["any.tsv"], "hold_out": 0.0},
        "text": {"kind": "characters"},
        "model": {"kind": "decoder", "width": 32, "depth": 1, "attention": {"heads": 2}, "dropout": 0.0},
        "train": {"steps": 60, "tokens": 256, "optimizer": {"rate": 1e-2}, "directory": str(folder / "start")},
    }
    regard.train(given, device="cpu", display=QUIET)
    return folder


def recipe(folder: Path, task: dict[str, Any] | None = None, **train: Any) -> dict[str, Any]:
    files = {"train": ["right.tsv"], "valid": ["right.tsv"]}
    settings = {"start": str(folder / "start"), "steps": 80, "tokens": 64, "optimizer": {"rate": 2e-3}, **train}
    return {
        "task": {"kind": "grpo", "tokens": 4, "group": 16, **(task or {})},
        "data": {"kind": "parallel-tsv", "root": str(folder), **files},
        "train": settings,
    }


def prepared(given: dict[str, Any]) -> GrpoTask:
    start = read_start(given["train"]["start"])
    job = make_job("job", given, {})
    task = prepare_job(job.task_type.started(job, start), torch.device("cpu"), start)
    assert isinstance(task, GrpoTask)
    return task


def test_the_loss_is_the_papers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shao et al. (2024), equations 3 and 4, with one update for each group: answer by answer, in float64."""
    task = prepared(recipe(folder, {"group": 4, "kl": 0.5, "temperature": 1.5}))
    model = load_model(folder / "start", torch.device("cpu"))
    assert isinstance(model, Decoder)
    first = load_model(folder / "start", torch.device("cpu"))
    assert isinstance(first, nn.Module)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.02 * torch.randn_like(parameter)
    drawn: list[tuple[list[list[int]], list[list[int]]]] = []
    answers = task._answers

    def remembered(network: Decoder, prompts: list[list[int]]) -> list[list[int]]:
        drawn.append((prompts, answers(network, prompts)))
        return drawn[-1][1]

    monkeypatch.setattr(task, "_answers", remembered)
    [step] = task.batches("train", Share()).once()
    model.train()
    torch.manual_seed(1)
    losses = [task.loss(model, batch) for batch in step.batches]
    [(prompts, written)] = drawn
    references = dict(line.split("\t") for line in (folder / "right.tsv").read_text().splitlines())
    decoded = task.tokenizers.source.decode
    expected, rewards = 0.0, []
    model, first = model.double(), first.double()
    for place in range(0, len(prompts), 4):
        right = [references[decoded(prompts[place])]]
        scores = [float(decoded(answer).split()[-1:] == right) for answer in written[place : place + 4]]
        mean = sum(scores) / 4
        spread = (sum((score - mean) ** 2 for score in scores) / 4) ** 0.5
        rewards.append(mean)
        for i in range(place, place + 4):
            gain = 0.0
            for end in range(len(written[i])):
                tokens = torch.tensor([[*prompts[i], *written[i][:end]]])
                with torch.no_grad():
                    new, old = (
                        float((network(tokens)[0, -1] / 1.5).log_softmax(-1)[written[i][end]])
                        for network in (model, first)
                    )
                divergence = torch.tensor(old - new).double().exp() - (old - new) - 1
                gain += (scores[i - place] - mean) / (spread + 1e-6) * new - 0.5 * float(divergence)
            expected -= gain / len(written[i]) / 4
    assert sum(float(loss.total.detach()) for loss in losses) == pytest.approx(expected, rel=1e-4)
    assert sum(float(loss.sums["reward"]) for loss in losses) == pytest.approx(sum(rewards))
    assert sum(float(loss.weight) for loss in losses) == 6
    assert 0 < sum(rewards) < 6


@pytest.mark.slow
def test_learns_from_rewards_alone_and_resumes(folder: Path, tmp_path: Path) -> None:
    whole = regard.train(recipe(folder, directory=str(tmp_path / "whole")), device="cpu", display=QUIET)
    assert whole.scores["reward"] > 0.9, whole.scores
    before = regard.load(folder / "start", "cpu").predict(["a=", "b=", "c="])
    assert before != ["x", "y", "z"]
    assert regard.load(whole.directory, "cpu").predict(["a=", "b=", "c="]) == ["x", "y", "z"]
    half = recipe(folder, directory=str(tmp_path / "half"))
    regard.train(half, device="cpu", display=QUIET, on_step=lambda values: values["step"] < 20)
    again = regard.resume(tmp_path / "half", device="cpu", display=QUIET)
    assert again.step == whole.step == 80
    one, other = (load_model(run.directory, torch.device("cpu")).state_dict() for run in (whole, again))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_rewards_are_checked(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "rewards.py"
    file.write_text(
        "def fails(question, answer, reference):\n    raise KeyError('no')\n\n"
        "def nan(question, answer, reference):\n    return float('nan')\n\n"
        "def huge(question, answer, reference):\n    return 1e300\n\n"
        "def exits(question, answer, reference):\n    raise SystemExit\n\n"
        "def words(question, answer, reference):\n    return 'many'\n\nnumber = 3\n",
        encoding="utf-8",
    )
    wrong: dict[str, type[RegardError]] = {
        f"{file}:fails": RunError,
        f"{file}:nan": RunError,
        f"{file}:huge": RunError,
        f"{file}:exits": RunError,
        f"{file}:words": RunError,
        f"{file}:missing": SettingsError,
        f"{file}:number": SettingsError,
        f"{tmp_path / 'none.py'}:f": SettingsError,
        "no_such_module:f": SettingsError,
        "best": SettingsError,
    }
    model = load_model(folder / "start", torch.device("cpu"))

    def used(name: str) -> None:
        task = prepared(recipe(folder, {"reward": name}))
        [step] = task.batches("train", Share()).once()
        task.loss(model, step.batches[0])

    for name, kind in wrong.items():
        with pytest.raises(kind, match=r"task\.reward"):
            used(name)
    given = recipe(folder)
    del given["train"]["start"]
    with pytest.raises(SettingsError, match=r"train\.start"):
        make_job("job", {**given, "model": {"kind": "decoder"}}, {})


def test_the_last_word_counts() -> None:
    assert last_word("1+2=", "1+2=3 3", "3") == 1.0
    assert last_word("1+2=", "3 4", "3") == 0.0
    assert last_word("1+2=", "", "3") == 0.0


def test_a_batch_without_examples_has_no_loss(folder: Path) -> None:
    """As the last steps of several processes have."""
    task = prepared(recipe(folder))
    model = load_model(folder / "start", torch.device("cpu"))
    [step] = task.batches("train", Share()).once()
    [batch] = step.batches
    empty = Batch(batch.sequences, {"real": torch.full_like(batch.values["real"], torch.nan)})
    loss = task.loss(model.train(), empty)
    assert float(loss.weight) == 0
    torch.autograd.backward(loss.total)
