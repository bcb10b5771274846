"""Snapshots: which are kept, how they survive damage, and their mean."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from regard.errors import RunError
from regard.training.checkpoints import Checkpointer, TrainingState, average_files
from regard.training.distribution import Workers
from regard.training.run import Run
from regard.training.settings import Train


def checkpointer(directory: Path, **train: Any) -> Checkpointer:
    """Over a model of one weight, without an optimizer."""
    model = nn.Linear(1, 1, bias=False)
    updater: Any = SimpleNamespace(
        optimizers=SimpleNamespace(tensors=dict, load=lambda _: None),
        scaler=torch.amp.GradScaler("cpu", enabled=False),
        workers=Workers(torch.device("cpu")),
    )
    run = Run.open(directory) if directory.exists() else Run.create(directory, {})
    return Checkpointer(run, model, Train(steps=9, **train), updater)


def save(kept: Checkpointer, step: int, metrics: dict[str, float] | None) -> None:
    """The weight is the step."""
    kept.parameters["weight"].data.fill_(step)
    kept.save(TrainingState(step=step), metrics, 0)


def files(kept: Checkpointer) -> list[int]:
    return sorted(int(path.stem) for path in kept.run.snapshots.iterdir())


def steps(kept: Checkpointer) -> list[int]:
    return [each.step for each in kept.snapshots]


LOSSES = {1: 3.0, 2: 1.0, 3: math.nan, 4: 2.0, 5: 1.0, 6: 4.0}


def test_the_best_and_the_last_are_kept(tmp_path: Path) -> None:
    for number, (train, expected) in enumerate(
        [
            ({"keep": 1}, [2]),
            ({"keep": 2}, [2, 5]),
            ({"keep": 1, "select": "bleu"}, [6]),
            ({"keep": 1, "average": 2}, [2, 6, 7]),
            ({"keep": 1, "average": 3, "average_of": "best"}, [2, 4, 5, 7]),
            ({"keep": 3, "average": 3}, [2, 4, 5, 6, 7]),
        ]
    ):
        kept = checkpointer(tmp_path / str(number), **train)
        for step, loss in LOSSES.items():
            save(kept, step, {"loss": loss, "bleu": 10 * loss})
        if "average" in train:
            save(kept, 7, {})  # without metrics: only among the last
        assert steps(kept) == expected
        assert {*expected} <= {*files(kept)}
    kept = checkpointer(tmp_path / "again", keep=2, ema=0.5)
    for loss in (1.0, 9.0):  # a step that is evaluated twice counts once
        save(kept, 2, {"loss": loss})
    assert [(each.step, each.metrics) for each in kept.snapshots] == [(2, {"loss": 9.0})]
    assert load_file(kept.snapshot_path(2))["weight"].item() != 2  # it is the moving average


def test_a_file_is_removed_when_no_checkpoint_lists_it(tmp_path: Path) -> None:
    """Not before: if the newest checkpoint is damaged, the one before needs its own snapshots."""
    kept = checkpointer(tmp_path / "run")
    save(kept, 1, {"loss": 0.5})
    save(kept, 2, {"loss": 0.4})
    assert (steps(kept), files(kept)) == ([2], [1, 2])
    (tmp_path / "run" / "checkpoints" / "000002" / "state.json").write_text("{")
    kept._remove_unlisted_snapshots()
    assert files(kept) == [1, 2]  # nothing is removed while a list cannot be read
    back = checkpointer(tmp_path / "run")
    state, _, notes = back.resume()
    assert state
    assert (state.step, steps(back), back.parameters["weight"].item()) == (1, [1], 1)
    assert "000002 is damaged" in notes[0]
    assert "continuing from" in notes[1]
    for step in (2, 3, 4):
        save(back, step, {"loss": 0.3})
    assert files(back) == [2]
    assert load_file(back.snapshot_path(2))["weight"].item() == 2


def test_lost_and_damaged_snapshots_are_not_used(tmp_path: Path) -> None:
    kept = checkpointer(tmp_path / "run", keep=3)
    for step in (1, 2, 3):
        save(kept, step, {"loss": 1.0})
    kept.snapshot_path(1).unlink()
    content = bytearray(kept.snapshot_path(2).read_bytes())
    content[-1] ^= 1
    kept.snapshot_path(2).write_bytes(content)
    back = checkpointer(tmp_path / "run", keep=3)
    _, _, notes = back.resume()
    assert steps(back) == [3]
    assert [("missing" in note, "checksum" in note) for note in notes] == [(True, False), (False, True)]


def test_the_mean_is_taken_in_float64(tmp_path: Path) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        made = [{"a": torch.randn(50, 3).to(dtype) * 1e3, "b": torch.randn(4).to(dtype)} for _ in range(3)]
        paths = [tmp_path / str(number) for number in range(3)]
        for path, weights in zip(paths, made, strict=True):
            save_file(weights, path)
        mean = average_files(paths)
        for name in ("a", "b"):
            exact = sum(weights[name].double().numpy() for weights in made) / np.float64(3)
            assert torch.equal(mean[name], torch.from_numpy(exact).to(dtype))
        alone = average_files(paths[:1])
        paths[0].write_bytes(b"")  # the result depends on no file
        assert torch.equal(alone["a"], made[0]["a"])
    with pytest.raises(RunError, match=r"no snapshots to average"):
        average_files([])
    with pytest.raises(RunError, match=r"cannot be read"):
        average_files([tmp_path / "99"])
