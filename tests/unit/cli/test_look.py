"""`regard look` up to the moment that it serves; tests/browser/test_look.py goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tiny_models import write_decoder, write_vision
from tiny_translator import write_translator
from typer.testing import CliRunner

import regard.serving.look_run
from regard.cli.app import app
from regard.errors import DataError, InputError, SettingsError

runner = CliRunner()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    found: list[str | None] = []

    def look(study: Any, settings: Any, listening: Any, address: str | None, say: Any) -> None:
        assert listening.getsockname()[0] == "127.0.0.1"
        found.append(address)

    monkeypatch.setattr(regard.serving.look_run, "look", look)
    return found


def test_the_browser_is_sent_to_the_text(tmp_path: Path, opened: list[str | None]) -> None:
    model = str(write_translator(tmp_path))
    words = ["look", model, "ein <b>Hund</b> & mehr", "--target", "a dog", "--port", "0"]
    assert runner.invoke(app, words).exit_code == 0
    assert opened[0] is not None
    assert opened[0].endswith("/#text=ein+%3Cb%3EHund%3C%2Fb%3E+%26+mehr&target=a+dog")
    done = runner.invoke(app, ["look", model, "--port", "0", "--no-browser"])
    assert opened[1] is None
    assert "on http://127.0.0.1:" in done.stderr


def test_a_picture_for_a_model_of_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = []
    monkeypatch.setattr(regard.serving.look_run, "look", lambda study, *rest: found.append((study, rest[2])))
    model, file = str(write_vision(tmp_path / "model")), tmp_path / "picture.png"
    Image.fromarray(np.full((20, 20, 3), 77, np.uint8)).save(file)
    assert runner.invoke(app, ["look", model, str(file), "--port", "0"]).exit_code == 0
    assert runner.invoke(app, ["look", model, "--port", "0"]).exit_code == 0
    (study, address), (bare, _) = found
    assert study.picture.name == "picture.png"
    assert study.picture.pixels.tolist() == np.full((1, 8, 8), 77).tolist()
    assert address.endswith("/")
    assert bare.picture is None
    page = tmp_path / "page.html"
    done = runner.invoke(app, ["look", model, str(file), "--html", str(page)])
    assert done.exit_code == 0, done.exception
    error = runner.invoke(app, ["look", model, str(tmp_path / "nowhere.png"), "--port", "0"]).exception
    assert isinstance(error, DataError)
    assert "nowhere.png does not exist; name a file with an image" in str(error)


def test_a_file(tmp_path: Path) -> None:
    model, file = str(write_translator(tmp_path / "model")), tmp_path / "look.html"
    done = runner.invoke(app, ["look", model, "ein Hund", "--to", "en", "--html", str(file)])
    assert done.exit_code == 0, done.output
    page = file.read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "http://" not in page
    assert 'src="' not in page


def test_another_model_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    studies: list[Any] = []
    monkeypatch.setattr(regard.serving.look_run, "look", lambda study, *rest: studies.append(study))
    model, other = str(write_translator(tmp_path / "one")), str(write_translator(tmp_path / "two"))
    done = runner.invoke(app, ["look", model, "ein", "--beside", other, "--port", "0", "--no-browser"])
    assert done.exit_code == 0, done.output
    assert studies[0].beside.loaded.name == other
    error = runner.invoke(
        app, ["look", model, "--beside", str(write_decoder(tmp_path / "three")), "--port", "0"]
    ).exception
    assert isinstance(error, InputError)
    assert "is of kind decoder, and" in str(error)
    assert len(studies) == 1
    error = runner.invoke(app, ["look", model, "ein", "--beside", other, "--html", "a.html"]).exception
    assert "leave one of them out" in str(error)


def test_what_is_wrong_is_told(tmp_path: Path) -> None:
    error = runner.invoke(app, ["look", "m", "--html", str(tmp_path / "a.html")]).exception
    assert isinstance(error, InputError)
    assert "--html needs a text" in str(error)
    error = runner.invoke(app, ["look", "m", "--port", "70000"]).exception
    assert isinstance(error, SettingsError)
    model = str(write_translator(tmp_path / "model"))
    nowhere = tmp_path / "nowhere" / "a.html"
    error = runner.invoke(app, ["look", model, "ein", "--to", "en", "--html", str(nowhere)]).exception
    assert isinstance(error, InputError)
    assert "cannot be written" in str(error)
