from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from regard.errors import WeightsError
from regard.files import write_beside, write_text
from regard.weights.files import read_json, read_tensors, write_tensors


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    write_tensors(path, {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)})
    return path


def test_what_is_written_is_read(file: Path) -> None:
    tensors = read_tensors(file)
    assert list(tensors) == ["a", "b"]
    assert torch.equal(tensors["a"], torch.arange(6.0).reshape(2, 3))
    assert tensors["b"].dtype == torch.bfloat16


@pytest.mark.parametrize("kept", [0, 4, 60, -1])
def test_a_truncated_file_is_named(file: Path, kept: int) -> None:
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(WeightsError, match=r"model\.safetensors is damaged or cut short .*; copy or download it again"):
        read_tensors(file)


def test_a_file_of_something_else(file: Path) -> None:
    file.write_bytes(b"\xff" * 1000)
    with pytest.raises(WeightsError, match="damaged"):
        read_tensors(file)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_numbers_that_are_none_are_refused_by_name(tmp_path: Path, value: float, dtype: torch.dtype) -> None:
    tensor = torch.zeros(3, 4, dtype=dtype)
    tensor[1, 2] = value
    save_file({"good": torch.zeros(2), "bad": tensor}, tmp_path / "x.safetensors")
    with pytest.raises(
        WeightsError, match=r"bad in .*x\.safetensors has 1 of 12 values that are NaN or infinite; take"
    ):
        read_tensors(tmp_path / "x.safetensors")
    assert set(read_tensors(tmp_path / "x.safetensors", allow_non_finite=True)) == {"good", "bad"}


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="does not exist; give a safetensors file"):
        read_tensors(tmp_path / "none.safetensors")


# ------------------------------------------------------------------------------------------------------------ shards


def shards(directory: Path, weight_map: object) -> Path:
    save_file({"a": torch.zeros(2)}, directory / "one.safetensors")
    save_file({"b": torch.ones(2)}, directory / "two.safetensors")
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return directory


def test_shards_are_joined(tmp_path: Path) -> None:
    tensors = read_tensors(shards(tmp_path, {"a": "one.safetensors", "b": "two.safetensors"}))
    assert {name: tensor.sum().item() for name, tensor in tensors.items()} == {"a": 0, "b": 2}


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"a": "one.safetensors", "b": "lost.safetensors"}, r"lost\.safetensors is missing, .* such as b; download"),
        ({"a": "one.safetensors", "c": "two.safetensors"}, r"two\.safetensors lacks c, which .* download both"),
        ({"a": "../one.safetensors"}, r"places a in '\.\./one\.safetensors', which is no file of its own directory"),
        ({}, "has no weight_map"),
        (["a"], "has no weight_map"),
    ],
)
def test_a_wrong_index(tmp_path: Path, weight_map: object, message: str) -> None:
    with pytest.raises(WeightsError, match=message):
        read_tensors(shards(tmp_path, weight_map))


def test_a_directory_without_weights(tmp_path: Path) -> None:
    with pytest.raises(
        WeightsError, match=r"has neither model\.safetensors nor .*: give the directory of a whole model"
    ):
        read_tensors(tmp_path)


def test_pickles_are_never_opened(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")
    with pytest.raises(
        WeightsError, match=r"pytorch_model\.bin, which is pickle .* never opened; save the model again"
    ):
        read_tensors(tmp_path)


@pytest.mark.parametrize("text", ["{", "[1]", "\udc80"])
def test_broken_json(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(WeightsError, match=r"config\.json .* copy or download it again"):
        read_json(path)


# ----------------------------------------------------------------------------------------------------------- writing


def test_a_shared_tensor_is_written_once(tmp_path: Path) -> None:
    shared = torch.randn(3, 2)
    write_tensors(tmp_path / "x", {"first": shared, "second": shared, "row": shared[0], "turned": shared.mT})
    tensors = load_file(tmp_path / "x")
    assert sorted(tensors) == ["first", "row", "turned"]
    assert torch.equal(tensors["row"], shared[0])
    assert torch.equal(tensors["turned"], shared.mT)


def test_no_tensors_at_all(tmp_path: Path) -> None:
    """The state of an optimiser that has none."""
    write_tensors(tmp_path / "x", {})
    assert read_tensors(tmp_path / "x") == {}


def test_others_may_read_what_the_mask_lets_them(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        write_tensors(tmp_path / "x", {"a": torch.zeros(1)})
    finally:
        os.umask(before)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o644


def test_metadata_is_written(tmp_path: Path) -> None:
    from safetensors import safe_open

    write_tensors(tmp_path / "x", {"a": torch.zeros(1)}, {"format": "pt"})
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


def test_a_file_is_flushed_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = []
    sync, rename = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (events.append("flush"), sync(handle)))
    monkeypatch.setattr(os, "replace", lambda old, new: (events.append("rename"), rename(old, new)))
    write_tensors(tmp_path / "x", {"a": torch.zeros(1)})
    assert events[:2] == ["flush", "rename"]
