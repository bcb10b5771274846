"""What a run reports: the log, a progress bar or plain lines on stderr, and TensorBoard on request."""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any, TextIO

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.text import Text

from regard.errors import extra_module
from regard.files import silence
from regard.format import amount, clock, four_digits, percent, printable, rate
from regard.models.count import training_flops
from regard.models.settings import ModelSettings
from regard.training.checkpoints import TrainingState
from regard.training.distribution import Workers
from regard.training.run import Log, Run, read_environment
from regard.training.schedules import spent_share
from regard.training.settings import Train
from regard.training.step import Trainable

Record = Mapping[str, Any]

REDRAW_SECONDS = 0.1
"""Shortest time between two updates of the progress bar."""
PLAIN_SECONDS = 10.0
"""Shortest time between two lines without a terminal."""


class _Lenient(io.TextIOBase):
    """A stream whose errors are ignored: a run goes on when nobody reads its display, or the disk of its file is full.

    After the first error nothing more is written.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = None if stream is None or stream.closed else stream

    def write(self, text: str) -> int:
        try:
            if self._stream is not None:
                self._stream.write(text)
                self._stream.flush()
        except (OSError, ValueError):
            silence(self._stream)  # type: ignore[arg-type]
            self._stream = None
        return len(text)

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return getattr(self._stream, "encoding", None) or "utf-8"

    def isatty(self) -> bool:
        return self._stream is not None and self._stream.isatty()


class Display:
    """Shows a run on stderr: a progress bar on a terminal, otherwise a line from time to time.

    The bar is drawn without a thread, because batches are made in forked processes, and the cursor stays visible,
    because a killed process cannot restore it.
    """

    def __init__(self, stream: TextIO | None = None, quiet: bool = False) -> None:
        self.quiet = quiet
        shown: Any = _Lenient(stream or sys.stderr)
        self._live = shown.isatty() and os.environ.get("TERM", "") != "dumb"
        self._console = Console(file=shown, highlight=False, markup=False, soft_wrap=True)
        self._progress: Progress | None = None
        self._shown_at = float("-inf")

    def working(self, text: str) -> None:
        """Show what is done apart from steps. It is called repeatedly."""
        self._update(text, 0.0)

    def data(self, record: Record) -> None:
        for split, counts in record.items():
            if isinstance(counts, Mapping):
                tokens = [f"{amount(counts['tokens'])} tokens"] if counts.get("tokens") else []
                lost = [name for name in ("skipped", "removed", "too_long") if counts.get(name)]
                lost = [f"{counts[name]:,} {name.replace('_', ' ')}" for name in lost]
                unknown = [f"{percent(counts['unknown'])} unknown"] if counts.get("unknown") else []
                self._print(", ".join([f"{split}: {counts.get('examples', 0):,} examples", *tokens, *lost, *unknown]))
        for note in record.get("notes") or ():
            self._print(str(note))

    def train(self, record: Record, spent: float, seconds_left: float | None) -> None:
        left = [] if seconds_left is None else [f"{clock(seconds_left)} left"]
        speed = f"{amount(record['tokens_per_second'])} tokens/s", f"{percent(record['peak'])} of peak"
        loss = f"step {record['step']:,}", f"loss {four_digits(record['loss'])}"
        self._update("  ".join([*loss, *left, *speed, f"rate {rate(record['rate'])}"]), spent)

    def valid(self, record: Record, best: bool) -> None:
        wanted = {name: value for name, value in record.items() if name not in ("step", "seconds")}
        metrics = [f"{name} {four_digits(float(value))}" for name, value in wanted.items() if _is_number(value)]
        line = "  ".join([f"step {record['step']:,}", "valid", *metrics, *(["(best so far)"] if best else [])])
        self._print(line, "bold" if best else "")

    def event(self, text: str) -> None:
        self._print(text, "yellow")

    def end(self, lines: Sequence[str]) -> None:
        self.close()
        for line in lines:
            self._print(line)

    def close(self) -> None:
        """Stop the progress bar. It can be called more than once."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _print(self, text: str, style: str = "") -> None:
        """Print a line that stays, above the progress bar."""
        if not self.quiet:
            self._console.print(Text(_line(text), style=style if self._live else ""), soft_wrap=True)

    def _update(self, text: str, spent: float) -> None:
        wait = REDRAW_SECONDS if self._live else PLAIN_SECONDS
        now = time.monotonic()
        if self.quiet or (now - self._shown_at < wait and spent < 1):
            return
        self._shown_at = now
        if not self._live:
            self._print(f"{text}  {percent(spent)}" if spent else text)
            return
        if self._progress is None:
            self._progress = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TaskProgressColumn(),
                console=self._console,
                auto_refresh=False,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._progress.add_task("", total=1.0)
            self._progress.start()
            self._console.show_cursor(True)
        self._progress.update(self._progress.task_ids[0], description=_line(text), completed=spent or None)
        self._progress.refresh()


