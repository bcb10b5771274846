"""A run directory: made once, found again, locked by one process, and honest about its state."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from regard.errors import RegardError, RunError, SettingsError
from regard.models.settings import Decoder
from regard.settings import parse, to_table
from regard.training import checkpoint
from regard.training.lock import Lock, holder
from regard.training.run import Run, Status
from regard.training.settings import Train
from regard.weights.load import load

CONFIG: dict[str, Any] = {
    "task": {"kind": "language"},
    "model": to_table(Decoder(width=16, depth=1, vocabulary=20)),
    "train": Train(steps=3, clip=None).model_dump(),
}


def message(directory: Path) -> str:
    with pytest.raises(RunError) as caught:
        Run.create(directory, CONFIG)
    return str(caught.value)


# --------------------------------------------------------------------------------------------------- making and finding


def test_a_run_is_made_and_found(tmp_path: Path) -> None:
    made = Run.create(tmp_path / "deep" / "down", CONFIG, fill=lambda place: (place / "labels.json").touch())
    found = Run.open(str(tmp_path / "deep" / "down"))
    assert found.config == made.config
    assert sorted(os.listdir(found.directory)) == [".lock", "config.toml", "labels.json", "status.json"]
    assert (found.directory / "config.toml").read_text().startswith("format = 1\n")
    assert found.status == Status("stopped", reason="not begun")


def test_settings_come_back_equal_empty_ones_too(tmp_path: Path) -> None:
    """`clip` has a default, so leaving it out would bring that back."""
    Run.create(tmp_path, CONFIG)
    assert parse(Train, Run.open(tmp_path).config["train"]) == Train(steps=3, clip=None)


def test_a_run_is_given_other_settings(tmp_path: Path) -> None:
    run = Run.create(tmp_path, CONFIG)
    run.configure(CONFIG | {"train": Train(steps=9).model_dump()})
    assert run.config == Run.open(tmp_path).config
    assert run.config["train"]["steps"] == 9


def test_a_directory_that_holds_a_run(tmp_path: Path) -> None:
    Run.create(tmp_path, CONFIG)
    assert message(tmp_path) == (
        f"{tmp_path} already holds a run; go on with it by --resume, or choose another train.directory"
    )


def test_a_directory_that_holds_something_else(tmp_path: Path) -> None:
    for name in "dcba":
        (tmp_path / name).touch()
    assert message(tmp_path) == (
        f"{tmp_path} is not empty (it holds a, b, c, …) and would be mixed up with a run; choose another "
        "train.directory, or go on with a run by --resume"
    )
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "c", "d"]
    assert message(tmp_path / "a") == f"{tmp_path / 'a'} is a file; choose another train.directory"
    assert "Not a directory" in message(tmp_path / "a" / "run")


@pytest.fixture
def nobody() -> Iterator[None]:
    """Without the rights of root, who may write everywhere."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    yield
    if root:
        os.seteuid(0)


def test_a_directory_that_may_not_be_used(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    request.getfixturevalue("nobody")
    assert message(closed / "run") == (
        f"{closed / 'run'} cannot be written (Permission denied); choose another train.directory, or make this one "
        "writable"
    )
    with pytest.raises(RunError, match=r"closed/run may not be read; change its permissions"):
        Run.open(closed / "run")


def test_a_run_whose_making_failed_is_made_again(tmp_path: Path) -> None:
    def fail(place: Path) -> None:
        (place / "tokenizer.json").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Run.create(tmp_path / "run", CONFIG, fail)
    with pytest.raises(
        RunError, match=r"has no config\.toml, so it holds no run; it was killed before it began: start"
    ):
        Run.open(tmp_path / "run")
    Run.create(tmp_path / "run", CONFIG)
    assert Run.open(tmp_path / "run").config["train"]["steps"] == 3


def test_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"nowhere does not exist; give the directory of a run"):
        Run.open(tmp_path / "nowhere")
    with pytest.raises(RunError, match=r"has no config\.toml, so it holds no run; give that of a run"):
        Run.open(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"file is a file; give the directory of a run"):
        Run.open(tmp_path / "file")


@pytest.mark.parametrize(
    ("found", "remedy"),
    [(2, "install a newer regard"), (0, "read it with the version of"), ('"x"', "read it with the version of")],
)
def test_another_format(tmp_path: Path, found: object, remedy: str) -> None:
    Run.create(tmp_path, CONFIG)
    path = tmp_path / "config.toml"
    path.write_text(path.read_text().replace("format = 1", f"format = {found}"))
    expected = rf"config\.toml has format .*, and this version of regard reads format 1; {remedy}"
    with pytest.raises(RunError, match=expected):
        Run.open(tmp_path)
    with pytest.raises(RegardError, match=expected):
        load(tmp_path)


def test_settings_that_cannot_be_read(tmp_path: Path) -> None:
    Run.create(tmp_path, CONFIG)
    (tmp_path / "config.toml").write_text("[train")
    with pytest.raises(SettingsError, match=r"config\.toml is not valid TOML"):
        Run.open(tmp_path)
    (tmp_path / "config.toml").unlink()
    (tmp_path / "config.toml").mkdir()
    with pytest.raises(RunError, match=r"config\.toml cannot be read \(Is a directory\)"):
        Run.open(tmp_path)


