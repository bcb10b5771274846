"""Settings: frozen, strict values that are written as TOML and changed by dotted overrides.

A variant is a type with its own `kind`.

- `parse` turns a plain table into a settings value, or raises a `SettingsError` with a hint;
- `merge` applies changes to a table; another `kind` resets its table, since the old keys do not apply to it;
- `to_table` returns the plain table of a settings value, which `parse` reads back to an equal value.
"""

from __future__ import annotations

import difflib
import re
import tomllib
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, Union, dataclass_transform, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic_core import ErrorDetails

from regard.errors import SettingsError

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)

LARGEST = 2**53
"""The largest integer of a setting; floats are exact up to here."""
MOST_THREADS = 1024
"""The largest number of CPU threads; far more of them crash PyTorch."""
DEEPEST = 32
"""Levels of nested tables in a file or an override."""

USUAL_NAMES = {
    "train.optimizer.rate": "lr learning_rate rate",
    "train.optimizer.decay": "weight_decay decay",
    "train.schedule.warmup": "warmup warmup_steps warmup_ratio",
    "train.tokens or train.examples": "batch batch_size per_device_train_batch_size",
    "train.epochs": "epoch num_epochs n_epochs max_epochs num_train_epochs",
    "train.steps": "max_steps num_steps n_steps iterations",
    "model.width": "d_model hidden_size n_embd embed_dim embedding_dim dim",
    "model.attention.heads": "heads n_heads num_heads n_head nhead num_attention_heads",
    "model.depth": "layers n_layers num_layers n_layer num_hidden_layers",
    "model.ffn.hidden": "d_ff ffn_dim dim_feedforward intermediate_size",
    "model.vocabulary": "vocab_size n_vocab",
    "task.smoothing": "label_smoothing",
}
"""Settings, and their names in other libraries."""

Table = dict[str, Any]
"""A TOML table as `tomllib` returns it."""


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(Field,))
class _PlainErrors(ModelMetaclass):
    """Makes `Encoder(width="a")` in Python raise the same error as `width = "a"` in a recipe.

    This is a metaclass because pydantic also calls an overridden `__init__` for nested values, without their path.
    """

    if not TYPE_CHECKING:  # type checkers and editors read the fields of the class

        def __call__(self, *arguments, **fields):
            try:
                return super().__call__(*arguments, **fields)
            except ValidationError as error:
                raise _settings_error(self, error, "") from None


class Settings(BaseModel, metaclass=_PlainErrors):
    """Base of all settings: unknown keys are refused, values are not converted, and instances are frozen."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        defer_build=True,  # most commands use few of the classes
    )
    removed: ClassVar[Mapping[str, object]] = {}
    """Settings of older versions that run directories contain, each with the value that meant "off"."""

    @model_validator(mode="before")
    @classmethod
    def _none_by_name(cls, data: object) -> object:
        """Read "none" as None where a field is optional, since TOML has no null. Refuse absurd integers, drop removed
        settings that were off."""
        if not isinstance(data, Mapping):
            return data
        fields = cls.model_fields
        for key, value in data.items():
            if isinstance(value, int) and abs(value) > LARGEST:
                raise ValueError(f"{key} ({shown(value)}) is beyond {LARGEST}, the largest integer; lower it")
        return {
            key: None if value == "none" and key in fields and type(None) in _members(fields[key].annotation) else value
            for key, value in data.items()
            if key not in cls.removed or value != cls.removed[key]
        }

    if not TYPE_CHECKING:  # type checkers know that fields are frozen

        def __setattr__(self, name, value):
            copy = f"settings.changed({{{name!r}: {shown(value)}}})"
            raise SettingsError(f"{name} cannot be set: settings are frozen; make a changed copy: {copy}")

        def __delattr__(self, name):
            raise SettingsError(f"{name} cannot be deleted: settings are frozen; make a changed copy")

    def changed(self, changes: Mapping[str, Any]) -> Self:
        """Return a validated copy with `changes`, a nested table or dotted keys; unset fields stay unset."""
        tables = nested(changes)
        changed: Self = parse(type(self), merge(to_table(self), tables))
        changed.model_fields_set.intersection_update(self.model_fields_set.union(tables))
        return changed


def parse(kind: Any, table: Mapping[str, Any], where: str = "") -> Any:
    """Return a value of `kind` (a `Settings` class or a union of them) from a plain table.

    Error messages put `where`, the dotted path of the table in its file, before each key.
    """
    try:
        return _adapter(kind).validate_python(dict(table))
    except UnicodeEncodeError as error:
        raise SettingsError(f"{where or 'a setting'} contains {error.object!r}, which is not Unicode text") from None
    except ValidationError as error:
        raise _settings_error(kind, error, where) from None


def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Pydantic's validator of a type. It takes long to make, and a union is not hashable."""
    if id(kind) not in _ADAPTERS:
        _ADAPTERS[id(kind)] = kind, TypeAdapter(kind)
    return _ADAPTERS[id(kind)][1]


