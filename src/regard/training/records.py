"""What is told of a run, step by step: to the log, to whoever looks at the screen, to TensorBoard on request."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from regard.models.count import training_flops
from regard.models.settings import ModelSettings
from regard.training import budget
from regard.training.checkpoints import TrainingState
from regard.training.display import Display
from regard.training.distribution import Workers
from regard.training.hardware import peak_flops, share_of_peak
from regard.training.run import Log, Run
from regard.training.settings import Train
from regard.training.task import Trainable
from regard.training.tensorboard import TensorboardWriter

SETTLED = 50
"""Steps after which nothing should be compiled any more."""


class Records:
    """Only the first process tells anything; every process keeps time."""

    def __init__(
        self, run: Run, display: Display, task: Trainable, train: Train, workers: Workers, products: torch.dtype
    ) -> None:
        self.run, self.display, self.task, self.train_settings, self.workers = run, display, task, train, workers
        self._log = Log(run.log) if workers.leads else None
        self._board = TensorboardWriter(run.directory) if train.tensorboard and workers.leads else None
        self._products = products
        self._began = time.perf_counter()
        self._mark = self._began
        self._untimed = 0
        """Tokens of the window whose time is not counted."""
        self._waited = 0.0
        self._pace = 0.0, 0.0
        """Share of the budget, and seconds, that were spent when time began to be counted."""
        self._totals = [0.0, 0.0]
        self.recompiled: int | None = None
        """Graphs compiled after step `SETTLED` of this session, in steps of training; none: it runs uncompiled."""
        self._session_steps = 0

    # ------------------------------------------------------------------------------------------------------------ time

    @contextmanager
    def clock(self, state: TrainingState) -> Iterator[None]:
        """Time goes on from where the state says that it stands."""
        now = time.perf_counter()
        self._began, self._mark = now - state.seconds, now
        try:
            yield
        finally:
            self.display.close()
            if self._board is not None:
                self._board.close()

    def seconds(self) -> float:
        """Time spent on this run, over all sessions."""
        return time.perf_counter() - self._began

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Time that goes by in here is spent waiting for data."""
        start = time.perf_counter()
        yield
        self._waited += time.perf_counter() - start

    def settle(self, state: TrainingState) -> None:
        """Counts time from here on: the first step of a session starts processes and compiles."""
        self._mark, self._waited, self._untimed = time.perf_counter(), 0.0, state.window_tokens
        self._pace = budget.share(self.train_settings, state.spent), self.seconds()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time that goes by in here is not spent on steps."""
        start = time.perf_counter()
        yield
        self._mark += time.perf_counter() - start

    # --------------------------------------------------------------------------------------------------------- records

    def data(self, about: Mapping[str, Any]) -> None:
        """The first line: what there is to learn from."""
        self._write({"kind": "data", **about})
        self.display.data({"kind": "data", **about})

    def train(self, state: TrainingState, sums: Mapping[str, float], rate: float, model: ModelSettings) -> None:
        """A line about the steps since the last one."""
        sums = dict(sums)
        total, weight, steps = sums.pop("total"), sums.pop("weight"), sums.pop("steps")
        norm, clipped = sums.pop("norm") / steps, sums.pop("clipped") / steps
        busy = max(time.perf_counter() - self._mark, 1e-9)
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
            "peak": self._share_of_peak(state, model, busy),
        }
        if self.workers.device.type == "cuda":
            record["memory"] = torch.cuda.max_memory_allocated(self.workers.device)
        self._totals = [self._totals[0] + self._waited, self._totals[1] + busy]
        self._mark, self._waited, self._untimed = time.perf_counter(), 0.0, 0
        self._write(record)
        spent = budget.share(self.train_settings, state.spent)
        self.display.train(record, spent, self._seconds_left(spent))

    def _seconds_left(self, spent: float) -> float | None:
        """At the pace since the first step of this session, which took longer than others."""
        since, then = self._pace
        return (self.seconds() - then) * (1 - spent) / (spent - since) if spent > since else None

    def _share_of_peak(self, state: TrainingState, model: ModelSettings, busy: float) -> float:
        source = state.window_tokens * self.task.source_ratio
        flops = training_flops(model, state.window_examples, state.window_tokens, source)
        timed = 1 - self._untimed / max(state.window_tokens, 1)
        peak, _ = peak_flops(self.workers.device, self._products)
        return share_of_peak(flops * timed, busy, peak * self.workers.world)

    def valid(self, state: TrainingState, figures: Mapping[str, float], best: bool) -> None:
        record = {"kind": "valid", "step": state.step, **figures, "best": best, "seconds": self.seconds()}
        self._write(record)
        self.display.valid(record, best)

    @property
    def wait(self) -> float:
        """Share of this session's training, evaluation apart, that was spent waiting for data."""
        return self._totals[0] / max(self._totals[1], 1e-9)

    def compiled(self, step: int, graphs: int) -> None:
        """So many graphs were compiled in a step; once shapes have settled, each one is told."""
        self._session_steps += 1
        self.recompiled = self.recompiled or 0
        if graphs and self._session_steps > SETTLED:
            self.recompiled += graphs
            self.event(step, "recompilation", f"step {step:,} was compiled anew: a shape or a setting changed")

    def event(self, step: int, what: str, text: str) -> None:
        """Something out of the ordinary."""
        self._write({"kind": "event", "step": step, "what": what, "text": text})
        self.display.event(text)

    def end(self, state: TrainingState, reason: str, figures: Mapping[str, float], kept: str) -> None:
        record = {"kind": "end", "step": state.step, "reason": reason, **figures, "kept": kept}
        if self.recompiled is not None:
            record["recompilations"] = self.recompiled
        self._write({**record, "seconds": self.seconds(), "wait": self.wait})

    def synced(self) -> int:
        """The log's length in bytes, all of which is on the disk."""
        return 0 if self._log is None else self._log.sync()

    def back_to(self, length: int) -> str | None:
        """Cuts the log to what was there when a checkpoint was written."""
        return None if self._log is None else self._log.truncate(length)

    def _write(self, record: Mapping[str, Any]) -> None:
        if self._log is not None:
            self._log.append(dict(record))
        if self._board is not None:
            self._board.record(record)
