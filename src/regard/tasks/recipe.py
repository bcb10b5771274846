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
from regard.data.settings import AnyData, DataSettings, Pairs
from regard.errors import SettingsError
from regard.models.presets import find_preset
from regard.models.settings import AnyModel, Decoder, Encoder, EncoderDecoder, ModelSettings, Vision
from regard.settings import Settings, Table, did_you_mean, merge, parse, read_toml, to_table, variants
from regard.tasks.settings import AnyTask, AnyText, TaskSettings, TokenizerFile
from regard.text.settings import AnyTokenizer
from regard.text.tokenizer import tag
from regard.training.schedules import require_budget
from regard.training.settings import Train

PARTS = ("task", "data", "text", "model", "train", "reference")
"""What a recipe may hold: its job, and a table for each part of it."""

USUAL_KINDS = {
    "translate": "parallel",
    "language": "text",
    "masked": "text",
    "tag": "columns",
    "answer": "squad",
}
"""How each task's data are written unless `data.kind` says otherwise; tasks that are not here have no usual way."""

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


# ------------------------------------------------------------------------------------------------ tables of a recipe


def read_recipe(path: Path) -> Table:
    """The tables of a recipe as they stand in the file; each reader takes its own, and what none knows is refused."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"recipe ({path}) cannot be read: {error.strerror}; give a TOML file") from None
    except UnicodeDecodeError:
        raise SettingsError(f"recipe ({path}) is not UTF-8 text; give a TOML file") from None
    recipe = read_toml(text, source=f"recipe ({path})")
    if "kind" in recipe or "preset" in recipe:
        return {"model": recipe}
    if unknown := [key for key in recipe if key not in PARTS]:
        name = unknown[0]
        known = ", ".join(PARTS)
        raise SettingsError(f"recipe ({path}): unknown setting {name}{did_you_mean(name, PARTS)}; known here: {known}")
    return recipe


def model_settings(recipe: Mapping[str, Any], changes: Mapping[str, Any] | None = None) -> ModelSettings:
    """The model of a recipe, with `changes` (a table like `[model]`: a command line's overrides) laid over it.

    First the preset, then the recipe's own table, then the changes: a `kind` is thus held against the one that it
    replaces, and resets its table only where it differs.
    """
    table = recipe.get("model", {})
    if not isinstance(table, Mapping):
        raise SettingsError(f"model ({table!r}) must be a table; write [model] and, below it, preset = {table!r}")
    changes = changes or {}
    name = changes.get("preset", table.get("preset"))
    base = {} if name is None else _preset_table(name)
    for layer in (table, changes):
        base = merge(base, {key: value for key, value in layer.items() if key != "preset"})
    if "kind" not in base:
        raise SettingsError('model needs a preset or a kind; write preset = "transformer-base", or another, in [model]')
    settings: ModelSettings = parse(AnyModel, base, "model")
    return settings


def _preset_table(name: object) -> Table:
    if not isinstance(name, str):
        raise SettingsError(f'model.preset ({name!r}) must be a name; write preset = "transformer-base", or another')
    return to_table(find_preset(name).settings)


def data_settings(recipe: Mapping[str, Any], changes: Mapping[str, Any] | None = None) -> DataSettings:
    """The data of a recipe, with `changes` (a table like `[data]`: a command line's overrides) laid over it."""
    table = recipe.get("data", {})
    if not isinstance(table, Mapping):
        raise SettingsError(f'data ({table!r}) must be a table; write [data] and, below it, train = ["FILE"]')
    changes = changes or {}
    task = recipe.get("task")
    task = task.get("kind") if isinstance(task, Mapping) else task
    usual = USUAL_KINDS.get(task) if isinstance(task, str) else None
    # A recipe that names no kind has none that a change could replace: its files stay.
    kind = table.get("kind", changes.get("kind", usual))
    merged = merge({**table, "kind": kind}, changes)
    if kind is None:
        known = ", ".join(variants(AnyData))
        raise SettingsError(f"data needs a kind, which says how its files are written; choose one of {known}")
    settings: DataSettings = parse(AnyData, merged, "data")
    return settings
