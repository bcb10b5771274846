"""Checkpoints: what is written is read, damage anywhere is found and set aside, old ones go."""

from __future__ import annotations

import json
import os
import random
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from regard.errors import RunError
from regard.training import checkpoint
from regard.weights import checkpoints

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
    return checkpoint.write(run, step, **content(step)).path


def assert_right(found: checkpoints.Checkpoint | None, step: int) -> None:
    assert found is not None
    expected = content(step)
    assert (found.step, found.state) == (step, expected["state"])
    assert_equal(found.weights(), expected["weights"])
    assert_equal(found.state_tensors(), expected["state_tensors"])
    assert_equal(found.ema() or {}, expected["ema"])


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


def names(run: Path) -> list[str]:
    return sorted(os.listdir(run / "checkpoints"))


# ---------------------------------------------------------------------------------------------------- writing, reading


def test_what_is_written_is_read(tmp_path: Path) -> None:
    assert checkpoint.newest(tmp_path) == (None, [])
    assert write(tmp_path, 500) == tmp_path / "checkpoints" / "000500"
    write(tmp_path, 1_500_000)
    write(tmp_path, 999_999)
    found, damaged = checkpoint.newest(tmp_path)
    assert_right(found, 1_500_000)
    assert damaged == []
    assert names(tmp_path) == ["000500", "1500000", "999999"]
    assert sorted(os.listdir(tmp_path / "checkpoints" / "000500")) == FILES


def test_without_an_average(tmp_path: Path) -> None:
    checkpoint.write(tmp_path, 1, {"w": torch.ones(2)}, {}, {})
    found = checkpoint.newest(tmp_path).checkpoint
    assert found
    assert found.ema() is None
    assert found.state_tensors() == {}
    assert found.model.name == "weights.safetensors"


def test_numbers_that_are_none_come_back_too(tmp_path: Path) -> None:
    """A checkpoint is what training was, not what one might wish it to be."""
    checkpoint.write(tmp_path, 1, {"w": torch.tensor([float("nan"), float("inf")])}, {"m": torch.tensor(torch.inf)}, {})
    found = checkpoint.newest(tmp_path).checkpoint
    assert found
    assert found.weights()["w"].isnan().tolist() == [True, False]
    assert found.state_tensors()["m"].isinf()


def test_state_under_two_names_comes_back_under_both(tmp_path: Path) -> None:
    one = torch.randn(3)
    checkpoint.write(tmp_path, 1, {"w": one}, {"a": one, "b": one, "empty": one[:0]}, {})
    found = checkpoint.newest(tmp_path).checkpoint
    assert found
    assert_equal(found.state_tensors(), {"a": one, "b": one, "empty": one[:0]})


def test_a_checkpoint_of_the_same_step_is_replaced(tmp_path: Path) -> None:
    checkpoint.write(tmp_path, 3, {"w": torch.zeros(1)}, {}, {"old": True})
    write(tmp_path, 3)
    assert_right(checkpoint.newest(tmp_path).checkpoint, 3)
    assert names(tmp_path) == ["000003"]


def test_one_that_was_being_replaced_is_found(tmp_path: Path) -> None:
    """Killed between the two renames: neither has the name, and the old one is still good."""
    write(tmp_path, 2)
    place = write(tmp_path, 3)
    place.rename(place.with_name(".000003.replaced"))
    assert_right(checkpoints.newest(tmp_path).checkpoint, 3)
    checkpoint.settle(tmp_path)
    assert names(tmp_path) == ["000002", "000003"]
    assert_right(checkpoint.newest(tmp_path).checkpoint, 3)


def test_others_may_read_the_files(tmp_path: Path) -> None:
    """As the user's mask says, like any other file of theirs."""
    before = os.umask(0o027)
    try:
        place = write(tmp_path, 1)
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in place.iterdir()} == {0o640}


def test_all_is_flushed_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


# --------------------------------------------------------------------------------------------------------------- damage


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for step in (10, 20):
        write(tmp_path, step)
    return tmp_path


def found_instead(run: Path) -> str:
    """Why the newest is refused; the one before is taken, and the damaged one is kept, aside."""
    found, damaged = checkpoint.newest(run)
    assert_right(found, 10)
    [(path, reason)] = damaged
    assert path == run / "checkpoints" / "damaged-000020"
    assert names(run) == ["000010", "damaged-000020"]
    return reason


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file(run: Path, name: str) -> None:
    (run / "checkpoints" / "000020" / name).unlink()
    assert found_instead(run) == f"{name} is missing"


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_cut_short(run: Path, name: str) -> None:
    path = run / "checkpoints" / "000020" / name
    os.truncate(path, path.stat().st_size // 2)
    reason = found_instead(run)
    assert reason.startswith(f"{name} has ") or reason == "checksums.json is damaged: it is no JSON"


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_anywhere(tmp_path: Path, name: str) -> None:
    """In the list of checksums a bit may be one of a space, and change nothing; then the content must be right."""
    place = write(tmp_path, 20)
    path = place / name
    good = path.read_bytes()
    chance = random.Random(name)
    places = chance.sample(range(len(good)), 200 if name == "checksums.json" else 30)
    refused = 0
    for at in places:
        bad = bytearray(good)
        bad[at] ^= 1 << chance.randrange(8)
        path.write_bytes(bad)
        found, damaged = checkpoints.newest(tmp_path)
        if found is None:
            refused += 1
            assert damaged[0][0] == place
            assert damaged[0][1]
        else:
            assert_right(found, 20)
    assert refused > 0.7 * len(places)
    assert name == "checksums.json" or refused == len(places)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"format": 2}, "checksums.json has format 2, and this version of regard reads 1"),
        ({"step": 21}, "it says that it is of step 21"),
        ({"files": {}}, "checksums.json does not list weights.safetensors"),
        ({"files": []}, "checksums.json is damaged: it lists no files"),
        ({"files": {"weights.safetensors": 3}}, "checksums.json is damaged: it does not give a size and a checksum"),
    ],
)
def test_a_list_of_something_else(run: Path, change: dict[str, Any], reason: str) -> None:
    path = run / "checkpoints" / "000020" / "checksums.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    assert found_instead(run).startswith(reason)


