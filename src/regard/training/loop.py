"""The one loop: takes steps until the budget is spent, evaluates, saves, and can be stopped at any moment."""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import dataclass

import torch

from regard.blocks.layers import set_recompute
from regard.data.batches import Share
from regard.data.loader import Loader, Step, Steps
from regard.errors import RunError
from regard.models.build import Model
from regard.training import budget
from regard.training.checkpoints import Checkpointer, TrainingState
from regard.training.display import Display
from regard.training.distribution import Workers, distribute
from regard.training.evaluate import evaluate
from regard.training.interrupt import Interrupt
from regard.training.memory import halved, is_out_of_memory
from regard.training.objective import Objective, graphs_compiled, is_compile_failure
from regard.training.optimizers import build_optimizers
from regard.training.precision import numbers
from regard.training.randomness import seed_step
from regard.training.records import Records
from regard.training.run import Run
from regard.training.schedules import Progress, factor
from regard.training.settings import Train, lower_is_better
from regard.training.tally import Tally
from regard.training.task import Trainable
from regard.training.update import Updater


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    reason: str
    """budget, patience, or the name of the signal that stopped it."""
    step: int
    figures: dict[str, float]
    """On the validation data, of the weights that were kept; empty where there are no such data."""
    kept: str
    """Which weights were kept, in words."""


