"""A job: a recipe with its overrides, every table read and checked, before anything is loaded. No torch in here.

```toml
task = "translate"

[data]
train = ["train.en.gz", "train.de.gz"]

[text]
kind = "bpe"

[model]
preset = "transformer-tiny"

[train]
minutes = 5
```
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regard import shipped
from regard.blocks.settings import Learned
from regard.data.recipe import data_settings
from regard.data.settings import DataSettings, Pairs
from regard.errors import SettingsError
from regard.models.recipe import PARTS, model_settings, read_recipe
from regard.models.settings import Decoder, Encoder, EncoderDecoder, ModelSettings, Vision
from regard.settings import Settings, Table, did_you_mean, merge, parse, to_table, variants
from regard.tasks.settings import AnyTask, AnyText, TaskSettings, TokenizerFile
from regard.text.settings import AnyTokenizer
from regard.text.tags import tag
from regard.training.budget import require_budget
from regard.training.settings import Train

FAMILIES: dict[str, type[ModelSettings]] = {
    "translate": EncoderDecoder,
    "language": Decoder,
    "masked": Encoder,
    "image": Vision,
}
"""The family that each task needs."""

TEXTS = {"translate": "bpe", "language": "byte-bpe", "masked": "wordpiece"}
"""The kind of tokenizer that each task has unless `[text]` says otherwise."""


@dataclass(frozen=True)
class Job:
    """All of a recipe. The model's vocabulary and heads still follow from the data."""

    name: str
    task: TaskSettings
    data: DataSettings
    text: AnyTokenizer | TokenizerFile | None
    """None for images, and where the tokenizer is that of the weights that training starts from."""
    model: Table
    """The table `[model]` with its overrides: a preset or a kind, and changes."""
    train: Train
    reference: Table
    """What the recipe's own measured run looked like, for `regard doctor`."""

    @property
    def directory(self) -> Path:
        return Path(self.train.directory or f"runs/{self.name}")


def read_job(recipe: Path | str, changes: Mapping[str, Any] | None = None) -> Job:
    """The job of a recipe's file, with `changes` (a table of tables: a command line's overrides) laid over it.

    A name alone is that of a recipe that comes with the library.
    """
    path = Path(recipe)
    if not path.suffix and not path.exists():
        path = shipped.recipe(str(recipe)) or path
    return make_job(path.stem, read_recipe(path), changes or {})


def make_job(name: str, recipe: Mapping[str, Any], changes: Mapping[str, Any]) -> Job:
    if unknown := [key for key in changes if key not in PARTS]:
        raise SettingsError(
            f"unknown setting {unknown[0]}{did_you_mean(unknown[0], PARTS)}; a recipe has {', '.join(PARTS)}"
        )
    tables = {part: merge(_table(recipe, part), _table(changes, part)) for part in ("task", "text", "train")}
    if "kind" not in tables["task"]:
        raise SettingsError(f'recipe ({name}) names no task; write task = "..." with one of {", ".join(FAMILIES)}')
    task: TaskSettings = parse(AnyTask, tables["task"], "task")
    train: Train = parse(Train, _with_usual_kinds(tables["train"]), "train")
    require_budget(train)
    if train.shard and getattr(task, "bleu", None) is not None:
        raise SettingsError("task.bleu translates with whole weights, and train.shard shares them out; drop one")
    data = data_settings({**recipe, "task": task.kind}, _table(changes, "data"))
    model = merge(_table(recipe, "model"), _table(changes, "model"))
    if not model and train.start is None:
        raise SettingsError(
            'model needs a preset or a kind; write preset = "..." in [model] (regard presets lists them)'
        )
    text = _with_tags(_text(task, tables["text"], train), data)
    job = Job(name, task, data, text, model, train, _table(recipe, "reference"))
    if train.start is None:  # else what it starts from has a say
        job_model(job)
    return job


