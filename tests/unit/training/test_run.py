"""A run directory: made once, opened again, locked by one process, with a log and a status that are always readable."""

from __future__ import annotations

import json
import math
import os
import platform
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regard.errors import RegardError, RunError, SettingsError
from regard.models.settings import Decoder
from regard.settings import parse, to_table
from regard.training import run as run_module
from regard.training.run import Log, Run, Status, describe_environment, read_log, resume_environment, write_environment
from regard.training.settings import Train
from regard.weights.directory import load_model

CPU = torch.device("cpu")
CONFIG: dict[str, Any] = {
    "task": {"kind": "language"},
    "model": to_table(Decoder(width=16, depth=1, vocabulary=20)),
    "train": Train(steps=3, clip=None).model_dump(),
}


def message(directory: Path) -> str:
    with pytest.raises(RunError) as caught:
        Run.create(directory, CONFIG)
    return str(caught.value)


def test_a_run_is_created_and_opened(tmp_path: Path) -> None:
    made = Run.create(tmp_path / "deep" / "down", CONFIG, fill=lambda place: (place / "labels.json").touch())
    found = Run.open(str(tmp_path / "deep" / "down"))
    assert found.config == made.config
    assert sorted(os.listdir(found.directory)) == [".lock", "config.toml", "labels.json", "status.json"]
    assert (found.directory / "config.toml").read_text().startswith("format = 1\n")
    assert found.status == Status("stopped", reason="not started")
    # `clip` has a default; if None were left out, the default would come back.
    assert parse(Train, found.config["train"]) == Train(steps=3, clip=None)
    found.configure(CONFIG | {"train": Train(steps=9).model_dump()})
    assert found.config == Run.open(found.directory).config
    assert found.config["train"]["steps"] == 9
    assert "already contains a run" in message(found.directory)


def test_directories_that_cannot_be_used(tmp_path: Path) -> None:
    for name in "dcba":
        (tmp_path / name).touch()
    assert "is not empty (it contains a); choose another train.directory" in message(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "c", "d"]
    assert "a is a file" in message(tmp_path / "a")
    assert "Not a directory" in message(tmp_path / "a" / "run")
    for path, expected in (("nowhere", "does not exist"), ("", "has no config.toml"), ("a", "is not a run")):
        with pytest.raises(RunError, match=expected):
            Run.open(tmp_path / path)

    def fail(place: Path) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Run.create(tmp_path / "run", CONFIG, fail)
    with pytest.raises(RunError, match=r"train without --resume"):
        Run.open(tmp_path / "run")
    Run.create(tmp_path / "run", CONFIG)


def test_missing_permissions(tmp_path: Path) -> None:
    closed, root = tmp_path / "closed", os.geteuid() == 0
    closed.mkdir(mode=0)
    try:
        os.seteuid(65534 if root else os.geteuid())  # without the rights of root
        assert "closed/run cannot be written (Permission denied)" in message(closed / "run")
        with pytest.raises(RunError, match=r"closed/run is not readable"):
            Run.open(closed / "run")
    finally:
        os.seteuid(0 if root else os.geteuid())


def test_settings_that_cannot_be_read(tmp_path: Path) -> None:
    Run.create(tmp_path, CONFIG)
    path = tmp_path / "config.toml"
    good = path.read_text()
    for found in (2, 0, '"x"'):
        path.write_text(good.replace("format = 1", f"format = {found}"))
        for read in (Run.open, load_model):
            with pytest.raises(RegardError, match=r"has format .*wrote it"):
                read(tmp_path)
    path.write_text("[train")
    with pytest.raises(SettingsError, match=r"config\.toml is not valid TOML"):
        Run.open(tmp_path)
    path.unlink()
    path.mkdir()
    with pytest.raises(RunError, match=r"config\.toml cannot be read"):
        Run.open(tmp_path)


HOLD = """
import os, sys, time
from regard.training.run import Run
with Run.open(sys.argv[1]).lock():
    Run.open(sys.argv[1]).set_status("running", step=5)
    child = os.fork()
    print(child, flush=True) if child else None
    time.sleep(60)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_two_processes_do_not_train_in_one_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that make batches can live on for seconds after a kill; they must not hold the lock."""
    monkeypatch.setattr(run_module, "LOCK_SECONDS", 0.05)
    run = Run.create(tmp_path, CONFIG)
    with subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE) as other:
        assert other.stdout
        child = int(other.stdout.readline())
        try:
            with pytest.raises(RunError, match=rf"in use by process {other.pid} on \S+"), run.lock():
                pass
            assert run.status == Status("running", 5, process=f"{other.pid} on {platform.node()}")
            other.send_signal(signal.SIGKILL)
            other.wait()
            os.kill(child, 0)  # it is alive
            assert run.status == Status("killed", step=5)
            with run.lock():
                assert run.status.state == "running"
        finally:
            os.kill(child, signal.SIGKILL)
    with run.lock(), pytest.raises(RunError, match="in use by process"), Run.open(tmp_path).lock():
        pass


