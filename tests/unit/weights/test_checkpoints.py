"""Checkpoints: what is written is read, damage anywhere is found, old ones are removed."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.errors import RunError
from regard.weights.checkpoints import Checkpoint, list_checkpoints, newest_checkpoint, prune_checkpoints
from regard.weights.checkpoints import write_checkpoint as write_plain

FILES = ["checksums.json", "ema.safetensors", "state.json", "state.safetensors", "weights.safetensors"]


def content(step: int) -> dict[str, Any]:
    """Different in every file for every step."""
    return {
        "weights": {"w": torch.arange(4.0) + step},
        "state_tensors": {"m": torch.full((3,), float(step)), "random": torch.arange(5, dtype=torch.uint8)},
        "state": {"step": step, "loss": 0.1 + step, "best": float("inf"), "words": "größer"},
        "ema": {"w": torch.arange(4.0) / (step + 1)},
    }


def write(run: Path, step: int) -> Path:
    write_plain(run, step, **content(step))
    return run / "checkpoints" / f"{step:06d}"


def assert_right(found: Checkpoint | None, step: int) -> None:
    assert found is not None
    expected = content(step)
    assert (found.step, found.state) == (step, expected["state"])
    assert_equal(found.read("weights.safetensors"), expected["weights"])
    assert_equal(found.read("state.safetensors"), expected["state_tensors"])
    assert_equal(found.read("ema.safetensors"), expected["ema"])


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


def names(run: Path) -> list[str]:
    return sorted(os.listdir(run / "checkpoints"))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path) == (None, [])
    assert write(tmp_path, 500) == tmp_path / "checkpoints" / "000500"
    write(tmp_path, 1_500_000)
    write(tmp_path, 999_999)
    found, damaged = newest_checkpoint(tmp_path)
    assert_right(found, 1_500_000)
    assert damaged == []
    assert names(tmp_path) == ["000500", "1500000", "999999"]
    assert sorted(os.listdir(tmp_path / "checkpoints" / "000500")) == FILES
    write_plain(tmp_path, 2_000_000, {"w": torch.zeros(1)}, {}, {"old": True})
    write(tmp_path, 2_000_000)  # replaces the one of the same step
    assert_right(newest_checkpoint(tmp_path)[0], 2_000_000)
    assert len(names(tmp_path)) == 4
    with pytest.raises(TypeError):  # nothing is left behind
        write_plain(tmp_path, 30, {}, {}, {"tensor": torch.ones(1)})
    assert len(names(tmp_path)) == 4


def test_without_an_average_with_nan_and_with_state_under_two_names(tmp_path: Path) -> None:
    one = torch.tensor([float("nan"), torch.inf, 1])
    write_plain(tmp_path, 1, {"w": one}, {"a": one, "b": one, "empty": one[:0]}, {})
    found = Checkpoint(tmp_path / "checkpoints" / "000001", 1)
    assert found.model.name == "weights.safetensors"
    assert found.read("weights.safetensors")["w"].isnan().tolist() == [True, False, False]
    assert found.read("state.safetensors").keys() == {"a", "b", "empty"}
    assert found.damage() is None


def test_all_is_flushed_before_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: set[int] = set()
    rename, sync = os.rename, os.fsync

    def note(handle: int) -> None:
        flushed.add(os.fstat(handle).st_ino)
        sync(handle)

    def check(old: Path, new: Path) -> None:
        assert {path.stat().st_ino for path in (old, *old.iterdir())} <= flushed
        flushed.clear()
        rename(old, new)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(os, "rename", check)
    write(tmp_path, 1)
    assert (tmp_path / "checkpoints").stat().st_ino in flushed


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for step in (10, 20):
        write(tmp_path, step)
    return tmp_path


def reason(run: Path) -> str:
    """Why the newest one is refused; the one before is used, and no file changes."""
    before = names(run)
    found, damaged = newest_checkpoint(run)
    assert_right(found, 10)
    [(path, why)] = damaged
    assert path == run / "checkpoints" / "000020"
    assert names(run) == before
    return why


def test_missing_and_truncated_files(run: Path) -> None:
    for name in FILES:
        path = run / "checkpoints" / "000020" / name
        good = path.read_bytes()
        os.truncate(path, len(good) // 2)
        assert name in reason(run)
        path.unlink()
        assert reason(run) == f"{name} is missing"
        path.write_bytes(good)
    assert_right(newest_checkpoint(run)[0], 20)
    for step in ("000010", "000020"):
        (run / "checkpoints" / step / "state.json").write_text("{}")
    found, damaged = newest_checkpoint(run)
    assert found is None
    assert [path.name for path, _ in damaged] == ["000020", "000010"]


def test_a_flipped_bit_anywhere(tmp_path: Path) -> None:
    """In the list of checksums a bit may be one of a space, and change nothing; then the content must be right."""
    place = write(tmp_path, 20)
    for name in FILES:
        path = place / name
        good = path.read_bytes()
        chance = random.Random(name)
        positions = chance.sample(range(len(good)), 200 if name == "checksums.json" else 30)
        refused = 0
        for at in positions:
            bad = bytearray(good)
            bad[at] ^= 1 << chance.randrange(8)
            path.write_bytes(bad)
            found, damaged = newest_checkpoint(tmp_path)
            if found is None:
                refused += 1
                assert damaged[0][0] == place
                assert damaged[0][1]
            else:
                assert_right(found, 20)
        path.write_bytes(good)
        assert refused > 0.7 * len(positions)
        assert name == "checksums.json" or refused == len(positions)


def test_other_content_of_the_checksums(run: Path) -> None:
    path = run / "checkpoints" / "000020" / "checksums.json"
    good = json.loads(path.read_text())
    files = good["files"]
    for change, expected in (
        ({"format": 2}, "format 2"),
        ({"step": 21}, "step 21"),
        ({"files": {}}, "does not list"),
        ({"files": []}, "is damaged"),
        ({"files": {"weights.safetensors": 3}}, "is damaged"),
        ({"files": {**files, "../000010/state.json": files["state.json"]}}, "outside the directory"),
        ({"files": {key: files[key] for key in files if key != "ema.safetensors"}}, "does not list ema.safetensors"),
    ):
        path.write_text(json.dumps(good | change))
        assert expected in reason(run)


def test_files_that_cannot_be_read(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing permissions are an error; an error of the disk is damage."""
    errors: list[OSError] = [PermissionError(13, "Permission denied", "/there/state.json"), OSError(5, "Input error")]

    def refuse(*_: object, **__: object) -> None:
        raise errors[0]

    monkeypatch.setattr("regard.weights.checkpoints.checksum", refuse)
    with pytest.raises(RunError, match=r"/there/state\.json is not readable"):
        newest_checkpoint(run)
    errors.pop(0)
    assert ["Input error" in why for _, why in newest_checkpoint(run)[1]] == [True, True]


def test_the_newest_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (1, 2, 3, 4, 5):
        write(tmp_path, step)
    (tmp_path / "checkpoints" / "000004" / "weights.safetensors").unlink()
    prune_checkpoints(tmp_path, 5)  # a damaged one does not count
    assert names(tmp_path) == ["000003", "000004", "000005"]
    write(tmp_path, 2)
    prune_checkpoints(tmp_path, 3)  # newer than the step: of a run that went back to an earlier one
    assert names(tmp_path) == ["000002", "000003", "000004", "000005"]
    write(tmp_path, 4)

    def refuse(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    with monkeypatch.context() as patches:
        patches.setattr(os, "rename", refuse)
        prune_checkpoints(tmp_path, 5)  # a checkpoint that cannot be removed stays
    assert [found.step for found in list_checkpoints(tmp_path)] == [5, 4, 3, 2]
    prune_checkpoints(tmp_path, 5)
    assert names(tmp_path) == ["000004", "000005"]