def _line(text: str) -> str:
    return printable(text).replace("\n", " ")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def require_trackers(train: Train) -> None:
    """Raise `RunError` if TensorBoard or Weights & Biases is wanted and not installed."""
    wanted = (("tensorboard", train.tensorboard, "torch.utils.tensorboard"), ("wandb", train.wandb, "wandb"))
    for package, value, module in wanted:
        if value:
            extra_module(module, package, package, f"train.{package} ({json.dumps(value)})")


DATASHEETS: dict[str, dict[str, float]] = {
    "H200": {"bfloat16": 989e12, "float16": 989e12, "float32": 67e12, "float64": 67e12},
    "H100 PCIe": {"bfloat16": 756e12, "float16": 756e12, "float32": 51e12, "float64": 51e12},
    "H100": {"bfloat16": 989e12, "float16": 989e12, "float32": 67e12, "float64": 67e12},
    "A100": {"bfloat16": 312e12, "float16": 312e12, "float32": 19.5e12, "float64": 19.5e12},
    "L40S": {"bfloat16": 362e12, "float16": 362e12, "float32": 91.6e12},
    "L4": {"bfloat16": 121e12, "float16": 121e12, "float32": 30.3e12},
    "A10": {"bfloat16": 125e12, "float16": 125e12, "float32": 31.2e12},
    "T4": {"float16": 65e12, "float32": 8.1e12},
    "V100 PCIE": {"float16": 112e12, "float32": 14e12, "float64": 7e12},
    "V100": {"float16": 125e12, "float32": 15.7e12, "float64": 7.8e12},
    "RTX 3090": {"bfloat16": 71e12, "float16": 71e12, "float32": 35.6e12},
    "RTX 4090": {"bfloat16": 165e12, "float16": 165e12, "float32": 82.6e12},
}
"""FLOPs per second of dense matrix products with float32 sums, from NVIDIA's datasheets (with sparsity they are twice
as high). The first entry whose words are all in the name of a device is used. Other devices are measured."""


@cache
def peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """The highest number of FLOPs per second of a device: from its datasheet, or of the fastest of some products."""
    if device.type == "cuda" and (listed := datasheet(torch.cuda.get_device_name(device), str(dtype)[6:])):
        return listed
    best, seconds, size = 0.0, 0.0, 256
    while seconds < 0.01 and size <= 8192:
        square = torch.ones(size, size, dtype=dtype, device=device)
        for _ in range(4):  # the first one loads kernels
            start = time.perf_counter()
            square @ square
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            seconds = time.perf_counter() - start
            best = max(best, 2 * size**3 / seconds)
        size *= 2
    return best


def datasheet(name: str, dtype: str) -> float:
    """The peak of the GPU with this name in its datasheet, or 0 if it is not listed."""
    words = set(name.upper().replace("-", " ").split())
    found = (peaks for entry, peaks in DATASHEETS.items() if set(entry.upper().split()) <= words)
    return next(found, {}).get(dtype, 0.0)