_ADAPTERS: dict[int, tuple[Any, TypeAdapter[Any]]] = {}


def to_table(settings: Settings) -> Table:
    """Return the settings as a plain table, without empty (None) fields, which TOML cannot express."""
    return settings.model_dump(exclude_none=True)


def read_toml(text: str, source: str = "TOML") -> Table:
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise SettingsError(f"{source} is nested too deeply; use at most {DEEPEST} levels") from None
    except ValueError as error:  # also a number with thousands of digits
        raise SettingsError(f"{source} is not valid TOML: {error}") from None
    level: list[Any] = [table]
    for _ in range(DEEPEST):
        inside = [value for each in level for value in (each.values() if isinstance(each, dict) else each)]
        level = [value for value in inside if isinstance(value, dict | list)]
    if level:
        raise SettingsError(f"{source} is nested too deeply; use at most {DEEPEST} levels")
    return table


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> Table:
    """Return `base` with `changes`, table by table. A table with another `kind` replaces the old one."""
    if "kind" in changes and changes["kind"] != base.get("kind"):
        base = {}
    result = dict(base)
    for key, value in changes.items():
        old = result.get(key)
        result[key] = merge(old if isinstance(old, Mapping) else {}, value) if isinstance(value, Mapping) else value
    return result


def nested(changes: Mapping[str, Any]) -> Table:
    """Return nested tables for dotted keys: `{"attention.heads": 4}` becomes `{"attention": {"heads": 4}}`."""
    if not isinstance(changes, Mapping):
        raise SettingsError(f'changes ({shown(changes)}) must be a dict, such as {{"train.steps": 100}}')
    result: Table = {}
    for path, value in changes.items():
        *parents, last = str(path).split(".")
        if len(parents) >= DEEPEST:
            raise SettingsError(f"{shown(path)} is nested too deeply; use at most {DEEPEST} levels")
        table = result
        for part in parents:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise SettingsError(f"{path}: {part} has a value and a table; give only one of them")
        value = nested(value) if isinstance(value, Mapping) else value
        if last in table and isinstance(table[last], dict) is not isinstance(value, dict):
            raise SettingsError(f"{path} has a value and a table; give only one of them")
        table[last] = merge(table[last], value) if isinstance(value, dict) and last in table else value
    return result


def read_overrides(assignments: Iterable[str]) -> Table:
    """Return a nested table for `["model.dropout=0.2", "model.position.kind=rotary"]`.

    The right side is a TOML value; anything else (rotary, pre, none) is read as text, so that a shell needs no quotes.
    """
    changes: Table = {}
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        path = path.strip()
        if not equals or not all(path.split(".")):
            raise SettingsError(f"{shown(assignment)} is not an override; write key=value, such as model.dropout=0.2")
        changes[path] = _read_value(text.strip())
    return nested(changes)


def _read_value(text: str) -> Any:
    try:
        read = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return read["value"] if len(read) == 1 else text  # a line break would add further keys


def describe(kind: type[Settings]) -> Iterator[tuple[str, str, str]]:
    """Yield (field, type, description) of a settings class, for help texts and the reference pages."""
    for name, field in kind.model_fields.items():
        if name != "kind":
            yield name, type_text(field.annotation), _description(kind, name)


def _description(kind: type[Settings], name: str) -> str:
    """Return the docstring of a field, from the class or from its nearest parent with one."""
    classes = (cls for cls in kind.__mro__ if issubclass(cls, Settings) and name in cls.model_fields)
    return " ".join(next((text for cls in classes if (text := cls.model_fields[name].description)), "").split())


def type_text(annotation: Any) -> str:
    """Return an annotation in the words of a recipe."""
    members = tuple(_members(annotation))
    if len(members) > 1:
        return " | ".join(type_text(member) for member in members)
    member = members[0]
    if member is type(None):
        return "none"
    if isinstance(member, type) and issubclass(member, Settings):
        return kind_of(member) or member.__name__
    origin = get_origin(member)
    if origin in (tuple, dict):
        inner = [type_text(argument) for argument in get_args(member) if argument is not Ellipsis]
        return f"list of {inner[0]}" if origin is tuple else f"table of {inner[-1]}"
    return member.__name__ if isinstance(member, type) else " | ".join(f'"{value}"' for value in get_args(member))


def kind_of(settings: type[Settings]) -> str | None:
    """Return the `kind` of a class, or None if it is not a variant."""
    field = settings.model_fields.get("kind")
    return None if field is None else str(field.default)


