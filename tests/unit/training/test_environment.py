"""environment.json: what a run was trained with, and what changed since."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch

from regard.training import environment

CPU = torch.device("cpu")


def content(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "environment.json").read_text())
    return found


def test_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["regard", "train", "my recipe.toml"])
    environment.write(tmp_path, CPU)
    found = content(tmp_path)
    for package in ("regard", "numpy", "safetensors", "tokenizers", "torch"):
        assert found[package].split("+")[0] == version(package).split("+")[0]
    assert found["python"] == platform.python_version()
    assert found["command"] == "regard train 'my recipe.toml'"
    assert found["threads"] == torch.get_num_threads()
    assert found["device"] == "cpu"
    assert found["cuda"] == torch.version.cuda
    assert found["cpu"]
    assert found["cores"] >= 1
    assert found["resumes"] == []
    assert abs(datetime.now(UTC) - datetime.fromisoformat(found["time"])) < timedelta(minutes=1)


def test_the_same_again_is_no_reason_to_warn(tmp_path: Path) -> None:
    environment.write(tmp_path, CPU)
    assert environment.resume(tmp_path, CPU) == []
    [resume] = content(tmp_path)["resumes"]
    assert resume.keys() == {"time", "command", "changed"}
    assert resume["changed"] == {}


def test_changes_are_told_once_and_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment.write(tmp_path, CPU)
    threads, torch_version = torch.get_num_threads(), str(torch.__version__)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 99)
    monkeypatch.setattr(torch, "__version__", "3.0.0")
    assert environment.resume(tmp_path, CPU) == [
        f"changed since this run was last started: torch ({torch_version}, now 3.0.0), threads ({threads}, now 99); "
        "results may differ in the last bits"
    ]
    assert content(tmp_path)["resumes"][0]["changed"] == {"torch": [torch_version, "3.0.0"], "threads": [threads, 99]}
    assert environment.resume(tmp_path, CPU) == []
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert "threads (99, now" in environment.resume(tmp_path, CPU)[0]
    assert len(content(tmp_path)["resumes"]) == 3


@pytest.mark.parametrize("text", [None, "{", "[]", '{"resumes": [3]}', "{}"])
def test_a_file_that_cannot_be_read_is_written_anew(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "environment.json").write_text(text)
    [warning] = environment.resume(tmp_path, CPU)
    assert warning.startswith(f"{tmp_path / 'environment.json'} is missing or damaged")
    assert environment.resume(tmp_path, CPU) == []


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_the_commit_of_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(name, raising=False)

    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false"]
        done = subprocess.run(
            ["git", "-C", tmp_path, *identity, *arguments], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    package = tmp_path / "package"
    package.mkdir()
    (package / "errors.py").write_text("")
    assert environment._commit(package) is None
    git("init")
    assert environment._commit(package) is None  # in a checkout, but not of it
    git("add", ".")
    git("commit", "-m", "first")
    commit = git("rev-parse", "HEAD")
    assert environment._commit(package) == commit
    (package / "errors.py").write_text("changed")
    assert environment._commit(package) == f"{commit} with changes"


def test_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert environment.describe(CPU)["commit"] is None
