"""A run directory: everything that one training keeps on the disk.

```
config.toml          the job, fully resolved: with it the directory is a run
tokenizer.json, labels.json
environment.json     what it was trained with, and when (regard.training.environment)
status.json          whether it runs, and how it ended
log.jsonl            what happened (regard.training.log)
checkpoints/000500/  to go on from (regard.training.checkpoint)
snapshots/           to choose the best from (regard.training.snapshots)
weights.safetensors  the model to use, with its checksum in checksums.json (regard.weights.directory)
```
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import tomli_w
from torch import Tensor

from regard.errors import RunError
from regard.files import write_text
from regard.settings import Table
from regard.training import checkpoint
from regard.training.disk import writing
from regard.training.lock import Lock, holder
from regard.training.log import finite
from regard.weights import checkpoints
from regard.weights import directory as model_directory
from regard.weights.checksums import FORMAT
from regard.weights.directory import CONFIG, SNAPSHOTS, WEIGHTS

LOCK = ".lock"
STATUS = "status.json"
State: TypeAlias = Literal["running", "stopped", "finished", "failed", "killed"]

_LEFTOVER = re.compile(r"\..+\.(partial|removed)|\.tmp\w{6}")
"""What a killed process leaves: files of ours, checkpoints on their way in or out, files that safetensors began."""


@dataclass(frozen=True)
class Status:
    """Whether a run goes on, and how it ended."""

    state: State
    """killed: it says that it is running, but no process holds its lock."""
    step: int = 0
    reason: str = ""
    figures: dict[str, float | None] = field(default_factory=dict)


class Run:
    """One run directory. `create` makes it, `open` finds it; who trains in it holds its `lock`."""

    def __init__(self, directory: Path, config: Table) -> None:
        self.directory = directory
        self.config = config
        """The tables of `config.toml`. An empty setting is the word "none", as in a recipe."""

    # ---------------------------------------------------------------------------------------------- making and finding

    @classmethod
    def create(
        cls, directory: Path | str, config: Mapping[str, Any], fill: Callable[[Path], None] | None = None
    ) -> Run:
        """A new run in a directory that is empty or not there. `fill` writes what belongs to it from the start.

        `config.toml` comes last, so that whatever is killed before it can simply be begun again.
        """
        place = Path(directory)
        run = cls(place, _without_nulls(config))
        with writing(place, "choose another train.directory, or make this one writable"):
            require_free(place)
            place.mkdir(parents=True, exist_ok=True)
            with Lock(place / LOCK):
                require_free(place)
                _tidy(place)
                if fill is not None:
                    fill(place)
                run.set_status("stopped", reason="not begun")
                run.configure(config)
        return run

    @classmethod
    def open(cls, directory: Path | str) -> Run:
        """A run that is there, to be read or gone on with."""
        place = Path(directory)
        try:
            _require_run(place)
        except PermissionError:
            raise RunError(f"{place} may not be read; change its permissions") from None
        return cls(place, model_directory.read_config(place))

    def configure(self, config: Mapping[str, Any]) -> None:
        """Writes the job down, again where a resumed run was given other settings."""
        plain = _without_nulls(config)
        with writing(self.directory / CONFIG, "make room, or make the directory writable"):
            write_text(self.directory / CONFIG, tomli_w.dumps({"format": FORMAT, **plain}))
        self.config = plain

    # ----------------------------------------------------------------------------------------------------------- places

    @property
    def log(self) -> Path:
        return self.directory / "log.jsonl"

    @property
    def weights(self) -> Path:
        return self.directory / WEIGHTS

    @property
    def checkpoints(self) -> Path:
        return self.directory / checkpoints.DIRECTORY

    @property
    def snapshots(self) -> Path:
        return self.directory / SNAPSHOTS

    # ------------------------------------------------------------------------------------------------- weights and lock

    def write_weights(self, tensors: Mapping[str, Tensor]) -> None:
        """The model to use, with its checksum."""
        remedy = f"the checkpoints in {self.checkpoints} are untouched: make room, then go on with --resume"
        with writing(self.weights, remedy):
            model_directory.write_weights(self.directory, tensors)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """While this lasts, no other process trains here; what a killed one left half done is cleaned up first."""
        lock = Lock(self.directory / LOCK)
        try:
            with writing(self.directory, "make the directory writable"):
                lock.acquire()
                _tidy(self.directory)
            yield
        finally:
            lock.release()

    # ----------------------------------------------------------------------------------------------------------- status

    @property
    def status(self) -> Status:
        """As it is written down, but for a run that says that it is running and does not."""
        path = self.directory / STATUS
        try:
            status = Status(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return Status("killed", reason=f"{STATUS} is missing or damaged")
        if status.state == "running" and holder(self.directory / LOCK) is None:
            return Status("killed", status.step, status.reason, status.figures)
        return status

    def set_status(
        self, state: State, step: int = 0, reason: str = "", figures: Mapping[str, float | None] | None = None
    ) -> None:
        status = Status(state, step, reason, finite(figures or {}))
        with writing(self.directory / STATUS, "make room, then go on with --resume"):
            write_text(self.directory / STATUS, json.dumps(asdict(status), ensure_ascii=False, indent=1) + "\n")


def _require_run(place: Path) -> None:
    if not place.is_dir():
        what = "is a file" if place.exists() else "does not exist"
        raise RunError(f"{place} {what}; give the directory of a run")
    if not (place / CONFIG).exists():
        begun = (place / LOCK).exists()
        remedy = "it was killed before it began: start it without --resume" if begun else "give that of a run"
        raise RunError(f"{place} has no {CONFIG}, so it holds no run; {remedy}")


def require_free(place: Path) -> None:
    if place.exists() and not place.is_dir():
        raise RunError(f"{place} is a file; choose another train.directory")
    if (place / CONFIG).exists():
        raise RunError(f"{place} already holds a run; go on with it by --resume, or choose another train.directory")
    if not place.is_dir() or (place / LOCK).exists():  # with a lock, it is the beginning of a run that was killed
        return
    if held := sorted(path.name for path in place.iterdir()):
        some = ", ".join(held[:3]) + (", …" if len(held) > 3 else "")
        raise RunError(
            f"{place} is not empty (it holds {some}) and would be mixed up with a run; choose another train.directory, "
            "or go on with a run by --resume"
        )


def _tidy(place: Path) -> None:
    """Removes what killed processes left; only for who holds the lock, or it might be a living one's."""
    checkpoint.settle(place)
    for folder in (place, place / checkpoints.DIRECTORY, place / SNAPSHOTS):
        for path in [*folder.iterdir()] if folder.is_dir() else []:
            if _LEFTOVER.fullmatch(path.name):
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    os.unlink(path)


def _without_nulls(value: Any) -> Any:
    """TOML has no null; settings read the word "none" as one. Left out, it would come back as the default."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nulls(item) for item in value]
    return "none" if value is None else value
