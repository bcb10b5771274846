"""Checkpoints as they lie on the disk, read and checked. `regard.training.checkpoint` writes them.

`checkpoints/000500/` holds the weights, their average where one is kept, and the state that training goes on from.
Nothing here changes a file, so a run may be read while another process trains in it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from regard.errors import RunError
from regard.weights import checksums
from regard.weights.files import read_json, read_tensors

DIRECTORY = "checkpoints"
WEIGHTS = "weights.safetensors"
EMA = "ema.safetensors"
TENSORS = "state.safetensors"
STATE = "state.json"
NEEDED = (WEIGHTS, TENSORS, STATE)

_NAME = re.compile(r"(\d{6,})|\.(\d{6,})\.replaced")
"""A checkpoint, or one that was moved out of the way of its successor when the process was killed."""


def name_of(step: int) -> str:
    return f"{step:06d}"


@dataclass(frozen=True)
class Checkpoint:
    """One that was found whole. Its files are read when they are asked for."""

    path: Path
    step: int

    def weights(self) -> dict[str, Tensor]:
        return read_tensors(self.path / WEIGHTS, allow_non_finite=True)

    def ema(self) -> dict[str, Tensor] | None:
        """The average of the weights, where one is kept."""
        return read_tensors(self.path / EMA, allow_non_finite=True) if (self.path / EMA).is_file() else None

    def state_tensors(self) -> dict[str, Tensor]:
        return read_tensors(self.path / TENSORS, allow_non_finite=True)

    @property
    def state(self) -> dict[str, Any]:
        return read_json(self.path / STATE)

    @property
    def model(self) -> Path:
        """The weights to use: the average, where there is one."""
        return self.path / (EMA if (self.path / EMA).is_file() else WEIGHTS)

    @property
    def model_checksum(self) -> checksums.Checksum:
        return checksums.read(self.path).files[self.model.name]


class Found(NamedTuple):
    """What a search brought up."""

    checkpoint: Checkpoint | None
    """The newest that is whole."""
    damaged: list[tuple[Path, str]]
    """Newer ones that are not, and why."""


def newest(run: Path) -> Found:
    """The newest whole checkpoint of a run, every byte of it checked."""
    damaged: list[tuple[Path, str]] = []
    for checkpoint in listed(run):
        reason = problem(checkpoint)
        if reason is None:
            return Found(checkpoint, damaged)
        damaged.append((checkpoint.path, reason))
    return Found(None, damaged)


def listed(run: Path) -> list[Checkpoint]:
    """All that bear the name of a checkpoint, unchecked, the newest first."""
    directory = run / DIRECTORY
    if not directory.is_dir():
        return []
    found: dict[int, Checkpoint] = {}
    for path in sorted(directory.iterdir()):  # a dot comes before digits: what was replaced gives way to its successor
        match = _NAME.fullmatch(path.name)
        digits = (match[1] or match[2]) if match else ""
        if digits and name_of(step := int(digits)) == digits and path.is_dir():
            found[step] = Checkpoint(path, step)
    return [found[step] for step in sorted(found, reverse=True)]


def problem(checkpoint: Checkpoint, thorough: bool = True) -> str | None:
    """Why a checkpoint cannot be used, in words; unless `thorough`, only sizes of files are looked at."""
    try:
        expected = checksums.read(checkpoint.path)
        if expected.step != checkpoint.step:
            return f"it says that it is of step {expected.step}"
        for name in (*NEEDED, *expected.files):
            if name not in expected.files:
                return f"{checksums.FILE} does not list {name}"
            if Path(name).name != name:
                return f"{checksums.FILE} lists {name}, which is no file of its own directory"
            if difference := checksums.difference(checkpoint.path / name, expected.files[name], thorough):
                return difference
        if (checkpoint.path / EMA).is_file() and EMA not in expected.files:
            return f"{checksums.FILE} does not list {EMA}"
    except ValueError as error:
        return str(error)
    except PermissionError as error:
        raise RunError(f"{error.filename or checkpoint.path} may not be read; change its permissions") from None
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    return None
