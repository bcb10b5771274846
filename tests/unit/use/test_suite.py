"""Suites: one table for several tasks and seeds; finished runs are not repeated; test data never select weights."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from regard.errors import RunError, SettingsError
from regard.training.run import Run
from regard.use.suite import Result, Suite, markdown, read_suite

SUITE = """
[train]
steps = 4
tokens = 256
model = 1
[tasks.films]
task = "classify"
metrics = ["accuracy", "f1"]
data = { train = ["train.tsv"], valid = ["dev.tsv"] }
[tasks.tested]
task = "classify"
metrics = ["accuracy"]
data = { train = ["train.tsv"], hold_out = 0.2, test = ["dev.tsv"] }
"""


@pytest.mark.slow
def test_a_suite_runs_once_and_reports_test_data_where_there_are_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [f"a {word} film {number}\t{label}" for number in range(20) for word, label in (("good", 1), ("bad", 0))]
    (tmp_path / "train.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    (tmp_path / "dev.tsv").write_text("a good film\t1\na bad film\t0\n", encoding="utf-8")
    (tmp_path / "own.toml").write_text(SUITE.replace("model = 1\n", ""), encoding="utf-8")
    small = ["model.width=16", "model.depth=1", "model.attention.heads=2", "text.size=60"]
    suite = Suite(str(tmp_path / "own.toml"), str(tmp_path), None, tmp_path / "out", small, "cpu")
    results = suite.run(seeds=1)
    assert [(result.task, result.metric) for result in results] == [
        ("films", "accuracy"),
        ("films", "f1"),
        ("tested", "accuracy"),
    ]
    status = Run.open(tmp_path / "out/films/1").status.metrics
    assert results[0].values == (status["accuracy"],)
    tested = json.loads((tmp_path / "out/tested/1/test.json").read_text("utf-8"))
    assert tested["split"] == "test"
    assert results[2].values == (tested["metrics"]["accuracy"],)
    assert set(Run.open(tmp_path / "out/tested/1").config["prepared"]) == {"train", "valid"}

    def refuse(*command: object, **options: object) -> None:
        raise AssertionError("a finished run is repeated")

    monkeypatch.setattr(subprocess, "run", refuse)
    assert suite.run(seeds=1) == results
    for other in (replace(suite, changes=[*small, "train.steps=5"]), replace(suite, model="encoder")):
        with pytest.raises(RunError, match="other settings"):
            other.run(seeds=1)
    text = (tmp_path / "own.toml").read_text(encoding="utf-8")
    (tmp_path / "own.toml").write_text(text.replace('["accuracy", "f1"]', '["bleu"]'), encoding="utf-8")
    with pytest.raises(SettingsError, match=r"no metric bleu; choose of loss, accuracy"):
        suite.run(seeds=1)
    (tmp_path / "own.toml").write_text("[tasks.a]\ntask = 'tag'\n", encoding="utf-8")
    with pytest.raises(SettingsError, match="task, data and metrics"):
        suite.run(seeds=1)
    assert json.loads((tmp_path / "out/results.json").read_text("utf-8"))["results"][0]["task"] == "films"


def test_a_suite_without_settings_of_training(tmp_path: Path) -> None:
    text = '[tasks.films]\ntask = "classify"\nmetrics = ["f1"]\ndata = { train = ["train.tsv"] }\n'
    (tmp_path / "own.toml").write_text(text, encoding="utf-8")
    suite = Suite(str(tmp_path / "own.toml"), str(tmp_path), "encoder", tmp_path / "out")
    assert 'start = "encoder"' in Path(suite._recipe("films", 1, begun=False)).read_text(encoding="utf-8")


def test_the_table_has_medians_and_spreads() -> None:
    lines = list(markdown([Result("CoLA", "mcc", (0.1, 0.4, 0.2))]))
    assert lines[-1] == "| CoLA | mcc | 20.0 | 30.0 | 3 |"


@pytest.mark.slow
def test_wrong_suites_are_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="glue"):
        read_suite("glu")
    assert set(read_suite("glue")) == {"SST-2", "CoLA", "MRPC", "RTE", "STS-B"}
    (tmp_path / "own.toml").write_text(SUITE, encoding="utf-8")  # train.model does not exist
    with pytest.raises(RunError, match=r"films with seed 1 failed: .*train\.model"):
        Suite(str(tmp_path / "own.toml"), str(tmp_path), None, tmp_path / "out", (), "cpu").run(seeds=1)