def test_status(tmp_path: Path) -> None:
    run = Run.create(tmp_path, CONFIG)
    run.set_status("finished", 7, "budget", {"loss": 0.1 + 0.2, "bad": math.nan})
    assert Run.open(tmp_path).status == Status("finished", 7, "budget", {"loss": 0.1 + 0.2, "bad": None})
    for content in (None, "{", "[]", '{"other": 1}'):
        (tmp_path / "status.json").unlink()
        if content is not None:
            (tmp_path / "status.json").write_text(content)
        assert run.status == Status("killed", reason="status.json is missing or damaged")
        (tmp_path / "status.json").touch()
    (tmp_path / "status.json").write_text('{"state": "finished", "step": 2, "figures": {"loss": 1.5}}')
    assert run.status == Status("finished", 2, metrics={"loss": 1.5})  # of an older version


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.jsonl"


def test_records_come_back_exactly_and_in_order(path: Path) -> None:
    log = Log(path)
    records: list[dict[str, Any]] = [
        {"step": 1, "loss": 0.1 + 0.2, "a": 5e-324, "text": "ü → \n", "none": None},
        {"z": 1, "a": [1.5, {"b": True}]},
        {"loss": float(np.float32(0.1)), "sum": np.float64(1) / 3},
    ]
    for record in records:
        log.append(record)
        assert path.stat().st_size == log.sync()  # it is in the file at once
    assert [[*record.items()] for record in read_log(path)] == [[*record.items()] for record in records]
    assert path.read_bytes().count(b"\n") == 3
    log.append({"a": math.nan, "b": [math.inf, (1.0, -math.inf)], "c": {"d": math.nan}})
    assert read_log(path)[-1] == {"a": None, "b": [None, [1.0, None]], "c": {"d": None}}


def test_back_to_a_checkpoint(path: Path) -> None:
    log = Log(path)
    assert log.sync() == 0
    log.append({"step": 1})
    length = log.sync()
    log.append({"step": 2})
    assert Log(path).truncate(length) is None
    log.append({"step": "two"})
    assert read_log(path) == [{"step": 1}, {"step": "two"}]
    assert "some lines are lost" in (log.truncate(100) or "")
    assert "was changed" in (log.truncate(15) or "")
    assert read_log(path) == [{"step": 1}]
    assert log.truncate(0) is None
    path.unlink()
    assert "some lines are lost" in (log.truncate(100) or "")


def test_incomplete_and_damaged_lines(path: Path) -> None:
    for kept in range(12, 24):
        path.write_text('{"step": 1}\n{"step": 2}\n')
        os.truncate(path, kept)
        assert read_log(path) == [{"step": 1}]
        Log(path).append({"step": 3})
        assert read_log(path) == [{"step": 1}, {"step": 3}]
    for content in (b'{"step": 1}\n[2]\n{"step": 3}\n', b'{"step": 1}\n{"step": \xff\n'):
        path.write_bytes(content)
        with pytest.raises(RunError, match=r"log\.jsonl, line 2, is not a JSON object"):
            read_log(path)
    path.unlink()
    with pytest.raises(RunError, match=r"log\.jsonl does not exist"):
        read_log(path)


def test_a_disk_that_accepts_half_a_line(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resumed run removes the half; otherwise the next line would follow it directly."""
    log = Log(path)
    log.append({"step": 1})
    plain = open

    def narrow(name: Path, mode: str, buffering: int = -1) -> Any:
        with plain(name, mode, buffering=buffering) as file:
            file.write(b'{"st')
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patches:
        patches.setattr("builtins.open", narrow)
        with pytest.raises(RunError, match=r"log\.jsonl cannot be written \(No space left on device; [\d,.]+ MB"):
            log.append({"step": 2})
    Log(path).append({"step": 2})
    assert read_log(path) == [{"step": 1}, {"step": 2}]


def test_the_environment_is_written_and_changes_are_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["regard", "train", "my recipe.toml"])
    write_environment(tmp_path, CPU)
    found = json.loads((tmp_path / "environment.json").read_text())
    for package in ("regard", "numpy", "safetensors", "tokenizers", "torch"):
        assert found[package].split("+")[0] == version(package).split("+")[0]
    assert (found["command"], found["device"], found["resumes"]) == ("regard train 'my recipe.toml'", "cpu", [])
    assert abs(datetime.now(UTC) - datetime.fromisoformat(found["time"])) < timedelta(minutes=1)
    assert resume_environment(tmp_path, CPU) == []
    threads = torch.get_num_threads()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 99)
    assert f"threads ({threads}, now 99)" in resume_environment(tmp_path, CPU)[0]
    assert resume_environment(tmp_path, CPU) == []
    resumes = json.loads((tmp_path / "environment.json").read_text())["resumes"]
    assert [resume["changed"] for resume in resumes] == [{}, {"threads": [threads, 99]}, {}]
    for text in ("{", "[]", '{"resumes": [3]}', "{}"):
        (tmp_path / "environment.json").write_text(text)
        assert "is missing or damaged" in resume_environment(tmp_path, CPU)[0]
        assert resume_environment(tmp_path, CPU) == []
    monkeypatch.setenv("PATH", str(tmp_path))
    assert describe_environment(CPU)["commit"] is None, "without git"