class Trainer:
    """A run in progress. `tasks.run` makes one from a recipe."""

    def __init__(
        self, task: Trainable, model: Model, train: Train, run: Run, workers: Workers, display: Display
    ) -> None:
        self.task, self.model, self.train, self.workers = task, model, train, workers
        self.numbers = numbers(train.precision, workers.device)
        set_recompute(model, train.recompute)
        self.objective = Objective(model, task)
        self.objective.train()
        self.state = TrainingState(micro=train.micro, micro_asked=train.micro)
        self.objective.compiles(_compiles(train, workers), self._replays())
        shared = distribute(self.objective, workers, train.shard)
        self.optimizers = build_optimizers(train.optimizer, model)
        scaler = self.numbers.scaler(train.tokens)
        self.updater = Updater(shared, self.optimizers, self.numbers, workers, scaler, train.clip)
        self.window = Tally(workers.device)
        self.checkpointer = Checkpointer(run, model, train, self.updater)
        self.records = Records(run, display, task, train, workers, self.numbers.products)
        self._loader: Loader | None = None
        self._proven = False
        """Whether a compiled step has been taken: from then on an error is no failure to compile."""

    # ------------------------------------------------------------------------------------------------ from start to end

    def resume(self) -> list[str]:
        """Goes on where the newest good checkpoint stands; tells what was found damaged, in sentences."""
        state, log, notes = self.checkpointer.resume()
        if state is not None:
            self.state = state
            self.window.load(state.window)
            share = budget.share(self.train, state.spent)
            if state.share and share != state.share:  # the budget was changed, and warm-up was a share of the old one
                state.warm *= share / state.share
            # Of a budget that has grown, or at another rhythm, fewer evaluations were due by now.
            state.evaluations = min(state.evaluations, budget.evaluations_due(self.train, state.spent))
            if state.micro_asked != self.train.micro:
                state.micro = state.micro_asked = self.train.micro
            self.objective.compiles(self.objective.compiled, self._replays())
        lost = self.records.back_to(log)
        return [*notes, lost] if lost else notes

    def _replays(self) -> bool:
        """Whether each step is one batch, all of one shape, in one process, on a GPU."""
        train, device = self.train, self.workers.device.type
        whole = self.state.micro is None or self.state.micro >= train.tokens
        return device == "cuda" and self.workers.world == 1 and whole and train.packs(device)

    def run(self) -> Outcome:
        """Trains until the budget is spent, patience is over or a signal comes; saves, and keeps the best weights."""
        budget.require_budget(self.train)
        with Interrupt() as interrupt, self.records.clock(self.state):
            reason = None
            while reason is None:
                try:
                    reason = self._go(interrupt)
                except Exception as error:
                    self._halve_micro(error)
            if reason not in ("budget", "patience"):
                if self.checkpointer.saved_step != self.state.step:
                    self._save()
                return Outcome(reason, self.state.step, {}, "")
            if self.state.evaluated != self.state.step:
                self._evaluate()
            return self._finish(reason)

    def _go(self, interrupt: Interrupt) -> str | None:
        """Steps from where the run stands; gives the reason why it ends."""
        first = True
        # Steps ahead are made in other processes; they must end, whatever happens here.
        with closing(self._steps()) as steps:
            while True:
                seconds, stop = self.workers.most(self.records.seconds(), float(interrupt.received is not None))
                self.state.seconds = seconds
                if stop:
                    return interrupt.received or "SIGTERM"
                if budget.share(self.train, self.state.spent) >= 1:
                    return "budget"
                if self.train.patience is not None and self.state.stale >= self.train.patience:
                    return "patience"
                with self.records.waiting():
                    step = next(steps)
                self._take(step)
                if first:
                    self._settle()
                    first = False
                self._after()

    def _steps(self) -> Steps:
        self._loader = self.task.batches("train", Share(self.workers.rank, self.workers.world, self.state.micro))
        return self._loader.steps(self.state.position)

    # -------------------------------------------------------------------------------------------------------- one step

    def _take(self, step: Step) -> None:
        state, schedule = self.state, self.train.schedule
        spent = budget.share(self.train, state.spent)
        if state.step < schedule.warmup:
            state.warm = spent
        progress = Progress(state.step + 1, spent, state.warm)
        width = self.model.settings.width
        graphs = graphs_compiled() if self.objective.compiled else 0
        try:
            self._update(step, factor(schedule, progress, width))
        except Exception as error:
            if not self.objective.compiled or self._proven or not is_compile_failure(error):
                raise
            self.objective.compiles(False)
            told = " ".join(str(error).split("\n")[:2]).strip()  # the first line may only say who raised what follows
            self.records.event(state.step, "compile-fallback", f"cannot be compiled, so it runs uncompiled: {told}")
            self._update(step, factor(schedule, progress, width))
        self._proven = True
        state.step += 1
        if self.objective.compiled:
            self.records.compiled(state.step, graphs_compiled() - graphs)
        state.position, state.epochs = step.next, step.epochs
        state.tokens += step.tokens
        state.examples += step.examples
        state.window_tokens += step.tokens
        state.window_cells += step.cells
        state.window_examples += step.examples
        if self.checkpointer.ema is not None:
            self.checkpointer.ema.update(state.step)

    def _settle(self) -> None:
        if self.workers.device.type == "cuda":
            torch.cuda.synchronize(self.workers.device)
        self.records.settle(self.state)

    def _update(self, step: Step, rate: float) -> None:
        seed_step(self.train.seed, self.state.step + 1, self.workers.rank, self.workers.device)
        self.updater.update(step.batches, rate, self.window)

    def _halve_micro(self, error: Exception) -> None:
        """If memory ran out: all again, in parts half as large; the steps themselves stay what they were."""
        if not is_out_of_memory(error) or self.workers.world > 1:
            raise error
        assert self._loader is not None
        self.optimizers.zero_grad()
        if self.workers.device.type == "cuda":
            torch.cuda.empty_cache()
        held = min(self.state.micro or self.train.tokens, self.train.tokens)
        self.state.micro = halved(held, self._loader.longest)
        self.objective.compiles(self.objective.compiled, self._replays())
        told = f"memory ran out; from here on {self.state.micro:,} tokens are held at once, and steps stay as they were"
        self.records.event(self.state.step, "out-of-memory", told)

    # ------------------------------------------------------------------------------------------------- what is due then

    def _after(self) -> None:
        state, train = self.state, self.train
        if state.step % train.log_every == 0:
            self._log()
        due = budget.evaluations_due(train, state.spent)
        if due > state.evaluations:
            state.evaluations = due
            self._evaluate()
        elif (train.save_every is not None and state.step % train.save_every == 0) or self._late():
            self._save()

    def _late(self) -> bool:
        """Whether the last checkpoint is too long ago; as the first process sees it, so that all save together."""
        late = self.records.seconds() - self.checkpointer.saved_at > 60 * self.train.save_minutes
        return bool(self.workers.most(float(late and self.workers.leads))[0])

    def _log(self) -> None:
        sums = self._finite()
        self.records.train(self.state, sums, self.optimizers.rate, self.model.settings)
        self.window.clear()
        self.state.window_tokens = self.state.window_cells = self.state.window_examples = 0

    def _finite(self) -> dict[str, float]:
        """The window's sums; what is not finite ends the run before it is saved."""
        sums = self.window.read()
        norm_counts = not self.updater.scaler.is_enabled()  # float16 skips steps whose gradients overflow
        bad = [name for name, value in sums.items() if not math.isfinite(value) and (norm_counts or name != "norm")]
        if bad:
            what = "the loss is" if "total" in bad else "the gradient is"
            steps = f"in one of the {int(sums['steps'])} steps up to {self.state.step:,}"
            raise self.checkpointer.not_finite(what, steps)
        return sums

    def _evaluate(self) -> None:
        """Figures, where there are data for them; then a snapshot, and a checkpoint to resume from."""
        self._finite()
        figures: dict[str, float] = {}
        with self.records.paused():
            if self.task.has("valid"):
                with self.checkpointer.averaged():
                    figures = self._figures()
                self.records.valid(self.state, figures, self._judge(figures))
        self.state.evaluated = self.state.step
        self._save(figures)

    def _figures(self) -> dict[str, float]:
        while True:
            try:
                return evaluate(self.objective, self.task, "valid", self.workers, self.numbers, self.state.micro)
            except Exception as error:
                self._halve_micro(error)

    def _judge(self, figures: dict[str, float]) -> bool:
        """Whether these are the best figures so far."""
        select = self.train.select
        if select not in figures:
            known = ", ".join(figures)
            raise RunError(f"train.select ({select}) is no figure of this task; choose one of {known}")
        value, best = figures[select], self.state.best
        better = best is None or (value < best if lower_is_better(select) else value > best)
        better = better and math.isfinite(value)
        if better:
            self.state.best, self.state.stale = value, 0
        else:
            self.state.stale += 1
        return better

    def _save(self, figures: dict[str, float] | None = None) -> None:
        """A checkpoint to resume from; with figures, however few, also a snapshot."""
        self.state.window = self._finite()
        with self.records.paused():
            self.state.seconds = self.records.seconds()
            self.state.share = budget.share(self.train, self.state.spent)
            self.checkpointer.save(self.state, figures, self.records.synced())

    def _finish(self, reason: str) -> Outcome:
        """The weights to keep, their figures, and the last line of the log."""
        kept = self.checkpointer.choose()
        figures = self._figures() if self.task.has("valid") else {}
        if better := self.checkpointer.reconsider(figures):
            kept, figures = better, self._figures()
        self.checkpointer.write_final()
        self.records.end(self.state, reason, figures, kept)
        return Outcome(reason, self.state.step, figures, kept)


def _compiles(train: Train, workers: Workers) -> bool:
    if train.compile == "auto":
        return workers.device.type == "cuda" and not train.shard
    return train.compile == "on"
