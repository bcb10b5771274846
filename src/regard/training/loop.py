"""The training loop: takes steps until the budget is spent, evaluates, saves, and can be interrupted at any time."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

import torch

from regard.blocks.layers import set_recompute
from regard.blocks.settings import Body
from regard.data.batches import Share
from regard.data.loader import Loader, Step
from regard.errors import RunError
from regard.format import percent
from regard.models.build import Model
from regard.training import schedules
from regard.training import step as one_step
from regard.training.checkpoints import Checkpointer, TrainingState
from regard.training.distribution import Workers, distribute
from regard.training.optimizers import build_optimizers
from regard.training.report import Display, Reporter
from regard.training.run import Run
from regard.training.settings import Train, lower_is_better
from regard.training.step import Objective, Sums, Trainable, Updater, evaluate, mixed_precision

SIGNAL_SECONDS = 1.0
"""Signals within this time count as one: `timeout` and service managers signal a process and its group."""
TIMED_STEPS, TIMED_SECONDS = 9, 10.0
"""After so many steps, or so long, the number of steps in a budget of minutes is estimated."""
COMPILED_STEPS = 3
"""Steps in which a run compiles: the second one records CUDA graphs, and the third one replays them."""

Callback: TypeAlias = Callable[[dict[str, float]], object]
"""Gets the metrics of a step or of an evaluation. If it returns False, the run stops."""


class Interrupted(KeyboardInterrupt):
    """A signal arrived during an evaluation."""


class Interrupt:
    """In this context the first Ctrl-C, SIGTERM or SIGHUP is only noted; a later one ends the program as usual.

    SIGHUP means that the terminal was closed. It does not end the program, and `nohup` is respected.
    """

    def __init__(self) -> None:
        self.received: str | None = None
        self._raises = False
        self._since = 0.0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            hangup = getattr(signal, "SIGHUP", signal.SIGTERM)  # Windows has none
            noted = {signal.SIGINT, signal.SIGTERM, *({hangup} if signal.getsignal(hangup) != signal.SIG_IGN else ())}
            self._before = {number: signal.signal(number, self._note) for number in noted}
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _note(self, number: int, _: FrameType | None) -> None:
        now = time.monotonic()
        if self.received is None:
            self.received, self._since = signal.Signals(number).name, now
            if self._raises:
                raise Interrupted
        elif now - self._since >= SIGNAL_SECONDS and number in (signal.SIGINT, signal.SIGTERM):
            raise KeyboardInterrupt

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """In this context, which changes nothing that is saved, the first signal raises `Interrupted`."""
        if self.received is not None:
            raise Interrupted
        self._raises = True
        try:
            yield
        finally:
            self._raises = False


@dataclass(frozen=True)
class Trained:
    """How a run ended."""

    directory: Path
    reason: str
    """budget, patience, or the name of the signal that stopped it."""
    step: int
    scores: dict[str, float]
    """Metrics of the kept weights on the validation data; empty without such data, or if the run was stopped."""
    kept: str
    """A description of the kept weights; empty if the run was stopped."""


class Trainer:
    """A run in progress. `regard.tasks.run` makes one from a recipe."""

    def __init__(
        self,
        task: Trainable,
        model: Model,
        train: Train,
        run: Run,
        workers: Workers,
        display: Display,
        on_step: Callback | None = None,
        on_evaluate: Callback | None = None,
    ) -> None:
        self._on_step, self._on_evaluate = on_step, on_evaluate
        self._stopped_by = ""
        """The callback that stops the run."""
        self.task, self.model, self.train, self.workers = task, model, train, workers
        self.precision = mixed_precision(train.precision, workers.device)
        self.state = TrainingState(micro=train.micro, micro_asked=train.micro, planned=0)
        set_recompute(model, train.recompute)
        self.objective = Objective(model, task)
        self.objective.train()
        # The compiler leaves recurrent layers out, and other models read lengths from the device.
        transformer = isinstance(getattr(model, "settings", None), Body)
        compiled = train.compile == "on" or (
            train.compile == "auto" and workers.device.type == "cuda" and not train.shard and transformer
        )
        self.objective.set_compiled(compiled, self._can_record_graphs())
        wrapped = distribute(self.objective, workers, train.shard)
        self.optimizers = build_optimizers(train.optimizer, model, train.layer_decay)
        scaler = self.precision.scaler(train.step_tokens)
        self.updater = Updater(wrapped, self.optimizers, self.precision, workers, scaler, train.clip)
        self.window = Sums(workers.device)
        """Sums since the last line of the log."""
        self.checkpointer = Checkpointer(run, model, train, self.updater)
        self.reporter = Reporter(run, display, task, train, workers, self.precision.products)
        self._loader: Loader | None = None
        self._last: dict[str, float] = {}
        """Metrics of the last step, for `on_step`."""
        self._interrupt = Interrupt()
        self._evaluation_seconds = 0.0
        self._compiled_once = False
        """Whether a compiled step succeeded; later errors are not failures of the compiler."""

    def _can_record_graphs(self) -> bool:
        """Whether each step is one batch of a fixed shape, in one process on a GPU, as CUDA graphs need."""
        train, device = self.train, self.workers.device.type
        one_batch = self.state.micro is None or self.state.micro >= train.step_tokens
        return device == "cuda" and self.workers.world == 1 and one_batch and train.packs(device)

    def resume(self) -> list[str]:
        """Continue from the newest intact checkpoint. Returns messages about damage."""
        state, log, notes = self.checkpointer.resume()
        if state is not None:
            self.state = state
            self.window.load(state.window)
            share = schedules.spent_share(self.train, state)
            if state.share and share != state.share:  # the budget changed, and warm-up was a share of the old one
                state.warm *= share / state.share
                state.planned = 0
            # With a larger budget or another interval, fewer evaluations were due so far.
            due = schedules.evaluations_due(self.train, state, state.planned or schedules.EVALUATIONS)
            state.evaluations = min(state.evaluations, due)
            if state.micro_asked != self.train.micro:
                state.micro = state.micro_asked = self.train.micro
            self.objective.set_compiled(self.objective.compiled, self._can_record_graphs())
        lost = self.reporter.truncate(log)
        return [*notes, lost] if lost else notes

    def run(self) -> Trained:
        """Train until the budget is spent, patience ends or a signal arrives. Saves everything."""
        with Interrupt() as self._interrupt, self.reporter.clock(self.state):
            if self.train.minutes is None and not self.state.planned:
                self._plan(*self._budget_steps())
            try:
                reason = None
                while reason is None:
                    try:
                        reason = self._steps_until_end(self._interrupt)
                    except Exception as error:
                        self._after_out_of_memory(error)
                if reason in ("budget", "patience"):
                    return self._finish(reason)
            except Interrupted:
                reason = str(self._interrupt.received)
            if self.checkpointer.saved_step != self.state.step:
                self._save()
            return Trained(self.checkpointer.run.directory, reason, self.state.step, {}, "")

    def _finish(self, reason: str) -> Trained:
        """Choose the final weights, and write them."""
        if self.state.evaluated != self.state.step:
            self._evaluate()
        kept = self.checkpointer.choose()
        metrics = self.checkpointer.kept_metrics or (self._metrics() if self.task.has("valid") else {})
        if better := self.checkpointer.reconsider(metrics):
            kept, metrics = better, self.checkpointer.kept_metrics
        self.checkpointer.write_final()
        self.reporter.end(self.state, reason, metrics, kept)
        return Trained(self.checkpointer.run.directory, reason, self.state.step, metrics, kept)

    def _steps_until_end(self, interrupt: Interrupt) -> str:
        """Take steps from the current position. Returns the reason why the run ends."""
        taken = 0
        self._loader = self.task.batches("train", Share(self.workers.rank, self.workers.world, self.state.micro))
        if self.state.pending:
            self._evaluate()
        # Batches are made in other processes, which must end in any case.
        with closing(self._loader.steps(self.state.position)) as steps:
            while True:
                reason = interrupt.received or self._stopped_by
                seconds, stop = self.workers.most(self.reporter.seconds(), float(bool(reason)))
                self.state.seconds = seconds
                if stop:
                    return reason or "SIGTERM"
                if schedules.spent_share(self.train, self.state) >= 1:
                    return "budget"
                if self.train.patience is not None and self.state.stale >= self.train.patience:
                    return "patience"
                with self.reporter.waiting():
                    step = next(steps)
                self._take(step)
                taken += 1
                compiled = self.objective.compiled
                if taken <= (COMPILED_STEPS if compiled else 1):
                    if self.workers.device.type == "cuda":
                        torch.cuda.synchronize(self.workers.device)
                    if compiled and self.state.step <= COMPILED_STEPS:
                        self.state.starting = self.workers.most(self.reporter.seconds())[0]
                    self.reporter.first_steps_done(self.state)
                self._after_step()

    def _take(self, step: Step) -> None:
        state, schedule = self.state, self.train.schedule
        spent = schedules.spent_share(self.train, state)
        if isinstance(schedule.warmup, float):
            state.warm = state.warm or (spent if spent >= schedule.warmup else 0.0)
        elif state.step < schedule.warmup:
            state.warm = spent
        factor = schedules.rate_factor(schedule, state.step + 1, spent, state.warm, self.model.settings.width)
        try:
            self._update(step, factor)
        except Exception as error:
            if not self.objective.compiled or self._compiled_once or not one_step.is_compile_failure(error):
                raise
            self.objective.set_compiled(False)
            reason = " ".join(str(error).split("\n")[:2]).strip()  # the first line can be only the type of the second
            self.reporter.event(state.step, "compile-fallback", f"compilation failed, training uncompiled: {reason}")
            self._update(step, factor)
        self._compiled_once = True
        state.step += 1
        state.position, state.epochs = step.next, step.epochs
        state.tokens += step.tokens
        state.examples += step.examples
        state.window_tokens += step.tokens
        state.window_cells += step.cells
        state.window_examples += step.examples
        if self.checkpointer.ema is not None:
            self.checkpointer.ema.update(state.step)

    def _update(self, step: Step, factor: float) -> None:
        one_step.seed_step(self.train.seed, self.state.step + 1, self.workers.rank, self.workers.device)
        sums = self.updater.update(step.batches, factor, self.window)
        if self._on_step is not None:
            values = {name: float(value) for name, value in sums.items()}
            self._last = self.task.metrics(values.pop("total"), values.pop("weight"), values)

    def _after_out_of_memory(self, error: Exception) -> None:
        """If memory ran out, continue with half of the tokens at once. The optimizer steps stay the same."""
        if not one_step.is_out_of_memory(error) or self.workers.world > 1:
            raise error
        assert self._loader is not None
        self.optimizers.zero_grad()
        if self.workers.device.type == "cuda":
            torch.cuda.empty_cache()
        held = min(self.state.micro or self.train.step_tokens, self.train.step_tokens)
        longest = self._loader.longest
        if held <= longest:
            raise RunError(
                f"memory ran out with {held:,} tokens at once, and the longest example or packed row has {longest:,}; "
                "choose a smaller model, set data.longest, train.row or train.recompute=true, or use another device"
            ) from error
        self.state.micro = max(held // 2, longest)
        self.objective.set_compiled(self.objective.compiled, self._can_record_graphs())
        text = f"memory ran out; continuing with {self.state.micro:,} tokens at once, with unchanged optimizer steps"
        self.reporter.event(self.state.step, "out-of-memory", text)

    def _after_step(self) -> None:
        state, train = self.state, self.train
        if self._on_step is not None:
            about = {"step": state.step, "epochs": state.epochs, "tokens": state.tokens, "rate": self.optimizers.rate}
            if self._on_step({**about, **self._last}) is False:
                self._stopped_by = "on_step"
        if state.step % train.log_every == 0:
            self.reporter.train(state, self._finite_window(), self.optimizers.rate, self.model.settings)
            self.window = Sums(self.workers.device)
            state.window_tokens = state.window_cells = state.window_examples = 0
        due = schedules.evaluations_due(train, state, state.planned or schedules.EVALUATIONS)
        if not state.planned and (steps := self._timed_steps(due > state.evaluations)):
            self._plan(schedules.nearest_budget(train, state)[0], steps, state.tokens / state.step)
            due = schedules.evaluations_due(train, state, state.planned)
        wanted = due > state.evaluations and (state.planned > 0 or train.evaluate_every is not None)
        if wanted:
            state.evaluations = due
        if wanted and self._affordable():
            self._evaluate()
        elif train.save_every is not None and state.step % train.save_every == 0:
            self._save()
        else:  # the clock of the first process decides, so that all save together
            late = self.reporter.seconds() - self.checkpointer.saved_at > 60 * train.save_minutes
            if self.workers.most(float(late and self.workers.leads))[0]:
                self._save()

    def _budget_steps(self) -> tuple[str, float, float]:
        """The nearest budget, without minutes, the number of steps in it, and about how many tokens a step has."""
        train, loader = self.train, self.task.batches("train", Share())
        each = min(train.step_tokens, (train.examples or math.inf) * loader.tokens / len(loader.examples.lengths))
        limits = {"steps": 1.0, "epochs": loader.tokens / each, "total_tokens": 1 / each}
        steps, name = min((limit * limits[name], name) for name, limit in schedules.require_budget(train).items())
        return name, steps, each

    def _timed_steps(self, due: bool) -> float:
        """The number of steps in the budget, estimated from the first ones; 0 as long as too few are timed."""
        since, then, first = self.reporter.pace
        timed, seconds = self.state.step - first, self.reporter.seconds() - then
        enough = timed >= TIMED_STEPS or (timed > 0 and (due or seconds > TIMED_SECONDS))
        spent = schedules.spent_share(self.train, replace(self.state, seconds=self.reporter.seconds()))
        steps = self.state.step + timed * (1 - spent) / (spent - since) if enough and spent > since else 0.0
        return self.workers.first(steps)

    def _plan(self, budget: str, steps: float, tokens: float) -> None:
        """Plan the evaluations of a budget of so many steps, and report the steps. Too few cause a warning."""
        self.state.planned = schedules.EVALUATIONS
        if self.task.has("valid") and self.train.evaluate_every is None:
            validation = self.task.batches("valid", Share()).tokens
            planned = schedules.plan_evaluations(steps * tokens, validation, self.train.step_tokens)
            self.state.planned, self.state.stride = planned
        due = schedules.evaluations_due(self.train, self.state, self.state.planned)
        self.state.evaluations = min(self.state.evaluations, due)
        if budget == "steps":
            return
        text = f"train.{budget} ({self.train.budgets[budget]:g}) holds about {steps:,.0f} steps of {tokens:,.0f} tokens"
        if steps < schedules.FEW_STEPS and self.train.start is None:
            text += f", too few to learn much; lower train.tokens, raise train.{budget}, or choose a smaller model"
        self.reporter.display.event(text)

    def _affordable(self) -> bool:
        """Whether another evaluation stays within its share of the time, in a budget of minutes."""
        if self.train.minutes is None or self.train.evaluate_every is not None:
            return True
        spent, each = self.state.evaluating, self._evaluation_seconds
        over = spent + each > schedules.EVALUATION_SHARE * (self.reporter.seconds() + each)
        return not self.workers.most(float(over and self.workers.leads))[0]

    def _finite_window(self) -> dict[str, float]:
        """The sums of the window. NaN and infinity end the run before they are saved."""
        sums = self.window.read()
        norm_counts = not self.updater.scaler.is_enabled()  # float16 skips steps whose gradients overflow
        bad = [name for name, value in sums.items() if not math.isfinite(value) and (norm_counts or name != "norm")]
        if bad:
            steps = f"in one of the {int(sums['steps'])} steps up to {self.state.step:,}"
            raise self.checkpointer.not_finite("the loss is" if "total" in bad else "the gradient is", steps)
        return sums

    def _evaluate(self) -> None:
        """Compute metrics if there are validation data, and save a checkpoint with a snapshot."""
        self._finite_window()
        metrics: dict[str, float] = {}
        self.state.pending = True
        with self.reporter.paused():
            if self.task.has("valid"):
                ema = self.checkpointer.ema
                with nullcontext() if ema is None else ema.swapped():
                    metrics = self._metrics()
                self.reporter.valid(self.state, metrics, self._is_best(metrics))
                if self._on_evaluate is not None and self._on_evaluate({"step": self.state.step, **metrics}) is False:
                    self._stopped_by = "on_evaluate"
        self.state.evaluated, self.state.pending = self.state.step, False
        self._save(metrics)

    def _metrics(self) -> dict[str, float]:
        start, state = self.reporter.seconds(), self.state
        part = "the validation data" if state.stride == 1 else f"1 in {state.stride} batches of the validation data"

        def progress(share: float) -> None:
            self.reporter.display.working(f"evaluating: {percent(share)} of {part}")

        while True:
            try:
                # Several processes must agree when to stop, so they finish their evaluation.
                with nullcontext() if self.workers.world > 1 else self._interrupt.at_once():
                    how = self.precision, state.micro, state.stride, progress
                    metrics = evaluate(self.objective, self.task, "valid", self.workers, *how)
            except Exception as error:
                self._after_out_of_memory(error)
                continue
            self._evaluation_seconds = self.reporter.seconds() - start
            state.evaluating += self._evaluation_seconds
            return metrics

    def _is_best(self, metrics: dict[str, float]) -> bool:
        """Whether the value of `train.select` is the best so far. Counts the evaluations since then."""
        select = self.train.select
        if select not in metrics:
            raise RunError(f"train.select ({select}) is not a metric of this task; choose one of {', '.join(metrics)}")
        value, best = metrics[select], self.state.best
        if math.isfinite(value) and (best is None or (value < best if lower_is_better(select) else value > best)):
            self.state.best, self.state.stale = value, 0
            return True
        self.state.stale += 1
        return False

    def _save(self, metrics: dict[str, float] | None = None) -> None:
        """Save a checkpoint; with metrics, even empty ones, also a snapshot."""
        self.state.window = self._finite_window()
        with self.reporter.paused():
            self.state.seconds = self.reporter.seconds()
            self.state.share = schedules.spent_share(self.train, self.state)
            self.checkpointer.save(self.state, metrics, self.reporter.sync())
