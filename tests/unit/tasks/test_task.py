"""A new task is one file: docs/tasks.md defines one, and everything works with it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import regard
from regard.cli.app import app
from regard.errors import RunError, SettingsError
from regard.tasks import task as tasks
from regard.tasks.recipe import make_job
from regard.tasks.task import Task, find_task, load_task

PAGE = Path(__file__).parents[3] / "docs" / "tasks.md"


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that the page defines, once it has run; the task is registered for the test only."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("regard.tasks.run.draw_curves", lambda *_: False)
    monkeypatch.setattr(tasks, "REGISTERED", {})
    text = PAGE.read_text(encoding="utf-8")
    (recipe,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    Path("recipe.toml").write_text(recipe, encoding="utf-8")
    names: dict[str, Any] = {"__name__": "page"}
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(block, str(PAGE), "exec", dont_inherit=True), names)
    return names


@pytest.mark.slow
def test_a_task_from_outside_trains_resumes_evaluates_and_predicts(page: dict[str, Any]) -> None:
    assert find_task("topic") is page["TopicTask"]
    changes = {"train.directory": "short", "train.steps": 6, "train.evaluate_every": 3, "train.layout": "packed"}
    short = regard.train("recipe.toml", changes, device="cpu")
    longer = regard.resume(short.directory, {"train.steps": 12}, device="cpu")
    assert (short.step, longer.step) == (6, 12)
    whole = regard.train("recipe.toml", {**changes, "train.steps": 12, "train.directory": "whole"}, device="cpu")
    assert set(whole.scores) == {"loss", "accuracy"}
    run = str(page["run"].directory)
    shown = CliRunner().invoke(app, ["evaluate", run, "--split", "valid", "--device", "cpu", "--json"])
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.stdout)["metrics"]["accuracy"] == 1.0
    shown = CliRunner().invoke(app, ["predict", run, "good", "a bad day", "--device", "cpu"])
    assert shown.stdout.splitlines() == ["good", "bad"], shown.output
    # In another process the task is unknown until somebody registers it.
    tasks.REGISTERED.clear()
    with pytest.raises(SettingsError, match="topic"):
        load_task(Path(run), regard.load(run, "cpu").network)


def test_tasks_of_installed_packages_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = SimpleNamespace(name="installed", load=lambda: Task)
    monkeypatch.setattr(tasks, "entry_points", lambda group: [entry] if group == "regard.tasks" else [])
    assert find_task("installed") is Task


def test_a_run_of_an_older_version_is_refused_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("regard.tasks.run.draw_curves", lambda *_: False)
    Path("a.txt").write_text("one two\nthree four\n")
    recipe = """
task = { kind = "language", context = 4 }
data = { train = ["a.txt"] }
text = { kind = "words" }
model = { kind = "decoder", width = 8, depth = 1, attention.heads = 2 }
train = { steps = 1 }
"""
    Path("small.toml").write_text(recipe)
    run = regard.train("small.toml", device="cpu").directory
    config = (run / "config.toml").read_text()
    (run / "config.toml").write_text(re.sub(r'(?m)^train = "(\w{32})"$', r'train = ["\1"]', config))
    with pytest.raises(RunError, match=r"older version.*train\.start"):
        regard.resume(run, {"train.steps": 2}, device="cpu")
    Path("a.txt").write_text("one two\nthree five\n")
    (run / "config.toml").write_text(config)
    with pytest.raises(regard.DataError, match="has changed"):
        regard.resume(run, {"train.steps": 2}, device="cpu")


def test_predictions_of_every_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Untrained models: the form of the predictions counts."""
    import numpy as np

    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("one two three\nfour five six\n")
    small = {"width": 8, "depth": 1, "attention": {"heads": 2}}

    def predict(kind: str, recipe: dict[str, Any], inputs: list[Any]) -> list[Any]:
        from regard.tasks.run import prepare_job

        job = make_job("job", {"task": kind, "train": {"steps": 1}, **recipe}, {})
        task = prepare_job(job, torch.device("cpu"))
        return task.predict(regard.build(task.model).eval(), inputs)

    words = {"data": {"train": ["a.txt"]}, "text": {"kind": "words"}}
    (text,) = predict("language", {**words, "model": {"kind": "decoder", **small}}, ["one two"])
    assert isinstance(text, str)
    masked = {"data": {"train": ["a.txt"]}, "text": {"kind": "wordpiece", "size": 60}}
    (masks,) = predict("masked", {**masked, "model": {"kind": "encoder", **small}}, ["one [MASK] [MASK]"])
    assert [len(each) for each in masks] == [5, 5]
    assert all(0 < share < 1 for each in masks for share in each.values())
    with pytest.raises(regard.InputError, match=r"inputs\[0\] has no \[MASK\]"):
        predict("masked", {**masked, "model": {"kind": "encoder", **small}}, ["one two"])
    pixels = np.zeros((2, 8, 8), np.uint8)
    np.savez("a.npz", images=pixels, labels=np.array(["cat", "dog"]))
    model = {"kind": "vision", "image": [8, 8], "patch": 4, "channels": 1, **small}
    (seen,) = predict("image", {"data": {"kind": "npz", "train": ["a.npz"]}, "model": model}, [pixels[0][:, :, None]])
    assert seen["label"] in seen["probabilities"]
    assert sum(seen["probabilities"].values()) == pytest.approx(1, abs=1e-5)
