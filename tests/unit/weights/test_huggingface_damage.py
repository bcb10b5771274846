"""Directories that are damaged or belong to no model that is known."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from huggingface_directories import SMALL, change_config, change_tensors, randomised
from safetensors.torch import load_file

from regard.errors import WeightsError
from regard.weights import huggingface
from regard.weights.directory import load_model


@pytest.fixture
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A directory of the family that the test names."""
    huggingface.write(randomised(SMALL[request.param]), tmp_path)
    return tmp_path


of = pytest.mark.parametrize("directory", ["gpt2"], indirect=True)
of_each = pytest.mark.parametrize("directory", SMALL, indirect=True)


@pytest.mark.parametrize(
    ("model_type", "message"),
    [
        ("llama3", r"model_type \('llama3'\) is not known \(did you mean llama\?\); known: bert, gpt2, vit, marian, "),
        ("xlstm", r"model_type \('xlstm'\) is not known; known: "),
        (None, r"model_type \(None\) is not known; known: "),
    ],
)
@of
def test_an_unknown_model_type(directory: Path, model_type: str | None, message: str) -> None:
    change_config(directory, {"model_type": model_type})
    with pytest.raises(WeightsError, match=rf"config\.json: {message}"):
        load_model(directory)


@of_each
def test_a_missing_tensor(directory: Path) -> None:
    name = next(name for name in load_file(directory / "model.safetensors") if "norm" in name.lower() or "ln_" in name)
    change_tensors(directory, {name: None})
    with pytest.raises(
        WeightsError, match=f"lacks 1 tensor: {name}; config.json must be the one that belongs to these"
    ):
        load_model(directory)


@of_each
def test_a_surplus_tensor(directory: Path) -> None:
    change_tensors(directory, {"adapter.weight": torch.zeros(2, 2)})
    with pytest.raises(WeightsError, match=r"has 1 tensor too many: .*adapter\.weight; config\.json must be"):
        load_model(directory)


@of
def test_a_wrong_shape_is_told_in_their_layout(directory: Path) -> None:
    change_tensors(directory, {"transformer.h.0.attn.c_attn.weight": torch.zeros(48, 16)})
    with pytest.raises(WeightsError, match=r"h\.0\.attn\.c_attn\.weight is \[48, 16\] and must be \[16, 48\]"):
        load_model(directory)


@of
def test_a_config_of_another_size(directory: Path) -> None:
    change_config(directory, {"n_layer": 2})
    with pytest.raises(WeightsError, match=r"lacks 12 tensors: transformer\.h\.1\..* and 7 more; config\.json must"):
        load_model(directory)


@of
def test_nan_in_weights(directory: Path) -> None:
    change_tensors(directory, {"transformer.wte.weight": torch.full((20, 16), float("nan"))})
    with pytest.raises(WeightsError, match=r"transformer\.wte\.weight in .* has 320 of 320 values that are NaN"):
        load_model(directory)


@of
def test_a_truncated_file(directory: Path) -> None:
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(WeightsError, match="is damaged or cut short"):
        load_model(directory)


def test_a_missing_shard(tmp_path: Path) -> None:
    huggingface.write(randomised(SMALL["bart"]), tmp_path, shard_bytes=4000)
    next(tmp_path.glob("model-00002-*")).unlink()
    with pytest.raises(WeightsError, match=r"model-00002-of-\d+\.safetensors is missing"):
        load_model(tmp_path)


@pytest.mark.parametrize("directory", ["bert"], indirect=True)
def test_a_tensor_under_two_names(directory: Path) -> None:
    change_tensors(directory, {"bert.embeddings.LayerNorm.gamma": torch.ones(16)})
    with pytest.raises(WeightsError, match=r"hold bert\.embeddings\.LayerNorm\.weight twice"):
        load_model(directory)


def test_no_config(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"has no config\.json, so it is no Hugging Face directory"):
        huggingface.read(tmp_path)


@of
def test_tied_weights_that_differ(directory: Path) -> None:
    change_config(directory, {"tie_word_embeddings": True})
    with pytest.raises(
        WeightsError, match=r"different values in lm_head\.weight and transformer\.wte\.weight, .* tied"
    ):
        load_model(directory)


@pytest.mark.parametrize("directory", ["marian"], indirect=True)
def test_positions_that_are_no_sinusoids(directory: Path) -> None:
    name = "model.decoder.embed_positions.weight"
    table = load_file(directory / "model.safetensors")[name]
    change_tensors(directory, {name: table + 0.01})
    with pytest.raises(WeightsError, match=rf"{name} in .* is not the fixed table .* differs by up to 0\.01\); it was"):
        load_model(directory)
    change_tensors(directory, {name: table[:7].contiguous()})
    with pytest.raises(WeightsError, match=r"its shape is \[7, 16\] and should be \[1024, 16\]"):
        load_model(directory)
    change_tensors(directory, {name: None, "model.encoder.embed_positions.weight": None})
    load_model(directory)
