"""What a run leaves behind, and ways to cut one short: for tests that a run gives one result, however it goes."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

from training_cases import Job

from regard.training.loop import Trained, Trainer
from regard.training.report import Display
from regard.training.run import TIMES, read_log
from regard.weights.checkpoints import list_checkpoints


class Crash(BaseException):
    """Stands for whatever ends a program in mid-step. No part of the loop catches it."""


class Heard(Display):
    """A display that keeps its messages."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.events: list[str] = []
        self.lines: list[str] = []

    def event(self, text: str) -> None:
        self.events.append(text)

    def end(self, lines: Any) -> None:
        self.lines.extend(lines)


def remains(run: Path) -> dict[str, Any]:
    """All that is the same in a run that was interrupted: weights, the last checkpoint, snapshots, log, scores.

    Times differ, and with them how long the log is. Other checkpoints depend on when it was stopped.
    """
    last = list_checkpoints(run)[0]
    found: dict[str, Any] = {f"last/{path.name}": _digest(path) for path in sorted(last.path.glob("*.safetensors"))}
    state = {**last.state}
    state.pop("log")
    state.pop("run")  # the name of the run
    state["state"] = {key: value for key, value in state["state"].items() if key not in TIMES}
    for entry in state["snapshots"]:
        found[f"snapshot/{entry['step']}"] = _digest(run / "snapshots" / f"{entry['step']:06d}.safetensors")
    log = [{key: value for key, value in record.items() if key not in TIMES} for record in read_log(run / "log.jsonl")]
    status = json.loads((run / "status.json").read_text())
    outcome = {"weights": _digest(run / "weights.safetensors"), "step": status["step"], "scores": status["metrics"]}
    return {**found, "state": state, "log": log, **outcome}


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# -------------------------------------------------------------------------------------------------------- interruptions


def before(owner: Any, name: str, at: int, act: Callable[[], None], afterwards: bool = False) -> None:
    """Does `act` before or after the call of that number (from 1 on) of a function that `owner` holds."""
    plain, calls = getattr(owner, name), count(1)

    def call(*arguments: Any, **options: Any) -> Any:
        now = next(calls) == at
        if now and not afterwards:
            act()
        result = plain(*arguments, **options)
        if now and afterwards:
            act()
        return result

    setattr(owner, name, call)


def after(owner: Any, name: str, at: int, act: Callable[[], None]) -> None:
    before(owner, name, at, act, afterwards=True)


def crash() -> None:
    raise Crash


def interrupt(number: signal.Signals = signal.SIGINT) -> Callable[[], None]:
    """What sends this very process a signal."""
    return lambda: os.kill(os.getpid(), number)


MOMENTS: Mapping[str, Callable[[Trainer, int], None]] = {
    "in the loss": lambda trainer, at: before(trainer.objective, "_loss", at, crash),
    "after a step": lambda trainer, at: after(trainer.updater, "update", at, crash),
    "after a line of the log": lambda trainer, at: after(trainer.reporter, "train", at, crash),
    "after an evaluation": lambda trainer, at: after(trainer.reporter, "valid", at, crash),
    "before saving": lambda trainer, at: before(trainer.checkpointer, "save", at, crash),
    "between checkpoint and snapshot": lambda trainer, at: before(
        trainer.checkpointer, "_remove_unlisted_snapshots", at, crash
    ),
    "after saving": lambda trainer, at: after(trainer.checkpointer, "save", at, crash),
    "before the weights": lambda trainer, at: before(trainer.checkpointer, "write_final", 1, crash),
    "after the weights": lambda trainer, at: after(trainer.checkpointer, "write_final", 1, crash),
    "Ctrl-C in the loss": lambda trainer, at: before(trainer.objective, "_loss", at, interrupt()),
    "Ctrl-C in an evaluation": lambda trainer, at: before(trainer.reporter.display, "working", at, interrupt()),
    "SIGTERM while saving": lambda trainer, at: before(trainer.checkpointer, "save", at, interrupt(signal.SIGTERM)),
}
"""What may happen to a run, the time of that number that the moment comes."""


def interrupted(job: Job, run: Path, moments: list[tuple[str, int]]) -> tuple[Trained, list[str]]:
    """Goes through a run with these interruptions, one after the other; tells its end, and what became of each."""
    ends: list[str] = []
    begun = False
    for moment, at in moments:
        trainer = job.trainer(resume=begun, run=run)
        begun = True
        MOMENTS[moment](trainer, at)
        try:
            outcome = trainer.run()
        except Crash:
            ends.append("crashed")
            continue
        ends.append(outcome.reason)
    return job.trainer(resume=begun, run=run).run(), ends