def test_a_name_that_leads_elsewhere(run: Path) -> None:
    path = run / "checkpoints" / "000020" / "checksums.json"
    content = json.loads(path.read_text())
    content["files"]["../000010/state.json"] = content["files"]["state.json"]
    path.write_text(json.dumps(content))
    assert found_instead(run).endswith("lists ../000010/state.json, which is no file of its own directory")


def test_an_average_that_nobody_speaks_of(run: Path) -> None:
    path = run / "checkpoints" / "000020" / "checksums.json"
    content = json.loads(path.read_text())
    del content["files"]["ema.safetensors"]
    path.write_text(json.dumps(content))
    assert found_instead(run) == "checksums.json does not list ema.safetensors"


def test_nothing_good_is_left(run: Path) -> None:
    for step in ("000010", "000020"):
        (run / "checkpoints" / step / "state.json").write_text("{}")
    found, damaged = checkpoint.newest(run)
    assert found is None
    assert [path.name for path, _ in damaged] == ["damaged-000020", "damaged-000010"]
    assert checkpoint.newest(run) == (None, [])


def test_a_second_damaged_one_of_the_same_step(run: Path) -> None:
    for _ in range(2):
        (write(run, 20) / "state.json").write_text("{}")
        checkpoint.newest(run)
    assert names(run) == ["000010", "damaged-000020", "damaged-000020-2"]


def test_reading_moves_nothing(run: Path) -> None:
    (run / "checkpoints" / "000020" / "state.json").write_text("{}")
    before = names(run)
    assert_right(checkpoints.newest(run).checkpoint, 10)
    assert names(run) == before


def test_a_disk_that_may_only_be_read(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run / "checkpoints" / "000020" / "state.json").write_text("{}")

    def refuse(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "rename", refuse)
    found, damaged = checkpoint.newest(run)
    assert_right(found, 10)
    assert damaged[0][0] == run / "checkpoints" / "000020"


def test_what_may_not_be_read_is_not_called_damaged(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", "/there/state.json")

    monkeypatch.setattr("regard.weights.checksums.checksum", refuse)
    with pytest.raises(RunError, match=r"^/there/state\.json may not be read; change its permissions$"):
        checkpoint.newest(run)
    assert names(run) == ["000010", "000020"]


def test_a_disk_error_is_damage(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("regard.weights.checksums.checksum", refuse)
    assert [reason for _, reason in checkpoints.newest(run).damaged] == ["it cannot be read (Input/output error)"] * 2


# ------------------------------------------------------------------------------------------------------------ refusals


def test_a_full_disk_is_explained(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    free = shutil.disk_usage(run)
    monkeypatch.setattr(os, "fsync", refuse)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free._replace(free=1_234_567))
    with pytest.raises(RunError) as caught:
        write(run, 30)
    assert str(caught.value) == (
        f"checkpoint {run / 'checkpoints' / '000030'} cannot be written (No space left on device; 1.2 MB are free "
        f"there); earlier ones are untouched, the last good one is {run / 'checkpoints' / '000020'}. Make room, or "
        "make the directory writable, then go on with --resume"
    )
    assert names(run) == ["000010", "000020"]


def test_the_first_one_finds_no_room(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("in the way")
    with pytest.raises(RunError, match=r"cannot be written \(.*; there is no earlier one\. Make room"):
        write(tmp_path, 1)


def test_state_that_json_cannot_hold_leaves_nothing_behind(run: Path) -> None:
    with pytest.raises(TypeError):
        checkpoint.write(run, 30, {}, {}, {"tensor": torch.ones(1)})
    assert names(run) == ["000010", "000020"]


# -------------------------------------------------------------------------------------------------------- thinning out


def test_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        write(tmp_path, step)
    checkpoint.prune(tmp_path, keep=2)
    assert names(tmp_path) == ["000003", "000004"]
    checkpoint.prune(tmp_path, keep=1)
    assert names(tmp_path) == ["000004"]


def test_damaged_ones_do_not_count(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        write(tmp_path, step)
    (tmp_path / "checkpoints" / "000003" / "weights.safetensors").unlink()
    checkpoint.prune(tmp_path, keep=2)
    assert names(tmp_path) == ["000002", "000003", "000004"]


def test_what_cannot_be_removed_stays(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "rename", refuse)
    checkpoint.prune(run, keep=1)
    assert names(run) == ["000010", "000020"]
