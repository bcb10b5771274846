"""The interface of a task, and the table of tasks.

A task is one subclass of `Task`: its settings, the model family that it trains, the examples that it reads, how they
are encoded as columns, its loss, its metrics and its predictions. No other file depends on the kind of task.
docs/tasks.md adds one step by step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import nn

from regard.data.batches import PackedPlan, PaddedPlan, Plan, Share
from regard.data.columns import Batch, Column, Examples
from regard.data.examples import Example, Labels, Sort
from regard.data.loader import Loader
from regard.data.settings import DataSettings, Split, Texts
from regard.errors import InputError, SettingsError
from regard.models.build import Model
from regard.models.settings import AnyVision, Decoder, Elmo, Encoder, EncoderDecoder, ModelSettings, reach
from regard.settings import Settings, Table, did_you_mean, kind_of
from regard.tasks.losses import class_weights, cross_entropy_metrics
from regard.tasks.recipe import TrainingJob, make_job
from regard.text.tokenizer import TokenizerPair
from regard.training.settings import Train
from regard.training.step import Loss
from regard.weights.directory import OF_RUN, load_labels, read_config
from regard.weights.warm_start import Start

GPU_WORKERS = 2
"""Processes that make batches for a GPU. On a CPU, training needs all cores."""
TOO_LONG = {"skip": "too long, skipped", "truncate": "too long, cut", "split": "too long, split"}
"""How a log describes the values of `data.too_long`."""


class TaskSettings(Settings):
    """Base of the settings of a task: the table `[task]` of a recipe."""

    kind: str


@dataclass(frozen=True)
class TrainingData:
    """The prepared splits of a job."""

    settings: DataSettings
    examples: Mapping[Split, Examples]
    train: Train
    device: torch.device

    @property
    def fingerprints(self) -> dict[str, str]:
        """The names of the prepared splits in the cache. Their content decides them."""
        return {split: examples.store.directory.name for split, examples in self.examples.items()}

    @property
    def damage(self) -> list[str]:
        remade = (examples.store.remade for examples in self.examples.values())
        return [f"{reason}, so it was made again from the data" for reason in remade if reason]

    @property
    def summary(self) -> Table:
        """Counts of each split, and what was left out, for the first line of the log."""
        found: Table = {}
        notes: list[str] = []
        shown = {"too_long": TOO_LONG[getattr(self.settings, "too_long", "skip")]}
        for split, examples in self.examples.items():
            counts, tokens = examples.store.about, examples.tokens
            found[split] = {"examples": counts["examples"], "tokens": tokens}
            for what in ("skipped", "removed", "too_long", "unseen"):
                found[split][what] = sum(each["count"] for each in counts[what].values())
                notes += [
                    f"{split}, {shown.get(what, what)}: {each['count']:,} × {reason}; first {each['first'][0]}"
                    for reason, each in counts[what].items()
                ]
            found[split]["unknown"] = sum(counts["unknown"].values()) / max(tokens, 1)
        return {**found, "notes": notes}


class Task:
    """One kind of task. Subclasses set the class variables, and define `columns`, `encode`, `loss` and `predict`."""

    kind: ClassVar[str]
    """The name of the task in recipes: `task = "kind"`; that of its settings."""
    settings_type: ClassVar[type[TaskSettings]]
    family: ClassVar[type[ModelSettings] | tuple[type[ModelSettings], ...]]
    """The settings of the model family that it trains, or of several."""
    example: ClassVar[type[Example] | tuple[type[Example], ...]]
    """The type of example that it reads, or several."""
    data_kind: ClassVar[str | None] = None
    """The kind of data if `data.kind` is not set; none: it must be set."""
    text_kind: ClassVar[str | None] = None
    """The kind of tokenizer if `text.kind` is not set; none: the task reads no text."""
    translates: ClassVar[bool] = False
    """Whether `regard evaluate` scores translations (BLEU, chrF, TER) instead of computing `metrics`."""
    usage: str = 'predict {} "TEXT"'
    """The command that uses a trained model, with its directory in place of {}."""
    metric_names: tuple[str, ...] = ("loss", "perplexity", "accuracy")
    """The metrics of an evaluation; `train.select` names one of them."""
    encoded_by: ClassVar[tuple[str, ...]] = ()
    """The settings that `encode` reads: with other values, data is prepared again."""
    data: TrainingData
    """Set when data is prepared."""
    version: ClassVar[int] = 1
    """Raise it when `encode` gives other values for the same example: then data is prepared again."""

    def __init_subclass__(cls) -> None:
        if "settings_type" in vars(cls):
            cls.kind = str(kind_of(cls.settings_type))

    def __init__(
        self,
        settings: TaskSettings,
        model: ModelSettings,
        tokenizers: TokenizerPair | None = None,
        labels: Mapping[Sort, Labels] | None = None,
    ) -> None:
        self.settings = settings
        self.model = model
        """The settings of the model, with the vocabulary of the tokenizers."""
        self.labels: dict[Sort, Labels] = dict(labels or {})
        """The classes of each label column; those of the training data."""
        self.head: str | None = None
        """The name of the head that is trained; none: the model has no heads."""
        self.second_head: str | None = None
        """The name of another head that is trained, if there is one."""
        self._tokenizers = tokenizers

    @property
    def trained_heads(self) -> tuple[str, ...]:
        return tuple(name for name in (self.head, self.second_head) if name is not None)

    @property
    def tokenizers(self) -> TokenizerPair:
        """Of source and target; other texts use the source tokenizer."""
        assert self._tokenizers is not None
        return self._tokenizers

    @classmethod
    def complete(cls, job: TrainingJob) -> TrainingJob:
        """The job with everything that this kind of task adds to it. Checks what settings classes cannot."""
        return job

    @classmethod
    def started(cls, job: TrainingJob, start: Start) -> TrainingJob:
        """The job with what the model needs that it starts from."""
        return job

    def limit(self, train: Train, data: DataSettings) -> int | None:
        """The most tokens of an example. It is part of the name of prepared data, so it is None where possible."""
        limit = reach(self.model)
        # Not train.micro: a resumed run can have another value, and its data must stay the same.
        named = data.longest if isinstance(data, Texts) else None
        fits = named is not None and named <= train.step_tokens
        return limit if fits else min(train.step_tokens, limit or train.step_tokens)

    def least(self, examples: int | None) -> int:
        """The fewest tokens of a step by default: so many examples, or 32 images, or 4 windows of text."""
        if isinstance(self.model, AnyVision):
            return self.model.tokens * (examples or 32)
        return int(getattr(self.settings, "context", 1)) * (examples or 4)

    def columns(self) -> dict[str, Column]:
        """How examples are stored and batched, by the name of each column. The last side decides sizes of batches.

        A label column is named `label` or `tags`.
        """
        raise NotImplementedError

    def encode(self, examples: Sequence[Any]) -> Mapping[str, Any]:
        """The values of each column: token ids without special tokens, names of labels, arrays of pixels."""
        raise NotImplementedError

    def data_key(self) -> list[Any]:
        """What decides the result of `encode`, apart from the columns."""
        read = (getattr(self.settings, name) for name in self.encoded_by)
        return [self.kind, self.version, *(value for value in read if value is not None)]

    def fit(self) -> ModelSettings:
        """The settings of the model with the head that this task needs, whose name becomes `head`."""
        return self.model

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        """The loss of one batch, as sums. It is compiled and distributed together with the model."""
        raise NotImplementedError

    def metrics(self, total: float, weight: float, sums: Mapping[str, float]) -> dict[str, float]:
        """The metrics from the sums of `Loss` over all batches. `loss` is one of them; lower is better for it."""
        return cross_entropy_metrics(total, weight, sums)

    def extra_metrics(self, model: nn.Module, split: Split, stride: int = 1) -> dict[str, float]:
        """Further metrics that are not sums over batches, such as BLEU, on every `stride`-th example of a split."""
        return {}

    def details(self, model: nn.Module, split: Split) -> Table:
        """Further results of `regard evaluate` that are not numbers, such as a confusion matrix."""
        return {}

    @cached_property
    def weights(self) -> list[float] | None:
        """The factors of the classes in the loss, if the settings have `weights`; None outside of training.

        They are computed when data is prepared: a compiler cannot trace how they are counted.
        """
        weights = getattr(self.settings, "weights", None)
        if weights is None or not self.has("train"):
            return None
        names = self.labels["label"]
        counts = np.bincount(self.data.examples["train"].store.values("label"), minlength=len(names))
        return class_weights(weights, names, counts.tolist())

    def has(self, split: Split) -> bool:
        return hasattr(self, "data") and split in self.data.examples

    def batches(self, split: Split, share: Share) -> Loader:
        """The loader of a split; `share` is this process's part of each step, and the most tokens at once."""
        examples, train = self.data.examples[split], self.data.train
        lengths, on_gpu = examples.lengths, self.data.device.type == "cuda"
        plan: Plan
        if not train.packs(self.data.device.type):
            plan = PaddedPlan(train.step_tokens, train.examples, multiple=8 if on_gpu else 1)
        elif lengths.uniform:
            plan = PackedPlan.alike(train.step_tokens, lengths.longest[0], train.examples)
        else:
            plan = PackedPlan.for_lengths(lengths, train.step_tokens, train.row, train.examples)
        workers = (GPU_WORKERS if on_gpu else 0) if train.workers is None else train.workers
        return Loader(examples, plan, train.seed, share, workers if split == "train" else 0, pin=on_gpu)

    @property
    def source_ratio(self) -> float:
        """Source tokens per target token, for FLOPs; 0 if examples have one side."""
        means = self.data.examples["train"].lengths.means
        return means[0] / max(means[-1], 1e-9) if len(means) > 1 else 0.0

    def predict(self, model: Model, inputs: Sequence[Any]) -> list[Any]:
        """The prediction of each input, as a value that JSON can hold. Inputs are texts, or files of images."""
        raise InputError(f"the task {self.kind} makes no predictions; use the model in Python")


