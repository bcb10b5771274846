"""`regard serve` up to the moment that it serves; tests/end_to_end/test_serve.py goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_translator import write_translator
from typer.testing import CliRunner

import regard.serving.app
import regard.serving.http
from regard.cli.app import app
from regard.errors import RegardError, RunError, SettingsError
from regard.serving.http import listen
from regard.serving.settings import Serving

runner = CliRunner()


def refused(*words: str) -> BaseException | None:
    return runner.invoke(app, ["serve", *words]).exception


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Serving]:
    found: list[Serving] = []

    monkeypatch.setattr(regard.serving.app, "create_app", lambda services, settings, *_: found.append(settings))
    monkeypatch.setattr(regard.serving.http, "run_server", lambda server, listening: None)
    return found


def test_options_and_settings_come_together(tmp_path: Path, served: list[Serving]) -> None:
    model = str(write_translator(tmp_path))
    words = [model, "--port", "0", "--threads", "1", "--api-key", "a", "--api-key", "b", "queue=300", "origins=['*']"]
    done = runner.invoke(app, ["serve", *words])
    assert done.exit_code == 0
    assert "translating de to en, en to de on http://127.0.0.1:" in done.stderr
    assert served == [Serving(port=0, threads=1, api_keys=("a", "b"), queue=300, origins=("*",))]
    assert runner.invoke(app, ["serve", model, "--port=0"], env={"REGARD_API_KEY": "c d"}).exit_code == 0
    assert served[1].api_keys == ("c", "d")


def test_wrong_settings(served: list[Serving]) -> None:
    for words, told in (
        (["queue=5"], "the model is missing"),
        (["m", "queu=5"], "queu .did you mean queue"),
        (["m", "--port", "70000"], "port .70000."),
        (["m", "queue=0"], "queue .0."),
    ):
        error = refused(*words)
        assert isinstance(error, SettingsError)
        with pytest.raises(SettingsError, match=told):
            raise error


def test_a_missing_model_and_a_port_in_use_are_told(served: list[Serving]) -> None:
    assert isinstance(refused("no-such-model", "--port=0"), RegardError)
    with listen("127.0.0.1", 0) as taken:
        assert isinstance(refused("de-en", f"--port={taken.getsockname()[1]}"), RunError)
    assert not served
