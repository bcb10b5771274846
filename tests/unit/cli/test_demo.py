"""`regard demo`, which `make demo` runs: here with a recipe that takes a second."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from regard.cli import demo
from regard.cli.app import app

pytestmark = pytest.mark.slow

RUNNER = CliRunner()
SMALL = """
task = "translate"
data = { kind = "grammar", train_pairs = 60, valid_pairs = 10 }
text = { kind = "words" }
model = { preset = "transformer-tiny", depth = 1, width = 16 }
train = { steps = 40, tokens = 256 }
"""


@pytest.fixture(autouse=True)
def _small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("small.toml").write_text(SMALL, encoding="utf-8")
    monkeypatch.setattr(demo, "RECIPE", "small.toml")
    monkeypatch.setattr(demo, "TESTED", 4)


def test_it_translates_draws_trains_and_tests() -> None:
    result = RUNNER.invoke(app, ["demo", "--steps", "2"])
    assert result.exit_code == 0, result.output
    for shown in ("German to English", "Alignment of", "exact matches", "gender of the nearest noun", "Try next"):
        assert shown in result.stdout
    assert "    I ate an apple yesterday." in result.stdout
    assert "The animal didn't cross the street because it was too timid." in result.stdout
    assert Path("runs/demo/alignment.png").is_file()
    assert Path("runs/demo/small/weights.safetensors").is_file()
    result = RUNNER.invoke(app, ["demo", "--steps", "1", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["run"] == str(Path("runs/demo-2/small"))
    assert [each["source"] for each in found["translations"]] == list(demo.SENTENCES)
    assert 0 <= found["exact"] <= 1
    assert len(found["resolved"]) == 4


def test_the_next_commands_exist() -> None:
    for arguments, _ in demo.NEXT:
        assert RUNNER.invoke(app, [arguments.split()[0], "--help"]).exit_code == 0