def label_of(names: Sequence[str], shares: Sequence[float]) -> dict[str, Any]:
    """A prediction: the most likely class, and the probabilities of all."""
    best = max(range(len(names)), key=shares.__getitem__)
    probabilities = {name: round(share, 6) for name, share in zip(names, shares, strict=True)}
    return {"label": names[best], "probabilities": probabilities}


H = TypeVar("H", Encoder, Decoder, EncoderDecoder, Elmo, AnyVision)


def with_head(model: H, kind: type[Settings], name: str, changes: Table) -> tuple[H, str]:
    """The model with a head of a kind, and the name of the head. `changes` apply to an existing head too."""
    for existing, head in model.heads.items():
        if isinstance(head, kind):
            return model.changed({f"heads.{existing}.{key}": value for key, value in changes.items()}), existing
    if name in model.heads:
        raise SettingsError(
            f"model.heads.{name} has kind {model.heads[name].kind}, but the task adds a head with this name; rename it"
        )
    default = kind.model_fields["kind"].default
    return model.changed({f"heads.{name}": {"kind": default, **changes}}), name


REGISTERED: dict[str, type[Task]] = {}
"""Tasks that are not part of the library."""
ENTRY_POINTS = "regard.tasks"
"""Installed packages can add tasks by an entry point of this group."""


