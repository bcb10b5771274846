"""`regard look` up to the moment that it serves; tests/browser/test_look.py goes on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tiny_models import write_decoder, write_vision
from tiny_translator import write_translator
from typer.testing import CliRunner

import regard.serving.page
import regard.serving.page_file
from regard.cli.app import app
from regard.errors import DataError, InputError, SettingsError

pytestmark = pytest.mark.slow

runner = CliRunner()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    found: list[str | None] = []

    def look(study: Any, settings: Any, listening: Any, address: str | None, say: Any) -> None:
        assert listening.getsockname()[0] == "127.0.0.1"
        found.append(address)

    monkeypatch.setattr(regard.serving.page, "serve_page", look)
    return found


def test_the_address_contains_the_text_and_the_view(tmp_path: Path, opened: list[str | None]) -> None:
    model = str(write_translator(tmp_path))
    for words, end in (
        (["ein <b>Hund</b> & mehr", "--target", "a dog"], "/#text=ein+%3Cb%3EHund%3C%2Fb%3E+%26+mehr&target=a+dog"),
        (
            ["ein Hund", "--view", "walk", "--at", "decoder.0.cross.1"],
            "#text=ein+Hund&at=decoder.cross&layer=0&head=1&view=walk",
        ),
    ):
        assert runner.invoke(app, ["look", model, *words, "--port", "0"]).exit_code == 0
        assert str(opened[-1]).endswith(end)
    done = runner.invoke(app, ["look", model, "--port", "0", "--no-browser"])
    assert opened[-1] is None
    assert "on http://127.0.0.1:" in done.stderr


def test_a_picture_for_a_model_of_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = []
    monkeypatch.setattr(regard.serving.page, "serve_page", lambda study, *rest: found.append((study, rest[2])))
    model, file = str(write_vision(tmp_path / "model")), tmp_path / "picture.png"
    Image.fromarray(np.full((20, 20, 3), 77, np.uint8)).save(file)
    assert runner.invoke(app, ["look", model, str(file), "--port", "0"]).exit_code == 0
    assert runner.invoke(app, ["look", model, "--port", "0"]).exit_code == 0
    (study, address), (bare, _) = found
    assert study.picture[0] == "picture.png"
    assert study.picture[1].tolist() == np.full((1, 8, 8), 77).tolist()
    assert address.endswith("/")
    assert bare.picture is None
    page = tmp_path / "page.html"
    done = runner.invoke(app, ["look", model, str(file), "--html", str(page)])
    assert done.exit_code == 0, done.exception
    error = runner.invoke(app, ["look", model, str(tmp_path / "nowhere.png"), "--port", "0"]).exception
    assert isinstance(error, DataError)
    assert "nowhere.png" in str(error)


def test_a_page_and_a_picture(tmp_path: Path) -> None:
    model, file = str(write_translator(tmp_path / "model")), tmp_path / "look.html"
    done = runner.invoke(app, ["look", model, "ein Hund", "--to", "en", "--html", str(file)])
    assert done.exit_code == 0, done.output
    assert re.search(r"look\.html: architecture, heads, words, walk, .*compare; \d\.\d MiB", done.stderr)
    page = file.read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert not re.search(r'http://|src="', page)
    done = runner.invoke(app, ["look", model, "ein", "--html", str(file), "--views", "heads, walk", "--view", "walk"])
    assert "heads, walk;" in done.stderr
    assert '"view":"walk"' in file.read_text(encoding="utf-8")
    picture = tmp_path / "a.png"
    words = ["look", model, "ein Hund", "--picture", str(picture), "--view", "heads", "--at", "decoder.0.cross.1"]
    done = runner.invoke(app, words)
    assert done.exit_code == 0, done.output
    assert picture.stat().st_size > 1000
    assert "KiB" in done.stderr


def test_another_model_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    studies: list[Any] = []
    monkeypatch.setattr(regard.serving.page, "serve_page", lambda study, *rest: studies.append(study))
    model, other = str(write_translator(tmp_path / "one")), str(write_translator(tmp_path / "two"))
    done = runner.invoke(app, ["look", model, "ein", "--against", other, "--port", "0", "--no-browser"])
    assert done.exit_code == 0, done.output
    assert studies[0].against.loaded.name == other
    error = runner.invoke(
        app, ["look", model, "--against", str(write_decoder(tmp_path / "three")), "--port", "0"]
    ).exception
    assert isinstance(error, InputError)
    assert "has kind decoder" in str(error)
    assert len(studies) == 1
    page = tmp_path / "page.html"
    done = runner.invoke(app, ["look", model, "ein", "--against", other, "--html", str(page), "--views", "compare"])
    assert done.exit_code == 0, done.output
    assert str(tmp_path) not in page.read_text(encoding="utf-8"), "where the models lie is not told"


def test_what_is_wrong_is_told(tmp_path: Path) -> None:
    model = str(write_translator(tmp_path / "model"))
    file, nowhere = str(tmp_path / "a.html"), str(tmp_path / "nowhere" / "a.html")
    cases = [
        ([model, "--html", file], InputError, "--html needs a text"),
        ([model, "--port", "70000"], SettingsError, "port"),
        ([model, "a", "--views", "heads"], SettingsError, "--views .heads. needs a file"),
        ([model, "a", "--picture", "a.gif"], InputError, "a.gif cannot be written"),
        ([model, "a", "--html", nowhere], InputError, "cannot be written"),
        ([model, "ein", "--html", file, "--views", "heads,wlak"], InputError, "view .wlak. .*did you mean walk"),
        ([model, "ein", "--html", file, "--at", "decoder.9.cross.0"], InputError, "not in this model"),
        ([model, "ein", "--port", "0", "--view", "no"], InputError, "view .no."),
    ]
    for words, kind, told in cases:
        error = runner.invoke(app, ["look", *words]).exception
        assert isinstance(error, kind), (words, error)
        assert re.search(told, str(error)), error
    assert not Path(file).exists()
