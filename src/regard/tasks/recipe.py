"""From a recipe to a job: a TOML file and overrides, read and checked before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import Field

from regard import shipped
from regard.data.settings import AnyData, DataSettings
from regard.errors import SettingsError
from regard.models.presets import find_preset
from regard.models.settings import AnyModel, AnyVision, EncoderDecoder, ModelSettings, Seq2Seq
from regard.settings import Settings, Table, did_you_mean, hint, kind_of, merge, parse, read_toml, to_table, variants
from regard.text.settings import BYTES, AnyTokenizer, Bytes
from regard.training.schedules import require_budget
from regard.training.settings import Train

if TYPE_CHECKING:
    from regard.data.examples import Labels, Sort
    from regard.tasks.task import Task, TaskSettings

PARTS = ("task", "data", "text", "model", "train", "reference")


class TokenizerFile(Settings):
    """An existing tokenizer: a `tokenizer.json`, or the directory of a model."""

    kind: Literal["file"] = "file"
    path: str = "tokenizer.json"
    """The file, or the directory that contains it (of a run, or of a Hugging Face model)."""


AnyText: TypeAlias = Annotated[AnyTokenizer | TokenizerFile, Field(discriminator="kind")]
"""The table `[text]`: how a tokenizer is trained, or where an existing one is."""


@dataclass(frozen=True)
class TrainingJob:
    """A complete recipe. The vocabulary and the heads of the model depend on the data, and are not known yet."""

    name: str
    task: TaskSettings
    data: DataSettings
    text: AnyTokenizer | TokenizerFile | None
    """None if the task reads no text, or if the tokenizer is that of the weights that training starts from."""
    model: Table
    """The table `[model]` with its overrides: a preset or a kind, and changes."""
    train: Train
    reference: Table
    """The curve of the recipe's own measured run, for `regard doctor`."""

    @property
    def directory(self) -> Path:
        return Path(self.train.directory or f"runs/{self.name}")

    @property
    def task_type(self) -> type[Task]:
        return _find_task(self.task.kind)


def _find_task(kind: object) -> type[Task]:
    from regard.tasks import task  # tasks need torch, which `regard data` and `regard count` do not

    return task.find_task(kind)


def read_job(recipe: Path | str | Mapping[str, Any], changes: Mapping[str, Any] | None = None) -> TrainingJob:
    """The job of a recipe (a file, a shipped name or tables) with `changes`, a table of tables, applied."""
    if isinstance(recipe, Mapping):
        tables = _with_base(dict(recipe), Path("recipe"), ())
        return make_job(str(_table(tables, "task").get("kind", "recipe")), tables, changes or {})
    if not isinstance(recipe, str | Path):
        raise SettingsError(f"recipe ({recipe!r}) must be a TOML file, a shipped name or a dict of tables")
    return make_job(Path(recipe).stem, read_recipe(recipe), changes or {})


def find_recipe(name: Path | str) -> Path:
    """The file of a recipe. A plain name that is not a file is the name of a shipped recipe."""
    path, known = Path(name), shipped.recipes()
    if path.is_file():
        return path
    if str(name) in known:
        return known[str(name)]
    if path.is_dir():
        raise SettingsError(f"recipe ({path}) is a directory; give a TOML file, or a name that regard recipes lists")
    if path.stem in known:
        raise SettingsError(f"recipe ({path}) does not exist; the shipped recipe has the name {path.stem}")
    raise SettingsError(
        f"recipe ({path}) does not exist{did_you_mean(path.stem, known)}; give a TOML file, or a name that regard "
        "recipes lists"
    )


def is_recipe(name: str) -> bool:
    """Whether a word of the command line is a recipe, and not a data file or a directory."""
    return name.endswith(".toml") or (name in shipped.recipes() and not Path(name).exists())


def read_recipe(recipe: Path | str, heirs: tuple[Path, ...] = ()) -> Table:
    """The tables of a recipe. A file that has a model only can leave out the line `[model]`.

    With `base`, a name or a file next to it, the tables change those of another recipe. `heirs` are read already.
    """
    path = find_recipe(recipe)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"recipe ({path}) cannot be read: {error.strerror}; give a TOML file") from None
    except UnicodeDecodeError:
        raise SettingsError(f"recipe ({path}) is not UTF-8 text; give a TOML file") from None
    return _with_base(read_toml(text, source=f"recipe ({path})"), path, heirs)


