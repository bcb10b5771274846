"""`regard runs` and `regard doctor` on logs that are written by the test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from run_cases import change, config, healthy_log, write_run
from typer.testing import CliRunner

from regard.cli.app import app
from regard.errors import RunError
from regard.settings import read_toml


@pytest.fixture(autouse=True)
def _runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three runs in `runs` (finished, finished with another rate, stopped), a model alone, and an odd run."""
    monkeypatch.chdir(tmp_path)
    early, late = ({"time": f"2026-11-{day}:00+00:00"} for day in ("14T10:00", "15T09:30"))
    write_run(Path("runs/baseline"), healthy_log(), environment=early)
    faster = config(optimizer={"kind": "adamw", "rate": 3e-3}, directory="runs/faster")
    better = change(healthy_log(), "valid", lambda record: {"loss": record["loss"] - 0.2})
    write_run(Path("runs/faster"), better, faster, environment=late)
    write_run(Path("runs/begun"), [each for each in healthy_log() if each.get("step", 0) <= 500], state="stopped")
    Path("runs/model").mkdir()
    Path("runs/model/config.toml").write_text('format = 1\n[model]\nkind = "decoder"\n', encoding="utf-8")
    write_run(Path("odd"), change(healthy_log(), "train", lambda record: {"wait": 0.5, "padding": 0.3}))


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, arguments)


def shown(*arguments: str) -> list[str]:
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def test_list() -> None:
    lines = shown("runs")
    assert lines[0].split()[:4] == ["run", "task", "state", "step"]
    assert [line.split()[0] for line in lines[1:]] == ["faster", "baseline", "begun"], "the newest first"
    expected = "baseline translate finished 2,000 100 % 2.152 20.0 k 6.7 2026-11-14 10:00 accuracy 0.5000"
    assert " ".join(lines[2].split()) == expected
    assert lines[3].split()[:6] == ["begun", "translate", "stopped", "500", "25", "%"]


def test_runs_in_folders_and_a_missing_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(Path("runs/demo/grammar"), healthy_log())
    assert "demo/grammar" in [line.split()[0] for line in shown("runs")]
    assert shown("runs", "demo/grammar")[1].startswith("demo/grammar")
    assert shown("runs", "baseline", "demo/grammar")
    monkeypatch.chdir(tmp_path / "odd")
    for words in (("runs",), ("runs", "runs")):
        result = invoke(*words)
        assert (result.exit_code, result.stdout) == (0, "")
        assert result.stderr == "runs contains no runs; train one with `regard train RECIPE`\n"


def test_a_run_without_a_training_record_has_no_number_of_tokens() -> None:
    write_run(Path("runs/short"), [each for each in healthy_log() if each["kind"] != "train"])
    lines = shown("runs", "baseline", "short")
    (tokens,) = [line.split() for line in lines if line.startswith("tokens ")]
    assert tokens[-1] == "M", tokens  # of the baseline alone


def test_damaged_and_missing_runs() -> None:
    Path("runs/begun/config.toml").write_text("[", encoding="utf-8")
    result = invoke("runs")
    assert result.exit_code == 0
    assert "unreadable" in next(line for line in result.stdout.splitlines() if line.startswith("begun"))
    assert "config.toml" in result.stderr
    Path("empty").mkdir()
    result = invoke("runs", "empty")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "empty contains no runs" in result.stderr
    assert json.loads(invoke("runs", "empty", "--json").stdout) == []
    error = invoke("runs", "baseline", "fastr").exception
    assert isinstance(error, RunError)
    assert "run (fastr) is unknown (did you mean faster?)" in str(error)


def test_comparison() -> None:
    for words in (["baseline", "faster"], ["runs", "baseline", "faster"], ["runs/baseline", "runs/faster"]):
        lines = [line.split() for line in shown("runs", *words)]
        assert lines[0] == ["setting", *words[-2:]]
        assert lines[1] == ["train.optimizer.rate", "0.001", "0.003"]
        assert lines[2] == [], "only the directory differs, too"
        assert ["valid", "loss", "2.152", "1.952"] in lines
    found = json.loads("\n".join(shown("runs", "baseline", "faster", "begun", "--json")))
    assert [row["name"] for row in found["runs"]] == ["baseline", "faster", "begun"]
    assert found["settings"] == {"train.optimizer.rate": {"baseline": 0.001, "faster": 0.003, "begun": 0.001}}