class Reporter:
    """Writes the log and measures time. Only the first process writes; every process measures."""

    def __init__(
        self, run: Run, display: Display, task: Trainable, train: Train, workers: Workers, products: torch.dtype
    ) -> None:
        self.run, self.display, self.task, self.settings, self.workers = run, display, task, train, workers
        self._log = Log(run.log) if workers.leads else None
        self._board: Any = None
        self._wandb: Any = None
        if workers.leads:
            require_trackers(train)
        if train.tensorboard and workers.leads:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(run.directory / "tensorboard"))
        if train.wandb is not None and workers.leads:
            import wandb

            # A resumed run has the same name for Weights & Biases: that of its directory and its first start.
            started = str(read_environment(run.directory).get("time", ""))
            name = hashlib.sha256(f"{run.directory.resolve()} {started}".encode()).hexdigest()[:16]
            self._wandb = wandb.init(
                project=train.wandb,
                id=name,
                name=run.directory.name,
                dir=str(run.directory),
                config=run.config,
                resume="allow",
            )
        self._products = products
        self._started = time.perf_counter()
        self._mark = self._started  # the start of the time that the next line of the log counts
        self._untimed = 0  # tokens of the window whose time is not counted
        self._waited = 0.0
        self.pace = 0.0, 0.0, 0
        """Share of the budget, seconds and steps that were spent when the first steps of this session were done."""
        self._totals = [0.0, 0.0]  # seconds of waiting for data, and of training, in this session

    @contextmanager
    def clock(self, state: TrainingState) -> Iterator[None]:
        """Measure time from that of the state on, and close everything in the end."""
        self._mark = time.perf_counter()
        self._started = self._mark - state.seconds
        try:
            yield
        finally:
            self.display.close()
            if self._board is not None:
                self._board.close()
            if self._wandb is not None:
                self._wandb.finish()

    def seconds(self) -> float:
        """Time spent on this run over all sessions."""
        return time.perf_counter() - self._started

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time in this context as waiting for data."""
        start = time.perf_counter()
        yield
        self._waited += time.perf_counter() - start

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not count the time in this context as training."""
        start = time.perf_counter()
        yield
        self._mark += time.perf_counter() - start

    def first_steps_done(self, state: TrainingState) -> None:
        """Start measuring speed: the first steps of a session start processes and compile."""
        self._mark, self._waited, self._untimed = time.perf_counter(), 0.0, state.window_tokens
        now = replace(state, seconds=self.seconds())
        self.pace = spent_share(self.settings, now), now.seconds, state.step

    @property
    def wait(self) -> float:
        """Share of the training time of this session that was spent waiting for data."""
        return self._totals[0] / max(self._totals[1], 1e-9)

    def data(self, about: Record) -> None:
        self._write({"kind": "data", **about})
        self.display.data(about)

    def train(self, state: TrainingState, sums: Mapping[str, float], rate: float, model: ModelSettings) -> None:
        sums = dict(sums)
        total, weight, steps = sums.pop("total"), sums.pop("weight"), sums.pop("steps")
        norm, clipped = sums.pop("norm") / steps, sums.pop("clipped") / steps
        violation = sums.pop("violation", None)
        busy = max(time.perf_counter() - self._mark, 1e-9)
        source = state.window_tokens * self.task.source_ratio
        flops = training_flops(model, state.window_examples, state.window_tokens, source)
        timed = 1 - self._untimed / max(state.window_tokens, 1)
        record: dict[str, Any] = {
            "kind": "train",
            "step": state.step,
            "epochs": state.epochs,
            "tokens": state.tokens,
            "examples": state.examples,
            **self.task.metrics(total, weight, sums),
            "rate": rate,
            "norm": norm,
            "clipped": clipped,
            "padding": 1 - state.window_tokens / max(state.window_cells, 1),
            "seconds": self.seconds(),
            "tokens_per_second": (state.window_tokens - self._untimed) / busy,
            "wait": self._waited / busy,
            # FLOPs of the model per second over the peak of all devices (MFU, Chowdhery et al. 2022): padding and
            # recomputed activations do not count as work.
            "peak": flops * timed / busy / (peak_flops(self.workers.device, self._products) * self.workers.world),
        }
        if violation is not None:
            record["violation"] = violation / steps
        if self.workers.device.type == "cuda":
            record["memory"] = torch.cuda.max_memory_allocated(self.workers.device)
        self._totals = [self._totals[0] + self._waited, self._totals[1] + busy]
        self._mark, self._waited, self._untimed = time.perf_counter(), 0.0, 0
        self._write(record)
        spent = spent_share(self.settings, state)
        since, then, _ = self.pace
        left = (self.seconds() - then) * (1 - spent) / (spent - since) if spent > since else None
        self.display.train(record, spent, left)

    def valid(self, state: TrainingState, metrics: Mapping[str, float], best: bool) -> None:
        record = {"kind": "valid", "step": state.step, **metrics, "best": best}
        self._write(record | self._times(state))
        self.display.valid(record, best)

    def event(self, step: int, what: str, text: str) -> None:
        self._write({"kind": "event", "step": step, "what": what, "text": text})
        self.display.event(text)

    def end(self, state: TrainingState, reason: str, metrics: Mapping[str, float], kept: str) -> None:
        result = {"reason": reason, **metrics, "kept": kept}
        self._write({"kind": "end", "step": state.step, **result, **self._times(state), "wait": self.wait})

    def _times(self, state: TrainingState) -> dict[str, float]:
        seconds = self.seconds()
        return {"seconds": seconds, "evaluation": state.evaluating / max(seconds, 1e-9)}

    def sync(self) -> int:
        """Flush the log to the disk, and return its length in bytes."""
        return 0 if self._log is None else self._log.sync()

    def truncate(self, length: int) -> str | None:
        """Cut the log to its length at a checkpoint. Returns a warning if lines are lost."""
        return None if self._log is None else self._log.truncate(length)

    def _write(self, record: Record) -> None:
        if self._log is not None:
            self._log.append(record)
        if record.get("step") is None:
            return
        kind, step = record["kind"], record["step"]
        numbers = {f"{kind}/{name}": value for name, value in record.items() if name != "step" and _is_number(value)}
        if self._wandb is not None and numbers:
            self._wandb.log(numbers, step=step)
        if self._board is not None:
            for name, value in numbers.items():
                self._board.add_scalar(name, value, step)
            if kind == "event":
                self._board.add_text(f"event/{record['what']}", record["text"], step)
