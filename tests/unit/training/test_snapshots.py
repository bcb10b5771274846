"""Snapshots: which are kept, how they survive, and their mean."""

from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from regard.errors import RunError
from regard.training import checkpoint
from regard.training.snapshots import STATE, Snapshots
from regard.weights.checkpoints import Checkpoint


def save(snapshots: Snapshots, step: int, loss: float | None = None, ema: bool = False) -> Checkpoint:
    """A checkpoint whose weights are full of its step, with a snapshot where a loss is given."""
    if loss is not None:
        snapshots.add(step, {"loss": loss})
    weights = {"w": torch.full((3,), float(step)), "v": torch.full((2, 2), step / 7)}
    average = {name: -tensor for name, tensor in weights.items()} if ema else None
    made = checkpoint.write(snapshots.run, step, weights, {}, {STATE: snapshots.to_state()}, average)
    checkpoint.prune(snapshots.run)
    snapshots.commit(made)
    return made


def files(run: Path) -> list[str]:
    return sorted(os.listdir(run / "snapshots"))


def steps(snapshots: Snapshots) -> list[int]:
    return [entry.step for entry in snapshots.entries]


# ------------------------------------------------------------------------------------------------------- which are kept


@pytest.fixture
def rated(tmp_path: Path) -> Snapshots:
    snapshots = Snapshots(tmp_path)
    for step, loss in [(1, 3.0), (2, 1.0), (3, math.nan), (4, 2.0), (5, 1.0), (6, 4.0)]:
        snapshots.add(step, {"loss": loss, "bleu": 10 * loss})
    snapshots.add(7, {})
    return snapshots


def test_from_the_best_to_the_worst(rated: Snapshots) -> None:
    assert [entry.step for entry in rated.ranked("loss", lower_is_better=True)] == [2, 5, 4, 1, 6]
    assert [entry.step for entry in rated.ranked("bleu", lower_is_better=False)] == [6, 1, 4, 2, 5]
    best = rated.best("loss", lower_is_better=True)
    assert best
    assert (best.step, best.figures) == (2, {"loss": 1.0, "bleu": 10.0})
    assert rated.best("other", lower_is_better=True) is None


@pytest.mark.parametrize(
    ("keep_best", "keep_last", "kept"),
    [(1, 0, [2]), (2, 0, [2, 5]), (0, 2, [6, 7]), (3, 3, [2, 4, 5, 6, 7]), (0, 0, [])],
)
def test_the_best_and_the_last_are_kept(rated: Snapshots, keep_best: int, keep_last: int, kept: list[int]) -> None:
    rated.prune(keep_best, "loss", lower_is_better=True, keep_last=keep_last)
    assert steps(rated) == kept


def test_a_step_that_is_evaluated_again_counts_once(rated: Snapshots) -> None:
    rated.add(2, {"loss": 9.0})
    assert steps(rated) == [1, 2, 3, 4, 5, 6, 7]
    assert rated.entries[1].figures == {"loss": 9.0}


# ------------------------------------------------------------------------------------------------------------ the files


def test_a_snapshot_takes_no_room_and_outlives_its_checkpoint(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path)
    made = save(snapshots, 1, 0.5)
    assert (made.path / "weights.safetensors").samefile(snapshots.path(1))
    for step in (2, 3):
        save(snapshots, step)
    assert not made.path.exists()
    assert load_file(snapshots.path(1))["w"].tolist() == [1, 1, 1]


def test_the_average_is_what_was_judged(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path)
    save(snapshots, 1, 0.5, ema=True)
    assert load_file(snapshots.path(1))["w"].tolist() == [-1, -1, -1]


def test_where_there_are_no_links_it_is_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refuse)
    snapshots = Snapshots(tmp_path)
    made = save(snapshots, 1, 0.5)
    assert not (made.path / "weights.safetensors").samefile(snapshots.path(1))
    assert load_file(snapshots.path(1))["w"].tolist() == [1, 1, 1]
    assert Snapshots.resume(tmp_path, made)[1] == []


def test_a_file_goes_when_no_checkpoint_lists_it(tmp_path: Path) -> None:
    """Not before: if the newest checkpoint turned out damaged, the one before needs its own list."""
    snapshots = Snapshots(tmp_path)
    save(snapshots, 1, 0.5)
    save(snapshots, 2, 0.4)
    snapshots.prune(1, "loss", lower_is_better=True)
    save(snapshots, 3)
    assert steps(snapshots) == [2]
    assert files(tmp_path) == ["000001.safetensors", "000002.safetensors"]
    back, notes = Snapshots.resume(tmp_path, Checkpoint(tmp_path / "checkpoints" / "000002", 2))
    assert (steps(back), notes) == ([1, 2], [])
    save(snapshots, 4)
    assert files(tmp_path) == ["000002.safetensors"]