# ----------------------------------------------------------------------------------------------------------------- lock

HOLD = """
import sys, time
from pathlib import Path
from regard.training.lock import Lock
with Lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_two_processes_do_not_train_in_one_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.training.lock.PATIENCE", 0.05)
    run = Run.create(tmp_path, CONFIG)
    with subprocess.Popen([sys.executable, "-c", HOLD, tmp_path / ".lock"], stdout=subprocess.PIPE) as other:
        assert other.stdout
        assert other.stdout.readline() == b"held\n"
        with (
            pytest.raises(RunError, match=rf"is in use: process {other.pid} on \S+ trains in it; wait until it"),
            run.lock(),
        ):
            pass
        run.set_status("running", step=5)
        assert run.status == Status("running", step=5)
        other.send_signal(signal.SIGKILL)
        other.wait()
        assert run.status == Status("killed", step=5)
        with run.lock():
            assert run.status == Status("running", step=5)
    assert run.status == Status("killed", step=5)


def test_the_same_process_does_not_take_it_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.training.lock.PATIENCE", 0.05)
    run = Run.create(tmp_path, CONFIG)
    with run.lock(), pytest.raises(RunError, match=rf"process {os.getpid()} on"), Run.open(tmp_path).lock():
        pass
    with run.lock():
        pass


FORK = """
import os, sys, time
from pathlib import Path
from regard.training.lock import Lock
with Lock(Path(sys.argv[1])):
    if os.fork() == 0:
        print(os.getpid(), flush=True)
    time.sleep(60)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_children_of_a_killed_process_do_not_hold_its_lock(tmp_path: Path) -> None:
    """Processes that make batches may live on for seconds."""
    path = tmp_path / ".lock"
    with subprocess.Popen([sys.executable, "-c", FORK, path], stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        child = int(parent.stdout.readline())
        assert holder(path) == f"process {parent.pid} on {os.uname().nodename}"
        parent.kill()
        parent.wait()
        try:
            os.kill(child, 0)  # it is there
            assert holder(path) is None
            with Lock(path):
                assert holder(path) == f"process {os.getpid()} on {os.uname().nodename}"
        finally:
            os.kill(child, signal.SIGKILL)


def test_what_killed_processes_left_goes_with_the_next_lock(tmp_path: Path) -> None:
    run = Run.create(tmp_path, CONFIG)
    made = checkpoint.write(tmp_path, 1, {"w": torch.ones(1)}, {}, {})
    left = [
        tmp_path / ".tmpAb12Cd",
        tmp_path / ".weights.safetensors.7.partial",
        tmp_path / "snapshots" / ".000001.safetensors.7.partial",
        tmp_path / "checkpoints" / ".000002.7.partial",
        tmp_path / "checkpoints" / ".000001.removed",
    ]
    for path in left:
        if path.parent.name == "checkpoints":
            path.mkdir()
            path = path / "weights.safetensors"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"half")
    Run.open(tmp_path)
    assert all(path.exists() for path in left)  # to read is not to train: they may be a living process's
    with run.lock():
        assert not any(path.exists() for path in left)
    assert checkpoint.newest(tmp_path).checkpoint == made


# --------------------------------------------------------------------------------------------------------------- status


def test_status(tmp_path: Path) -> None:
    run = Run.create(tmp_path, CONFIG)
    run.set_status("finished", 7, "budget", {"loss": 0.1 + 0.2, "bad": math.nan})
    assert Run.open(tmp_path).status == Status("finished", 7, "budget", {"loss": 0.1 + 0.2, "bad": None})
    run.set_status("failed", 8, "the loss is not finite")
    assert run.status == Status("failed", 8, "the loss is not finite")


@pytest.mark.parametrize("content", [None, "{", "[]", '{"other": 1}'])
def test_a_status_that_cannot_be_read(tmp_path: Path, content: str | None) -> None:
    run = Run.create(tmp_path, CONFIG)
    (tmp_path / "status.json").unlink()
    if content is not None:
        (tmp_path / "status.json").write_text(content)
    assert run.status == Status("killed", reason="status.json is missing or damaged")


# -------------------------------------------------------------------------------------------------------------- weights


def test_the_weights_of_a_run_are_loaded(tmp_path: Path) -> None:
    run = Run.create(tmp_path, CONFIG)
    model = regard.build(Decoder(width=16, depth=1, vocabulary=20))
    run.write_weights(dict(model.named_parameters()))
    back = dict(load(tmp_path).named_parameters())
    assert all(torch.equal(back[name], parameter) for name, parameter in model.named_parameters())
    assert json.loads((tmp_path / "checksums.json").read_text())["files"].keys() == {run.weights.name}


def test_weights_that_find_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run.create(tmp_path, CONFIG)

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(
        RunError, match=r"weights\.safetensors cannot be written .* in .*checkpoints are untouched: make"
    ):
        run.write_weights({"w": torch.ones(1)})
