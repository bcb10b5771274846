"""Hugging Face directories, written and read without transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from huggingface_directories import SMALL, randomised
from safetensors.torch import load_file

import regard
from regard.models.settings import Spans
from regard.weights import huggingface
from regard.weights.directory import load_model
from regard.weights.huggingface.directory import FAMILIES, choose


@pytest.mark.parametrize("name", SMALL)
def test_a_model_comes_back_equal(name: str, tmp_path: Path) -> None:
    model = randomised(SMALL[name])
    huggingface.write(model, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == name
    back = load_model(tmp_path)
    parameters = dict(back.named_parameters())
    assert list(parameters) == [key for key, _ in model.named_parameters()]
    for key, parameter in model.named_parameters():
        assert torch.equal(parameters[key], parameter)


@pytest.mark.parametrize("name", SMALL)
def test_the_family_follows_from_the_settings(name: str) -> None:
    assert choose(SMALL[name]).model_type == name
    assert choose(SMALL[name], name).model_type == name


@pytest.mark.parametrize(
    ("presets", "name"),
    [
        (("bert-tiny", "bert-base", "bert-large"), "bert"),
        (("gpt2", "gpt2-xl"), "gpt2"),
        (("vit-ti16", "vit-b16", "vit-28", "vit-32"), "vit"),
        (("marian",), "marian"),
        (("bart-base", "bart-large"), "bart"),
        (("t5-small", "t5-base"), "t5"),
        (("llama-tiny", "llama-7b"), "llama"),
    ],
)
def test_presets_have_a_home(presets: tuple[str, ...], name: str) -> None:
    for preset in presets:
        assert choose(regard.preset(preset)).model_type == name


def test_heads_of_any_name_are_written(tmp_path: Path) -> None:
    settings = SMALL["bert"].changed({"heads": {}}).model_copy(update={"heads": {"answers": Spans()}})
    huggingface.write(randomised(settings), tmp_path)
    assert list(huggingface.read(tmp_path).heads) == ["spans"]
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["BertForQuestionAnswering"]


def test_shards_replace_and_are_replaced(tmp_path: Path) -> None:
    first, second = randomised(SMALL["bart"]), randomised(SMALL["bart"])
    huggingface.write(first, tmp_path)
    huggingface.write(second, tmp_path, shard_bytes=4000)
    files = sorted(path.name for path in tmp_path.iterdir())
    count = len(files) - 2
    assert count > 2
    assert files == [
        "config.json",
        *(f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)),
        "model.safetensors.index.json",
    ]
    back = dict(huggingface.read(tmp_path).named_parameters())
    assert all(torch.equal(back[name], parameter) for name, parameter in second.named_parameters())
    huggingface.write(first, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


def test_values_that_a_model_does_not_know_can_be_added(tmp_path: Path) -> None:
    huggingface.write(randomised(SMALL["marian"]), tmp_path, config={"pad_token_id": 3, "max_position_embeddings": 50})
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["pad_token_id"], config["max_position_embeddings"]) == (3, 50)
    assert load_file(tmp_path / "model.safetensors")["model.encoder.embed_positions.weight"].shape == (50, 16)


def test_the_type_of_numbers_is_kept(tmp_path: Path) -> None:
    huggingface.write(randomised(SMALL["llama"]).half(), tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "float16"
    assert {parameter.dtype for parameter in huggingface.read(tmp_path).parameters()} == {torch.float16}
    assert {parameter.dtype for parameter in huggingface.read(tmp_path, torch.float32).parameters()} == {torch.float32}


def test_every_family_says_what_it_is() -> None:
    for name, family in FAMILIES.items():
        assert family.model_type == name
        assert family.base in (*family.architectures, "")


def test_a_compiled_model_is_written_like_any_other(tmp_path: Path) -> None:
    model = randomised(SMALL["llama"])
    huggingface.write(torch.compile(model, backend="eager"), tmp_path)
    back = dict(huggingface.read(tmp_path).named_parameters())
    assert all(torch.equal(back[name], parameter) for name, parameter in model.named_parameters())


@pytest.mark.parametrize("name", SMALL)
def test_a_model_that_nobody_has_trained_yet(name: str, tmp_path: Path) -> None:
    """Its biases are zeros, which must not look like settings that cannot be expressed."""
    model = regard.build(SMALL[name])
    huggingface.write(model, tmp_path)
    back = dict(load_model(tmp_path).named_parameters())
    for key, parameter in model.named_parameters():
        assert torch.equal(back[key], parameter) if key in back else not parameter.any()
