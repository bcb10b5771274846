"""A training so small that it can be killed at every single call: everything that a run keeps, and no model."""

from __future__ import annotations

import builtins
import errno
import hashlib
import io
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import regard.weights.files
from regard.training import checkpoint
from regard.training.averaging import Ema
from regard.training.log import TIMES, Log, read
from regard.training.run import Run
from regard.training.snapshots import STATE, Snapshots

CONFIG = {"task": {"kind": "toy"}, "train": {"seed": 1, "clip": None}}
EVERY = 2


def begin(directory: Path) -> None:
    def fill(place: Path) -> None:
        (place / "tokenizer.json").write_text("{}")

    Run.create(directory, CONFIG, fill)


def go_on(directory: Path, until: int = 8) -> list[str]:
    """Trains from where the run stands; the result depends on nothing but `until`."""
    run = Run.open(directory)
    with run.lock():
        run.set_status("running")
        found = checkpoint.newest(directory).checkpoint
        snapshots, notes = Snapshots.resume(directory, found)
        log = Log(run.log)
        weights, speed = {"w": torch.zeros(5)}, torch.zeros(5)
        ema = Ema(0.9, weights)
        generator = torch.Generator().manual_seed(3)
        step = 0
        if found is not None:
            step = found.step
            weights["w"].copy_(found.weights()["w"])
            ema.load(found.ema() or {})
            tensors = found.state_tensors()
            speed.copy_(tensors["speed"])
            generator.set_state(tensors["generator"].clone())
        assert log.truncate(found.state["log"] if found else 0) is None
        while step < until:
            step += 1
            speed.mul_(0.9).add_(torch.randn(5, generator=generator))
            weights["w"].add_(speed, alpha=0.1)
            ema.update(step)
            log.append({"step": step, "loss": float(weights["w"].norm()), "seconds": time.time()})
            state = {"speed": speed, "generator": generator.get_state()}
            if step % EVERY == 0:
                _save(directory, step, weights, state, ema, log, snapshots)
            if step == until:
                _save(directory, step, weights, state, ema, log, snapshots)  # once more: the first one is replaced
        # What a kill right after the last checkpoint left.
        checkpoint.prune(directory, keep=2)
        snapshots.sweep()
        run.write_weights(snapshots.average(entry.step for entry in snapshots.entries))
        run.set_status("finished", step, "budget", {"loss": 1.0})
    return notes


def _save(
    directory: Path,
    step: int,
    weights: dict[str, torch.Tensor],
    tensors: dict[str, torch.Tensor],
    ema: Ema,
    log: Log,
    snapshots: Snapshots,
) -> None:
    # The figure falls, then rises: which snapshots are best changes on the way.
    snapshots.add(step, {"loss": abs(step - 3.5)})
    snapshots.prune(keep_best=1, select="loss", lower_is_better=True, keep_last=1)
    state = {"step": step, "log": log.sync(), STATE: snapshots.to_state()}
    made = checkpoint.write(directory, step, weights, tensors, state, ema.tensors())
    checkpoint.prune(directory, keep=2)
    snapshots.commit(made)


def outcome(directory: Path) -> dict[str, Any]:
    """Everything in a run directory but the times."""
    files: dict[str, Any] = {}
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if path.is_dir() or name == ".lock":
            continue
        if name == "log.jsonl":
            files[name] = [{key: record[key] for key in record if key not in TIMES} for record in read(path)]
        elif path.name == "state.json":
            files[name] = {key: value for key, value in json.loads(path.read_text()).items() if key != "log"}
        elif path.name == "checksums.json":
            files[name] = sorted(json.loads(path.read_text())["files"])
        else:
            files[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return files


# ---------------------------------------------------------------------------------------------------------- accidents


class Killed(BaseException):
    """Stands for SIGKILL: from here on nothing reaches the disk."""


class Accidents:
    """Counts the calls that change the disk, and lets the one of a given number fail."""

    def __init__(self, at: int, kind: str) -> None:
        self.at, self.kind = at, kind
        """killed; full (every later write fails too); once (only this call fails)."""
        self.calls = 0

    def before(self, frees: bool = False) -> None:
        """Called before each; `frees` says that the call needs no room."""
        self.calls += 1
        if self.kind == "killed" and self.calls >= self.at:
            raise Killed
        if self.kind == "full" and self.calls >= self.at and not frees:
            raise OSError(errno.ENOSPC, "No space left on device")
        if self.kind == "once" and self.calls == self.at:
            raise OSError(errno.EIO, "Input/output error")


@contextmanager
def accidents(patch: Callable[[Any, str, Any], None], at: int, kind: str) -> Iterator[Accidents]:
    """`patch` is that of a monkeypatch context. Nothing is flushed meanwhile: no test could see a difference."""
    trouble = Accidents(at, kind)

    def guarded(original: Callable[..., Any], frees: bool = False) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            trouble.before(frees)
            return original(*arguments, **options)

        return call

    for name in ("rename", "replace", "mkdir", "link", "chmod"):
        patch(os, name, guarded(getattr(os, name)))
    for name in ("unlink", "rmdir", "truncate", "ftruncate"):
        patch(os, name, guarded(getattr(os, name), frees=True))
    patch(os, "fsync", lambda _: trouble.before())
    _patch_save(patch, trouble)
    _patch_open(patch, trouble)
    yield trouble


def _patch_save(patch: Callable[[Any, str, Any], None], trouble: Accidents) -> None:
    """The library writes a file of its own beside, which a kill leaves there half done."""
    save, plain = regard.weights.files.save_file, io.open

    def save_file(tensors: Any, path: Path, metadata: Any) -> None:
        try:
            trouble.before()
        except Killed:
            with plain(path.with_name(".tmpA1b2C3"), "wb") as file:
                file.write(b"half of it")
            raise
        save(tensors, path, metadata)

    patch(regard.weights.files, "save_file", save_file)


def _patch_open(patch: Callable[[Any, str, Any], None], trouble: Accidents) -> None:
    plain, low = io.open, os.open

    def opened(path: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if set(mode) & set("wax+"):
            trouble.before()
        return plain(path, mode, *arguments, **options)

    def opened_low(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        if flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR):
            trouble.before()
        return low(path, flags, *arguments, **options)

    patch(io, "open", opened)
    patch(builtins, "open", opened)
    patch(os, "open", opened_low)
