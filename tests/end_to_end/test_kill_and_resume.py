"""`regard train` as people run it: stopped by Ctrl-C or SIGTERM, or killed, it ends as if nothing had happened."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest
from kill_cases import BEGUN, RECIPES, begin, finish, go_on, kill_again_and_again, wait_for_step, write_recipe
from loop_cases import remains

from regard.training.loop import SIGNAL_SECONDS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals"),
]

STEPS: dict[str, Any] = {"steps": 96, "evaluate_every": 10}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For two families a recipe, and a run of it that was not disturbed."""
    place = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(place / "cache"))
        for program in [
            begin(write_recipe(place / f"{family}.toml", RECIPES[family], **STEPS), place / family)
            for family in ("translate", "language")
        ]:
            finish(program)
    return place


@pytest.fixture(autouse=True)
def _shared_cache(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", str(home / "cache"))


def status(run: Path) -> tuple[str, str]:
    found = json.loads((run / "status.json").read_text())
    return found["state"], found["reason"]


@pytest.mark.parametrize(("number", "workers"), [(signal.SIGINT, 0), (signal.SIGTERM, 2)])
def test_a_signal_stops_a_run_in_good_order(number: signal.Signals, workers: int, home: Path, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "recipe.toml", RECIPES["translate"], **STEPS, workers=workers)
    program = begin(recipe, tmp_path / "run")
    wait_for_step(program, tmp_path / "run", 4)
    program.send(number)
    assert program.wait(30) == 0
    assert "Traceback" not in program.text
    assert f"stopped by {number.name} after " in program.text
    assert f"resume:  regard train --resume {tmp_path / 'run'}\n" in program.text
    assert status(tmp_path / "run") == ("stopped", number.name)
    finish(go_on(recipe, tmp_path / "run"))
    assert status(tmp_path / "run") == ("finished", "budget")
    assert remains(tmp_path / "run") == remains(home / "translate")


def large(path: Path, valid_pairs: int, **train: Any) -> Path:
    """A recipe whose steps and evaluations take long."""
    recipe = {**RECIPES["translate"], "data": {"kind": "grammar", "train_pairs": 2000, "valid_pairs": valid_pairs}}
    recipe["model"] = {**recipe["model"], "width": 256, "depth": 4}
    return write_recipe(path, recipe, steps=60, **train)


def test_ctrl_c_leaves_a_long_evaluation(tmp_path: Path) -> None:
    program = begin(large(tmp_path / "recipe.toml", 4000, evaluate_every=1), tmp_path / "run")
    assert program.wait_for(BEGUN)
    time.sleep(2)
    program.send(signal.SIGINT)
    assert program.wait(30) == 0
    assert "  valid  " not in program.text
    assert status(tmp_path / "run") == ("stopped", "SIGINT")


def test_a_second_ctrl_c_ends_it_at_once(tmp_path: Path) -> None:
    """In the midst of a step that would take long; what was saved before is there, the lock is not held."""
    recipe = large(tmp_path / "recipe.toml", 100, tokens=20_000)
    program = begin(recipe, tmp_path / "run")
    assert program.wait_for(BEGUN)
    time.sleep(1)
    program.send(signal.SIGINT)
    time.sleep(1.2 * SIGNAL_SECONDS)
    assert program.runs
    program.send(signal.SIGINT)
    assert program.wait(30) == 130
    assert "Traceback" not in program.text
    assert status(tmp_path / "run") == ("failed", "KeyboardInterrupt")
    again = go_on(recipe, tmp_path / "run")
    assert again.wait_for(BEGUN)
    again.end()


@pytest.mark.parametrize("family", ["translate", "language"])
def test_killed_at_random_moments_it_ends_the_same(family: str, home: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    kills = kill_again_and_again(home / f"{family}.toml", run, 4, STEPS["steps"], Random(family))
    assert len(kills) >= 2
    assert remains(run) == remains(home / family)
