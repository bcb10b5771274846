"""From a recipe to a trained model: `train` begins a run, `resume` continues one, `evaluate_run` evaluates one."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch

from regard.data.batches import Share
from regard.data.columns import Examples
from regard.data.examples import Labels, Sort, Tally
from regard.data.prepare import Report, learn_tokenizers, prepare
from regard.data.readers import require_there
from regard.data.settings import HOLD_OUT, DataSettings, FromFiles, Split
from regard.data.source import Source
from regard.errors import DataError, RegardError, RunError, SettingsError
from regard.format import clock, four_digits, percent, program
from regard.models.build import Model, build
from regard.models.count import training_flops
from regard.models.settings import AnyVision, ModelSettings
from regard.settings import MOST_THREADS, Table, did_you_mean, nested
from regard.tasks.recipe import TokenizerFile, TrainingJob, job_model, make_job, read_job, with_vocabulary
from regard.tasks.task import Task, TrainingData, job_tokenizers, run_job
from regard.text.tokenizer import TokenizerPair
from regard.training.distribution import Workers, connected, peer_errors
from regard.training.doctor import draw_curves
from regard.training.loop import Callback, Trained, Trainer
from regard.training.lora import add_lora
from regard.training.report import Display, require_trackers
from regard.training.run import Run, read_environment, require_free, resume_environment, write_environment
from regard.training.schedules import nearest_budget
from regard.training.settings import GPU_TOKENS, USUAL_RATE, Train
from regard.training.step import Objective, evaluate, mixed_precision
from regard.weights.checkpoints import CHECKPOINTS, newest_checkpoint
from regard.weights.directory import load_labels, load_model, require_unchanged, save_labels
from regard.weights.warm_start import Start, read_start, warm_start

CURVES = "curves.png"
CPU_TOKENS = (512, 1_024, 2_048)
CPU_FLOPS = 8e9
"""FLOPs of a step on a CPU, if the size of a step is not set."""
FINE_TUNING = 1.2
"""The default rate of a model that was trained before, times its width and divided by the size of its weights."""

CHANGEABLE = (
    *("steps", "epochs", "total_tokens", "minutes", "micro", "workers", "compile", "recompute", "evaluate_every"),
    *("patience", "select", "keep", "save_every", "save_minutes", "log_every", "tensorboard", "wandb", "average"),
    "average_of",
)
"""Settings of `[train]` that can change when a run is resumed. None of them affects the steps already taken."""


def train(
    recipe: Path | str | Mapping[str, Any],
    changes: Mapping[str, Any] | None = None,
    *,
    device: str | None = None,
    threads: int | None = None,
    display: Display | None = None,
    on_step: Callback | None = None,
    on_evaluate: Callback | None = None,
) -> Trained:
    """Trains the model of a recipe with `changes` (dotted keys or tables) applied, in a new run directory.

    `recipe` is a TOML file, the name of a shipped recipe, or a dict with the tables of a recipe.
    `device` is cpu, cuda, cuda:1, ...; none: a GPU if there is one. Under `torchrun`, all processes call this.
    `on_step` is called after each step with its number (`step`), `epochs`, `tokens`, `rate` and metrics, `on_evaluate`
    after each evaluation with `step` and metrics. If one returns False, the run saves everything and stops.
    Example: `regard.train("grammar", {"train.minutes": 5}).scores`.
    """
    job = read_job(nested(recipe) if isinstance(recipe, Mapping) else recipe, nested(changes or {}))
    require_trackers(job.train)
    with _session(device, threads, display) as (workers, shown):
        if workers.leads:
            require_free(job.directory)
        start = None if job.train.start is None else read_start(job.train.start)
        job = job if start is None else job.task_type.started(job, start)
        task = _prepared(job, workers, shown, start)
        model, notes = _model(job, task, workers, start)
        run = _created(job, task, workers)
        with _in(run, workers):
            trainer = Trainer(task, model, task.data.train, run, workers, shown, on_step, on_evaluate)
            trainer.reporter.data(task.data.summary)
            return _trained(trainer, run, workers, shown, [*task.data.damage, *notes])


def resume(
    directory: Path | str,
    changes: Mapping[str, Any] | None = None,
    *,
    device: str | None = None,
    threads: int | None = None,
    display: Display | None = None,
    on_step: Callback | None = None,
    on_evaluate: Callback | None = None,
) -> Trained:
    """Continues a run from its newest good checkpoint, to exactly the result of an uninterrupted run.

    `changes` can prolong it, move its data, or change how often it evaluates and saves; callbacks as for `train`.
    Example: `regard.resume("runs/grammar", {"train.minutes": 10})`.
    """
    run = Run.open(directory)
    require_unchanged(run.directory)
    config, before = dict(run.config), run.status
    prepared, _ = config.pop("prepared", {}), config.pop("id", None)
    changed = nested(changes or {})
    _require_changeable(changed)
    job = make_job(run.directory.name, config, changed)
    if threads is None:  # another number of threads changes the last bits of sums
        threads = read_environment(run.directory).get("threads")
    with _session(device, threads, display) as (workers, shown), _in(run, workers):
        task = _prepared(job, workers, shown, None, job_tokenizers(job, run.directory))
        if prepared != task.data.fingerprints:
            raise DataError(
                f"the data of {run.directory} has changed since the run began, so it cannot be resumed; restore the "
                f"data, or start a new run from its weights with train.start={run.directory}"
            )
        checkpoint, damaged = newest_checkpoint(run.directory)
        # The status has the step of the newest checkpoint; without it, files of a run that began to train count.
        lost = before.step > 0 or ("missing or damaged" in before.reason and run.log.exists())
        if checkpoint is None and (damaged or lost or run.weights.exists()):
            start = f"from its weights with train.start={run.directory}" if run.weights.exists() else "from its recipe"
            raise RunError(
                f"{run.directory} has no good checkpoint to resume from, and a new start would remove what is left of "
                f"it; restore {run.directory / CHECKPOINTS}, or start a new run {start}"
            )
        # The weights to start from are needed only until the first checkpoint; they can be gone by now.
        fresh = job.train.start is not None and checkpoint is None
        model, notes = _model(job, task, workers, read_start(job.train.start) if fresh and job.train.start else None)
        trainer = Trainer(task, model, job.train, run, workers, shown, on_step, on_evaluate)
        notes += trainer.resume()
        if workers.leads:
            notes += resume_environment(run.directory, workers.device)
            if changed:
                run.configure({**run.config, "train": job.train.model_dump(), "data": job.data.model_dump()})
        if trainer.checkpointer.saved_step < 0:  # no checkpoint, so the log was emptied
            trainer.reporter.data(task.data.summary)
        notes = [*task.data.damage, *notes, f"resuming at step {trainer.state.step:,}"]
        return _trained(trainer, run, workers, shown, notes)


def evaluate_run(
    directory: Path,
    split: Split | None = None,
    changes: Mapping[str, Any] | None = None,
    device: str | None = None,
    report: Report = lambda text: None,
    stride: int | None = None,
) -> tuple[Split, dict[str, float], Table]:
    """Evaluates a run on a split of its own data: test by default, or valid. Returns the split, too.

    `changes` are changes of `[data]`, and `stride` is `task.stride` of a language model. The last value has results
    that are not numbers: see `Task.details`.
    """
    task_changes = {} if stride is None else {"task": {"stride": stride}}
    job = run_job(directory, {"data": dict(changes or {}), **task_changes})
    chosen: Split = split or ("test" if "test" in job.data.splits else "valid")
    with connected(device) as workers:
        network = load_model(directory, workers.device)
        known = job_tokenizers(job, directory), load_labels(directory)
        task = prepare_job(job, workers.device, None, *known, (chosen,), report)
        types = mixed_precision(job.train.precision, workers.device)
        metrics = evaluate(
            *(Objective(network, task), task, chosen, workers, types, job.train.micro),
            progress=lambda share: report(f"evaluating: {percent(share)}"),
        )
        return chosen, metrics, task.details(network, chosen)


def prepare_job(
    job: TrainingJob,
    device: torch.device,
    start: Start | None = None,
    tokenizers: TokenizerPair | None = None,
    labels: Mapping[Sort, Labels] | None = None,
    splits: tuple[Split, ...] = (),
    report: Report = lambda text: None,
) -> Task:
    """The task of a job, with its tokenizers, the settings of the model, and the prepared data of the splits.

    By default these are train, and valid if there is one. Without train, tokenizers and labels must be given.
    """
    model = job_model(job, None if start is None else start.settings)
    if not splits:
        job = replace(job, data=_with_hold_out(job.data))
    splits = splits or (("train", "valid") if "valid" in job.data.splits else ("train",))
    for split in splits:
        require_there(Source(job.data, split).files)
    first = next(iter(Source(job.data, splits[0])))
    wanted = job.task_type.example if isinstance(job.task_type.example, tuple) else (job.task_type.example,)
    if not isinstance(first, wanted):
        raise SettingsError(
            f"data.kind ({job.data.kind}) has examples of type {type(first).__name__}, but the task {job.task.kind} "
            f"needs {' or '.join(each.__name__ for each in wanted)}; choose another kind"
        )
    if job.task_type.text_kind is not None:
        tokenizers = tokenizers or _tokenizers(job, start, report)
        kept = start is not None and tokenizers is start.tokenizer  # with rows that have no token, as T5's
        named = "vocabulary" in job.model and start is None
        model = with_vocabulary(model, tokenizers.sizes, tokenizers.joint, named or kept)
    task = job.task_type(job.task, model, tokenizers, labels)
    job = replace(job, train=_completed(job.train, task, device, start))
    columns, limit = task.columns(), task.limit(job.train, job.data)
    key: Table = {"task": task.data_key()}
    if tokenizers is not None:
        key["tokenizers"] = [tokenizers.source.checksum, tokenizers.target.checksum]
    examples: dict[Split, Examples] = {}
    try:
        for split in splits:  # train first: its labels are those of the other splits
            source = Source(job.data, split)
            store = prepare(source, columns, task.encode, key, longest=limit, labels=task.labels, report=report)
            examples[split] = Examples(store, columns)
            task.labels = task.labels or {sort: tuple(names) for sort, names in store.about["labels"].items()}
        task.model = task.fit()
    except DataError as error:  # such as a label that only lines have that were skipped
        skipped = Tally(examples["train"].store.about["skipped"] if "train" in examples else {})
        raise DataError(
            f"{error}\nleft out of the training data:\n{skipped.text()}" if skipped else str(error)
        ) from None
    task.data = TrainingData(job.data, examples, job.train, device)
    assert task.weights is None or len(task.weights) == len(task.labels["label"])
    for split in splits:  # errors in the plan of batches are found before anything is written
        task.batches(split, Share())
    if task.has("valid") and job.train.select not in task.metric_names:
        known = ", ".join(task.metric_names)
        raise SettingsError(f"train.select ({job.train.select}) is not a metric of this task; choose one of {known}")
    return task


def _completed(train: Train, task: Task, device: torch.device, start: Start | None) -> Train:
    """The settings with values for the size of a step and the learning rate, which depend on the model.

    A step of Adam changes every weight by about the rate, so that of a trained model follows the size of its weights.
    """
    changes: Table = {}
    if train.tokens is None:
        tokens = max(default_tokens(task.model, device), task.least(train.examples))
        changes = {"tokens": tokens, "micro": None if train.micro is None else min(train.micro, tokens)}
    if train.optimizer.rate is None:
        higher = 1 if getattr(task.model, "norm_place", "post") == "post" else 3
        new = USUAL_RATE * higher * min(1.0, 128 / task.model.width)
        rate = new if start is None else FINE_TUNING * start.scale / task.model.width
        changes["optimizer.rate"] = float(f"{rate:.2g}")
    return train.changed(changes) if changes else train


def _with_hold_out(data: DataSettings) -> DataSettings:
    """The settings with a value of `hold_out`: none is held out if one side of a few examples would be empty."""
    if not isinstance(data, FromFiles) or data.hold_out is not None:
        return data
    held = data.changed({"hold_out": HOLD_OUT})
    try:
        for split in ("valid", "train") if held.holds_out else ():
            next(iter(Source(held, split)))
    except DataError:
        return data.changed({"hold_out": 0.0})
    return held


def default_tokens(model: ModelSettings, device: torch.device) -> int:
    """Tokens of a step if `train.tokens` is not set: many on a GPU; on a CPU those of a fraction of a second."""
    if device.type != "cpu":
        return GPU_TOKENS
    length = model.tokens if isinstance(model, AnyVision) else 64
    wanted = CPU_FLOPS * length / training_flops(model, 1, length, length)
    return min(CPU_TOKENS, key=lambda each: abs(math.log(each / wanted)))


def _tokenizers(job: TrainingJob, start: Start | None, report: Report) -> TokenizerPair:
    if job.text is None:
        if start is None or start.tokenizer is None:
            raise SettingsError(
                f"train.start ({job.train.start}) has no tokenizer; name one: text.kind=file text.path=FILE"
            )
        return start.tokenizer
    if isinstance(job.text, TokenizerFile):
        return TokenizerPair.load(job.text.path)
    size = getattr(job.text, "size", None)
    name = f"a {job.text.kind} tokenizer" + (f" of {size:,} tokens" if size else "")

    def progress(stage: str, done: int, total: int | None) -> None:
        texts = "texts" if total is None else f"{total:,} texts"
        report(f"learning {name} from {texts}: {done:,} read")

    return learn_tokenizers(Source(job.data, "train"), job.text, report=progress)


def _prepared(
    job: TrainingJob, workers: Workers, display: Display, start: Start | None, tokenizers: TokenizerPair | None = None
) -> Task:
    """The first process prepares the data, the others find it in the cache."""
    task = prepare_job(job, workers.device, start, tokenizers, report=display.working) if workers.leads else None
    workers.wait()
    return task or prepare_job(job, workers.device, start, tokenizers)


@contextmanager
def _session(device: str | None, threads: int | None, display: Display | None) -> Iterator[tuple[Workers, Display]]:
    if threads is not None:
        if type(threads) is not int or not 1 <= threads <= MOST_THREADS:
            raise SettingsError(f"threads ({threads}) must be from 1 to {MOST_THREADS:,}; leave it out for all cores")
        torch.set_num_threads(threads)
    with connected(device) as workers:
        shown: Display = (display or Display()) if workers.leads else Display(quiet=True)
        try:
            yield workers, shown
        finally:
            shown.close()


def _model(job: TrainingJob, task: Task, workers: Workers, start: Start | None) -> tuple[Model, list[str]]:
    torch.manual_seed(job.train.seed)
    if job.train.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # required by cuBLAS
        torch.use_deterministic_algorithms(True)
    model = build(task.model, workers.device, mixed_precision(job.train.precision, workers.device).weights)
    notes: list[str] = []
    if start is not None:
        notes = warm_start(model, start, task._tokenizers, seed=job.train.seed)
    if job.train.lora is not None:
        add_lora(model, job.train.lora)
    _freeze(model, job.train.freeze)
    heads: Any = getattr(model, "heads", None)
    if task.trained_heads and (others := [name for name in heads or () if name not in task.trained_heads]):
        for name in others:
            heads[name].requires_grad_(False)
        notes.append(f"not trained, because this task does not use them: heads {', '.join(others)}")
    return model, notes


def _freeze(model: Model, patterns: Sequence[str]) -> None:
    names = [name for name, _ in model.named_parameters()]
    for pattern in patterns:
        found = [name for name in names if fnmatchcase(name, pattern) or name.startswith(f"{pattern}.")]
        if not found:
            parts = dict.fromkeys(".".join(name.split(".")[:2]) for name in names)
            near = did_you_mean(pattern, [*names, *parts, *(name.split(".")[0] for name in names)])
            raise SettingsError(f"train.freeze ({pattern}) matches no parameter{near}; parts are {', '.join(parts)}")
        for name in found:
            model.get_parameter(name).requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise SettingsError("train.freeze leaves no parameter to train; name fewer parts")


def _created(job: TrainingJob, task: Task, workers: Workers) -> Run:
    config: Table = {
        "task": job.task.model_dump(),
        "data": task.data.settings.model_dump(),
        **({} if job.text is None else {"text": job.text.model_dump()}),
        "model": task.model.model_dump(),
        "train": task.data.train.model_dump(),
        **({"reference": job.reference} if job.reference else {}),
        "prepared": task.data.fingerprints,
    }

    def fill(directory: Path) -> None:
        if task.text_kind is not None:
            task.tokenizers.save(directory)
        if task.labels:
            save_labels(task.labels, directory)
        write_environment(directory, workers.device)

    run = Run.create(job.directory, config, fill) if workers.leads else None
    workers.wait()
    return run or Run.open(job.directory)


@contextmanager
def _in(run: Run, workers: Workers) -> Iterator[None]:
    """Locks the run for these processes, and writes its status, also after an error."""
    if not workers.leads:
        yield
        return
    with run.lock():
        before = run.status
        run.set_status("running", before.step)
        try:
            with peer_errors(workers.world):
                yield
        except BaseException as error:
            reason = str(error).partition("\n")[0] if isinstance(error, RegardError) else type(error).__name__
            with suppress(RunError):  # on a full disk this fails too, and the first error matters
                now = run.status
                if now.state == "running" and before.state == "finished" and now.step == before.step:
                    # It could not be prolonged; its result stays.
                    run.set_status("finished", before.step, before.reason, before.metrics)
                elif now.state == "running":  # not if only the curves were still to be drawn
                    run.set_status("failed", now.step, reason)
            raise


def _trained(trainer: Trainer, run: Run, workers: Workers, display: Display, notes: list[str]) -> Trained:
    for note in notes:
        display.event(note)
    trained = trainer.run()
    if workers.leads:
        finished = trained.reason in ("budget", "patience")
        run.set_status("finished" if finished else "stopped", trained.step, trained.reason, trained.scores)
        with suppress(RegardError):  # if matplotlib is not installed
            draw_curves(run.directory, run.directory / CURVES)
        display.end(list(_summary(trained, trainer)))
    return trained


def _summary(trained: Trained, trainer: Trainer) -> Iterator[str]:
    """The result, its directory, the speed, and the next command."""
    directory, reporter = trained.directory, trainer.reporter
    evaluated = percent(trainer.state.evaluating / max(trainer.state.seconds, 1e-9))
    speed = f"waited for data {percent(reporter.wait)} of the time, evaluated {evaluated} of the time"
    if trained.reason not in ("budget", "patience"):
        yield f"stopped by {trained.reason} after {trained.step:,} steps; everything is saved"
        yield speed
        yield f"resume:  {program()} train --resume {directory}"
        return
    name, _ = nearest_budget(trainer.train, trainer.state)
    spent = f"train.{name} ({trainer.train.budgets[name]:g}) is reached"
    why = spent if trained.reason == "budget" else f"the {trainer.train.select} no longer improves"
    yield f"done after {trained.step:,} steps and {clock(trainer.state.seconds)}: {why}"
    if trainer.state.starting:
        yield f"compiled for {clock(trainer.state.starting)} of this time; warm-up and decay began afterwards"
    if trained.scores:
        metrics = ", ".join(f"{name} {four_digits(value)}" for name, value in trained.scores.items())
        part = f"1 in {stride} batches of " if (stride := trainer.state.stride) > 1 else ""
        yield f"on {part}the validation data: {metrics}; weights kept: {trained.kept}"
    else:
        yield f"no validation data; weights kept: {trained.kept}"
    yield f"saved in {directory}" + (f", curves in {curves}" if (curves := directory / CURVES).is_file() else "")
    yield speed
    yield f"check:  {program()} doctor {directory}"
    assert isinstance(trainer.task, Task)
    yield f"use:    {program()} {trainer.task.usage.format(directory)}"


def _require_changeable(changes: Table) -> None:
    allowed = ("data.root", *(f"train.{key}" for key in CHANGEABLE))
    for part, table in changes.items():
        for name in [f"{part}.{key}" for key in table] if isinstance(table, Mapping) else [part]:
            if name not in allowed:
                key = name.removeprefix("train.")
                near = did_you_mean(key, CHANGEABLE) if part == "train" and key not in Train.model_fields else ""
                raise SettingsError(
                    f"{name} cannot be changed when a run is resumed{near}; data.root can, and of train: "
                    f"{', '.join(CHANGEABLE)}. For other changes start a new run with train.start=RUN"
                )
