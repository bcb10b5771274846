"""Settings: frozen, strict values that are written as TOML and changed by dotted overrides.

A variant is a type, told apart by its `kind`; nothing here knows which variants exist. Three operations matter:

- `parse` turns plain tables into a settings value, or raises a `SettingsError` that names the nearest known key;
- `merge` lays changes over a table; another `kind` resets its table, since the old kind's keys mean nothing to it;
- `to_toml` writes what `from_toml` reads back to an equal value.
"""

from __future__ import annotations

import difflib
import tomllib
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar, Union, get_args, get_origin

import tomli_w
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, model_validator
from pydantic_core import ErrorDetails

from regard.errors import SettingsError

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)

Table = dict[str, Any]
"""A TOML table as `tomllib` gives it."""

S = TypeVar("S", bound="Settings")


class _PlainErrors(ModelMetaclass):
    """Lets `Encoder(width="a")` in Python fail with the same sentence as `width = "a"` in a recipe.

    In a metaclass, since pydantic calls an overridden `__init__` for nested values too, where the path is not known.
    """

    def __call__(self, *arguments: Any, **fields: Any) -> Any:
        try:
            return super().__call__(*arguments, **fields)
        except ValidationError as error:
            raise _settings_error(self, error, "") from None


class Settings(BaseModel, metaclass=_PlainErrors):
    """Base of every settings value: unknown keys are refused, values are not converted, nothing changes afterwards."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    @model_validator(mode="before")
    @classmethod
    def _none_by_name(cls, data: object) -> object:
        """TOML has no null, so "none" stands for it wherever a field may be empty."""
        if not isinstance(data, Mapping):
            return data
        fields = cls.model_fields
        return {
            key: None if value == "none" and key in fields and _optional(fields[key].annotation) else value
            for key, value in data.items()
        }

    def changed(self, changes: Mapping[str, Any]) -> Self:
        """A copy with `changes` (a nested table, or dotted keys) laid over it, validated like any other."""
        changed: Self = parse(type(self), merge(to_table(self), nested(changes)))
        return changed


# ------------------------------------------------------------------------------------------------ tables and TOML


def parse(kind: Any, table: Mapping[str, Any], where: str = "") -> Any:
    """A value of `kind` (a `Settings` class or a union of them) from a plain table.

    `where` is the dotted place of the table in its file, put before every key in a message.
    """
    try:
        return TypeAdapter(kind).validate_python(dict(table))
    except ValidationError as error:
        raise _settings_error(kind, error, where) from None


def to_table(settings: Settings) -> Table:
    """The settings as a plain table, complete but for empty (None) fields, which TOML cannot hold."""
    return settings.model_dump(exclude_none=True)


def to_toml(settings: Settings) -> str:
    return tomli_w.dumps(to_table(settings))


def from_toml(kind: type[S], text: str, where: str = "") -> S:
    result: S = parse(kind, read_toml(text), where)
    return result


def read_toml(text: str, source: str = "TOML") -> Table:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{source} is not valid TOML: {error}") from None


# --------------------------------------------------------------------------------------------------- overriding


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> Table:
    """`changes` laid over `base`, table by table; where `changes` names another `kind`, the old table is dropped."""
    if "kind" in changes and changes["kind"] != base.get("kind"):
        base = {}
    result = dict(base)
    for key, value in changes.items():
        old = result.get(key)
        result[key] = merge(old if isinstance(old, Mapping) else {}, value) if isinstance(value, Mapping) else value
    return result


def nested(changes: Mapping[str, Any]) -> Table:
    """Dotted keys unfolded: `{"attention.heads": 4}` becomes `{"attention": {"heads": 4}}`."""
    result: Table = {}
    for path, value in changes.items():
        *parents, last = path.split(".")
        table = result
        for part in parents:
            table = table.setdefault(part, {})
            if not isinstance(table, dict):
                raise SettingsError(f"{path}: {part} is given a value and a table; give one of them")
        value = nested(value) if isinstance(value, Mapping) else value
        if last in table and isinstance(table[last], dict) is not isinstance(value, dict):
            raise SettingsError(f"{path} is given a value and a table; give one of them")
        table[last] = merge(table[last], value) if isinstance(value, dict) and last in table else value
    return result


def read_overrides(assignments: Iterable[str]) -> Table:
    """`["model.dropout=0.2", "model.position.kind=rotary"]` as a nested table.

    The right side is read as a TOML value; what is none (rotary, pre, none) is taken as text, so that a shell needs
    no quotes.
    """
    changes: Table = {}
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        path = path.strip()
        if not equals or not all(path.split(".")):
            raise SettingsError(f"{assignment!r} is no override; write key=value, such as model.dropout=0.2")
        changes[path] = _read_value(text.strip())
    return nested(changes)


def _read_value(text: str) -> Any:
    try:
        read = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    return read["value"] if len(read) == 1 else text  # more than one: a line break smuggled in further keys


# ---------------------------------------------------------------------------------------------- reference documentation


def describe(kind: type[Settings]) -> Iterator[tuple[str, str, str, str]]:
    """(field, type, default, description) for each field of one settings class, as the reference pages print them."""
    for name, field in kind.model_fields.items():
        if name == "kind":
            continue
        if field.is_required():
            default = "required"
        else:
            value = field.get_default(call_default_factory=True)
            default = "none" if value is None else _toml_value(value)
        yield name, type_text(field.annotation), default, _description(kind, name)


def _description(kind: type[Settings], name: str) -> str:
    """What the class, or the nearest parent that speaks of it, says of a field: a new default needs no new text."""
    classes = (cls for cls in kind.__mro__ if issubclass(cls, Settings) and name in cls.model_fields)
    return " ".join(next((text for cls in classes if (text := cls.model_fields[name].description)), "").split())


def type_text(annotation: Any) -> str:
    """An annotation as a reader of a recipe would say it."""
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
    """The value of `kind` that chooses this class, or None for a class that is no variant."""
    field = settings.model_fields.get("kind")
    return None if field is None else str(field.default)


def variants(annotation: Any) -> dict[str, type[Settings]]:
    """The variants of a union annotation by their `kind`."""
    members = (member for member in _members(annotation) if isinstance(member, type) and issubclass(member, Settings))
    return {kind: member for member in members if (kind := kind_of(member)) is not None}


def _toml_value(value: Any) -> str:
    plain = to_table(value) if isinstance(value, Settings) else value
    if isinstance(plain, dict):
        inner = ", ".join(f"{key} = {_toml_value(item)}" for key, item in plain.items())
        return f"{{{inner}}}"
    return tomli_w.dumps({"v": plain}).removeprefix("v = ").strip()


# ------------------------------------------------------------------------------------------------------- messages


def _settings_error(kind: Any, error: ValidationError, where: str) -> SettingsError:
    return SettingsError("\n".join(_explain(kind, detail, where) for detail in error.errors()))


def _explain(kind: Any, detail: ErrorDetails, where: str) -> str:
    """One pydantic error as a sentence with the setting, its value, the rule and the remedy."""
    path, owner = _locate(kind, detail["loc"])
    prefix = ".".join(part for part in (where, *path) if part)
    problem = detail["type"]
    if problem == "extra_forbidden":
        known = sorted(owner.model_fields) if owner else []
        name = path[-1]
        return f"unknown setting {prefix}{did_you_mean(name, known)}; known here: {', '.join(known)}"
    if problem in ("union_tag_invalid", "literal_error"):
        given = detail["ctx"].get("tag", detail["input"])
        expected = detail["ctx"].get("expected_tags") or detail["ctx"]["expected"]
        choices = [choice.strip(" '") for choice in expected.replace(" or ", ", ").split(",")]
        place = f"{prefix}.kind" if problem == "union_tag_invalid" and prefix else prefix or "kind"
        return f"{place} ({given}) is not known{did_you_mean(str(given), choices)}; choose one of {', '.join(choices)}"
    if problem == "union_tag_not_found":
        return f'{prefix or "the table"} needs a kind; write {f"{prefix}." if prefix else ""}kind = "..."'
    if problem == "missing":
        return f"{prefix} is missing; give it a value"
    if problem in ("model_type", "model_attributes_type", "dict_type"):
        given, field = detail["input"], owner.model_fields.get(path[-1]) if owner else None
        named = field is not None and isinstance(given, str) and given in variants(field.annotation)
        remedy = f'{prefix}.kind = "{given}"' if named else f"{prefix}.KEY = VALUE"
        return f"{prefix} ({given!r}) must be a table; write {remedy}"
    if problem == "tuple_type":
        return f"{prefix} ({detail['input']!r}) must be a list; write it in brackets, words in quotes: [...]"
    message = detail["msg"].removeprefix("Value error, ")
    if problem == "value_error":
        return f"{prefix}: {message}" if prefix else message
    return f"{prefix} ({detail['input']!r}) is wrong: {message[0].lower()}{message[1:]}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`" (did you mean X?)"` when a known name is near, else nothing."""
    by_lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    return f" (did you mean {by_lower[near[0]]}?)" if near else ""


def _locate(kind: Any, location: tuple[int | str, ...]) -> tuple[list[str], type[Settings] | None]:
    """The dotted path as a user writes it, and the class that owns its last key.

    Pydantic puts a union's tag into the location; a recipe has no such level, so it is dropped here.
    """
    path: list[str] = []
    owner: type[Settings] | None = None
    current = kind
    for part in location:
        choices = variants(current)
        if part in choices and not (isinstance(current, type) and issubclass(current, Settings)):
            current = choices[str(part)]
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
    """The alternatives of an annotation, looking through `Annotated` and `|`."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _members(get_args(annotation)[0])
    elif origin in (Union, types.UnionType):
        for member in get_args(annotation):
            yield from _members(member)
    else:
        yield annotation


def _optional(annotation: Any) -> bool:
    return any(member is type(None) for member in _members(annotation))
