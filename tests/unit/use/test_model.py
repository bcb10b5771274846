"""One door for every model: shipped names, runs, Hugging Face directories."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_translator import write_translator

import regard
from regard.blocks.settings import Attention
from regard.errors import InputError, SettingsError, WeightsError
from regard.models.settings import Decoder, EncoderDecoder
from regard.text.tokenizer import Tokenizer, framed_json, write_huggingface
from regard.use.model import load
from regard.use.translator import Translator
from regard.weights import directory
from regard.weights.directory import load_model as load_network
from regard.weights.huggingface.directory import write_pretrained

SMALL = EncoderDecoder(vocabulary=500, width=8, depth=1, attention=Attention(heads=2))


def test_a_name_that_is_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.weights.location.place_of", lambda shipped: write_translator(tmp_path))
    assert load("de-en", "cpu").directions == [("de", "en")]  # type: ignore[attr-defined]
    assert load("en-de", "cpu").directions == [("en", "de")]  # type: ignore[attr-defined]
    both = load("german-english", "cpu")
    assert isinstance(both, Translator)
    assert len(both.directions) == 2
    with pytest.raises(InputError, match=r"to \(de\) does not fit model de-en, which translates de to en"):
        load("de-en", "cpu").translate("a", to="de")
    monkeypatch.setattr("regard.weights.location.place_of", lambda shipped: tmp_path / "gone")
    with pytest.raises(WeightsError, match=r"files of model de-en are missing"):
        load("de-en")


def test_names_and_devices_that_are_not_known(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"model de-eng is unknown \(did you mean de-en\?\); give de-en, en-de"):
        load("de-eng")
    with pytest.raises(WeightsError, match="does not exist; give a run directory"):
        load(tmp_path / "nowhere")
    with pytest.raises(SettingsError, match=r"device \(abacus\) is unknown"):
        load(".", "abacus")
    for device in ("mps", "meta"):
        with pytest.raises(SettingsError, match=rf"device \({device}\) is not supported; give cpu"):
            load("de-en", device)


def test_a_directory_goes_before_a_shipped_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_translator(tmp_path / "de-en")
    assert load("de-en", "cpu").directory == Path("de-en")


def test_halves_are_widened_on_a_cpu_unless_asked_for(tmp_path: Path) -> None:
    directory.save_model(regard.build(SMALL).bfloat16(), tmp_path)
    assert next(load(tmp_path, "cpu").network.parameters()).dtype == torch.float32
    assert next(load(tmp_path, "cpu", torch.bfloat16).network.parameters()).dtype == torch.bfloat16


def test_models_that_cannot_translate(tmp_path: Path) -> None:
    directory.save_model(
        regard.build(Decoder(vocabulary=9, width=8, depth=1, attention=Attention(heads=2))), tmp_path / "a"
    )
    model = load(tmp_path / "a", "cpu")
    assert not isinstance(model, Translator)
    assert model.tokenizers is None
    with pytest.raises(InputError, match="has kind decoder and cannot translate"):
        model.translate("a")
    directory.save_model(regard.build(SMALL), tmp_path / "b")
    with pytest.raises(InputError, match=r"has no tokenizer\.json, so it cannot translate"):
        load(tmp_path / "b", "cpu").translate("a")


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    write_translator(tmp_path)
    directory.save_model(regard.build(SMALL.changed({"vocabulary": 20})), tmp_path)
    with pytest.raises(WeightsError, match=r"source tokenizer in .* has \d+ tokens, but the model has 20"):
        load(tmp_path, "cpu")


def test_a_tag_that_is_missing_is_told(tmp_path: Path) -> None:
    model = load(write_translator(tmp_path, both=False), "cpu")
    assert isinstance(model, Translator)
    model.tagged = True
    with pytest.raises(InputError, match="has no token <2en>"):
        model.translate("ein Hund")


def test_a_hugging_face_directory(tmp_path: Path) -> None:
    ours, theirs = write_translator(tmp_path / "ours", both=False), tmp_path / "theirs"
    network = load_network(ours)
    tokenizer = Tokenizer.load(ours)
    start, end = tokenizer.role("start"), tokenizer.role("end")
    write_pretrained(network, theirs, config={"decoder_start_token_id": start, "eos_token_id": end})
    write_huggingface(tokenizer, theirs, framed_json(tokenizer, [], [end]))
    model = load(theirs, "cpu")
    assert isinstance(model, Translator)
    assert model.frame.foreign
    assert model.directions == []
    texts = ["ein Hund", "und eine Katze läuft."]
    options = {"rules": {"longest": {"kind": "absolute", "tokens": 9}}}
    assert model.translate(texts, **options) == load(ours, "cpu").translate(texts, **options)
    with pytest.raises(InputError, match=r"to \(en\) cannot be checked: model .* does not name languages"):
        model.translate("ein Hund", to="en")


def test_what_their_files_say_of_beginnings(tmp_path: Path) -> None:
    ours = write_translator(tmp_path / "ours", both=False)
    write_pretrained(
        load_network(ours),
        tmp_path,
        config={
            "eos_token_id": 2,
            "decoder_start_token_id": 3,
            "forced_bos_token_id": 5,
            "bad_words_ids": [[3], [4, 5]],
        },
    )
    write_huggingface(Tokenizer.load(ours), tmp_path)
    (tmp_path / "generation_config.json").write_text('{"decoder_start_token_id": 4, "eos_token_id": [6, 2]}')
    model = load(tmp_path, "cpu")
    assert isinstance(model, Translator)
    frame = model.frame
    assert (frame.ends.start, frame.ends.end, frame.prefix, frame.never) == (4, 6, (5,), ((3,), (4, 5)))
    found = model.translate("ein Hund", details=True, rules={"longest": {"kind": "absolute", "tokens": 5}})
    assert found.tokens[0] == model.tokenizers.target.token(5)


def test_a_table_of_alignment_that_says_nothing(tmp_path: Path) -> None:
    place = write_translator(tmp_path)
    with (place / "config.toml").open("a", encoding="utf-8") as file:
        file.write("\n[align]\nlayer = 0\n")
    with pytest.raises(WeightsError, match=r"\[align\] .* needs heads"):
        load(place, device="cpu")
