"""`regard demo`, which `make demo` runs."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from regard.cli import demo
from regard.cli.app import app
from regard.models.count import count
from regard.models.presets import PRESETS

RUNNER = CliRunner()


def test_every_family_is_counted_built_and_run() -> None:
    result = RUNNER.invoke(app, ["demo", "--json"])
    assert result.exit_code == 0
    rows = {row["family"]: row for row in json.loads(result.stdout)}
    assert list(rows) == ["encoder-decoder", "encoder", "decoder", "vision"]
    assert all(row["counted"] == row["built"] > 0 for row in rows.values())
    assert all(row["milliseconds"] > 0 for row in rows.values())
    assert {row["backend"] for row in rows.values()} <= {"sdpa", "flex"}
    for row in rows.values():
        settings = next(preset.settings for preset in PRESETS if preset.name == row["preset"])
        tokens = settings.tokens if row["family"] == "vision" else demo.LENGTH
        writes = row["family"] in ("encoder-decoder", "decoder")
        assert row["output"] == [demo.BATCH, tokens, settings.vocabulary if writes else settings.width]


def test_the_smallest_is_shown() -> None:
    for shown in demo.smallest_presets():
        others = [p.settings for p in PRESETS if p.settings.kind == shown.settings.kind and not p.counted_only]
        assert count(shown.settings).parameters == min(count(other).parameters for other in others)


def test_the_table_fits_a_terminal_and_says_what_to_run_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = RUNNER.invoke(app, ["demo"])
    assert result.exit_code == 0
    for word in ("encoder-decoder", "transformer-tiny", "bert-tiny", "llama-tiny", "vit-28", "equal", "backend"):
        assert word in result.stdout
    assert not {"…", "["} & set(result.stdout)
    assert "count transformer-base" in result.stdout


@pytest.mark.parametrize("arguments", [arguments for arguments, _ in demo.NEXT])
def test_what_to_run_next_runs(arguments: str) -> None:
    assert RUNNER.invoke(app, arguments.split()).exit_code == 0


def test_a_difference_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_counted", lambda preset: 1)
    assert RUNNER.invoke(app, ["demo"]).exit_code == 1
