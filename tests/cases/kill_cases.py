"""`regard train` as a program of its own that is killed again and again: for a test and for a benchmark."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import tomli_w

from regard.cli.app import main
from regard.data import embedded

_MODEL: dict[str, Any] = {"width": 32, "depth": 2, "attention": {"heads": 2}, "dropout": 0.1}
_TRAIN: dict[str, Any] = {
    "tokens": 512,
    "micro": 256,
    "ema": 0.99,
    "keep": 2,
    "log_every": 7,
    "save_every": 2,
    "optimizer": {"kind": "adamw", "rate": 2e-3, "decay": 0.1},
    "schedule": {"kind": "cosine", "warmup": 20},
}

RECIPES: dict[str, dict[str, Any]] = {
    "translate": {
        "task": {"kind": "translate"},
        "data": {"kind": "grammar", "train_pairs": 2000, "valid_pairs": 100},
        "text": {"kind": "words"},
        "model": {"kind": "encoder-decoder", **_MODEL},
        "train": _TRAIN,
    },
    "language": {
        "task": {"kind": "language", "context": 64},
        "data": {"kind": "python", "docstrings": True},
        "text": {"kind": "bytes"},
        "model": {"kind": "decoder", **_MODEL},
        "train": _TRAIN,
    },
    "masked": {
        "task": {"kind": "masked", "context": 64},
        "data": {"kind": "python", "docstrings": True},
        "text": {"kind": "wordpiece", "size": 1000},
        "model": {"kind": "encoder", **_MODEL},
        "train": {**_TRAIN, "optimizer": {"kind": "muon"}},
    },
    "image": {
        "task": {"kind": "image"},
        "data": {"kind": "digits"},
        "model": {"kind": "vision", "image": [8, 8], "patch": 4, "channels": 1, **_MODEL},
        "train": {**_TRAIN, "average": 3},
    },
}
"""Tiny jobs of every family, all with dropout; checkpoints are so frequent that many a kill falls into one."""

BEGUN = re.compile(r"^(train: [\d,]+ examples|resuming at step)", re.MULTILINE)
"""What a run says right before its first step."""
UNFINISHED = re.compile(r"\..+\.(partial|removed|replaced)|\.tmp\w{6}")
"""Names of what is being written or removed."""


class Kill(NamedTuple):
    """starting, stepping, or finishing (after the last checkpoint); whether something was half written or removed."""

    moment: str
    saving: bool
    victim: str = "all"
    """all processes but those that make batches; or, under torchrun, torchrun alone or one of its processes."""
    seconds: float = 0.0
    """Until the last process of the run was gone."""


def write_recipe(path: Path, recipe: Mapping[str, Any], **train: Any) -> Path:
    path.write_text(tomli_w.dumps({**recipe, "train": {**recipe["train"], **train}}))
    return path


_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["regard.cli.app", "regard.tasks.run", "regard.training.report", "matplotlib.figure"])


def _train(arguments: Sequence[str], output: Path, environment: dict[str, str]) -> None:
    """What the new process does: all that `python -m regard train` does after its imports."""
    os.setsid()
    with open(output, "w") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    os.environ.update(environment)
    _main(["train", *arguments])


def _main(arguments: Sequence[str]) -> None:
    embedded.python_library = lambda: Path(asyncio.__path__[0])  # the whole library takes seconds to read
    sys.argv = ["regard", *arguments]
    main()


class Program:
    """One `regard train`, a process of its own. It is forked from one that has torch imported, which saves seconds."""

    def __init__(self, arguments: Sequence[str], output: Path) -> None:
        self.output = output
        output.write_text("")
        self.process = _FORKS.Process(target=_train, args=(arguments, output, dict(os.environ)))
        self.process.start()

    @property
    def text(self) -> str:
        return self.output.read_text()

    @property
    def runs(self) -> bool:
        return self.process.is_alive()

    def wait_for(self, words: re.Pattern[str], seconds: float = 120) -> bool:
        """Until it prints these words, or ends; returns whether it printed them."""
        until = time.monotonic() + seconds
        while self.runs and not words.search(self.text):
            if time.monotonic() > until:
                self.end()
                raise AssertionError(f"it did not print {words.pattern}:\n{self.text}")
            time.sleep(0.01)
        return words.search(self.text) is not None

    def wait(self, seconds: float = 300) -> int:
        self.process.join(seconds)
        code = self.process.exitcode
        if code is None:
            self.end()
            raise AssertionError(f"it runs after {seconds} seconds:\n{self.text}")
        return code

    def send(self, number: signal.Signals) -> None:
        """To all of its processes, as a terminal sends Ctrl-C and a batch system SIGTERM."""
        assert self.process.pid is not None
        os.killpg(self.process.pid, number)

    def end(self) -> None:
        self.process.kill()
        self.process.join()

    def kill(self, chance: Random) -> tuple[str, float]:
        """SIGKILL. Returns the victim, and the seconds until all processes, also those that make batches, are gone."""
        assert self.process.pid is not None
        return _kill([self.process.pid], descendants(self.process.pid), self.end)


class Launched(Program):
    """One `torchrun` of two processes."""

    def __init__(self, arguments: Sequence[str], output: Path) -> None:
        self.output = output
        command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__, "train"]
        with open(output, "w") as file:
            self.popen = subprocess.Popen(
                [sys.executable, *command, *arguments], stdout=file, stderr=file, start_new_session=True
            )

    @property
    def runs(self) -> bool:
        return self.popen.poll() is None

    def wait(self, seconds: float = 300) -> int:
        return self.popen.wait(seconds)

    def end(self) -> None:
        self.popen.kill()
        self.popen.wait()

    def kill(self, chance: Random) -> tuple[str, float]:
        children = [pid for pid in descendants(self.popen.pid) if parent(pid) == self.popen.pid]
        victim = chance.choice(["all", "torchrun", "one"]) if children else "torchrun"
        victims = {"all": [self.popen.pid, *children], "torchrun": [self.popen.pid]}.get(victim) or [
            chance.choice(children)
        ]
        _, seconds = _kill(victims, descendants(self.popen.pid), self.popen.wait)
        return victim, seconds


def parent(pid: int) -> int | None:
    """The parent of a process; None if it is gone."""
    try:
        state, number = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return None
    return None if state in "ZX" else int(number)


def descendants(pid: int) -> list[int]:
    """All processes below a process."""
    parents = {int(path.name): parent(int(path.name)) for path in Path("/proc").iterdir() if path.name.isdecimal()}
    found = [pid]
    for each in found:
        found += [child for child, number in parents.items() if number == each]
    return found[1:]


def _kill(victims: Sequence[int], others: Sequence[int], wait: Callable[[], object]) -> tuple[str, float]:
    begun = time.monotonic()
    for pid in victims:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait()
    while alive := [pid for pid in others if parent(pid) is not None]:
        assert time.monotonic() < begun + 60, f"processes {alive} of a killed run are alive"
        time.sleep(0.02)
    return "all", time.monotonic() - begun


def begin(recipe: Path, run: Path, program: type[Program] = Program) -> Program:
    arguments = [str(recipe), f"train.directory={run}", "--threads", "1", "--device", "cpu"]
    return program(arguments, run.with_suffix(".output"))


def go_on(recipe: Path, run: Path, program: type[Program] = Program) -> Program:
    """Resumes, or begins again what was killed before it was a run."""
    if not (run / "config.toml").exists():
        return begin(recipe, run, program)
    return program(["--resume", str(run), "--device", "cpu"], run.with_suffix(".output"))


def finish(program: Program) -> float:
    """Waits for the end, which must be a good one; returns how long that took."""
    begun = time.monotonic()
    code = program.wait()
    assert code == 0, program.text
    assert "Traceback" not in program.text, program.text
    return time.monotonic() - begun


def kill_again_and_again(
    recipe: Path, run: Path, kills: int, steps: int, chance: Random, kind: type[Program] = Program
) -> list[Kill]:
    """Kills a run of so many steps at random moments all over it, resumes it each time, and at last lets it end.

    A tenth of the kills come while the program still starts, and a tenth after its last checkpoint.
    """
    tenth = max(1, kills // 10)
    targets: list[int] = sorted(chance.randrange(steps) for _ in range(kills - 2 * tenth)) + tenth * [steps]
    moments: list[int | None] = [*targets]
    for _ in range(tenth):
        moments.insert(chance.randrange(len(targets)), None)
    found = []
    for target in moments:
        program = go_on(recipe, run, kind)
        if target is None:
            time.sleep(chance.uniform(0, 1 if kind is Program else 8))
        elif program.wait_for(BEGUN):
            wait_for_step(program, run, target)
            time.sleep(chance.uniform(0, 0.4))
        if not program.runs:
            finish(program)  # it was quicker than that, and ended well
            continue
        end = program.kill(chance)
        moment = "starting" if target is None else "finishing" if target == steps else "stepping"
        found.append(Kill(moment, _unfinished(run), *end))
    finish(go_on(recipe, run, kind))
    return found


def wait_for_step(program: Program, run: Path, step: int) -> None:
    """Until there is a checkpoint of this step, or of a later one."""
    folder = run / "checkpoints"
    while program.runs:
        names = os.listdir(folder) if folder.is_dir() else []
        if max((int(name) for name in names if name.isdecimal()), default=0) >= step:
            return
        time.sleep(0.005)


def _unfinished(run: Path) -> bool:
    folders = [run, run / "checkpoints", run / "snapshots"]
    return any(UNFINISHED.fullmatch(path.name) for each in folders if each.is_dir() for path in each.iterdir())


if __name__ == "__main__":  # under torchrun
    _main(sys.argv[1:])