def variants(annotation: Any) -> dict[str, type[Settings]]:
    """Return the variants of a union annotation by `kind`."""
    members = (member for member in _members(annotation) if isinstance(member, type) and issubclass(member, Settings))
    return {kind: member for member in members if (kind := kind_of(member)) is not None}


def _settings_error(kind: Any, error: ValidationError, where: str) -> SettingsError:
    details = error.errors()
    # Of a word or a table, only the table is wrong if a table is given.
    words = [each for each in details if each["type"] == "literal_error" and isinstance(each["input"], Mapping)]
    wrong = [each for each in details if each not in words] or details
    return SettingsError("\n".join(_explain(kind, detail, where) for detail in wrong))


def _explain(kind: Any, detail: ErrorDetails, where: str) -> str:
    """Return one pydantic error as a sentence with the setting, its value, the rule and the remedy."""
    path, owner = _locate(kind, detail["loc"])
    prefix = ".".join(part for part in (where, *path) if part)
    problem = detail["type"]
    if problem == "extra_forbidden":
        known = sorted(owner.model_fields) if owner else []
        return f"unknown setting {prefix}{hint(prefix, known)}; known here: {', '.join(known)}"
    if problem in ("union_tag_invalid", "literal_error"):
        given = detail["ctx"].get("tag", detail["input"])
        expected = detail["ctx"].get("expected_tags") or detail["ctx"]["expected"]
        choices = [choice.strip(" '") for choice in expected.replace(" or ", ", ").split(",")]
        place = f"{prefix}.kind" if problem == "union_tag_invalid" and prefix else prefix or "kind"
        near = did_you_mean(str(given), choices)
        return f"{place} ({str(given)[:200]}) is not known{near}; choose one of {', '.join(choices)}"
    if problem == "union_tag_not_found":
        return f'{prefix or "the table"} needs a kind; write {f"{prefix}." if prefix else ""}kind = "..."'
    if problem == "missing":
        return f"{prefix} is missing; give it a value"
    if problem in ("model_type", "model_attributes_type", "dict_type"):
        given, field = detail["input"], owner.model_fields.get(path[-1]) if owner else None
        named = field is not None and isinstance(given, str) and given in variants(field.annotation)
        remedy = f'{prefix}.kind = "{given}"' if named else f"{prefix}.KEY = VALUE"
        return f"{prefix} ({shown(given)}) must be a table; write {remedy}"
    if problem == "tuple_type":
        return f"{prefix} ({shown(detail['input'])}) must be a list; write it in brackets, words in quotes: [...]"
    message = detail["msg"].removeprefix("Value error, ")
    if problem == "value_error":
        return f"{prefix}: {message}" if prefix else message
    return f"{prefix} ({shown(detail['input'])}) is wrong: {message[0].lower()}{message[1:]}"


def shown(value: object) -> str:
    """A value for a message, shortened. Python refuses to print integers of thousands of digits."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return f"an oversized {type(value).__name__}"
    return text if len(text) <= 200 else f"{text[:200]}…"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `" (did you mean X?)"` if a known name is similar, else an empty string."""
    by_lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    return f" (did you mean {by_lower[near[0]]}?)" if near else ""


def hint(path: str, known: Iterable[str]) -> str:
    """As `did_you_mean`, for a setting that may have its name from another library."""
    part, _, name = path.rpartition(".")
    usual = next((ours for ours, theirs in USUAL_NAMES.items() if name.lower() in theirs.split()), "")
    if not part:  # a settings class in Python
        usual = re.sub(r"\b(train|model|task)\.", "", usual)
    return f" (did you mean {usual}?)" if usual else did_you_mean(name, known)


def _locate(kind: Any, location: tuple[int | str, ...]) -> tuple[list[str], type[Settings] | None]:
    """Return the dotted path as a user writes it, and the class that owns its last key.

    Pydantic puts the tag of a union into the location. A recipe has no such level, so it is removed.
    """
    path: list[str] = []
    owner: type[Settings] | None = None
    current = kind
    for part in location:
        choices = variants(current)
        if part in choices and not (isinstance(current, type) and issubclass(current, Settings)):
            current = choices[str(part)]
            continue
        if "[" in str(part) or str(part).startswith("constrained-"):  # a member without a tag, such as dict[str,float]
            continue
        path.append(str(part))
        settings = [m for m in _members(current) if isinstance(m, type) and issubclass(m, Settings)]
        owner = settings[0] if settings else None
        if owner and part in owner.model_fields:
            current = owner.model_fields[str(part)].annotation
        else:
            arguments = get_args(next(_members(current)))
            current = arguments[-1] if arguments else object
    return path, owner


def _members(annotation: Any) -> Iterator[Any]:
    """Yield the alternatives of an annotation, inside `Annotated` and `|`."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _members(get_args(annotation)[0])
    elif origin in (Union, types.UnionType):
        for member in get_args(annotation):
            yield from _members(member)
    else:
        yield annotation
