"""Checkpoints written, found again and thinned out; a kill at any moment leaves every earlier one as it was.

A checkpoint is written into a hidden directory, flushed file by file, and gets its name in one step. It loses its name
in one step too, before its files go. How one is read is in `regard.weights.checkpoints`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from regard.errors import RunError
from regard.files import flush_directory, write_text
from regard.training import disk
from regard.weights import checksums
from regard.weights.checkpoints import (
    DIRECTORY,
    EMA,
    STATE,
    TENSORS,
    WEIGHTS,
    Checkpoint,
    Found,
    listed,
    name_of,
    problem,
)
from regard.weights.checkpoints import newest as _newest
from regard.weights.files import write_tensors


def write(
    run: Path,
    step: int,
    weights: Mapping[str, Tensor],
    state_tensors: Mapping[str, Tensor],
    state: Mapping[str, Any],
    ema: Mapping[str, Tensor] | None = None,
) -> Checkpoint:
    """A whole checkpoint, on the disk when this returns; one of the same step is replaced."""
    parent = run / DIRECTORY
    place = parent / name_of(step)
    partial = parent / f".{place.name}.{os.getpid()}.partial"
    try:
        if not parent.is_dir():
            parent.mkdir()
            flush_directory(run)
        _remove(partial)  # of a killed process that had the same number
        partial.mkdir()
        write_tensors(partial / WEIGHTS, weights)
        write_tensors(partial / TENSORS, _apart(state_tensors))
        if ema is not None:
            write_tensors(partial / EMA, ema)
        write_text(partial / STATE, json.dumps(state) + "\n")
        files = {path.name: checksums.checksum(path) for path in sorted(partial.iterdir())}
        checksums.write(partial, checksums.Checksums(files, step=step))
        _put(partial, place)
    except (OSError, SafetensorError) as error:
        _remove(partial)  # before what is free is looked at
        raise _refused(run, place, error) from error
    finally:
        _remove(partial)
    return Checkpoint(place, step)


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Every name must come back, even where one tensor has two, of which weights would be written once."""
    seen: set[int] = set()
    result = {}
    for name, tensor in tensors.items():
        result[name] = tensor.clone() if tensor.data_ptr() in seen else tensor
        seen.add(tensor.data_ptr())
    return result


def _put(partial: Path, place: Path) -> None:
    """Gives a whole checkpoint its name. An older one of that name stays findable until then."""
    old = _old(place)
    if place.exists():
        _remove(old)
        os.rename(place, old)
    try:
        os.rename(partial, place)
    except OSError:
        if old.exists():
            os.rename(old, place)
        raise
    flush_directory(place.parent)
    _remove(old)


def _old(place: Path) -> Path:
    return place.with_name(f".{place.name}.replaced")


def _refused(run: Path, place: Path, error: Exception) -> RunError:
    last = _newest(run).checkpoint
    kept = (
        "there is no earlier one" if last is None else f"earlier ones are untouched, the last good one is {last.path}"
    )
    return RunError(
        f"checkpoint {place} cannot be written ({disk.reason(error, run)}); {kept}. "
        "Make room, or make the directory writable, then go on with --resume"
    )


# ----------------------------------------------------------------------------------------------------- finding again


def newest(run: Path) -> Found:
    """The newest whole checkpoint. Newer ones that are damaged are moved aside, where they are in nobody's way."""
    found = _newest(run)
    return Found(found.checkpoint, [(_set_aside(path), reason) for path, reason in found.damaged])


def _set_aside(path: Path) -> Path:
    """Where a damaged checkpoint is from now on; it is kept, for people to look at."""
    name = f"damaged-{path.name.strip('.').removesuffix('.replaced')}"
    number = 1
    while (aside := path.with_name(name if number == 1 else f"{name}-{number}")).exists():
        number += 1
    try:
        os.rename(path, aside)
    except OSError:
        return path  # a disk that may only be read; it is left out all the same
    return aside


# -------------------------------------------------------------------------------------------------------- thinning out


def prune(run: Path, keep: int = 2) -> None:
    """Removes all but the newest `keep` whole ones; damaged ones do not count, and stay.

    Whole is what has all its files at their sizes: to read every byte again at each save would take as long as saving.
    What cannot be removed now is tried again next time.
    """
    whole = [checkpoint for checkpoint in listed(run) if problem(checkpoint, thorough=False) is None]
    for checkpoint in whole[keep:]:
        doomed = checkpoint.path.with_name(f".{name_of(checkpoint.step)}.removed")
        _remove(doomed)
        with contextlib.suppress(OSError):
            os.rename(checkpoint.path, doomed)
        _remove(doomed)


def settle(run: Path) -> None:
    """Brings back a checkpoint that was moved out of the way when the process was killed, or removes it."""
    parent = run / DIRECTORY
    for old in [*parent.glob(".*.replaced")]:
        place = old.with_name(old.name[1:].removesuffix(".replaced"))
        if place.exists():
            _remove(old)
        else:
            os.rename(old, place)


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