def test_rows_as_json() -> None:
    rows = {row["name"]: row for row in json.loads("\n".join(shown("runs", "runs", "--json")))}
    assert (rows["begun"]["state"], rows["begun"]["spent"]) == ("stopped", 0.25)
    assert rows["baseline"]["metrics"] == {"loss": pytest.approx(2.1524, abs=1e-3), "accuracy": 0.5}
    assert rows["baseline"]["minutes"] == pytest.approx(2000 / 5 / 60)
    status = {"state": "finished", "step": 2000, "reason": "budget", "metrics": {"loss": 1.5, "bleu": 41.25}}
    Path("runs/baseline/status.json").write_text(json.dumps(status), encoding="utf-8")
    assert "bleu 41.25" in shown("runs", "baseline")[1], "metrics of the saved weights come first"


def test_a_healthy_and_an_odd_run() -> None:
    assert shown("doctor", "runs/baseline")[0].startswith("runs/baseline: looks normal: ")
    lines = shown("doctor", "odd")
    assert lines[0].startswith("odd: does not look normal: 1 odd, ")
    first = lines.index("odd   training waits for data")
    assert lines[first + 1] == "      50 % of the time"
    assert lines[first + 2].startswith("      → ")
    assert "train.workers" in lines[first + 2]
    found = json.loads("\n".join(shown("doctor", "odd", "--json")))
    assert (found["run"], found["worst"]) == ("odd", "odd")
    assert set(found["findings"][0]) == {"level", "title", "evidence", "remedy"}
    result = CliRunner(charset="ascii").invoke(app, ["doctor", "odd"])
    assert result.stdout.isascii()
    assert "      -> " in result.stdout


def test_other_outputs_of_the_doctor(tmp_path: Path) -> None:
    table = read_toml("\n".join(shown("doctor", "runs/baseline", "--reference-table")))
    assert list(table) == ["reference"]
    assert table["reference"]["loss"][-1][0] == 2000
    assert isinstance(invoke("doctor", str(tmp_path)).exception, RunError)
    pytest.importorskip("matplotlib", reason="needs the extra `plot`")
    shown("doctor", "runs/baseline", "--png", "curves.png")
    assert Path("curves.png").stat().st_size > 10_000


def test_one_bad_item_does_not_end_the_whole() -> None:
    """Damaged lines and values of logs, states and environments: doctor reports, and runs lists all runs."""
    deep, long = "[" * 100_000, "9" * 5_000
    records = (
        '{"kind": "train", "step": ' + long + "}",
        deep,
        '{"kind": "end", "seconds": "x", "step": [1]}',
        "[1]",
        "{",
    )
    with Path("runs/begun/log.jsonl").open("a", encoding="utf-8") as log:
        log.writelines(f"{record}\n" for record in records)
        log.write('{"kind": "data", "train": {"examples": [1], "skipped": "x", "unknown": 1e999}, "valid": 3}\n')
        log.write('{"kind": "train", "step": 510, "tokens": {}, "loss": ' + "9" * 400 + ', "epochs": null}\n')
    for content in (
        f'{{"state": "finished", "step": {long}}}',
        f'{{"state": {deep}',
        '{"state": ["finished"]}',
        '{"state": "finished", "step": "x", "metrics": 3}',
        '{"state": "finished", "step": 3, "metrics": {"loss": ' + "9" * 400 + "}}",
        "[]",
    ):
        Path("runs/begun/status.json").write_text(content, encoding="utf-8")
        Path("runs/begun/environment.json").write_text(content, encoding="utf-8")
        assert {line.split()[0] for line in shown("runs")[1:]} == {"faster", "baseline", "begun"}
        lines = shown("doctor", "runs/begun")
        assert any("lines of the log are damaged" in line for line in lines)
        assert any("4 of log.jsonl, first line" in line for line in lines)
    for content in (f"a = {deep}", f"a = {long}", f"{'a.' * 5_000}b = 1"):
        Path("runs/begun/config.toml").write_text(content, encoding="utf-8")
        assert {line.split()[0] for line in shown("runs")[1:]} == {"faster", "baseline", "begun"}
