"""The loop as `regard.train` and `regard.resume` drive it: stopped, damaged, failed, moved, and still the same run."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from loop_cases import Heard, remains

import regard
from regard.data.store import cache_folder
from regard.errors import DataError, RunError
from regard.tasks import run as tasks_run
from regard.training.run import Run, read_log, read_status
from regard.weights.checkpoints import list_checkpoints
from regard.weights.directory import load_model, read_config

pytestmark = pytest.mark.slow

STEPS, STOPPED = 10, 7
NUMBERS = ["one", "two", "three", "four", "five", "six", "seven", "eight"]
ZAHLEN = ["eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht"]

RECIPE: dict[str, Any] = {
    "task": {"kind": "translate", "smoothing": 0.1},
    "data": {"kind": "parallel", "train": ["train.en", "train.de"], "valid": ["valid.en", "valid.de"]},
    "text": {"kind": "words"},
    "model": {"kind": "encoder-decoder", "width": 16, "depth": 1, "attention": {"heads": 2}, "dropout": 0.1},
    "train": {"steps": STEPS, "tokens": 128, "evaluate_every": 4, "save_every": 3, "schedule": {"kind": "constant"}},
}
RECIPE["train"] |= {"log_every": 1}


class Stops(Heard):
    """Sends SIGINT when a step is reported."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step

    def train(self, record: Any, spent: float, seconds_left: float | None) -> None:
        if record["step"] == self.step:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without curves."""
    monkeypatch.setattr(tasks_run, "draw_curves", lambda *_: False)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data, a run that went straight to its end, and one that was stopped, which tests copy."""
    place = tmp_path_factory.mktemp("home")
    for split, count in (("train", 60), ("valid", 12)):
        for end, words in (("en", NUMBERS), ("de", ZAHLEN)):
            lines = [" ".join(words[(n * (i + 3)) % 8] for n in range(1, 2 + i % 5)) for i in range(count)]
            (place / f"{split}.{end}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (place / "recipe.toml").write_text(tomli_w.dumps(RECIPE))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REGARD_CACHE", str(place / "cache"))
        patch.setattr(os, "fsync", lambda _: None)
        patch.setattr(tasks_run, "draw_curves", lambda *_: False)
        begin(place, place / "straight", Heard())
        begin(place, place / "stopped", Stops(STOPPED))
    return place


def begin(home: Path, directory: Path, display: Heard, **train: Any) -> regard.Trained:
    changes = {"data": {"root": str(home)}, "train": {"directory": str(directory), **train}}
    return regard.train(home / "recipe.toml", changes, device="cpu", display=display)


def go_on(directory: Path, **train: Any) -> tuple[regard.Trained, Heard]:
    display = Heard()
    return regard.resume(directory, {"train": train} if train else {}, device="cpu", display=display), display


@pytest.fixture
def stopped(home: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(home / "stopped", tmp_path / "run"))


def status(directory: Path) -> tuple[str, int, str]:
    found = Run.open(directory).status
    return found.state, found.step, found.reason


