"""Safetensors files: written and read exactly, damage and NaN refused, int8 within half a step."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import regard
from regard.blocks.settings import Attention
from regard.errors import WeightsError
from regard.files import write_beside, write_text
from regard.models.settings import EncoderDecoder
from regard.weights.tensors import dequantized, quantize, quantized, read_json, read_tensors, write_tensors


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    write_tensors(path, {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)})
    return path


def test_a_damaged_file_is_named(file: Path) -> None:
    good = file.read_bytes()
    for bad in (b"", good[:4], good[:60], good[:-1], b"\xff" * 1000):
        file.write_bytes(bad)
        with pytest.raises(WeightsError, match=r"model\.safetensors is damaged or truncated"):
            read_tensors(file)
    file.unlink()
    with pytest.raises(WeightsError, match="does not exist"):
        read_tensors(file)


def test_nan_and_infinity_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        for value in (float("nan"), float("inf"), float("-inf")):
            tensor = torch.zeros(3, 4, dtype=dtype)
            tensor[1, 2] = value
            save_file({"good": torch.zeros(2), "bad": tensor}, path)
            with pytest.raises(WeightsError, match=r"bad in .*x\.safetensors contains 1 NaN or infinite values"):
                read_tensors(path)
            assert set(read_tensors(path, allow_non_finite=True)) == {"good", "bad"}


def shards(directory: Path, weight_map: object) -> Path:
    save_file({"a": torch.zeros(2)}, directory / "one.safetensors")
    save_file({"b": torch.ones(2)}, directory / "two.safetensors")
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return directory


def test_shards_are_joined(tmp_path: Path) -> None:
    tensors = read_tensors(shards(tmp_path, {"a": "one.safetensors", "b": "two.safetensors"}))
    assert {name: tensor.sum().item() for name, tensor in tensors.items()} == {"a": 0, "b": 2}
    for weight_map, expected in (
        ({"a": "one.safetensors", "b": "lost.safetensors"}, r"lost\.safetensors does not exist"),
        ({"a": "one.safetensors", "c": "two.safetensors"}, r"two\.safetensors lacks c"),
        ({"a": "../one.safetensors"}, r"assigns a to '\.\./one\.safetensors'"),
        ({}, "has no weight_map"),
        (["a"], "has no weight_map"),
    ):
        with pytest.raises(WeightsError, match=expected):
            read_tensors(shards(tmp_path, weight_map))


def test_pickled_tensors(tmp_path: Path) -> None:
    """Files of torch.save are read without running what a pickle can run."""
    with pytest.raises(WeightsError, match=r"has no model\.safetensors and no"):
        read_tensors(tmp_path)
    path = tmp_path / "pytorch_model.bin"
    tensors = {"a": torch.randn(2, 3), "b": torch.arange(3, dtype=torch.float16)}
    torch.save(tensors, path)
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in read_tensors(tmp_path).items())
    for content in (
        b"cos\nsystem\n(S'exit 1'\ntR.",
        pickle.dumps(Path("x")),
        b"",
        b"PK\x03\x04 truncated",
        path.read_bytes()[:-100],
    ):
        path.write_bytes(content)
        with pytest.raises(WeightsError, match=r"pytorch_model\.bin is damaged, or holds more than tensors"):
            read_tensors(tmp_path)
    for other in ([torch.zeros(1)], {"a": {"b": torch.zeros(1)}}, {1: torch.zeros(1)}, {"a": torch.eye(2).to_sparse()}):
        torch.save(other, path)
        with pytest.raises(WeightsError, match=r"expected a table of tensors|is not a plain tensor"):
            read_tensors(tmp_path)
    torch.save({"a": torch.zeros(1)}, tmp_path / "one.bin")
    index = {"weight_map": {"a": "one.bin", "b": "lost.bin"}}
    path.unlink()
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    with pytest.raises(WeightsError, match=r"lost\.bin does not exist"):
        read_tensors(tmp_path)


def test_broken_json(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    for text in ("{", "[1]", "\udc80"):
        path.write_bytes(text.encode(errors="surrogateescape"))
        with pytest.raises(WeightsError, match=r"config\.json .* copy"):
            read_json(path)


def test_tensors_that_share_memory(tmp_path: Path) -> None:
    shared = torch.randn(3, 2)
    write_tensors(tmp_path / "x", {"first": shared, "second": shared, "row": shared[0], "turned": shared.mT})
    tensors = load_file(tmp_path / "x")
    assert sorted(tensors) == ["first", "row", "second", "turned"]
    assert torch.equal(tensors["row"], shared[0])
    assert torch.equal(tensors["turned"], shared.mT)
    write_tensors(tmp_path / "x", {})  # the state of an optimizer that has none
    assert read_tensors(tmp_path / "x") == {}


def test_metadata_and_permissions(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        write_tensors(tmp_path / "x", {"a": torch.zeros(1)}, {"format": "pt"})
    finally:
        os.umask(before)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o644
    with safe_open(tmp_path / "x", "pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_a_writing_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write_text(path, "old")

    def write(partial: Path) -> None:
        partial.write_text("half of the n")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_beside(path, write)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["x"]


SETTINGS = EncoderDecoder(vocabulary=300, width=64, depth=2, attention=Attention(heads=4, bias=False))


@pytest.fixture
def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return regard.build(SETTINGS).eval()


def test_no_value_is_off_by_more_than_half_a_step() -> None:
    for shape in ((7, 300), (64, 1), (5, 3, 8, 8)):
        for dtype in (torch.float32, torch.bfloat16):
            tensor = torch.randn(shape, dtype=torch.float64).exp().mul(torch.randn(shape).sign()).to(dtype)
            tensor[0] *= 1e4
            values, scale = quantize(tensor)
            assert values.dtype == torch.int8
            assert values.shape == tensor.shape
            assert values.abs().max() == 127
            back = dequantized({"a": values, "a.scale": scale}, "x")["a"]
            step = tensor.double().abs().flatten(1).amax(1) / 127  # computed here, not taken from the code
            error = (back.double() - tensor.double()).abs().flatten(1)
            assert bool((error <= step[:, None] * 0.500001).all())
    tensor = torch.zeros(3, 4)
    tensor[1] = -2.5
    values, scale = quantize(tensor)
    assert torch.allclose(values * scale[:, None], tensor)


def test_scales_that_do_not_fit(model: torch.nn.Module) -> None:
    stored = quantized(dict(model.named_parameters()), "int8")
    name = "encoder.0.ffn.up.weight.scale"
    scale = stored.pop(name)
    for wrong in (None, scale[1:], scale.half()):
        with pytest.raises(WeightsError, match=rf"{name} is missing or not a float32 for each of its 256 rows"):
            dequantized({**stored, **({} if wrong is None else {name: wrong})}, "x")
