"""One model for two directions: each pair is used both ways, and a tag gives the target language."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from regard.data.batches import Share
from regard.data.examples import Pair
from regard.data.settings import AnyData
from regard.data.source import Source
from regard.errors import SettingsError
from regard.models.settings import EncoderDecoder
from regard.settings import parse
from regard.tasks.recipe import make_job
from regard.tasks.run import prepare_job
from regard.tasks.translate import Translate, TranslateTask
from regard.text.settings import Words
from regard.text.tokenizer import TokenizerPair, tag
from regard.text.train import train_tokenizer

ENGLISH, GERMAN = ["a dog", "the cat"], ["ein Hund", "die Katze"]


def written(tmp_path: Path, **more: Any) -> dict[str, Any]:
    (tmp_path / "t.en").write_text("\n".join(ENGLISH) + "\n")
    (tmp_path / "t.de").write_text("\n".join(GERMAN) + "\n")
    return {"kind": "parallel", "root": str(tmp_path), "train": ["t.en", "t.de"], "languages": ["en", "de"], **more}


def test_directions(tmp_path: Path) -> None:
    settings = parse(AnyData, written(tmp_path, both=True), "data")
    assert settings.directions == (("en", "de"), ("de", "en"))
    assert list(Source(settings, "train")) == [
        Pair("a dog", "ein Hund", "de"),
        Pair("ein Hund", "a dog", "en"),
        Pair("the cat", "die Katze", "de"),
        Pair("die Katze", "the cat", "en"),
    ]
    settings = parse(AnyData, written(tmp_path), "data")
    assert settings.directions == (("en", "de"),)
    assert list(Source(settings, "train")) == [Pair("a dog", "ein Hund"), Pair("the cat", "die Katze")]
    assert parse(AnyData, {**written(tmp_path), "languages": "none"}, "data").directions == ()
    settings = parse(AnyData, {"kind": "grammar", "direction": "de-en", "both": True, "valid_pairs": 3}, "data")
    assert settings.directions == (("de", "en"), ("en", "de"))
    pairs = list(Source(settings, "valid"))
    assert Source(settings, "valid").size == len(pairs) == 6
    assert [pair.to for pair in pairs] == ["en", "de"] * 3
    assert pairs[0].source == pairs[1].target


def test_the_source_begins_with_the_tag(tmp_path: Path) -> None:
    pairs = list(Source(parse(AnyData, written(tmp_path, both=True), "data"), "train"))
    special = {"extra": [tag("de"), tag("en")]}
    tokenizers = TokenizerPair.of(train_tokenizer(parse(Words, {"special": special}, "text"), [*ENGLISH, *GERMAN]))
    sources = TranslateTask(Translate(), EncoderDecoder(), tokenizers).encode(pairs)["source"]
    end = tokenizers.source.role("end")
    for index, text, language in ((0, "a dog", "de"), (3, "die Katze", "en")):
        wanted = [tokenizers.source.extra[tag(language)], *tokenizers.source.ids([text])[0]]
        assert sources[index] == wanted
        assert tokenizers.inputs([text], [language]) == [[*wanted, end]]
    plain = TokenizerPair.of(train_tokenizer(Words(), [*ENGLISH, *GERMAN]))
    with pytest.raises(SettingsError, match=r"data\.both needs a tokenizer with the special token <2de>"):
        TranslateTask(Translate(), EncoderDecoder(), plain).encode(pairs)


def test_the_vocabulary_has_the_tags(tmp_path: Path) -> None:
    recipe: dict[str, Any] = {
        "task": "translate",
        "data": written(tmp_path, both=True),
        "text": {"kind": "words"},
        "model": {"preset": "transformer-tiny", "depth": 1},
        "train": {"steps": 1},
    }
    task = prepare_job(make_job("both", recipe, {}), torch.device("cpu"))
    assert set(task.tokenizers.source.extra) == {"<2de>", "<2en>"}
    (batch,) = next(iter(task.batches("train", Share()).once())).batches
    assert len(batch.sequences["source"].tokens) == 4
    recipe["text"]["shared"] = False
    with pytest.raises(SettingsError, match=r"data\.both needs one vocabulary for both sides; set text\.shared = true"):
        make_job("both", recipe, {})


def test_settings_without_two_languages(tmp_path: Path) -> None:
    for changes, message in [
        ({"languages": "none", "both": True}, "both = true needs two different languages"),
        ({"languages": ["en", "en"], "both": True}, "both = true needs two different languages"),
        ({"languages": ["e n", "de"]}, "languages"),
    ]:
        with pytest.raises(SettingsError, match=message):
            parse(AnyData, {**written(tmp_path), **changes}, "data")
