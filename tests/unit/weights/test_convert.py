"""A model in another form: what belongs to it goes with it, and nothing is overwritten by accident."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from text_cases import CORPUS

import regard
from regard.blocks.settings import Attention
from regard.data.labels import Labels
from regard.errors import RunError, WeightsError
from regard.models.settings import Classification, EncoderDecoder, Vision
from regard.text.settings import Bpe
from regard.text.tokenizer import TokenizerPair
from regard.text.train import train_tokenizer
from regard.weights.convert import Form, convert
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


@pytest.mark.parametrize(("form", "error"), [("regard", 0.0), ("bf16", 0.02), ("int8", 0.05), ("huggingface", 1e-5)])
def test_the_model_stays_the_same(form: Form, error: float, run: Path, tmp_path: Path) -> None:
    files = convert(run, tmp_path / "out", form)
    assert {path.name for path in files} >= {
        "tokenizer.json",
        "config.json" if form == "huggingface" else "config.toml",
    }
    expected = outputs(run)
    assert (outputs(tmp_path / "out") - expected).abs().max() <= error * expected.abs().max()


@pytest.mark.parametrize("form", ["regard", "int8"])
def test_what_a_run_knows_of_its_model_is_kept(
    form: Form, run: Path, tmp_path: Path, tokenizers: TokenizerPair
) -> None:
    convert(run, tmp_path / "out", form)
    kept = read_config(tmp_path / "out")
    assert {name: kept[name] for name in ("task", "data")} == {name: TABLES[name] for name in ("task", "data")}
    assert "prepared" not in kept
    assert TokenizerPair.load(tmp_path / "out") == tokenizers


def test_from_hugging_face_and_back(run: Path, tmp_path: Path, tokenizers: TokenizerPair) -> None:
    convert(run, tmp_path / "theirs", "huggingface")
    convert(tmp_path / "theirs", tmp_path / "ours", "regard")
    expected = outputs(run)
    assert torch.allclose(outputs(tmp_path / "ours"), expected, atol=1e-5)
    ids = tokenizers.source.ids(CORPUS[:3])
    assert TokenizerPair.load(tmp_path / "ours").source.ids(CORPUS[:3]) == ids


def test_special_tokens_are_told(run: Path, tmp_path: Path, tokenizers: TokenizerPair) -> None:
    convert(run, tmp_path / "out", "huggingface")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    roles = tokenizers.source.roles
    assert (config["pad_token_id"], config["bos_token_id"], config["eos_token_id"]) == (
        roles["pad"],
        roles["start"],
        roles["end"],
    )
    assert config["decoder_start_token_id"] == roles["start"]


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
    save_labels({"label": Labels(("cat", "dog"))}, tmp_path / "run")
    convert(tmp_path / "run", tmp_path / "theirs", "huggingface")
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    assert config["id2label"] == {"0": "cat", "1": "dog"}
    convert(tmp_path / "run", tmp_path / "small", "int8")
    assert load_labels(tmp_path / "small")["label"].names == ("cat", "dog")


# ---------------------------------------------------------------------------------------------------------- bad input


def test_a_directory_with_content_is_not_overwritten(run: Path, tmp_path: Path) -> None:
    convert(run, tmp_path / "out", "int8")
    before = (tmp_path / "out" / "weights.safetensors").read_bytes()
    with pytest.raises(RunError, match=r"out is not empty; name another directory, or .* with --force"):
        convert(run, tmp_path / "out", "bf16")
    assert (tmp_path / "out" / "weights.safetensors").read_bytes() == before
    convert(run, tmp_path / "out", "bf16", force=True)
    assert (tmp_path / "out" / "weights.safetensors").read_bytes() != before


def test_two_forms_are_not_mixed(run: Path, tmp_path: Path) -> None:
    convert(run, tmp_path / "out", "int8")
    with pytest.raises(RunError, match=r"another form \(config\.toml\), and both would be mixed; remove it first"):
        convert(run, tmp_path / "out", "huggingface", force=True)


def test_a_model_does_not_overwrite_itself(run: Path) -> None:
    with pytest.raises(RunError, match="is the model itself, which would be overwritten"):
        convert(run, run / ".." / "run", "int8", force=True)


def test_a_file_in_its_place(run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="is a file; name a directory"):
        convert(run, tmp_path / "file", "int8")


def test_no_tokenizer_for_ctranslate2(run: Path, tmp_path: Path) -> None:
    (run / "tokenizer.json").unlink()
    with pytest.raises(WeightsError, match=r"holds no tokenizer, and ctranslate2 needs its tokens"):
        convert(run, tmp_path / "out", "ctranslate2")
    assert not (tmp_path / "out").exists()


def test_no_model(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="nowhere does not exist"):
        convert(tmp_path / "nowhere", tmp_path / "out", "int8")
