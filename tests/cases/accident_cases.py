"""A training so small that it can be killed at every single call: everything that a run keeps, and a toy model."""

from __future__ import annotations

import builtins
import errno
import hashlib
import io
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

import regard.weights.tensors
from regard.training.checkpoints import Checkpointer, TrainingState
from regard.training.distribution import Workers
from regard.training.run import TIMES, Log, Run, read_log
from regard.training.settings import Train
from regard.weights.checkpoints import prune_checkpoints

CONFIG = {"id": "toy", "task": {"kind": "toy"}, "train": {"seed": 1, "clip": None}}
EVERY = 2


def begin(directory: Path) -> None:
    def fill(place: Path) -> None:
        (place / "tokenizer.json").write_text("{}")

    Run.create(directory, CONFIG, fill)


class Momentum:
    """Stands for the optimizer: a momentum and the state of a random generator."""

    def __init__(self) -> None:
        self.speed = torch.zeros(5)
        self.generator = torch.Generator().manual_seed(3)

    def tensors(self) -> dict[str, Tensor]:
        return {"speed": self.speed, "generator": self.generator.get_state()}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self.speed.copy_(tensors["speed"])
        self.generator.set_state(tensors["generator"].clone())


def checkpointer(run: Run, model: nn.Module) -> Checkpointer:
    """The real one: an average of the weights, the best snapshot and the last one."""
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    updater: Any = SimpleNamespace(optimizers=Momentum(), scaler=scaler, workers=Workers(torch.device("cpu")))
    return Checkpointer(run, model, Train(steps=6, ema=0.9, keep=1, average=1), updater)


class Toy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(5))


def go_on(directory: Path, until: int = 6) -> list[str]:
    """Trains from where the run stands; the result depends on nothing but `until`."""
    run = Run.open(directory)
    with run.lock():
        run.set_status("running")
        log, model = Log(run.log), Toy()
        kept = checkpointer(run, model)
        found, length, notes = kept.resume()
        state, optimizer = found or TrainingState(), kept.updater.optimizers
        assert kept.ema is not None
        assert log.truncate(length) is None
        while state.step < until:
            state.step += 1
            optimizer.speed.mul_(0.9).add_(torch.randn(5, generator=optimizer.generator))  # type: ignore[attr-defined]
            model.w.data.add_(optimizer.speed, alpha=0.1)  # type: ignore[attr-defined]
            kept.ema.update(state.step)
            log.append({"step": state.step, "loss": float(model.w.detach().norm()), "seconds": time.time()})
            # The loss falls, then rises: the best snapshot changes on the way.
            for _ in range((state.step % EVERY == 0) + (state.step == until)):  # the last one is replaced
                kept.save(state, {"loss": abs(state.step - 3.5)}, log.sync())
        # What a kill right after the last checkpoint left.
        prune_checkpoints(directory, state.step)
        kept._remove_unlisted_snapshots()
        kept.choose()
        kept.write_final()
        run.set_status("finished", state.step, "budget", {"loss": 1.0})
    return notes


def outcome(directory: Path) -> dict[str, Any]:
    """Everything in a run directory but the times."""
    files: dict[str, Any] = {}
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if path.is_dir() or name == ".lock":
            continue
        if name == "log.jsonl":
            files[name] = [{key: record[key] for key in record if key not in TIMES} for record in read_log(path)]
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

    def guarded(self, original: Any, frees: bool = False, writes: Callable[..., bool] = lambda *_: True) -> Any:
        """The function, which may fail if the call writes."""

        def call(*arguments: Any, **options: Any) -> Any:
            if writes(*arguments):
                self.before(frees)
            return original(*arguments, **options)

        return call


def _writes(_: Any, mode: Any = "r", *__: Any) -> bool:
    """Whether a file is opened to be written, by `open` or `os.open`."""
    return bool(mode & (os.O_CREAT | os.O_WRONLY | os.O_RDWR) if isinstance(mode, int) else set(mode) & set("wax+"))


@contextmanager
def accidents(patch: Callable[[Any, str, Any], None], at: int, kind: str) -> Iterator[Accidents]:
    """`patch` is that of a monkeypatch context. Nothing is flushed meanwhile: no test could see a difference."""
    trouble, save, plain = Accidents(at, kind), regard.weights.tensors.save_file, io.open

    def save_file(tensors: Any, path: Path, metadata: Any) -> None:
        """safetensors writes a temporary file, which a kill leaves incomplete."""
        try:
            trouble.before()
        except Killed:
            with plain(path.with_name(".tmpA1b2C3"), "wb") as file:
                file.write(b"half of it")
            raise
        save(tensors, path, metadata)

    for name in ("rename", "replace", "mkdir", "link", "chmod"):
        patch(os, name, trouble.guarded(getattr(os, name)))
    for name in ("unlink", "rmdir", "truncate", "ftruncate"):
        patch(os, name, trouble.guarded(getattr(os, name), frees=True))
    patch(os, "fsync", lambda _: trouble.before())
    patch(regard.weights.tensors, "save_file", save_file)
    for owner in (io, builtins, os):
        patch(owner, "open", trouble.guarded(owner.open, writes=_writes))
    yield trouble
