"""A run that is killed, or whose disk refuses, at any moment goes on to exactly the same end."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from accident_cases import Killed, accidents, begin, go_on, outcome

from regard.errors import RunError
from regard.training.run import Run


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Where runs are made by the hundred: in memory, where the system has a place for that."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path / "run"
        return
    with tempfile.TemporaryDirectory(dir=memory) as place:
        yield Path(place) / "run"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    place = tmp_path_factory.mktemp("runs") / "run"
    begin(place)
    assert go_on(place) == []
    return outcome(place)


def disturbed(directory: Path, monkeypatch: pytest.MonkeyPatch, at: int, kind: str) -> tuple[int, str | None]:
    """Begins a run, or goes on with it, until an accident happens; the calls that were made, and what was said."""
    with monkeypatch.context() as patches, accidents(patches.setattr, at, kind) as trouble:
        try:
            if not (directory / "config.toml").exists():
                begin(directory)
            assert go_on(directory) == []
        except Killed:
            return trouble.calls, "killed"
        except RunError as error:
            return trouble.calls, str(error)
    return trouble.calls, None


@pytest.mark.parametrize(
    ("kind", "every"), [pytest.param("killed", 2, marks=pytest.mark.slow), ("full", 4), ("once", 4)]
)
def test_an_accident_at_any_call(
    directory: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: dict[str, Any], kind: str, every: int
) -> None:
    calls, said = disturbed(directory, monkeypatch, 10**9, kind)
    assert said is None
    assert calls > 250
    assert outcome(directory) == undisturbed
    shutil.rmtree(directory)
    for at in range(1, calls + 1, every):
        _, said = disturbed(directory, monkeypatch, at, kind)
        if kind != "killed" and said is not None:
            assert "cannot be written (" in said
            assert " MB are free)" in said
        if not (directory / "config.toml").exists():
            begin(directory)
        assert go_on(directory) == []
        assert outcome(directory) == undisturbed, at
        assert Run.open(directory).status.state == "finished"
        shutil.rmtree(directory)


@pytest.mark.slow
def test_many_accidents_in_one_run(
    directory: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: dict[str, Any]
) -> None:
    """Recovery itself is killed again and again."""
    chance = random.Random(2)
    for _ in range(6):
        accidents_so_far = 0
        while True:
            kind = chance.choice(["killed", "killed", "full", "once"])
            _, said = disturbed(directory, monkeypatch, chance.randrange(1, 150), kind)
            if said is None:
                break
            accidents_so_far += 1
        assert accidents_so_far > 1
        assert outcome(directory) == undisturbed
        shutil.rmtree(directory)