def _with_base(tables: Table, path: Path, heirs: tuple[Path, ...]) -> Table:
    if "kind" in tables or "preset" in tables:
        return {"model": tables}
    base = tables.pop("base", None)
    _require_known(tables, f"recipe ({path}): ")
    if base is None:
        return tables
    heirs = (*heirs, path.resolve())
    if not isinstance(base, str):
        raise SettingsError(f'recipe ({path}): base ({base!r}) must be a recipe; write base = "grammar", or a file')
    neighbour = path.parent / base
    name: Path | str = neighbour if neighbour.is_file() else base
    if find_recipe(name).resolve() in heirs:
        raise SettingsError(f"recipe ({path}): base ({base}) is this recipe, or builds on it; name another one")
    found = read_recipe(name, heirs)
    merged = {part: merge(_table(found, part), _table(tables, part)) for part in PARTS if part in {**found, **tables}}
    # The curve of another job does not serve as a reference.
    return {part: table for part, table in merged.items() if part != "reference" or part in tables}


def make_job(name: str, recipe: Mapping[str, Any], changes: Mapping[str, Any]) -> TrainingJob:
    _require_known(changes)
    tables = {part: merge(_table(recipe, part), _table(changes, part)) for part in ("task", "text", "train")}
    if "kind" not in tables["task"]:
        raise SettingsError(f'recipe ({name}) names no task; write task = "translate", or another one')
    task_type = _find_task(tables["task"]["kind"])
    task: TaskSettings = parse(task_type.settings_type, tables["task"], "task")
    train: Train = parse(Train, _with_default_kinds(tables["train"]), "train")
    require_budget(train)
    data = data_settings({**recipe, "task": task.kind}, _table(changes, "data"))
    model = merge(_table(recipe, "model"), _table(changes, "model"))
    if not model and train.start is None:
        raise SettingsError(
            'model needs a preset or a kind; write preset = "..." in [model] (regard presets lists them)'
        )
    text: AnyTokenizer | TokenizerFile | None = None
    if task_type.text_kind is None and tables["text"]:
        raise SettingsError(f"text is set, but the task {task.kind} reads no text; leave [text] out")
    if task_type.text_kind is not None and (tables["text"] or train.start is None):
        text = parse(AnyText, {"kind": task_type.text_kind, **tables["text"]}, "text")
    job = task_type.complete(TrainingJob(name, task, data, text, model, train, _table(recipe, "reference")))
    if train.start is None:  # otherwise the model depends on the weights to start from
        job_model(job)
    return job


def _require_known(tables: Mapping[str, Any], where: str = "") -> None:
    if unknown := [key for key in tables if key not in PARTS]:
        name = unknown[0]
        owners: dict[str, type[Settings]] = {"train": Train, "model": EncoderDecoder}
        homes = [f"{part}.{name}" for part, owner in owners.items() if name in owner.model_fields]
        near = f" (did you mean {homes[0]}?)" if homes else hint(f"recipe.{name}", PARTS)
        raise SettingsError(f"{where}unknown setting {name}{near}; a recipe has base, {', '.join(PARTS)}")


def _table(tables: Mapping[str, Any], part: str) -> Table:
    table = tables.get(part, {})
    if part == "task" and isinstance(table, str):
        table = {"kind": table}
    if isinstance(table, Settings):
        table = to_table(table)
    if not isinstance(table, Mapping):
        raise SettingsError(f"{part} ({table!r}) must be a table; write [{part}] and, below it, its settings")
    return dict(table)


def _with_default_kinds(table: Table) -> Table:
    """`train.optimizer.rate=1e-3` alone means the rate of the default optimizer: its kind need not be named."""
    defaults = {name: field.default for name, field in Train.model_fields.items()}
    return {
        name: merge(to_table(default), value)
        if isinstance(default := defaults.get(name), Settings) and isinstance(value, Mapping) and "kind" not in value
        else value
        for name, value in table.items()
    }


def data_settings(recipe: Mapping[str, Any], changes: Mapping[str, Any] | None = None) -> DataSettings:
    """The table `[data]` of a recipe with `changes` applied. The task has a default for a missing `kind`."""
    table = _table(recipe, "data")
    changes = changes or {}
    # If the recipe names no kind, a change of the kind replaces none: the files of the recipe stay.
    kind = table.get("kind", changes.get("kind"))
    task = _table(recipe, "task").get("kind")
    if kind is None and task is not None:
        kind = _find_task(task).data_kind
    if kind is None:
        raise SettingsError(f"data needs a kind, the format of its files; choose one of {', '.join(variants(AnyData))}")
    settings: DataSettings = parse(AnyData, merge({**table, "kind": kind}, changes), "data")
    return settings