def all_tasks() -> dict[str, type[Task]]:
    """All tasks by kind. A new task of the library is a file, and a name here."""
    from regard.tasks import answer, choice, classify, embed, grpo, image, instruct, language, masked, tag, translate

    library = (
        *(translate.TranslateTask, language.LanguageTask, masked.MaskedTask, classify.ClassifyTask, tag.TagTask),
        *(answer.AnswerTask, choice.ChoiceTask, embed.EmbedTask, image.ImageTask, instruct.InstructTask, grpo.GrpoTask),
    )
    installed = {entry.name: entry.load() for entry in entry_points(group=ENTRY_POINTS)}
    return {task.kind: task for task in library} | installed | REGISTERED


def register(task: type[Task]) -> type[Task]:
    """Adds a task to the table. Usable as a decorator."""
    REGISTERED[task.kind] = task
    return task


def find_task(kind: object) -> type[Task]:
    """The task of a kind; an unknown kind is an error that names the nearest one."""
    tasks = all_tasks()
    if not isinstance(kind, str) or kind not in tasks:
        near = did_you_mean(str(kind), tasks)
        raise SettingsError(f"task.kind ({kind}) is unknown{near}; choose one of {', '.join(tasks)}")
    return tasks[kind]


def run_job(directory: Path, changes: Mapping[str, Any] | None = None) -> TrainingJob:
    """The job of a run directory, with changes."""
    config = {name: table for name, table in read_config(directory).items() if name not in OF_RUN}
    return make_job(directory.name, config, changes or {})


def load_task(directory: Path, model: Model) -> Task:
    """The task that the model of a run directory was trained for, for `Task.predict`."""
    job = run_job(directory)
    task = job.task_type(job.task, model.settings, job_tokenizers(job, directory), load_labels(directory))
    task.fit()
    return task


HEAD_TASKS = {
    "masked": "masked",
    "replaced": "masked",
    "classification": "classify",
    "tagging": "tag",
    "spans": "answer",
}


def head_task(kind: str, model: Model, tokenizers: TokenizerPair, labels: Mapping[Sort, Labels]) -> Task | None:
    """The task of a kind for a model without a run, such as one of Hugging Face; None if it has no head for it."""
    task_type = find_task(kind)
    heads: Mapping[str, Settings] = getattr(model.settings, "heads", {})
    if kind not in {HEAD_TASKS.get(head.kind) for head in heads.values()}:  # type: ignore[attr-defined]
        return None
    task = task_type(task_type.settings_type(kind=kind), model.settings, tokenizers, labels)
    task.fit()
    return task


def job_tokenizers(job: TrainingJob, directory: Path) -> TokenizerPair | None:
    """The tokenizers of a run directory; None if its task reads no text."""
    return None if job.task_type.text_kind is None else TokenizerPair.load(directory)
