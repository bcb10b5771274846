"""Every recipe that needs no files trains, goes on and is examined, by the commands that its header names."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from regard.cli.app import app
from regard.data import embedded
from regard.data.settings import EmbeddedSettings
from regard.models.settings import Classification, Spans, Tagging
from regard.tasks.recipe import read_job
from regard.training.run import read_log
from regard.weights.directory import load_model

pytestmark = pytest.mark.slow

RECIPES = Path(__file__).parents[2] / "recipes"
EMBEDDED = [path for path in sorted(RECIPES.glob("*.toml")) if isinstance(read_job(path).data, EmbeddedSettings)]


def run(verb: str, *words: str) -> Result:
    done = CliRunner().invoke(app, [verb, *words], catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    return done


def choices(model: Any) -> int:
    """Among how many answers a model that knows nothing chooses."""
    settings = model.settings
    for head in reversed(settings.heads.values()):  # that of the task is the last one
        if isinstance(head, Classification | Tagging):
            return head.classes
        if isinstance(head, Spans):
            return 21  # tokens of a question and its sentence
    size: int = getattr(settings, "target_size", settings.vocabulary)
    return size


@pytest.mark.parametrize("recipe", EMBEDDED, ids=lambda path: path.stem)
def test_a_recipe_trains_goes_on_and_is_examined(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of Python's library only the package `asyncio` is read, and of the grammar 2,000 pairs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(embedded, "python_library", lambda: Path(asyncio.__path__[0]))
    short = ["train.steps=3", "train.epochs=none", "train.minutes=none", "train.total_tokens=none"]
    often = ["train.log_every=1", "train.evaluate_every=2", "train.schedule.warmup=1", "--device", "cpu"]
    smaller = ["data.train_pairs=2_000", "data.valid_pairs=100"] if recipe.stem == "grammar" else []
    if start := read_job(recipe).train.start:
        run("train", str(RECIPES / f"{Path(start).name}.toml"), *short, *often)
    done = run("train", str(recipe), *short, *often, *smaller, "--json")
    outcome = json.loads(done.stdout)
    directory = Path("runs", recipe.stem)
    assert (outcome["directory"], outcome["step"]) == (str(directory), 3)
    log = read_log(directory / "log.jsonl")
    assert [record["kind"] for record in log] == ["data", "train", "train", "valid", "train", "valid", "end"]
    first = next(record["loss"] for record in log if record["kind"] == "train")
    assert first == pytest.approx(math.log(choices(load_model(directory))), rel=0.25), "fresh weights guess"

    prolonged = run("train", "--resume", str(directory), "train.steps=5", "--json")
    assert json.loads(prolonged.stdout)["step"] == 5
    assert "resuming at step 3" in prolonged.stderr
    steps = [record["step"] for record in read_log(directory / "log.jsonl") if record["kind"] == "train"]
    assert steps == [1, 2, 3, 4, 5]

    findings = json.loads(run("doctor", str(directory), "--json").stdout)["findings"]
    assert "the run finished" in {finding["title"] for finding in findings}
    rows = {row["name"]: (row["state"], row["step"]) for row in json.loads(run("runs", "--json").stdout)}
    assert rows[recipe.stem] == ("finished", 5)