def model_settings(recipe: Mapping[str, Any], changes: Mapping[str, Any] | None = None) -> ModelSettings:
    """The model of a recipe: its preset, then its table `[model]`, then `changes`.

    So a `kind` resets its table only if it differs from the one before it.
    """
    table, changes = _table(recipe, "model"), changes or {}
    name = changes.get("preset", table.get("preset"))
    if name is not None and not isinstance(name, str):
        raise SettingsError(f'model.preset ({name!r}) must be a name; write preset = "transformer-base", or another')
    base = {} if name is None else to_table(find_preset(name).settings)
    for layer in (table, changes):
        base = merge(base, {key: value for key, value in layer.items() if key != "preset"})
    if "kind" not in base:
        raise SettingsError('model needs a preset or a kind; write preset = "transformer-base", or another, in [model]')
    settings: ModelSettings = parse(AnyModel, base, "model")
    return settings


def planned_model(recipe: Mapping[str, Any], changes: Mapping[str, Any]) -> tuple[ModelSettings, list[str]]:
    """The model that a recipe trains, as far as it is known without the data, and notes on what is not."""
    table = _table(recipe, "task")
    if not table:
        return model_settings(recipe, changes), []
    from regard.weights.warm_start import read_start

    task_type, text = _find_task(table.get("kind")), _table(recipe, "text")
    named = merge(_table(recipe, "model"), changes)
    start, notes = _table(recipe, "train").get("start"), []
    base = {} if start is None or "preset" in named else to_table(read_start(start).settings)
    model = model_settings({"model": merge(base, named)})
    if task_type.text_kind is not None and (text or start is None) and "vocabulary" not in named:
        model, note = _planned_vocabulary(model, parse(AnyText, {"kind": task_type.text_kind, **text}, "text"))
        notes.append(note)
    labels: dict[Sort, Labels] = {"label": ("", " "), "tags": ("", " ")}
    task = task_type(parse(task_type.settings_type, table, "task"), model, None, labels)
    fitted = task.fit()
    if task.head is not None and hasattr(getattr(fitted, "heads", {})[task.head], "classes"):
        notes.append("the number of classes follows from the data; 2 are counted")
    return fitted, notes


def _planned_vocabulary(model: ModelSettings, text: AnyTokenizer | TokenizerFile) -> tuple[ModelSettings, str]:
    if isinstance(text, TokenizerFile):
        from regard.text.tokenizer import TokenizerPair

        pair = TokenizerPair.load(text.path)
        return with_vocabulary(model, pair.sizes, pair.joint, False), f"the vocabulary is that of {text.path}"
    assert not isinstance(model, AnyVision)
    size = BYTES + len(text.special.tokens()) if isinstance(text, Bytes) else getattr(text, "size", None)
    counted = f"{size or model.vocabulary:,} tokens are counted" + (", the most that [text] allows" if size else "")
    note = f"the vocabulary follows from the data; {counted}"
    return (with_vocabulary(model, (size, size), text.shared, False) if size else model), note


def job_model(job: TrainingJob, start: ModelSettings | None = None) -> ModelSettings:
    """The settings of the model as the recipe gives them: its preset, or those of the weights to start from."""
    if start is not None and "preset" not in job.model and job.model.get("kind", start.kind) == start.kind:
        settings = model_settings({"model": to_table(start)}, job.model)
    else:
        settings = model_settings({"model": job.model})
    family = job.task_type.family
    families = family if isinstance(family, tuple) else (family,)
    if not isinstance(settings, families):
        needs = " or ".join(str(kind_of(each)) for each in families)
        raise SettingsError(
            f"model.kind ({settings.kind}) does not suit the task {job.task.kind}, which needs {needs}; "
            "choose another preset (regard presets lists them), or another task"
        )
    return settings


def with_vocabulary(model: ModelSettings, sizes: tuple[int, int], shared: bool, named: bool) -> ModelSettings:
    """The model with the vocabulary sizes of its tokenizers. If the recipe names a size, it must be large enough.

    Two vocabularies, even of the same size, cannot share one matrix; target and output still can.
    """
    source, target = sizes
    assert not isinstance(model, AnyVision)
    if named:
        for what, has, needs in (
            ("vocabulary", model.vocabulary, source),
            ("target_vocabulary", getattr(model, "target_size", target), target),
        ):
            if has < needs:
                raise SettingsError(f"model.{what} ({has:,}) is less than the tokenizer's {needs:,}; leave it out")
    changes: Table = {} if named else {"vocabulary": source}
    if isinstance(model, Seq2Seq):
        if not named:
            changes["target_vocabulary"] = None if shared else target
        if not shared and "source" in model.tied:
            rest = [name for name in model.tied if name != "source"]
            changes["tied"] = rest if len(rest) > 1 else []
    return model.changed(changes)