def test_ctrl_c_while_curves_are_drawn_makes_no_failure_of_a_run(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks_run, "draw_curves", lambda *_: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        begin(home, tmp_path / "run", Heard())
    assert status(tmp_path / "run") == ("finished", STEPS, "budget")
    assert remains(tmp_path / "run") == remains(home / "straight")


def test_a_finished_run_may_be_prolonged(home: Path, tmp_path: Path) -> None:
    """At a constant rate, twelve steps and then four are sixteen; a run that ends again has its weights again."""
    begin(home, tmp_path / "long", Heard(), steps=16)
    begin(home, tmp_path / "run", Heard(), steps=12)
    before = remains(tmp_path / "run")
    go_on(tmp_path / "run")
    assert remains(tmp_path / "run") == before
    trained, _ = go_on(tmp_path / "run", steps=16)
    assert trained.step == 16
    assert remains(tmp_path / "run") == remains(tmp_path / "long")


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(home: Path, stopped: Path, tmp_path: Path) -> None:
    cases = [(flip, "weights.safetensors"), (flip, "checksums.json"), (Path.unlink, "state.json")]
    for number, (damage, name) in enumerate(cases):
        run = Path(shutil.copytree(stopped, tmp_path / str(number)))
        damage(run / "checkpoints" / f"{STOPPED:06d}" / name)
        trained, display = go_on(run)
        assert display.events[0].startswith(f"{run / 'checkpoints' / f'{STOPPED:06d}'} is damaged and not used (")
        assert display.events[1] == f"continuing from {run / 'checkpoints' / '000006'}, the newest intact checkpoint"
        assert trained.step == STEPS
        assert remains(run) == remains(home / "straight")


def test_where_no_checkpoint_is_good_nothing_is_begun_again(home: Path, stopped: Path, tmp_path: Path) -> None:
    """Days of training must not be lost to a restart that nobody asked for."""
    for found in list_checkpoints(stopped):
        flip(found.path / "weights.safetensors")
    kept = (stopped / "log.jsonl").read_bytes()
    with pytest.raises(RunError, match="no good checkpoint"):
        go_on(stopped)
    shutil.rmtree(stopped / "checkpoints")
    damaged = Path(shutil.copytree(stopped, tmp_path / "damaged"))
    (damaged / "status.json").unlink()
    for run in (stopped, damaged):
        with pytest.raises(RunError, match=r"no good checkpoint.*restore .*checkpoints"):
            go_on(run)
        assert list((run / "snapshots").iterdir())
    assert (stopped / "log.jsonl").read_bytes() == kept
    finished = Path(shutil.copytree(home / "straight", tmp_path / "finished"))
    shutil.rmtree(finished / "checkpoints")
    with pytest.raises(RunError, match=r"train\.start="):
        go_on(finished)
    assert status(finished)[0] == "finished"
    assert load_model(finished).settings.width == 16


def test_a_flipped_bit_is_noticed(home: Path, stopped: Path, tmp_path: Path) -> None:
    """In the settings it is refused; in the prepared data, which are then made again from the files."""
    config = (stopped / "config.toml").read_bytes()
    for place in range(0, len(config), len(config) // 20):
        (stopped / "config.toml").write_bytes(config[:place] + bytes([config[place] ^ 1]) + config[place + 1 :])
        with pytest.raises(regard.RegardError, match=r"config\.toml"):
            go_on(stopped)
    (stopped / "config.toml").write_bytes(config)
    names = read_config(stopped)["prepared"]
    go_on(Path(shutil.copytree(stopped, tmp_path / "whole")))  # fills the cache
    for name, damage in {
        "target.values": "target.values is missing or has another checksum",
        "source.offsets": "source.offsets is missing or has another checksum",
        "about.json": "is not a complete store",
    }.items():
        run = Path(shutil.copytree(stopped, tmp_path / name))
        flip(cache_folder() / "prepared" / names["train"] / name)
        _, display = go_on(run)
        assert any(f"{damage}, so it was made again" in event for event in display.events)
        assert remains(run) == remains(home / "straight")


def test_a_checkpoint_of_another_run_is_refused(home: Path, stopped: Path, tmp_path: Path) -> None:
    begin(home, tmp_path / "other", Heard())
    [newest, *_] = list_checkpoints(tmp_path / "other")
    shutil.copytree(newest.path, stopped / "checkpoints" / newest.path.name)
    with pytest.raises(RunError, match="checkpoint of another run"):
        go_on(stopped)
    shutil.rmtree(stopped / "checkpoints" / newest.path.name)
    go_on(stopped)
    assert remains(stopped) == remains(home / "straight")


def test_symbolic_links_are_not_followed(stopped: Path, tmp_path: Path) -> None:
    """A run directory of a stranger must not lead to files elsewhere: neither to write nor to delete them."""
    elsewhere = tmp_path / "elsewhere"
    for name in (".lock", "log.jsonl", "snapshots", "checkpoints", "curves.png", "tensorboard", ".x.1.partial"):
        run = Path(shutil.copytree(stopped, tmp_path / name.strip(".")))
        folder = name in ("snapshots", "checkpoints", "tensorboard")
        (elsewhere if folder else elsewhere.parent).mkdir(exist_ok=True)
        target = elsewhere / "000001.safetensors" if folder else tmp_path / "letter.txt"
        for path in (target, target.with_name(".a.partial")):
            path.write_text("mine")
        shutil.rmtree(run / name) if (run / name).is_dir() else (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(elsewhere if folder else target)
        for _ in range(2):  # the status is read without the lock
            with pytest.raises(RunError, match="is a symbolic link"):
                go_on(run)
            assert read_status(run).state == "stopped"
        assert {path.read_text() for path in (target, target.with_name(".a.partial"))} == {"mine"}


def test_a_checkpoint_that_cannot_be_written_fails_the_run_and_loses_nothing(
    home: Path, stopped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr("regard.weights.checkpoints.write_tensors", refuse)
        with pytest.raises(
            RunError, match=r"000008 cannot be written \(Permission denied\); earlier checkpoints are intact"
        ):
            go_on(stopped)
    state, _, reason = status(stopped)
    assert state == "failed"
    assert "000008 cannot be written" in reason
    go_on(stopped)
    assert remains(stopped) == remains(home / "straight")


def test_data_that_changed_are_refused_and_data_that_moved_are_not(home: Path, stopped: Path, tmp_path: Path) -> None:
    for file in home.glob("*.??"):
        shutil.copy(file, tmp_path / file.name)
    (tmp_path / "train.de").write_text((tmp_path / "train.de").read_text().replace("eins", "zwei", 1))
    with pytest.raises(DataError) as caught:
        regard.resume(stopped, {"data.root": str(tmp_path)}, device="cpu", display=Heard())
    assert f"the data of {stopped} has changed" in str(caught.value)
    assert status(stopped)[0] == "failed"
    shutil.copy(home / "train.de", tmp_path / "train.de")
    regard.resume(stopped, {"data.root": str(tmp_path)}, device="cpu", display=Heard())  # they can move
    assert remains(stopped) == remains(home / "straight")
    kinds = [record["kind"] for record in read_log(stopped / "log.jsonl")]
    assert (kinds[0], kinds.count("data")) == ("data", 1)
