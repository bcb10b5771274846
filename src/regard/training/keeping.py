"""What a run keeps: checkpoints to resume from, snapshots to choose from, and in the end the weights to use.

Every process takes part, since each may hold a part of the tensors; the first alone writes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from regard.errors import RunError
from regard.training import checkpoint
from regard.training.averaging import Ema
from regard.training.distribution import whole
from regard.training.optimizers import like
from regard.training.run import Run
from regard.training.settings import Train, lower_is_better
from regard.training.snapshots import STATE as SNAPSHOTS
from regard.training.snapshots import Snapshot, Snapshots
from regard.training.state import State
from regard.training.update import Updater
from regard.weights.assign import check
from regard.weights.checkpoints import Checkpoint
from regard.weights.checkpoints import newest as newest_as_it_lies


class Keeper:
    """Saves and finds again; knows when it last did."""

    def __init__(self, run: Run, model: nn.Module, train: Train, updater: Updater) -> None:
        self.run, self.train, self.updater, self.workers = run, train, updater, updater.workers
        self.parameters = dict(model.named_parameters())
        self.ema = None if train.ema is None else Ema(train.ema, self.parameters)
        self.snapshots = Snapshots(run.directory)
        self.saved_step = -1
        self.saved_at = 0.0
        """In seconds of the run."""

    def averaged(self) -> AbstractContextManager[None]:
        """In here the model has the averaged weights, where there are any: those that are judged."""
        return nullcontext() if self.ema is None else self.ema.swapped()

    # ---------------------------------------------------------------------------------------------------------- saving

    def save(self, state: State, figures: Mapping[str, float] | None, log: int) -> None:
        """A checkpoint; with figures, however few, also a snapshot. `log` is the log's length in bytes."""
        weights, tensors = whole(self.parameters), whole(self.updater.optimizers.tensors())
        ema = None if self.ema is None else whole(self.ema.tensors())
        if not bool(torch.stack(torch._foreach_norm([*weights.values()], torch.inf)).isfinite().all()):
            raise self.not_finite("the weights are", f"after step {state.step:,}")
        if figures is not None:
            known = {name: value for name, value in figures.items() if math.isfinite(value)}
            self.snapshots.add(state.step, known)
            best, last = self._kept(bool(figures))
            self.snapshots.prune(best, self.train.select, lower_is_better(self.train.select), last)
        if self.workers.leads:
            content = {
                "state": state.to_json(),
                "log": log,
                "scaler": self.updater.scaler.state_dict(),
                "threads": torch.get_num_threads(),
                "processes": self.workers.world,
                SNAPSHOTS: self.snapshots.to_state(),
            }
            written = checkpoint.write(self.run.directory, state.step, weights, tensors, content, ema)
            checkpoint.prune(self.run.directory)
            self.snapshots.commit(written)
            self.run.set_status("running", state.step)
        self.workers.wait()
        self.saved_step, self.saved_at = state.step, state.seconds

    def _kept(self, judged: bool) -> tuple[int, int]:
        """How many of the best snapshots and of the last are kept."""
        average = self.train.average or 0
        best = max(self.train.keep, average if self.train.average_of == "best" else 0)
        last = average if self.train.average_of == "last" else 0
        return best, last if judged else max(last, 1)

    def not_finite(self, what: str, when: str) -> RunError:
        """Ends a run before NaN or infinity is saved; says where to go back to."""
        good = f"the last good checkpoint is that of step {self.saved_step:,}, in {self.run.directory}"
        return RunError(
            f"{what} not finite, {when}; {good if self.saved_step >= 0 else 'no checkpoint was written yet'}. Lower "
            "train.optimizer.rate, lengthen train.schedule.warmup, set train.clip, or look at the data of these steps"
        )

    # -------------------------------------------------------------------------------------------------------- resuming

    def resume(self) -> tuple[State | None, int, list[str]]:
        """The state of the newest good checkpoint, all tensors in place; the log's length then; sentences on damage."""
        found = checkpoint.newest(self.run.directory) if self.workers.leads else None
        self.workers.wait()  # until what is damaged is out of the way
        found = found or newest_as_it_lies(self.run.directory)
        notes = [f"{path} is damaged ({reason}) and was set aside" for path, reason in found.damaged]
        taken = found.checkpoint
        if taken is None:
            if notes:
                notes.append("no good checkpoint is left, so training starts again")
            return None, 0, notes
        if notes:
            notes.append(f"going on from {taken.path}, the last good one")
        content = taken.state
        self._restore(taken)
        self.updater.scaler.load_state_dict(content["scaler"])
        if self.workers.leads:
            self.snapshots, lost = Snapshots.resume(self.run.directory, taken)
            notes += lost
        self.workers.wait()
        if not self.workers.leads:
            self.snapshots, _ = Snapshots.resume(self.run.directory, taken)
        if content["processes"] != self.workers.world:
            told = f"{self.workers.world} processes go on where {content['processes']} had come"
            notes.append(f"{told}: each draws its own dropout, so results are no longer the same")
        state = State.from_json(content["state"])
        self.saved_step, self.saved_at = state.step, state.seconds
        return state, int(content["log"]), notes

    def _restore(self, taken: Checkpoint) -> None:
        weights = taken.weights()
        self._put(weights, str(taken.path))
        self.updater.optimizers.load(taken.state_tensors())
        ema = taken.ema()
        if self.ema is not None:
            # A run that is given an average on resuming starts it here.
            averages = weights if ema is None else ema
            self.ema.load({name: like(averages[name], tensor) for name, tensor in self.parameters.items()})

    def _put(self, tensors: Mapping[str, Tensor], source: str) -> None:
        """Into the model, in place: what was compiled, or is shared out, remains so."""
        check({name: tuple(tensor.shape) for name, tensor in self.parameters.items()}, tensors, source)
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(like(tensors[name], parameter))

    # ----------------------------------------------------------------------------------------------------- at the end

    def choose(self) -> str:
        """Puts the weights to use into the model, and says which they are."""
        self.workers.wait()
        select, lower = self.train.select, lower_is_better(self.train.select)
        ranked = self.snapshots.ranked(select, lower)
        if self.train.average:
            entries = ranked if self.train.average_of == "best" and ranked else self.snapshots.entries[::-1]
            steps = sorted(entry.step for entry in entries[: self.train.average])
            self._put(self.snapshots.average(steps), "the mean of snapshots")
            return f"the mean of {len(steps)} snapshots, of steps {', '.join(f'{step:,}' for step in steps)}"
        if ranked:
            return self._take(ranked[0])
        if self.ema is not None:
            self._put(whole(self.ema.tensors()), "the moving average")
            return "the moving average after the last step"
        return "those after the last step"

    def reconsider(self, figures: Mapping[str, float]) -> str | None:
        """Puts the best snapshot in the place of a mean of the best that is worse, and says so; otherwise nothing.

        A mean over a long stretch of a run whose rate still fell lies where the run has long left.
        """
        select, lower = self.train.select, lower_is_better(self.train.select)
        best = self.snapshots.best(select, lower)
        if self.train.average is None or self.train.average_of == "last" or best is None or select not in figures:
            return None
        mean = figures[select]
        if math.isfinite(mean) and (mean <= best.figures[select] if lower else mean >= best.figures[select]):
            return None
        return f"{self._take(best)}, and better than the mean of the best ({mean:.4g})"

    def _take(self, snapshot: Snapshot) -> str:
        self._put(self.snapshots.average([snapshot.step]), str(self.snapshots.path(snapshot.step)))
        return f"those of step {snapshot.step:,}, the best by {self.train.select}"

    def write_final(self) -> None:
        """The model's weights as they are now, where `regard.load` looks for them."""
        weights = whole(self.parameters)
        if self.workers.leads:
            self.run.write_weights(weights)
        self.workers.wait()
