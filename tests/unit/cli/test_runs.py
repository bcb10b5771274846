"""`regard runs`: a list, and a comparison."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from run_cases import change, config, healthy_log, write_run
from typer.testing import CliRunner

from regard.cli.app import app
from regard.cli.train import setting_differences


@pytest.fixture(autouse=True)
def _runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three runs in `runs`: a finished one, one with another rate, one that was stopped; and a model alone."""
    monkeypatch.chdir(tmp_path)
    early = {"time": "2026-11-14T10:00:00+00:00"}
    write_run(Path("runs/baseline"), healthy_log(), environment=early)
    faster = config(optimizer={"kind": "adamw", "rate": 3e-3}, directory="runs/faster")
    late = {"time": "2026-11-15T09:30:00+00:00"}
    better = change(healthy_log(), "valid", lambda record: {"loss": record["loss"] - 0.2})
    write_run(Path("runs/faster"), better, faster, environment=late)
    begun = [record for record in healthy_log() if record.get("step", 0) <= 500]
    write_run(Path("runs/begun"), begun, state="stopped")
    Path("runs/model").mkdir()
    Path("runs/model/config.toml").write_text('format = 1\n[model]\nkind = "decoder"\n', encoding="utf-8")


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["runs", *arguments])


def shown(*arguments: str) -> list[str]:
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


# ------------------------------------------------------------------------------------------------------------- a list


def test_the_list_has_the_newest_first() -> None:
    lines = shown()
    assert lines[0].split()[:4] == ["run", "task", "state", "step"]
    assert [line.split()[0] for line in lines[1:]] == ["faster", "baseline", "begun"]
    told = "baseline translate finished 2,000 100 % 2.152 20.0 k 6.7 2026-11-14 10:00 accuracy 0.5000"
    assert " ".join(lines[2].split()) == told
    assert lines[3].split()[:6] == ["begun", "translate", "stopped", "500", "25", "%"]


@pytest.mark.parametrize(
    ("key", "order"),
    [
        ("name", ["baseline", "begun", "faster"]),
        ("loss", ["faster", "baseline", "begun"]),
        ("step", ["baseline", "faster", "begun"]),
        ("minutes", ["baseline", "faster", "begun"]),
    ],
)
def test_sorted(key: str, order: list[str]) -> None:
    assert [line.split()[0] for line in shown("--sort", key)[1:]] == order


def test_json_for_programs() -> None:
    rows = json.loads("\n".join(shown("runs", "--json", "--sort", "name")))
    assert [row["name"] for row in rows] == ["baseline", "begun", "faster"]
    assert rows[1]["state"] == "stopped"
    assert rows[1]["spent"] == 0.25
    assert rows[0]["figures"] == {"loss": pytest.approx(2.1524, abs=1e-3), "accuracy": 0.5}
    assert rows[0]["minutes"] == pytest.approx(2000 / 5 / 60)


def test_the_kept_weights_figures_come_before_those_of_evaluations() -> None:
    status = {"state": "finished", "step": 2000, "reason": "budget", "figures": {"loss": 1.5, "bleu": 41.25}}
    Path("runs/baseline/status.json").write_text(json.dumps(status), encoding="utf-8")
    assert "bleu 41.25" in shown("baseline")[1]


def test_a_damaged_run_does_not_hide_the_others() -> None:
    Path("runs/begun/config.toml").write_text("[", encoding="utf-8")
    result = invoke()
    assert result.exit_code == 0
    assert "begun" in result.stdout
    assert "unreadable" in result.stdout
    assert "begun/config.toml is not valid TOML" in result.stderr.replace("\\", "/")


def test_no_runs(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    result = invoke("empty")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "empty contains no runs; train one with `regard train RECIPE`" in result.stderr
    assert json.loads(invoke("empty", "--json").stdout) == []


# --------------------------------------------------------------------------------------------------------- comparing


@pytest.mark.parametrize(
    "words", [["baseline", "faster"], ["runs", "baseline", "faster"], ["runs/baseline", "runs/faster"]]
)
def test_two_runs_side_by_side(words: list[str]) -> None:
    lines = shown(*words)
    names = words[-2:]
    assert lines[0].split() == ["setting", *names]
    assert lines[1].split() == ["train.optimizer.rate", "0.001", "0.003"]
    assert lines[2] == "", "nothing else differs, directories aside"
    assert ["valid", "loss", "2.152", "1.952"] in [line.split() for line in lines]


def test_three_runs_as_json() -> None:
    found = json.loads("\n".join(shown("baseline", "faster", "begun", "--json")))
    assert [row["name"] for row in found["runs"]] == ["baseline", "faster", "begun"]
    assert found["settings"] == {"train.optimizer.rate": {"baseline": 0.001, "faster": 0.003, "begun": 0.001}}


def test_settings_that_a_run_lacks_differ() -> None:
    ours = {"format": 1, "task": {"kind": "image"}, "train": {"steps": 5, "directory": "x", "clip": 1.0}}
    theirs = {"format": 2, "task": {"kind": "image"}, "train": {"minutes": 2, "directory": "y", "clip": 1.0}}
    assert setting_differences({"a": ours, "b": theirs}) == {"train.steps": {"a": 5}, "train.minutes": {"b": 2}}


def test_a_run_that_is_not_there() -> None:
    command = [sys.executable, "-m", "regard", "runs", "baseline", "fastr"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == (
        "regard: run (fastr) is unknown (did you mean faster?); `regard runs runs` lists the runs in runs\n"
    )
