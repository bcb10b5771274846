"""Checkpoints of a run, and checksums.

`checkpoints/000500/` holds the weights, their moving average if there is one, and the state of the training. It is
written into a hidden directory, flushed, and renamed. `checksums.json` is written last, so a directory that has one is
complete. Reading changes no file: a run can be read while another process trains in it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.errors import RunError
from regard.files import flush_directory, parse_json, read_json, write_text
from regard.weights.tensors import read_tensors, write_tensors

FORMAT = 1
"""The version of everything in a run directory. A change of the layout increases it."""

CHECKPOINTS = "checkpoints"
CHECKSUMS = "checksums.json"
WEIGHTS = "weights.safetensors"
EMA = "ema.safetensors"
STATE_TENSORS = "state.safetensors"
STATE = "state.json"

_NAME = re.compile(r"\d{6,}")


@dataclass(frozen=True)
class Checksum:
    """Size in bytes and SHA-256 of a file."""

    size: int
    sha256: str


def checksum(path: Path) -> Checksum:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return Checksum(file.tell(), digest)


def find_damage(path: Path, expected: Checksum | None, size_only: bool = False) -> str | None:
    """How a file differs from its checksum, or None."""
    if expected is None:
        return f"{CHECKSUMS} does not list {path.name}"
    if not path.is_file():
        return f"{path.name} is missing"
    size = path.stat().st_size
    if size != expected.size:
        return f"{path.name} has {size:,} bytes, expected {expected.size:,}"
    if not size_only and checksum(path) != expected:
        return f"{path.name} is damaged: its checksum differs from the one in {CHECKSUMS}"
    return None


def write_checksums(directory: Path, files: Mapping[str, Checksum], step: int | None = None) -> None:
    content: dict[str, Any] = {"format": FORMAT} if step is None else {"format": FORMAT, "step": step}
    content["files"] = {name: asdict(entry) for name, entry in files.items()}
    write_text(directory / CHECKSUMS, json.dumps(content, indent=1) + "\n")


def read_checksums(directory: Path) -> tuple[dict[str, Checksum], int | None]:
    """The checksums of the files of a directory, and the step of a checkpoint.

    Raises `ValueError` with the reason if the file is missing or damaged.
    """
    path = directory / CHECKSUMS
    if not path.is_file():
        raise ValueError(f"{CHECKSUMS} is missing")
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
        found = content.get("format")
        files = {name: Checksum(int(each["size"]), str(each["sha256"])) for name, each in content["files"].items()}
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
        raise ValueError(f"{CHECKSUMS} is damaged") from None
    if found != FORMAT:
        raise ValueError(f"{CHECKSUMS} has format {found!r}, and this version of regard reads format {FORMAT}")
    return files, content.get("step")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on the disk. Its files are read on demand."""

    path: Path
    step: int

    def read(self, name: str) -> dict[str, Tensor]:
        return read_tensors(self.path / name, allow_non_finite=True)

    @property
    def state(self) -> dict[str, Any]:
        return read_json(self.path / STATE)

    @property
    def model(self) -> Path:
        """The file of the weights to use: the moving average if there is one."""
        return self.path / (EMA if (self.path / EMA).is_file() else WEIGHTS)

    def damage(self, size_only: bool = False) -> str | None:
        try:
            files, step = read_checksums(self.path)
            if step != self.step:
                return f"{CHECKSUMS} is for step {step}"
            needed = {WEIGHTS, STATE_TENSORS, STATE, *(path.name for path in self.path.glob(EMA))}
            for name in sorted(needed | files.keys()):
                if Path(name).name != name:
                    return f"{CHECKSUMS} lists {name}, which is outside the directory"
                if damage := find_damage(self.path / name, files.get(name), size_only):
                    return damage
        except ValueError as error:
            return str(error)
        except PermissionError as error:
            raise RunError(f"{error.filename or self.path} is not readable; change its permissions") from None
        except OSError as error:
            return f"it cannot be read ({error.strerror})"
        return None


def newest_checkpoint(run: Path) -> tuple[Checkpoint | None, list[tuple[Path, str]]]:
    """The newest intact checkpoint of a run, and the newer damaged ones with the reasons. Reads every byte."""
    damaged: list[tuple[Path, str]] = []
    for checkpoint in list_checkpoints(run):
        reason = checkpoint.damage()
        if reason is None:
            return checkpoint, damaged
        damaged.append((checkpoint.path, reason))
    return None, damaged


def list_checkpoints(run: Path) -> list[Checkpoint]:
    """All checkpoints, unchecked, the newest first."""
    directory = run / CHECKPOINTS
    paths = [path for path in directory.iterdir() if _NAME.fullmatch(path.name)] if directory.is_dir() else []
    found = [Checkpoint(path, int(path.name)) for path in paths if path.is_dir()]
    return sorted(found, key=lambda checkpoint: -checkpoint.step)


def write_checkpoint(
    run: Path,
    step: int,
    weights: Mapping[str, Tensor],
    state_tensors: Mapping[str, Tensor],
    state: Mapping[str, Any],
    ema: Mapping[str, Tensor] | None = None,
) -> None:
    """Write a checkpoint to the disk. It replaces a checkpoint of the same step."""
    parent = run / CHECKPOINTS
    path = parent / f"{step:06d}"
    partial, old = parent / f".{path.name}.partial", parent / f".{path.name}.old.partial"
    try:
        if not parent.is_dir():
            parent.mkdir()
            flush_directory(run)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        write_tensors(partial / WEIGHTS, weights)
        write_tensors(partial / STATE_TENSORS, state_tensors)
        if ema is not None:
            write_tensors(partial / EMA, ema)
        write_text(partial / STATE, json.dumps(state) + "\n")
        write_checksums(partial, {file.name: checksum(file) for file in sorted(partial.iterdir())}, step)
        if path.exists():
            os.rename(path, old)
        os.rename(partial, path)
        flush_directory(parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def prune_checkpoints(run: Path, step: int) -> None:
    """Remove all checkpoints that are older than the newest two intact ones up to `step`.

    Only the sizes of the files are checked: reading every byte would take as long as saving. A checkpoint is renamed
    before its files are removed, so that no incomplete one is found.
    """
    for leftover in (run / CHECKPOINTS).glob(".*.partial"):  # of a removal that failed
        shutil.rmtree(leftover, ignore_errors=True)
    checkpoints = list_checkpoints(run)
    intact = [each for each in checkpoints if each.step <= step and each.damage(size_only=True) is None]
    if len(intact) <= 2:
        return
    for checkpoint in checkpoints:
        if checkpoint.step < intact[1].step:
            removed = checkpoint.path.with_name(f".{checkpoint.path.name}.partial")
            try:
                os.rename(checkpoint.path, removed)
            except OSError:
                continue  # it is removed next time
            shutil.rmtree(removed, ignore_errors=True)
