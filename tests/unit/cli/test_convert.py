"""`regard convert`: what was written is told, and errors are one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import regard
from regard.blocks.settings import Attention
from regard.cli.app import app
from regard.errors import RunError
from regard.models.settings import Decoder
from regard.weights.directory import save_model


@pytest.fixture
def run(tmp_path: Path) -> Path:
    save_model(regard.build(Decoder(vocabulary=300, width=16, depth=1, attention=Attention(heads=2))), tmp_path / "run")
    return tmp_path / "run"


def test_files_and_sizes_are_told(run: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["convert", str(run), "--to", "int8", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "out").iterdir()}
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[0][-2:] == ["(int8)", "bytes"]
    assert {line[0]: line[1] for line in lines[1:-1]} == {name: f"{size:,}" for name, size in sizes.items()}
    assert lines[-1] == ["in", "all", f"{sum(sizes.values()):,}"]


def test_json_for_programs(run: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["convert", str(run), str(tmp_path / "out"), "--to", "bf16", "--json"])
    found = json.loads(result.stdout)
    assert (found["directory"], found["form"]) == (str(tmp_path / "out"), "bf16")
    assert found["bytes"] == sum(path.stat().st_size for path in (tmp_path / "out").iterdir())


def test_what_is_there_stays(run: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "letter.txt").write_text("dear")
    result = CliRunner().invoke(app, ["convert", str(run), str(tmp_path / "out"), "--to", "int8"])
    assert result.exit_code == 1
    assert isinstance(result.exception, RunError)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["letter.txt"]


def test_an_unknown_form(run: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["convert", str(run), str(tmp_path / "out"), "--to", "onnxx"])
    assert result.exit_code == 2
    assert "onnxx" in result.stderr
