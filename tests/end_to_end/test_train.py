"""Every recipe that needs no files trains, goes on and is examined, by the commands that its header names."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from regard.data.settings import EmbeddedSettings
from regard.models.settings import Classification, Vision
from regard.tasks.recipe import read_job
from regard.training.run import read_log
from regard.weights.directory import load_model

pytestmark = pytest.mark.slow

RECIPES = Path(__file__).parents[2] / "recipes"
EMBEDDED = [path for path in sorted(RECIPES.glob("*.toml")) if isinstance(read_job(path).data, EmbeddedSettings)]
SMALLER = {
    "grammar": ["data.train_pairs=2_000", "data.valid_pairs=100"],
    "python-language": ["data.docstrings=true"],
}
"""What would take longer than the steps."""


def run(verb: str, *words: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "regard", verb, *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done


def choices(model: Any) -> int:
    """Among how many answers a model that knows nothing chooses."""
    settings = model.settings
    if isinstance(settings, Vision):
        (head,) = (head for head in settings.heads.values() if isinstance(head, Classification))
        return head.classes
    size: int = getattr(settings, "target_size", settings.vocabulary)
    return size


@pytest.mark.parametrize("recipe", EMBEDDED, ids=lambda path: path.stem)
def test_a_recipe_trains_goes_on_and_is_examined(recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    short = ["train.steps=3", "train.epochs=none", "train.minutes=none", "train.total_tokens=none"]
    often = ["train.log_every=1", "train.evaluate_every=2", "train.schedule.warmup=1", "--device", "cpu"]
    done = run("train", str(recipe), *short, *often, *SMALLER.get(recipe.stem, ()), "--json")
    told = json.loads(done.stdout)
    place = Path("runs", recipe.stem)
    assert (told["directory"], told["step"]) == (str(place), 3)
    log = read_log(place / "log.jsonl")
    assert [record["kind"] for record in log] == ["data", "train", "train", "valid", "train", "valid", "end"]
    first = next(record["loss"] for record in log if record["kind"] == "train")
    assert first == pytest.approx(math.log(choices(load_model(place))), rel=0.25), "fresh weights guess"

    prolonged = run("train", "--resume", str(place), "train.steps=5", "--json")
    assert json.loads(prolonged.stdout)["step"] == 5
    assert "resuming at step 3" in prolonged.stderr
    steps = [record["step"] for record in read_log(place / "log.jsonl") if record["kind"] == "train"]
    assert steps == [1, 2, 3, 4, 5]

    findings = json.loads(run("doctor", str(place), "--json").stdout)["findings"]
    assert "the run finished" in {finding["title"] for finding in findings}
    (row,) = json.loads(run("runs", "--json").stdout)
    assert (row["name"], row["state"], row["step"]) == (recipe.stem, "finished", 5)
