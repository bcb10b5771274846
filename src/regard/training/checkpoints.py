"""Saving and resuming a run: checkpoints to resume from, snapshots to choose the best weights from, final weights.

A snapshot is a file of weights of one evaluation. It is written before the checkpoint that lists it, so every snapshot
of an intact checkpoint exists. Snapshots that no checkpoint lists are removed after the next checkpoint.

All processes take part, because each can hold a part of the tensors. Only the first one writes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from regard.data.batches import StepPosition
from regard.errors import RunError, WeightsError
from regard.files import flush_directory
from regard.training.distribution import whole
from regard.training.lora import ADAPTER, adapter, merged
from regard.training.optimizers import Ema, placed_like
from regard.training.run import Run, disk_errors
from regard.training.schedules import EVALUATIONS, Spent
from regard.training.settings import Train, lower_is_better
from regard.training.step import Updater
from regard.weights import checkpoints as stored
from regard.weights.directory import write_weights
from regard.weights.tensors import check, write_tensors

REMEDY = "earlier checkpoints are intact: free some space, then continue with --resume"


@dataclass
class TrainingState(Spent):
    """Everything except tensors that a resumed run restores. A checkpoint stores it as JSON."""

    examples: int = 0
    window_tokens: int = 0
    """Tokens since the last line of the log."""
    window_cells: int = 0
    """Positions of the batches since then, including padding."""
    window_examples: int = 0
    warm: float = 0.0
    """Share of the budget that was spent when warm-up ended."""
    share: float = 0.0
    """Share of the budget that was spent when this was saved."""
    position: StepPosition = field(default_factory=StepPosition)
    micro: int | None = None
    """Most tokens in memory at once. It is halved when memory runs out."""
    micro_asked: int | None = None
    """The setting that `micro` started from; a resumed run can have another one."""
    evaluations: int = 0
    """Evaluations that were due so far."""
    planned: int = EVALUATIONS
    """Evaluations in the budget; 0: not known yet."""
    stride: int = 1
    """Each evaluation reads every batch of this number."""
    evaluating: float = 0.0
    """Seconds spent in evaluations."""
    evaluated: int = -1
    pending: bool = False
    """Whether the evaluation of this step was interrupted, and is repeated when the run is resumed."""
    best: float | None = None
    stale: int = 0
    """Evaluations since then."""
    window: dict[str, float] = field(default_factory=dict)
    """Sums since the last line of the log."""


@dataclass(frozen=True)
class Snapshot:
    """The weights after a step, and their metrics."""

    step: int
    metrics: dict[str, float]
    checksum: stored.Checksum | None = None
    """None in processes that do not write."""


class Checkpointer:
    """Writes and restores checkpoints and snapshots, and chooses the final weights."""

    def __init__(self, run: Run, model: nn.Module, train: Train, updater: Updater) -> None:
        self.run, self.train, self.updater, self.workers = run, train, updater, updater.workers
        self.parameters = dict(model.named_parameters())
        self.ema = None if train.ema is None else Ema(train.ema, self.parameters)
        self.snapshots: list[Snapshot] = []
        """In the order of their steps."""
        self.kept_metrics: dict[str, float] = {}
        """Of the weights that were chosen in the end, if they were evaluated before."""
        self.saved_step = -1
        self.saved_at = 0.0
        """In seconds of the run."""

    def save(self, state: TrainingState, metrics: Mapping[str, float] | None, log: int) -> None:
        """Write a checkpoint; with metrics, even empty ones, also a snapshot. `log` is the length of the log."""
        weights, tensors = whole(self.parameters), whole(self.updater.optimizers.tensors())
        ema = None if self.ema is None else whole(self.ema.tensors())
        if not bool(torch.stack(torch._foreach_norm([*weights.values()], torch.inf)).isfinite().all()):
            raise self.not_finite("the weights are", f"after step {state.step:,}")
        if metrics is not None:
            self._add_snapshot(state.step, metrics, weights if ema is None else ema)
        if self.workers.leads:
            content = {
                "run": self.run.config.get("id"),
                "state": asdict(state),
                "log": log,
                "scaler": self.updater.scaler.state_dict(),
                "threads": torch.get_num_threads(),
                "processes": self.workers.world,
                "snapshots": [asdict(each) for each in self.snapshots],
            }
            with disk_errors(self.run.directory / "checkpoints" / f"{state.step:06d}", REMEDY):
                stored.write_checkpoint(self.run.directory, state.step, weights, tensors, content, ema)
            stored.prune_checkpoints(self.run.directory, state.step)
            self._remove_unlisted_snapshots()
            self.run.set_status("running", state.step)
        self.workers.wait()
        self.saved_step, self.saved_at = state.step, state.seconds

    def _add_snapshot(self, step: int, metrics: Mapping[str, float], weights: Mapping[str, Tensor]) -> None:
        """Add a snapshot, drop those that are neither among the best nor among the last, and write the file."""
        new = Snapshot(step, {name: value for name, value in metrics.items() if math.isfinite(value)})
        self.snapshots = [*(each for each in self.snapshots if each.step != step), new]
        average = self.train.average or 0
        keep_best = max(self.train.keep, average if self.train.average_of == "best" else 0)
        keep_last = average if self.train.average_of == "last" else 0
        if not metrics:  # without validation data the last weights are the ones to keep
            keep_last = max(keep_last, 1)
        kept = [*self.ranked()[:keep_best], *(self.snapshots[-keep_last:] if keep_last else [])]
        self.snapshots = [each for each in self.snapshots if each in kept]
        if self.workers.leads and new in self.snapshots:
            path = self.snapshot_path(step)
            with disk_errors(path, REMEDY):
                if not path.parent.is_dir():
                    path.parent.mkdir()
                    flush_directory(path.parent.parent)
                write_tensors(path, weights)
                self.snapshots[-1] = Snapshot(step, new.metrics, stored.checksum(path))

    def _remove_unlisted_snapshots(self) -> None:
        """Remove snapshots that neither the current list nor any checkpoint contains."""
        wanted = {each.step for each in self.snapshots}
        for checkpoint in stored.list_checkpoints(self.run.directory):
            try:
                wanted |= {int(each["step"]) for each in checkpoint.state.get("snapshots", [])}
            except (OSError, WeightsError, KeyError, TypeError, ValueError):
                return  # a damaged checkpoint: remove nothing
        for path in self.run.snapshots.glob("*.safetensors"):
            if path.stem.isdecimal() and int(path.stem) not in wanted:
                with suppress(OSError):  # it is removed next time
                    path.unlink()

    def snapshot_path(self, step: int) -> Path:
        return self.run.snapshots / f"{step:06d}.safetensors"

    def ranked(self) -> list[Snapshot]:
        """The snapshots with a finite value of `train.select`, the best first; among equals, the earlier one."""
        select = self.train.select
        sign = 1 if lower_is_better(select) else -1
        rated = [each for each in self.snapshots if select in each.metrics]
        return sorted(rated, key=lambda each: (sign * each.metrics[select], each.step))

    def not_finite(self, what: str, when: str) -> RunError:
        """The error that ends a run before NaN or infinity is saved."""
        good = f"the last good checkpoint is that of step {self.saved_step:,} in {self.run.directory}"
        return RunError(
            f"{what} not finite {when}; {good if self.saved_step >= 0 else 'no checkpoint was written yet'}. Lower "
            "train.optimizer.rate, increase train.schedule.warmup, set train.clip, or check the data of these steps"
        )

    def resume(self) -> tuple[TrainingState | None, int, list[str]]:
        """Restore the newest intact checkpoint. Returns its state, the length of the log, and messages on damage."""
        checkpoint, damaged = stored.newest_checkpoint(self.run.directory)
        notes = [f"{path} is damaged and not used ({reason})" for path, reason in damaged]
        if checkpoint is None:
            notes += ["there is no intact checkpoint, so training starts from the beginning"] if notes else []
            return None, 0, notes
        notes += [f"continuing from {checkpoint.path}, the newest intact checkpoint"] if notes else []
        content = checkpoint.state
        if content.get("run") != self.run.config.get("id"):
            raise RunError(
                f"{checkpoint.path} is a checkpoint of another run; remove it, or start a new run from its weights "
                "with train.start"
            )
        weights = checkpoint.read(stored.WEIGHTS)
        self._put(weights, str(checkpoint.path))
        self.updater.optimizers.load(checkpoint.read(stored.STATE_TENSORS))
        self.updater.scaler.load_state_dict(content["scaler"])
        if self.ema is not None:  # an average that is switched on at a resume starts with the weights
            self.ema.load(checkpoint.read(stored.EMA) if checkpoint.model.name == stored.EMA else weights)
        for entry in content["snapshots"]:
            path, expected = self.snapshot_path(entry["step"]), stored.Checksum(**entry["checksum"])
            if damage := stored.find_damage(path, expected):
                notes.append(f"snapshot {path} is not used: {damage}")
            else:
                self.snapshots.append(Snapshot(entry["step"], entry["metrics"], expected))
        if content["processes"] != self.workers.world:
            notes.append(
                f"the run had {content['processes']} processes and now has {self.workers.world}: dropout differs for "
                "each process, so results differ from an uninterrupted run"
            )
        position = StepPosition(**content["state"]["position"])
        state = TrainingState(**{**content["state"], "position": position})
        self.saved_step, self.saved_at = state.step, state.seconds
        return state, int(content["log"]), notes

    def _put(self, tensors: Mapping[str, Tensor], source: str) -> None:
        """Copy tensors into the parameters in place, so that compiled and distributed modules stay valid."""
        check({name: tuple(tensor.shape) for name, tensor in self.parameters.items()}, tensors, source)
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(placed_like(tensors[name], parameter))

    def choose(self) -> str:
        """Put the final weights into the model, and describe them."""
        self.workers.wait()
        ranked = self.ranked()
        if self.train.average:
            entries = ranked if self.train.average_of == "best" and ranked else self.snapshots[::-1]
            steps = sorted(each.step for each in entries[: self.train.average])
            self._put(average_files([self.snapshot_path(step) for step in steps]), "the mean of snapshots")
            return f"the mean of {len(steps)} snapshots (steps {', '.join(f'{step:,}' for step in steps)})"
        if ranked:
            return self._take(ranked[0])
        if self.ema is not None:
            self._put(whole(self.ema.tensors()), "the moving average")
            return "the moving average after the last step"
        return "the weights after the last step"

    def reconsider(self, metrics: Mapping[str, float]) -> str | None:
        """Replace a mean of the best snapshots by the best one if the mean is worse. Returns a description, or None.

        The mean over a long part of a run whose learning rate was still high can be far from the final weights.
        """
        select, ranked = self.train.select, self.ranked()
        if self.train.average is None or self.train.average_of == "last" or not ranked or select not in metrics:
            return None
        mean, best = metrics[select], ranked[0].metrics[select]
        if math.isfinite(mean) and (mean <= best if lower_is_better(select) else mean >= best):
            return None
        return f"{self._take(ranked[0])}; the mean of the best snapshots is worse ({mean:.4g})"

    def _take(self, snapshot: Snapshot) -> str:
        path = self.snapshot_path(snapshot.step)
        self._put(average_files([path]), str(path))
        self.kept_metrics = snapshot.metrics
        return f"step {snapshot.step:,}, the best {self.train.select}"

    def write_final(self) -> None:
        weights = whole(self.parameters)
        if self.workers.leads:
            with disk_errors(self.run.weights, REMEDY):
                if self.train.lora is not None:
                    write_tensors(self.run.directory / ADAPTER, adapter(weights))
                    weights = merged(weights, self.train.lora)
                write_weights(self.run.directory, weights)
        self.workers.wait()


def average_files(paths: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of safetensors files, summed in float64."""
    if not paths:
        raise RunError("there are no snapshots to average; evaluate at least once, or remove train.average")
    totals: dict[str, Tensor] = {}
    try:
        for path in paths:
            weights = load_file(path)
            for name, tensor in weights.items():
                totals[name] = totals[name] + tensor if name in totals else tensor.double()
    except (OSError, SafetensorError) as error:
        raise RunError(f"a snapshot in {paths[0].parent} cannot be read ({error}); continue with --resume") from error
    return {name: (total / len(paths)).to(weights[name].dtype) for name, total in totals.items()}