def _table(tables: Mapping[str, Any], part: str) -> Table:
    table = tables.get(part, {})
    if part == "task" and isinstance(table, str):
        table = {"kind": table}
    if not isinstance(table, Mapping):
        raise SettingsError(f"{part} ({table!r}) must be a table; write [{part}] and, below it, its settings")
    return dict(table)


def _with_usual_kinds(table: Table) -> Table:
    """`train.optimizer.rate=1e-3` alone means the rate of the usual optimiser: nobody should have to name that."""
    usual = {name: field.default for name, field in Train.model_fields.items() if isinstance(field.default, Settings)}
    return {
        name: merge(to_table(usual[name]), value)
        if name in usual and isinstance(value, Mapping) and "kind" not in value
        else value
        for name, value in table.items()
    }


def _text(task: TaskSettings, table: Table, train: Train) -> AnyTokenizer | TokenizerFile | None:
    usual = TEXTS.get(task.kind)
    if usual is None:
        if table:
            raise SettingsError(f"text is set, but the task {task.kind} reads no text; leave [text] out")
        return None
    if not table and train.start is not None:
        return None
    settings: AnyTokenizer | TokenizerFile = parse(AnyText, {"kind": usual, **table}, "text")
    return settings


def _with_tags(text: AnyTokenizer | TokenizerFile | None, data: DataSettings) -> AnyTokenizer | TokenizerFile | None:
    """A tokenizer that is to be learnt has the tags of the languages that a model writes, where there are several."""
    if text is None or isinstance(text, TokenizerFile) or not isinstance(data, Pairs) or not data.both:
        return text
    if not text.shared:
        raise SettingsError("data.both needs one vocabulary for both sides; set text.shared = true")
    tags = tuple(tag(target) for _, target in data.directions)
    return text.changed({"special.extra": tuple(dict.fromkeys((*text.special.extra, *tags)))})


# ----------------------------------------------------------------------------------------------------------- the model


def job_model(job: Job, start: ModelSettings | None = None) -> ModelSettings:
    """The model's settings as far as the recipe says them: its preset, or those of the weights to start from."""
    if start is not None and "preset" not in job.model and job.model.get("kind", start.kind) == start.kind:
        settings = model_settings({"model": to_table(start)}, job.model)
    else:
        settings = model_settings({"model": job.model})
    family = FAMILIES[job.task.kind]
    if not isinstance(settings, family):
        needed = next(kind for kind, variant in variants(ModelSettings).items() if variant is family)
        raise SettingsError(
            f"model.kind ({settings.kind}) does not fit the task {job.task.kind}, which needs one of kind {needed}; "
            "choose another preset (regard presets lists them), or another task"
        )
    return settings


def with_vocabulary(model: ModelSettings, sizes: tuple[int, int], shared: bool, named: bool) -> ModelSettings:
    """The model with as many tokens as its tokenizers have; where the recipe names a number, it must suffice.

    Two vocabularies, be they of one size, cannot share one matrix; the other two that may be tied still can.
    """
    source, target = sizes
    assert not isinstance(model, Vision)
    if named:
        for what, has, needs in (
            ("vocabulary", model.vocabulary, source),
            ("target_vocabulary", getattr(model, "target_size", target), target),
        ):
            if has < needs:
                raise SettingsError(f"model.{what} ({has:,}) is less than the tokenizer's {needs:,}; leave it out")
    changes: Table = {} if named else {"vocabulary": source}
    if isinstance(model, EncoderDecoder):
        if not named:
            changes["target_vocabulary"] = None if shared else target
        if not shared and "source" in model.tied:
            rest = [name for name in model.tied if name != "source"]
            changes["tied"] = rest if len(rest) > 1 else []
    return model.changed(changes)


def reach(model: ModelSettings) -> int | None:
    """The longest sequence that the model's positions allow; none: any."""
    return model.position.length if isinstance(model.position, Learned) else None
