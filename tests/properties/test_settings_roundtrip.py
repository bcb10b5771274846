"""Random settings survive TOML, a table and a list of overrides; merging keeps its laws."""

from __future__ import annotations

import string
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, get_args, get_origin

import tomli_w
from annotated_types import Ge, Gt, Le, Lt
from hypothesis import given, settings
from hypothesis import strategies as st
from settings_cases import from_toml, to_toml

from regard.errors import SettingsError
from regard.models.settings import AnyModel, Decoder, Encoder, EncoderDecoder, Vision
from regard.settings import Settings, merge, nested, parse, read_overrides, to_table

FAMILIES: list[type[Settings]] = [EncoderDecoder, Encoder, Decoder, Vision]

# Fields that depend on one another: sizes that divide, so that most random models are valid ones.
CHOSEN: dict[str, st.SearchStrategy[Any]] = {
    "width": st.sampled_from([8, 32, 96]),
    "Attention.heads": st.sampled_from([4, 8]),
    "Attention.kv_heads": st.sampled_from([None, 1, 2, 4]),
    "Attention.head_size": st.sampled_from([8, 16]),
    "Attention.latent": st.none(),
    "Attention.pattern": st.sampled_from([None, None, ("window", "full")]),
    "window_base": st.sampled_from([None, None, 500.0]),
    "fraction": st.sampled_from([0.25, 0.5, 1.0]),
    "image": st.sampled_from([(8, 8), (16, 24)]),
    "patch": st.sampled_from([2, 4, 8]),
    "Vision.mean": st.sampled_from([(0.5,), (0.25,)]),
    "Vision.deviation": st.sampled_from([(0.5,), (0.25,)]),
    "Experts.active": st.sampled_from([1, 2]),
    "target_vocabulary": st.none(),
    "EncoderDecoder.tied": st.sampled_from(
        [(), ("source", "target"), ("output", "target"), ("source", "target", "output")]
    ),
}
NAMES = st.text(string.ascii_lowercase + string.digits + "-_", min_size=1, max_size=6)


def of_class(cls: type[Settings]) -> st.SearchStrategy[Settings]:
    """Random values of a settings class; contradicting ones are thrown away."""
    fields = {name: of_field(cls, name) for name in cls.model_fields}

    def build(values: dict[str, Any]) -> Settings | None:
        try:
            return cls(**values)
        except SettingsError:
            return None

    return st.fixed_dictionaries(fields).map(build).filter(lambda value: value is not None)


def of_field(cls: type[Settings], name: str) -> st.SearchStrategy[Any]:
    field = cls.model_fields[name]
    for key in (f"{cls.__name__}.{name}", name):
        if key in CHOSEN:
            return CHOSEN[key]
    return of_type(field.annotation, field.metadata)


def of_type(annotation: Any, metadata: list[Any]) -> st.SearchStrategy[Any]:
    """Random values of a field's type, within its bounds."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        extra = [bound for item in arguments[1:] for bound in getattr(item, "metadata", [item])]
        return of_type(arguments[0], [*metadata, *extra])
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is dict:
        return st.dictionaries(NAMES, of_type(arguments[1], []), max_size=2)
    if arguments:
        return st.one_of([of_type(argument, metadata) for argument in arguments])
    if annotation is type(None):
        return st.none()
    if annotation is bool:
        return st.booleans()
    low = next((getattr(m, "gt", None) or getattr(m, "ge", 0) for m in metadata if isinstance(m, Gt | Ge)), 0)
    high = next((getattr(m, "lt", None) or m.le for m in metadata if isinstance(m, Lt | Le)), None)
    open_low, open_high = any(isinstance(m, Gt) for m in metadata), any(isinstance(m, Lt) for m in metadata)
    if annotation is int:
        return st.integers(low + open_low, high if high is not None else 2**40)
    if annotation is float:
        return st.floats(low, high, allow_nan=False, allow_infinity=False, exclude_min=open_low, exclude_max=open_high)
    return st.deferred(lambda: of_class(annotation))


models = st.one_of([of_class(family) for family in FAMILIES])


def leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


@settings(max_examples=40)
@given(models, models)
def test_every_form_of_a_model_is_the_same_model(value: Settings, other: Settings) -> None:
    """TOML, a table with its kind, dotted keys in Python, and key=value words on a command line."""
    text, table, default = to_toml(value), to_table(value), type(value)()
    assert from_toml(type(value), text) == value
    assert to_toml(from_toml(type(value), text)) == text
    assert parse(AnyModel, table) == value
    assert value.changed({}) == value.changed(table) == default.changed(table) == value
    flat = dict(leaves(table))
    words = [f"{key}={tomli_w.dumps({'v': item}).removeprefix('v = ').strip()}" for key, item in flat.items()]
    bare = [
        f"{key}={item}" if isinstance(item, str) else word
        for (key, item), word in zip(flat.items(), words, strict=True)
    ]
    for changes in (flat, read_overrides(words), read_overrides(bare)):
        assert default.changed(changes) == value
    if type(value) is not type(other):  # another kind forgets the first model
        assert parse(AnyModel, merge(table, to_table(other))) == other


keys = st.sampled_from(["a", "b", "kind"])
scalars = st.integers(0, 3) | st.sampled_from(["x", "y"])
tables = st.recursive(
    st.dictionaries(keys, scalars, max_size=3),
    lambda inner: st.dictionaries(st.sampled_from(["a", "b"]), scalars | inner, max_size=3),
    max_leaves=8,
)


@given(tables, tables)
def test_merge(base: dict[str, Any], changes: dict[str, Any]) -> None:
    assert merge(base, {}) == merge({}, base) == merge(base, base) == base
    assert dict(leaves(nested(dict(leaves(base))))) == dict(leaves(base))
    merged = merge(base, changes)
    found = dict(leaves(merged))
    assert all(found[path] == value for path, value in leaves(changes))
    assert merge(merged, changes) == merged
    if "kind" not in changes or changes["kind"] == base.get("kind"):
        assert all(merged[key] == value for key, value in base.items() if key not in changes)
    else:
        assert set(merged) == set(changes)
