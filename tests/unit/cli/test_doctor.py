"""`regard doctor`: a screen for people, JSON for programs, a picture, and a table for recipes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from run_cases import change, healthy_log, write_run
from typer.testing import CliRunner

from regard.cli.app import app
from regard.settings import read_toml


@pytest.fixture
def healthy(tmp_path: Path) -> Path:
    return write_run(tmp_path / "healthy", healthy_log())


@pytest.fixture
def ill(tmp_path: Path) -> Path:
    log = change(healthy_log(), "train", lambda record: {"wait": 0.5, "padding": 0.3})
    return write_run(tmp_path / "ill", log)


def shown(*arguments: object) -> list[str]:
    result = CliRunner().invoke(app, ["doctor", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "regard", "doctor", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environment)


def test_a_healthy_run(healthy: Path) -> None:
    lines = shown(healthy)
    assert lines[0].startswith(f"{healthy}: looks normal: ")
    assert any(line.startswith("fine  the training loss falls: from ") for line in lines)
    assert not any(line.startswith(("bad", "odd", "note")) for line in lines)
    assert not any("\x1b" in line for line in lines)


def test_what_is_odd_comes_first_with_its_remedy(ill: Path) -> None:
    lines = shown(ill)
    assert lines[0].startswith(f"{ill}: does not look normal: 1 odd, 1 note, ")
    findings = [line[:5].strip() for line in lines if line[:6] in ("bad   ", "odd   ", "note  ", "fine  ")]
    assert findings[:2] == ["odd", "note"]
    assert set(findings[2:]) == {"fine"}
    first = lines.index("odd   training waits for data")
    assert lines[first + 1] == "      50 % of the time"
    assert lines[first + 2].startswith("      → increase train.workers")


def test_json_for_programs(ill: Path) -> None:
    found = json.loads("\n".join(shown(ill, "--json")))
    assert found["run"] == str(ill)
    assert found["worst"] == "odd"
    first = found["findings"][0]
    assert set(first) == {"level", "title", "evidence", "remedy"}
    assert (first["level"], first["title"]) == ("odd", "training waits for data")


def test_a_picture(healthy: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra `plot`")
    shown(healthy, "--png", tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_table_for_the_recipe(healthy: Path) -> None:
    table = read_toml("\n".join(shown(healthy, "--reference")))
    assert list(table) == ["reference"]
    assert table["reference"]["loss"][-1][0] == 2000


def test_what_is_no_run_fails_with_one_line(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(f"regard: {tmp_path} is not a run")
    assert (done.stdout, done.stderr.count("\n")) == ("", 1)


def test_a_terminal_of_few_letters(ill: Path) -> None:
    done = run(ill, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()
    assert "-> increase train.workers" in done.stdout
