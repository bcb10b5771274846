"""A run directory as a model: damaged weights are refused, and a run that is not finished is its newest checkpoint."""

from __future__ import annotations

import json
import os
import random
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import regard
from regard.errors import WeightsError
from regard.models.settings import Decoder
from regard.training import checkpoint
from regard.weights.directory import load, save, write_weights

SETTINGS = Decoder(width=16, depth=1, vocabulary=20)


def tensors(value: float) -> dict[str, torch.Tensor]:
    return {name: torch.full_like(each, value) for name, each in regard.build(SETTINGS).named_parameters()}


def value(run: Path) -> float:
    """What all parameters of the loaded model are full of."""
    [found] = {each for parameter in load(run).parameters() for each in parameter.unique().tolist()}
    return float(found)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    save(regard.build(SETTINGS), tmp_path)
    write_weights(tmp_path, tensors(1))
    return tmp_path


def flip(path: Path, seed: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[random.Random(seed).randrange(len(content))] ^= 4
    path.write_bytes(content)


def message(run: Path) -> str:
    with pytest.raises(WeightsError) as caught:
        load(run)
    return str(caught.value)


# ------------------------------------------------------------------------------------------------------------ checksums


@pytest.mark.parametrize("seed", range(10))
def test_a_flipped_bit_is_found(run: Path, seed: int) -> None:
    flip(run / "weights.safetensors", seed)
    assert message(run) == (
        f"{run / 'weights.safetensors'} cannot be used: weights.safetensors is damaged: its checksum is not the one of "
        "what was written; copy it again, or save the model again"
    )


def test_the_remedy_names_the_newest_checkpoint_and_works(run: Path) -> None:
    for step in (1, 2, 3):
        checkpoint.write(run, step, tensors(step), {}, {})
    flip(run / "checkpoints" / "000003" / "state.safetensors")
    flip(run / "weights.safetensors")
    assert message(run).endswith(
        f"; remove it, and the newest checkpoint ({run / 'checkpoints' / '000002'}) is loaded in its place"
    )
    (run / "weights.safetensors").unlink()
    assert value(run) == 2


def test_the_remedy_names_the_newest_snapshot_and_works(run: Path) -> None:
    (run / "snapshots").mkdir()
    for step in (5, 999_999, 1_000_000):
        save_file(tensors(step), run / "snapshots" / f"{step:06d}.safetensors")
    (run / "weights.safetensors").write_bytes(b"")
    newest = run / "snapshots" / "1000000.safetensors"
    assert message(run).endswith(
        f"; put the newest snapshot ({newest}) in its place, and remove {run / 'checksums.json'}"
    )
    os.replace(newest, run / "weights.safetensors")
    (run / "checksums.json").unlink()
    assert value(run) == 1_000_000


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "checksums.json is damaged: it is no JSON, so they cannot be checked"),
        ('{"format": 1, "files": {}}', "checksums.json does not list weights.safetensors"),
        ('{"format": 3, "files": {}}', "checksums.json has format 3, and this version of regard reads 1"),
    ],
)
def test_checksums_that_are_damaged_themselves(run: Path, text: str, reason: str) -> None:
    (run / "checksums.json").write_text(text)
    assert reason in message(run)
    (run / "checksums.json").unlink()
    assert value(run) == 1  # without any, there is nothing to hold them against


@pytest.mark.parametrize("checked", [True, False])
def test_weights_and_their_checksum_change_together(run: Path, monkeypatch: pytest.MonkeyPatch, checked: bool) -> None:
    """Two files cannot be renamed at once: killed before any of them, there is an old pair or a new one."""
    if not checked:
        (run / "checksums.json").unlink()

    class Killed(BaseException):
        pass

    rename, found = os.replace, []
    for at in range(1, 10):
        calls = 0

        def count(old: Path, new: Path) -> None:
            nonlocal calls
            calls += 1
            if calls == at:  # noqa: B023
                raise Killed
            rename(old, new)

        monkeypatch.setattr(os, "replace", count)
        try:
            write_weights(run, tensors(at + 1))
            break
        except Killed:
            found.append(value(run))
    assert found == [1, 1, 1, 5]
    assert value(run) == 6
    assert json.loads((run / "checksums.json").read_text()).keys() == {"format", "files"}


def test_damage_is_not_blessed_by_writing_anew(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flip(run / "weights.safetensors")
    rename = os.replace

    def refuse(old: Path, new: Path) -> None:
        if Path(new).name == "weights.safetensors":
            raise KeyboardInterrupt
        rename(old, new)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(KeyboardInterrupt):
        write_weights(run, tensors(2))
    assert "is damaged" in message(run)


# ---------------------------------------------------------------------------------------------------------- checkpoints


@pytest.fixture
def unfinished(run: Path) -> Path:
    (run / "weights.safetensors").unlink()
    (run / "checksums.json").unlink()
    return run


def test_a_run_that_is_not_finished_is_its_newest_checkpoint(unfinished: Path) -> None:
    checkpoint.write(unfinished, 1, tensors(1), {}, {})
    checkpoint.write(unfinished, 2, tensors(2), {}, {}, ema=tensors(20))
    assert value(unfinished) == 20
    flip(unfinished / "checkpoints" / "000002" / "ema.safetensors")
    before = sorted(os.listdir(unfinished / "checkpoints"))
    assert value(unfinished) == 1
    assert sorted(os.listdir(unfinished / "checkpoints")) == before  # to load is not to tidy up
    write_weights(unfinished, tensors(7))
    assert value(unfinished) == 7


def test_a_run_without_a_whole_checkpoint(unfinished: Path) -> None:
    checkpoint.write(unfinished, 1, tensors(1), {}, {})
    (unfinished / "checkpoints" / "000001" / "state.json").unlink()
    assert message(unfinished) == (
        f"{unfinished} has no weights.safetensors, and no checkpoint of it is whole (in 000001, state.json is "
        "missing); copy it again, or save the model again"
    )


def test_a_run_that_has_not_begun(unfinished: Path) -> None:
    with (unfinished / "config.toml").open("a") as file:
        file.write("[train]\nsteps = 3\n")
    assert message(unfinished).endswith(
        "has no weights.safetensors, so it is no whole run directory; it has no checkpoint either: train it first"
    )


def test_a_model_is_not_saved_over_a_run(unfinished: Path) -> None:
    checkpoint.write(unfinished, 1, tensors(1), {}, {})
    expected = (
        rf"{re.escape(str(unfinished))} holds a run with checkpoints, which would be lost; choose another directory"
    )
    with pytest.raises(WeightsError, match=expected):
        save(regard.build(SETTINGS), unfinished)
    assert value(unfinished) == 1


def test_no_settings(run: Path) -> None:
    (run / "config.toml").unlink()
    assert message(run) == f"{run} has no config.toml, so it is no whole run directory; save the model again"


def test_a_model_without_a_format_is_read(run: Path) -> None:
    """As written before there were formats, or by hand."""
    path = run / "config.toml"
    path.write_text(path.read_text().removeprefix("format = 1\n"))
    assert value(run) == 1
