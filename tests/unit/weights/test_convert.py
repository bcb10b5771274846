"""A model in another form: what belongs to it goes with it, and nothing is overwritten by accident."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import tokenizers as tokenizers_library
import torch
from huggingface_directories import change_config
from text_cases import CORPUS
from tiny_translator import TEXTS, write_translator

import regard
from regard.blocks.settings import Alibi, Attention, Dense, Gated, RmsNorm, Rotary, TransformerXL, YarnScaling
from regard.errors import RunError, WeightsError
from regard.models.settings import Classification, Decoder, EncoderDecoder, Vision
from regard.text.settings import Bpe, SpecialTokens
from regard.text.tokenizer import TokenizerPair
from regard.text.train import train_tokenizer
from regard.weights.convert import Form, convert
from regard.weights.ctranslate2 import write_ctranslate2
from regard.weights.directory import load_labels, load_model, read_config, save_labels, save_model

SETTINGS = EncoderDecoder(vocabulary=100, width=16, depth=1, attention=Attention(heads=2, bias=False))
TABLES = {"task": {"kind": "translate"}, "data": {"kind": "parallel"}, "prepared": {"train": "abc"}}


@pytest.fixture(scope="module")
def tokenizers() -> TokenizerPair:
    return TokenizerPair.of(train_tokenizer(Bpe(size=100), CORPUS))


@pytest.fixture
def run(tmp_path: Path, tokenizers: TokenizerPair) -> Path:
    torch.manual_seed(0)
    save_model(regard.build(SETTINGS), tmp_path / "run", tables=TABLES)
    tokenizers.save(tmp_path / "run")
    return tmp_path / "run"


def outputs(directory: Path) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = load_model(directory)(torch.tensor([[7, 8, 9]]), torch.tensor([[1, 12, 13]]))
    return logits


def test_the_model_stays_the_same(run: Path, tmp_path: Path, tokenizers: TokenizerPair) -> None:
    expected = outputs(run)
    forms: dict[Form, float] = {"regard": 0.0, "bf16": 0.02, "int8": 0.05, "huggingface": 1e-5}
    for form, error in forms.items():
        out = tmp_path / form
        names = {path.name for path in convert(run, out, form)}
        assert names >= {"tokenizer.json", "config.json" if form == "huggingface" else "config.toml"}
        assert (outputs(out) - expected).abs().max() <= error * expected.abs().max()
        if form != "huggingface":
            kept = read_config(out)
            assert {name: kept[name] for name in ("task", "data")} == {name: TABLES[name] for name in ("task", "data")}
            assert "prepared" not in kept
            assert TokenizerPair.load(out) == tokenizers


def test_a_damaged_tokenizer_is_found(run: Path, tmp_path: Path) -> None:
    convert(run, tmp_path / "small", "int8")
    load_model(tmp_path / "small")
    file = tmp_path / "small" / "tokenizer.json"
    file.write_text(file.read_text(encoding="utf-8").replace("e", "f", 1), encoding="utf-8")
    with pytest.raises(WeightsError, match=r"tokenizer\.json is damaged"):
        load_model(tmp_path / "small")


def test_from_hugging_face_and_back(run: Path, tmp_path: Path, tokenizers: TokenizerPair) -> None:
    convert(run, tmp_path / "theirs", "huggingface")
    convert(tmp_path / "theirs", tmp_path / "ours", "regard")
    expected = outputs(run)
    assert torch.allclose(outputs(tmp_path / "ours"), expected, atol=1e-5)
    ids = tokenizers.source.ids(CORPUS[:3])
    assert TokenizerPair.load(tmp_path / "ours").source.ids(CORPUS[:3]) == ids
    config, roles = json.loads((tmp_path / "theirs" / "config.json").read_text()), tokenizers.source.roles
    for key, role in {"pad": "pad", "bos": "start", "eos": "end", "decoder_start": "start"}.items():
        assert config[f"{key}_token_id"] == roles[role]  # type: ignore[index]


def test_the_context_and_the_ends_of_a_decoder_are_kept(tmp_path: Path, tokenizers: TokenizerPair) -> None:
    def stated(name: str) -> Any:
        return json.loads((tmp_path / name).read_text())

    settings = Decoder(
        vocabulary=tokenizers.source.size,
        width=16,
        depth=1,
        norm=RmsNorm(),
        norm_place="pre",
        ffn=Gated(hidden=20, activation="silu", bias=False),
        position=Rotary(),
        attention=Attention(heads=2, bias=False),
        dropout=0.0,
    )
    save_model(regard.build(settings), tmp_path / "run", tables={"task": {"kind": "language", "context": 24}})
    tokenizers.save(tmp_path / "run")
    convert(tmp_path / "run", tmp_path / "theirs", "huggingface")
    assert stated("theirs/config.json")["max_position_embeddings"] == 24
    change_config(tmp_path / "theirs", {"eos_token_id": [2, 5]})
    (tmp_path / "theirs" / "generation_config.json").write_text('{"eos_token_id": [2, 5, 6]}')
    convert(tmp_path / "theirs", tmp_path / "again", "huggingface")
    assert stated("again/config.json")["max_position_embeddings"] == 24
    assert stated("again/config.json")["eos_token_id"] == [2, 5]
    assert stated("again/generation_config.json") == {"eos_token_id": [2, 5, 6]}
    expected = regard.load(tmp_path / "theirs", "cpu")
    assert isinstance(expected, regard.Generator)
    assert expected.frame.ends == {2, 5, 6}
    for source, form in (("theirs", "regard"), ("regard", "int8"), ("int8", "huggingface")):
        convert(tmp_path / source, tmp_path / form, form)  # type: ignore[arg-type]
        model = regard.load(tmp_path / form, "cpu")
        assert isinstance(model, regard.Generator)
        assert model.frame == expected.frame
        assert model.ids("the dog") == expected.ids("the dog")


def test_two_tokenizers_have_a_directory_each(tmp_path: Path) -> None:
    pair = TokenizerPair(train_tokenizer(Bpe(size=90), CORPUS[::2]), train_tokenizer(Bpe(size=100), CORPUS[1::2]))
    settings = SETTINGS.changed({"vocabulary": 90, "target_vocabulary": 100, "tied": ["target", "output"]})
    save_model(regard.build(settings), tmp_path / "run")
    pair.save(tmp_path / "run")
    convert(tmp_path / "run", tmp_path / "out", "huggingface")
    assert (tmp_path / "out" / "source" / "tokenizer.json").is_file()
    assert (tmp_path / "out" / "target" / "tokenizer.json").is_file()


def test_names_of_classes(tmp_path: Path) -> None:
    heads = {"label": Classification(classes=2)}
    model = regard.build(
        Vision(width=16, depth=1, image=(8, 8), patch=4, attention=Attention(heads=2), norm_place="pre", heads=heads)
    )
    save_model(model, tmp_path / "run")
    save_labels({"label": ("cat", "dog")}, tmp_path / "run")
    convert(tmp_path / "run", tmp_path / "theirs", "huggingface")
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    assert config["id2label"] == {"0": "cat", "1": "dog"}
    convert(tmp_path / "run", tmp_path / "small", "int8")
    assert load_labels(tmp_path / "small")["label"] == ("cat", "dog")


def test_the_language_tag_is_in_the_template(tmp_path: Path) -> None:
    """Our ids come out of the exported tokenizer, by the plain library."""
    ours = write_translator(tmp_path / "ours", both=True)
    pair = TokenizerPair.load(ours)
    text = TEXTS[0]
    convert(ours, tmp_path / "theirs", "huggingface", language="en")
    exported = tokenizers_library.Tokenizer.from_file(str(tmp_path / "theirs" / "tokenizer.json"))
    assert exported.encode(text).ids == pair.inputs([text], ["en"])[0]
    pytest.importorskip("ctranslate2", reason="needs the extra `ctranslate2`")
    convert(ours, tmp_path / "fast", "ctranslate2", language="de")
    exported = tokenizers_library.Tokenizer.from_file(str(tmp_path / "fast" / "tokenizer.json"))
    assert exported.encode(text).tokens[0] == "<2de>"
    assert exported.encode(text).ids == pair.inputs([text], ["de"])[0][:-1]  # CTranslate2 adds the end


def test_a_direction_must_be_chosen(tmp_path: Path) -> None:
    ours = write_translator(tmp_path / "ours", both=True)
    for language in (None, "fr"):
        with pytest.raises(WeightsError, match=r"into de and en.*--to en"):
            convert(ours, tmp_path / "out", "huggingface", language=language)
    assert not (tmp_path / "out").exists()
    convert(ours, tmp_path / "out", "int8")  # it keeps both


def test_nothing_is_overwritten_by_accident(run: Path, tmp_path: Path) -> None:
    convert(run, tmp_path / "out", "int8")
    before = (tmp_path / "out" / "weights.safetensors").read_bytes()
    with pytest.raises(RunError, match=r"out is not empty.*--force"):
        convert(run, tmp_path / "out", "bf16")
    with pytest.raises(RunError, match=r"config\.toml"):  # two forms
        convert(run, tmp_path / "out", "huggingface", force=True)
    assert (tmp_path / "out" / "weights.safetensors").read_bytes() == before
    convert(run, tmp_path / "out", "bf16", force=True)
    assert (tmp_path / "out" / "weights.safetensors").read_bytes() != before
    with pytest.raises(RunError, match="the model itself"):
        convert(run, run / ".." / "run", "int8", force=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="is a file"):
        convert(run, tmp_path / "file", "int8")
    with pytest.raises(WeightsError, match="nowhere"):
        convert(tmp_path / "nowhere", tmp_path / "new", "int8")


def test_settings_that_ctranslate2_does_not_have(tokenizers: TokenizerPair, tmp_path: Path) -> None:
    cases: dict[str, dict[str, Any]] = {
        "ffn.activation": {"ffn": Dense(activation="relu2")},
        "norm_place is sandwich": {"norm_place": "sandwich"},
        "norm_place is output": {"norm_place": "output"},
        "parallel": {"norm_place": "pre", "parallel": True},
        "final_norm": {"final_norm": True},
        "layer_scale": {"layer_scale": 0.1},
        "attention.value_size": {"attention": Attention(heads=2, value_size=4)},
        "attention.qk_norm": {"attention": Attention(heads=2, qk_norm=RmsNorm())},
        "attention.soft_cap": {"attention": Attention(heads=2, soft_cap=5.0)},
        "attention.window": {"attention": Attention(heads=2, window=3)},
        "position.kind": {"position": Alibi()},
        "position.scaling.kind": {"position": Rotary(scaling=YarnScaling(factor=2.0, original_length=64))},
        r"norm_place is sandwich, .*; position.kind is transformer-xl, ": {
            "norm_place": "sandwich",
            "position": TransformerXL(),
        },
    }
    for name, changes in cases.items():
        with pytest.raises(WeightsError, match=rf"ctranslate2: {name}"):
            write_ctranslate2(regard.build(SETTINGS.model_copy(update=changes)), tokenizers, tmp_path / "out")


def test_what_ctranslate2_needs(
    run: Path, tokenizers: TokenizerPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = regard.build(Decoder(vocabulary=100, width=16, depth=1, attention=Attention(heads=2)))
    with pytest.raises(WeightsError, match=r"model\.kind \(decoder\)"):
        write_ctranslate2(decoder, tokenizers, tmp_path / "out")
    model = regard.build(SETTINGS.changed({"tied": []}))
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(WeightsError, match=r"pip install 'regard\[ctranslate2\]'"):
        write_ctranslate2(model, tokenizers, tmp_path / "out")
    (run / "tokenizer.json").unlink()
    with pytest.raises(WeightsError, match="tokenizer"):
        convert(run, tmp_path / "out", "ctranslate2")
    assert not (tmp_path / "out").exists()
    monkeypatch.undo()
    pytest.importorskip("ctranslate2", reason="needs the extra `ctranslate2`")
    with pytest.raises(WeightsError, match=r"100 tokens and the model 99"):
        write_ctranslate2(regard.build(SETTINGS.changed({"vocabulary": 99})), tokenizers, tmp_path / "out")
    other = train_tokenizer(Bpe(size=100, special=SpecialTokens(end="[END]")), CORPUS)
    with pytest.raises(WeightsError, match=r"text\.special\.end"):
        write_ctranslate2(model, TokenizerPair(tokenizers.source, other), tmp_path / "out")
