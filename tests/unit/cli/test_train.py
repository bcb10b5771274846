"""`regard train`: from a recipe to a run, and on from there; what is wrong is one line and an exit code."""

from __future__ import annotations

import json
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import regard
from regard.cli import app as cli
from regard.training.run import read_log

pytestmark = pytest.mark.slow

RECIPE = """
task = "translate"

[data]
train = ["train.en", "train.de"]
valid = ["train.en", "train.de"]

[text]
kind = "words"

[model]
kind = "encoder-decoder"
width = 16
depth = 1
attention = { heads = 2 }
ffn = { kind = "dense", hidden = 16 }

[train]
steps = 12
tokens = 64
log_every = 2
evaluate_every = 4
"""
NOUNS = {"dog": "Hund", "cat": "Kater", "bird": "Vogel", "man": "Mann"}
VERBS = {"runs": "läuft", "sleeps": "schläft", "sings": "singt"}


class Said(NamedTuple):
    code: int
    out: str
    err: str


Regard = Callable[..., Said]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, _cache: Path) -> Path:
    """A recipe with its files, and a run of it in `runs/recipe`."""
    place = tmp_path_factory.mktemp("home")
    pairs = [(f"the {noun} {verb}", f"der {NOUNS[noun]} {VERBS[verb]}") for noun in NOUNS for verb in VERBS]
    for name, texts in zip(("train.en", "train.de"), zip(*pairs, strict=True), strict=True):
        (place / name).write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    (place / "recipe.toml").write_text(RECIPE, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(_cache))
        patch.chdir(place)
        regard.train("recipe.toml", threads=1, device="cpu", display=None)
    return place


@pytest.fixture(autouse=True)
def _here(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every test has the files, and a copy of the run, to itself; drawing takes longer than all else."""
    shutil.copytree(home, tmp_path / "home")
    monkeypatch.chdir(tmp_path / "home")
    monkeypatch.setattr("regard.tasks.run.draw_curves", lambda *_: False)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Regard:
    """`regard` with these words, as its program calls it."""

    def call(*words: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["regard", *words])
        with pytest.raises(SystemExit) as end:
            cli.main()
        code = end.value.code
        return Said(code if isinstance(code, int) else 0, *capsys.readouterr())

    return call


def config(run: str) -> dict[str, Any]:
    return tomllib.loads(Path(run, "config.toml").read_text(encoding="utf-8"))


def test_a_run_reports_on_stderr_and_can_be_repeated(run: Regard, home: Path) -> None:
    said = run("train", "recipe.toml", "train.directory=new", "--threads", "1", "--device", "cpu")
    assert (said.code, said.out) == (0, "")
    lines = said.err.splitlines()
    assert lines[0].startswith("train: 12 examples, ")
    assert sum("valid  loss" in line for line in lines) == 3
    assert any(line.startswith("done after 12 steps") and "train.steps (12)" in line for line in lines)
    assert lines[-2:] == ["check:  regard doctor new", 'use:    regard translate new "TEXT"']
    said = run("predict", "new", "the dog runs", "the cat sleeps", "--device", "cpu")
    assert (said.code, said.err, said.out.count("\n")) == (0, "", 2)
    assert Path("new/weights.safetensors").read_bytes() == (home / "runs/recipe/weights.safetensors").read_bytes()


def test_a_result_as_json_and_overrides(run: Regard, home: Path) -> None:
    words = ["model.dropout=0.25", "train.optimizer.rate=2e-3", "train.steps=1", "train.directory=new"]
    said = run("train", "recipe.toml", *words, "--threads", "2", "--json", "--quiet", "--device", "cpu")
    assert (said.code, said.err) == (0, "")
    found = json.loads(said.out)
    status = json.loads(Path("new/status.json").read_text())
    assert found == {"directory": "new", "reason": "budget", "step": 1, "scores": status["metrics"]}
    assert found["scores"]["loss"] == read_log(Path("new/log.jsonl"))[-1]["loss"]
    kept = config("new")
    assert (kept["model"]["dropout"], kept["train"]["optimizer"]["rate"], kept["train"]["steps"]) == (0.25, 2e-3, 1)
    assert json.loads(Path("new/environment.json").read_text())["threads"] == 2


def test_a_resumed_run_can_be_extended(run: Regard) -> None:
    torch.set_num_threads(2)
    said = run("train", "--resume", "runs/recipe", "train.steps=20", "--json", "--device", "cpu")
    assert said.code == 0
    assert json.loads(said.out)["step"] == 20
    assert "at step 12" in said.err
    log = read_log(Path("runs/recipe/log.jsonl"))
    assert [record["step"] for record in log if record["kind"] == "train"] == [*range(2, 21, 2)]
    assert config("runs/recipe")["train"]["steps"] == 20
    environment = json.loads(Path("runs/recipe/environment.json").read_text())
    assert environment["threads"] == 1, "a resumed run uses as many threads as before"
    assert all("threads" not in resumed["changed"] for resumed in environment["resumes"])


def test_a_change_that_would_make_it_another_run_is_refused(run: Regard) -> None:
    before = Path("runs/recipe/config.toml").read_bytes()
    for override, message in (
        ("train.seed=2", "train.seed"),
        ("train.step=20", "train.step"),
        ("model.dropout=0.2", "model.dropout"),
        ("data.longest=9", "data.longest"),
        ("task=language", "task"),
    ):
        said = run("train", "--resume", "runs/recipe", override)
        assert said.code == 2
        assert said.err.startswith(f"regard: {message} cannot be changed")
        assert "train.start=RUN" in said.err
        assert Path("runs/recipe/config.toml").read_bytes() == before


def test_an_error_is_one_line(run: Regard) -> None:
    for words, code, message in (
        ("", 2, "the recipe is missing"),
        ("one.toml two.toml", 2, "2 recipes are given (one.toml, two.toml)"),
        ("missing.toml", 2, "recipe (missing.toml)"),
        ("recipe.toml train.stesp=5", 2, "train.stesp (did you mean steps?)"),
        ("recipe.toml model.kind=decoder", 2, "model.kind (decoder)"),
        ("recipe.toml", 1, "runs/recipe"),
        ("recipe.toml train.directory=runs", 1, "runs is not empty"),
        ("recipe.toml train.directory=new data.root=nowhere", 1, "nowhere/train.en does not exist"),
        ("recipe.toml train.directory=new train.start=nowhere", 1, "model nowhere is unknown"),
        ("recipe.toml train.directory=new --device nonsense", 2, "device (nonsense)"),
        ("--resume nothing", 1, "nothing does not exist or has no config.toml"),
        ("recipe.toml --resume runs/recipe", 2, "'recipe.toml' is not an override"),
        ("recipe.toml --threads 0", 2, "--threads"),
    ):
        said = run("train", *words.split())
        assert (said.code, said.out) == (code, ""), words
        assert message in said.err
        assert "--threads" in words or (said.err.startswith("regard: ") and said.err.count("\n") == 1)
        assert not Path("new").exists()
