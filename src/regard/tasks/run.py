"""From a recipe to a trained model: `train` begins a run, `resume` goes on with one.

```python
run = regard.train("recipes/digits.toml", {"train.minutes": 1})
run.scores["accuracy"], run.directory
```
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from regard.data.cache import Cache
from regard.data.settings import SPLITS, STANDARD_INPUT
from regard.errors import DataError, RegardError, RunError, SettingsError
from regard.format import clock, four_digits
from regard.models.build import Model, build
from regard.settings import Table, did_you_mean, nested
from regard.tasks.plain import freeze_other_heads
from regard.tasks.ready import Ready, make_ready
from regard.tasks.recipe import Job, make_job, read_job
from regard.text.tokenizer import TokenizerPair
from regard.training.curves import draw_curves
from regard.training.distribution import Workers, connected
from regard.training.loop import Outcome, Trainer
from regard.training.report import SETTLED, Display, require_tensorboard
from regard.training.run import Run, require_free, resume_environment, threads_of, write_environment
from regard.training.schedules import nearest_budget
from regard.training.settings import Train
from regard.training.step import mixed_precision
from regard.weights.checkpoints import newest_checkpoint
from regard.weights.directory import save_labels
from regard.weights.warm_start import Start, read_start, warm_start

CURVES = "curves.png"

CHANGEABLE = (
    "steps",
    "epochs",
    "total_tokens",
    "minutes",
    "micro",
    "workers",
    "compile",
    "recompute",
    "evaluate_every",
    "patience",
    "select",
    "keep",
    "save_every",
    "save_minutes",
    "log_every",
    "tensorboard",
    "average",
    "average_of",
)
"""Settings of `[train]` that a resumed run may be given anew: none of them makes its past untrue."""


@dataclass(frozen=True)
class Trained:
    """How a run ended, and where it lies."""

    directory: Path
    reason: str
    """budget, patience, or the name of the signal that stopped it."""
    step: int
    scores: dict[str, float]
    """On the validation data, of the weights that were kept; empty where there are no such data, or it was stopped."""


def train(
    recipe: Path | str,
    changes: Mapping[str, Any] | None = None,
    *,
    device: str | None = None,
    threads: int | None = None,
    display: Display | None = None,
) -> Trained:
    """Trains what a recipe describes, with `changes` (dotted keys or tables) laid over it, in a directory of its own.

    `device` is cpu, cuda, cuda:1, ...; none: a GPU where there is one. Under `torchrun`, all processes call this.
    """
    job = read_job(recipe, nested(changes or {}))
    if job.train.tensorboard:
        require_tensorboard()
    with _session(device, threads, display) as (workers, shown):
        job = _with_input(job, workers)
        if workers.leads:
            require_free(job.directory)
        start = None if job.train.start is None else read_start(job.train.start)
        ready = _made_ready(job, workers, shown, start)
        ready.require_sound(job.train)
        model, notes = _model(job, ready, workers, start)
        run = _created(job, ready, workers)
        with _in(run, workers):
            trainer = Trainer(ready.task, model, job.train, run, workers, shown)
            trainer.reporter.data(ready.about)
            for note in notes:
                shown.event(note)
            return _trained(trainer, run, workers, shown)


def resume(
    directory: Path | str,
    changes: Mapping[str, Any] | None = None,
    *,
    device: str | None = None,
    threads: int | None = None,
    display: Display | None = None,
) -> Trained:
    """Goes on with a run where its newest good checkpoint stands, to the very result it would have had.

    `changes` may prolong it, move its data, or change how often it evaluates and saves.
    """
    run = Run.open(directory)
    config = dict(run.config)
    prepared = config.pop("prepared", {})
    changed = nested(changes or {})
    _require_changeable(changed)
    job = make_job(run.directory.name, config, changed)
    threads = threads if threads is not None else threads_of(run.directory)
    with _session(device, threads, display) as (workers, shown), _in(run, workers):
        tokenizers = None if job.task.kind == "image" else TokenizerPair.load(run.directory)
        ready = _made_ready(job, workers, shown, None, tokenizers)
        if ready.fingerprints != prepared:
            raise DataError(
                f"the data of {run.directory} are not what they were when it began, so it cannot be continued; bring "
                f"them back, or start a new run from its weights with train.start={run.directory}"
            )
        ready.require_sound(job.train)
        checkpoint, damaged = newest_checkpoint(run.directory)
        if checkpoint is None and (damaged or run.weights.exists()):
            raise RunError(
                f"{run.directory} has no good checkpoint left to go on from, and to begin again would lose what it "
                f"holds; start a new run from its weights with train.start={run.directory}, or from its recipe"
            )
        # What training starts from is wanted only as long as there is no checkpoint: it may be gone by now.
        fresh = job.train.start is not None and checkpoint is None
        model, notes = _model(job, ready, workers, read_start(job.train.start) if fresh and job.train.start else None)
        trainer = Trainer(ready.task, model, job.train, run, workers, shown)
        notes += trainer.resume()
        if workers.leads:
            notes += resume_environment(run.directory, workers.device)
            if changed:
                run.configure({**run.config, "train": job.train.model_dump(), "data": job.data.model_dump()})
        if trainer.checkpointer.saved_step < 0:  # no checkpoint, so the log was emptied
            trainer.reporter.data(ready.about)
        for note in [*notes, f"going on at step {trainer.state.step:,}"]:
            shown.event(note)
        return _trained(trainer, run, workers, shown)


# ------------------------------------------------------------------------------------------------------ step by step


@contextmanager
def _session(device: str | None, threads: int | None, display: Display | None) -> Iterator[tuple[Workers, Display]]:
    """The processes that work together, and the one display that they have."""
    if threads is not None:
        if threads < 1:
            raise SettingsError(f"threads ({threads}) must be at least 1; leave it out for all cores")
        torch.set_num_threads(threads)
    with connected(device) as workers:
        shown: Display = (display or Display()) if workers.leads else Display(quiet=True)
        try:
            yield workers, shown
        finally:
            shown.close()


def _with_input(job: Job, workers: Workers) -> Job:
    """The job with a file in place of standard input, which is read more than once."""
    if workers.world > 1 and any(STANDARD_INPUT in job.data.files(split) for split in SPLITS):
        raise SettingsError('data names "-", and standard input reaches only one of several processes; give files')
    return replace(job, data=Cache().keep_input(job.data))


def _made_ready(
    job: Job, workers: Workers, display: Display, start: Start | None, tokenizers: TokenizerPair | None = None
) -> Ready:
    """The first process prepares, the others find what it made."""
    ready = make_ready(job, workers.device, start, tokenizers, display.working) if workers.leads else None
    workers.wait()
    return ready or make_ready(job, workers.device, start, tokenizers)


def _model(job: Job, ready: Ready, workers: Workers, start: Start | None) -> tuple[Model, list[str]]:
    """The model with its first weights, and what there is to say of them."""
    torch.manual_seed(job.train.seed)
    if job.train.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what cuBLAS asks for
        torch.use_deterministic_algorithms(True)
    model = build(ready.model, workers.device, mixed_precision(job.train.precision, workers.device).weights)
    notes: list[str] = []
    if start is not None:
        notes = warm_start(model, start, ready.tokenizers, seed=job.train.seed).text().splitlines()
    if ready.head is not None and (others := freeze_other_heads(model, ready.head)):
        notes.append(f"not trained, since this task does not use them: heads {', '.join(others)}")
    return model, notes


def _created(job: Job, ready: Ready, workers: Workers) -> Run:
    config: Table = {
        "task": job.task.model_dump(),
        "data": job.data.model_dump(),
        **({} if job.text is None else {"text": job.text.model_dump()}),
        "model": ready.model.model_dump(),
        "train": job.train.model_dump(),
        **({"reference": job.reference} if job.reference else {}),
        "prepared": ready.fingerprints,
    }

    def fill(directory: Path) -> None:
        if ready.tokenizers is not None:
            ready.tokenizers.save(directory)
        if ready.labels is not None:
            save_labels({"label": ready.labels}, directory)
        write_environment(directory, workers.device)

    run = Run.create(job.directory, config, fill) if workers.leads else None
    workers.wait()
    return run or Run.open(job.directory)


@contextmanager
def _in(run: Run, workers: Workers) -> Iterator[None]:
    """This run is trained by these processes and no others; how it fails is noted."""
    if not workers.leads:
        yield
        return
    with run.lock():
        before = run.status
        run.set_status("running", before.step)
        try:
            yield
        except BaseException as error:
            told = str(error).partition("\n")[0] if isinstance(error, RegardError) else type(error).__name__
            with suppress(RunError):  # a full disk refuses this too, and the first error is the one to tell
                now = run.status
                if now.state == "running" and before.state == "finished" and now.step == before.step:
                    # It could not be prolonged; what it had reached stands.
                    run.set_status("finished", before.step, before.reason, before.metrics)
                elif now.state == "running":  # not where only the curves were still being drawn
                    run.set_status("failed", now.step, told)
            raise


def _trained(trainer: Trainer, run: Run, workers: Workers, display: Display) -> Trained:
    outcome = trainer.run()
    if workers.leads:
        finished = outcome.reason in ("budget", "patience")
        run.set_status("finished" if finished else "stopped", outcome.step, outcome.reason, outcome.metrics)
        *told, next_command = _told(outcome, trainer, run.directory, _draw(run.directory))
        display.end([*told, _speed(trainer), next_command])
    return Trained(run.directory, outcome.reason, outcome.step, outcome.metrics)


def _speed(trainer: Trainer) -> str:
    """What kept the machine from its work."""
    records = trainer.reporter
    told = f"waited for data {100 * records.wait:.2f} % of the time"
    if records.recompiled is not None:
        told += f"; {records.recompiled} recompilations after step {SETTLED}"
    return told


def _draw(directory: Path) -> bool:
    """Curves as a picture, where the extra that draws is installed."""
    try:
        draw_curves(directory, directory / CURVES)
    except RegardError:
        return False
    return True


def _told(outcome: Outcome, trainer: Trainer, directory: Path, drawn: bool) -> Iterator[str]:
    """What was reached, where it lies, what to run next."""
    if outcome.reason not in ("budget", "patience"):
        yield f"stopped by {outcome.reason} after {outcome.step:,} steps; everything is saved"
        yield f"go on:  regard train --resume {directory}"
        return
    name, _ = nearest_budget(trainer.train, trainer.state.spent)
    spent = f"train.{name} ({trainer.train.budgets[name]:g}) is spent"
    why = spent if outcome.reason == "budget" else f"the {trainer.train.select} no longer improves"
    yield f"done after {outcome.step:,} steps and {clock(trainer.state.seconds)}: {why}"
    if outcome.metrics:
        figures = ", ".join(f"{name} {four_digits(value)}" for name, value in outcome.metrics.items())
        yield f"on the validation data: {figures}; weights kept: {outcome.kept}"
    else:
        yield f"without validation data, nothing was compared; weights kept: {outcome.kept}"
    yield f"all of it lies in {directory}" + (f", its curves in {directory / CURVES}" if drawn else "")
    yield f"next:   regard doctor {directory}"


# ----------------------------------------------------------------------------------------------------------- resuming


def _require_changeable(changes: Table) -> None:
    """Refuses changes that would make a resumed run another one."""
    for part, table in changes.items():
        if part == "data" and isinstance(table, Mapping) and set(table) <= {"root"}:
            continue
        for key in table if part == "train" and isinstance(table, Mapping) else [""]:
            if part != "train" or key not in CHANGEABLE:
                name = f"{part}.{key}" if key else part
                mistyped = part == "train" and key not in Train.model_fields
                near = did_you_mean(key, CHANGEABLE) if mistyped else ""
                raise SettingsError(
                    f"{name} cannot be changed when a run is resumed{near}; data.root can, and of train: "
                    f"{', '.join(CHANGEABLE)}. For all else start a new run with train.start=RUN"
                )
