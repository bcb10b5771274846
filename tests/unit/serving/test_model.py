"""Real models behind the server, with random weights."""

from __future__ import annotations

from pathlib import Path

import pytest
from serving_cases import Parrot
from tiny_translator import write_translator

import regard
from regard.errors import InputError
from regard.models.settings import Encoder
from regard.serving.model import Models, open_models
from regard.serving.settings import Serving
from regard.serving.translating import Route, Translating
from regard.use.model import load
from regard.use.translator import Translator
from regard.weights.directory import save

THERE, BACK = Route("de", "en"), Route("en", "de")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_translator(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def models(directory: Path) -> Models:
    return open_models([str(directory)], Serving(beam=2, device="cpu"))


def test_it_is_what_the_server_asks_for(models: Models) -> None:
    as_asked: list[Translating] = [models, Parrot()]
    assert [list(each.directions) for each in as_asked] == [[("de", "en"), ("en", "de")]] * 2


def test_what_it_says_is_what_the_translator_says(models: Models, directory: Path) -> None:
    translator = load(directory, "cpu")
    texts = ["ein Hund", "eine Katze. und der Schnee?", "", "<b>Hund</b>"]
    found = models.translate(texts, THERE)
    assert [each.versions for each in found] == [(text,) for text in translator.translate(texts, to="en", beam=2)]
    assert found[0].tokens == len(translator.translate(texts[0], to="en", beam=2, details=True).tokens)
    back = models.translate(texts[:1], BACK)[0].versions[0]
    assert back == translator.translate(texts[0], to="de", beam=2) != found[0].versions[0]


def test_alternatives_widen_the_beam(models: Models, directory: Path) -> None:
    translator = load(directory, "cpu")
    wanted = [each.text for each in translator.translate("ein Hund", to="en", beam=4, nbest=4)]
    assert list(models.translate(["ein Hund"], Route("de", "en", 3))[0].versions) == wanted


def test_streams_are_the_greedy_translation(models: Models, directory: Path) -> None:
    pieces = list(models.stream("ein Hund", THERE))
    assert "".join(pieces) == load(directory, "cpu").translate("ein Hund", to="en", beam=1)
    assert len(pieces) > 1


def test_sizes_are_tokens(models: Models) -> None:
    short, long = models.sizes(["Hund", "ein Hund läuft durch den Schnee"], THERE)
    assert 1 <= short < long <= len("ein Hund läuft durch den Schnee".encode())


def test_several_models_serve_a_direction_each(directory: Path, tmp_path: Path) -> None:
    first, second = load(write_translator(tmp_path / "one", both=False), "cpu"), load(directory, "cpu")
    assert isinstance(first, Translator)
    assert isinstance(second, Translator)
    models = Models([first, second], beam=1)
    assert models.directions == [("de", "en"), ("en", "de")]
    assert models.translate(["Hund"], THERE)[0].versions[0] == first.translate("Hund", beam=1)
    assert models.translate(["dog"], BACK)[0].versions[0] == second.translate("dog", beam=1, to="de")


def test_a_model_without_languages_has_a_source_and_a_target(tmp_path: Path) -> None:
    unnamed = write_translator(tmp_path, both=False, named=False)
    models = open_models([str(unnamed)], Serving(device="cpu"))
    assert models.directions == [("source", "target")]
    assert models.translate(["Hund"], Route("source", "target"))[0].versions


def test_what_cannot_translate_is_refused(tmp_path: Path) -> None:
    save(regard.build(Encoder(vocabulary=50, width=8, depth=1)), tmp_path)
    with pytest.raises(InputError, match="of kind encoder and cannot be served; give one that translates"):
        open_models([str(tmp_path)], Serving())