def test_nothing_goes_while_a_list_cannot_be_read(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path)
    made = save(snapshots, 1, 0.5)
    (made.path / "state.json").write_text("{")
    Snapshots(tmp_path).sweep()
    assert files(tmp_path) == ["000001.safetensors"]


# ------------------------------------------------------------------------------------------------------------- resuming


@pytest.fixture
def run(tmp_path: Path) -> Path:
    snapshots = Snapshots(tmp_path)
    for step in (1, 2, 3, 4):
        save(snapshots, step, 1 / step)
    return tmp_path


def last(run: Path) -> Checkpoint:
    found = checkpoint.newest(run).checkpoint
    assert found
    return found


def test_the_list_comes_back(run: Path) -> None:
    back, notes = Snapshots.resume(run, last(run))
    assert notes == []
    assert [(entry.step, entry.figures) for entry in back.entries] == [
        (step, {"loss": 1 / step}) for step in (1, 2, 3, 4)
    ]
    assert all(entry.checksum for entry in back.entries)
    assert json.loads(json.dumps(back.to_state())) == back.to_state()


def test_later_ones_go(run: Path) -> None:
    shutil.rmtree(run / "checkpoints" / "000004")
    back, notes = Snapshots.resume(run, last(run))
    assert (steps(back), notes) == ([1, 2, 3], [])
    assert files(run) == ["000001.safetensors", "000002.safetensors", "000003.safetensors"]


def test_without_a_checkpoint_all_go(run: Path) -> None:
    shutil.rmtree(run / "checkpoints")
    back, notes = Snapshots.resume(run, None)
    assert (steps(back), notes, files(run)) == ([], [], [])


def test_one_that_was_not_linked_yet_is_linked(run: Path) -> None:
    (run / "snapshots" / "000004.safetensors").unlink()
    back, notes = Snapshots.resume(run, last(run))
    assert (steps(back), notes) == ([1, 2, 3, 4], [])
    assert (run / "snapshots" / "000004.safetensors").samefile(last(run).model)


def test_lost_and_damaged_ones_are_left_out_with_a_note(run: Path) -> None:
    one, two = (run / "snapshots" / f"00000{step}.safetensors" for step in (1, 2))
    one.unlink()
    content = bytearray(two.read_bytes())
    content[-1] ^= 1
    two.write_bytes(content)
    back, notes = Snapshots.resume(run, last(run))
    assert steps(back) == [3, 4]
    assert notes == [
        f"snapshot {one} is left out: 000001.safetensors is missing",
        f"snapshot {two} is left out: 000002.safetensors is damaged: its checksum is not the one of what was written",
    ]
    assert files(run) == ["000003.safetensors", "000004.safetensors", "damaged-000002.safetensors"]


def test_a_full_disk_leaves_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patches:
        patches.setattr(os, "link", refuse)
        patches.setattr(shutil, "copyfile", refuse)
        with pytest.raises(
            RunError, match=r"000001\.safetensors cannot be written \(No space .*000001 is whole: make r"
        ):
            save(Snapshots(tmp_path), 1, 0.5)
    back, notes = Snapshots.resume(tmp_path, last(tmp_path))
    assert (steps(back), notes) == ([1], [])


# ------------------------------------------------------------------------------------------------------------- the mean


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_mean_is_taken_in_float64(tmp_path: Path, dtype: torch.dtype) -> None:
    snapshots = Snapshots(tmp_path)
    made = [{"a": torch.randn(50, 3).to(dtype) * 1e3, "b": torch.randn(4).to(dtype)} for _ in range(3)]
    for step, weights in enumerate(made):
        snapshots.add(step, {})
        snapshots.commit(checkpoint.write(tmp_path, step, weights, {}, {STATE: snapshots.to_state()}))
    mean = snapshots.average([2, 0, 1])
    assert list(mean) == ["a", "b"]
    for name in mean:
        exact = sum(weights[name].double().numpy() for weights in made) / np.float64(3)
        assert mean[name].dtype == dtype
        assert torch.equal(mean[name], torch.from_numpy(exact).to(dtype))


def test_the_mean_of_one_is_itself(run: Path) -> None:
    mean = Snapshots(run).average([3])
    assert torch.equal(mean["v"], torch.full((2, 2), 3 / 7))
    (run / "snapshots" / "000003.safetensors").write_bytes(b"")  # the result depends on no file
    assert torch.equal(mean["v"], torch.full((2, 2), 3 / 7))


def test_no_mean_of_nothing(run: Path) -> None:
    with pytest.raises(RunError, match="there is no snapshot to take a mean of; evaluate once at least"):
        Snapshots(run).average([])
    with pytest.raises(RunError, match=r"a snapshot in .*snapshots cannot be read \(.*\); go on with --resume"):
        Snapshots(run).average([3, 99])
