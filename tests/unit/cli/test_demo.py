"""`regard demo`, which `make demo` runs: here with a recipe that takes a second."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from regard import shipped
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
    for told in ("German to English", "Alignment of", "exact matches", "gender of the nearest noun", "Try next"):
        assert told in result.stdout
    assert "    I ate an apple yesterday." in result.stdout
    assert "translate de-en" in result.stdout
    assert "The animal didn't cross the street because it was too timid." in result.stdout
    assert Path("runs/demo/alignment.png").read_bytes().startswith(b"\x89PNG")
    assert Path("runs/demo/small/weights.safetensors").is_file()


def test_a_second_time_it_takes_the_next_directory() -> None:
    for number in (1, 2):
        result = RUNNER.invoke(app, ["demo", "--steps", "1", "--json"])
        assert result.exit_code == 0, result.output
        told = json.loads(result.stdout)
        assert told["run"] == str(Path("runs") / ("demo" if number == 1 else "demo-2") / "small")
        assert [each["source"] for each in told["translations"]] == list(demo.SENTENCES)
        assert 0 <= told["exact"] <= 1
        assert len(told["resolved"]) == 4


@pytest.mark.parametrize("arguments", [arguments for arguments, _ in demo.NEXT])
def test_what_to_run_next_is_there(arguments: str) -> None:
    verb = arguments.split()[0]
    assert RUNNER.invoke(app, [verb, "--help"]).exit_code == 0
    for name in ("digits",):
        assert shipped.recipe(name) is not None
    assert shipped.recipe("nothing-of-the-kind") is None
