"""Settings: strict, frozen, written as TOML and back, changed by dotted overrides, described once."""

from __future__ import annotations

import tomllib

import pytest
from settings_cases import from_toml, to_toml

from regard.blocks import settings as blocks
from regard.blocks.settings import Alibi, Attention, Gated, NoPosition, RmsNorm, Rotary, Sinusoidal
from regard.data.settings import AnyData
from regard.errors import SettingsError
from regard.models import settings as models
from regard.models.settings import Classification, Decoder, Encoder, Tagging
from regard.settings import (
    Settings,
    describe,
    kind_of,
    nested,
    parse,
    read_overrides,
    to_table,
    variants,
)
from regard.text import settings as text

UNIONS = [
    models.AnyModel,
    blocks.Initial,
    models.TextHead,
    models.ImageHead,
    blocks.Norm,
    blocks.FeedForward,
    blocks.TextPosition,
    blocks.ImagePosition,
    blocks.RotaryScaling,
    text.AnyTokenizer,
]
VARIANTS = {cls.__name__: cls for union in UNIONS for cls in variants(union).values()} | {"Attention": Attention}
REQUIRED = {"factor": 2.0, "original_length": 64}


def example(cls: type[Settings]) -> Settings:
    """A value of the class with nothing given but what it requires."""
    needed = {name: REQUIRED[name] for name, field in cls.model_fields.items() if field.is_required()}
    return cls(**needed)


def test_changes_validate_and_leave_the_original_alone() -> None:
    settings = Decoder()
    changed = settings.changed({"attention.heads": 4, "ffn": {"hidden": 99}})
    assert (changed.attention.heads, changed.ffn.hidden) == (4, 99)
    assert settings == Decoder()
    assert settings.changed({"position.base": 1000}).position == Sinusoidal(base=1000.0)
    assert settings.changed({"position.kind": "none"}).position == NoPosition()
    windowed = Decoder(attention=Attention(window=4, qk_norm=RmsNorm()))
    emptied = windowed.changed({"attention.window": "none", "attention.qk_norm": "none"})
    assert (emptied.attention.window, emptied.attention.qk_norm) == (None, None)
    heads = {"heads.words.kind": "tagging", "heads.label": {"kind": "classification", "classes": 3}}
    assert Encoder().changed(heads).heads == {"words": Tagging(), "label": Classification(classes=3)}


def test_frozen_settings_raise_our_own_error() -> None:
    settings = Decoder()
    with pytest.raises(SettingsError, match=r"width cannot be set: .*settings\.changed\(\{'width': 3\}\)"):
        settings.width = 3  # type: ignore[misc]
    with pytest.raises(SettingsError, match="width cannot be deleted"):
        del settings.width
    with pytest.raises(SettingsError, match=r"changes \(3\) must be a dict"):
        settings.changed(3)  # type: ignore[arg-type]
    assert settings == Decoder()


def test_another_kind_resets_its_own_table_only() -> None:
    settings = Decoder(position=Rotary(base=500.0, fraction=0.5))
    assert settings.changed({"position.kind": "sinusoidal"}).position == Sinusoidal()
    assert settings.changed({"position.kind": "alibi"}).position == Alibi()
    assert settings.changed({"position": {"kind": "sinusoidal", "base": 7}}).position == Sinusoidal(base=7.0)
    same = settings.changed({"position.kind": "rotary", "position.fraction": 0.25})
    assert same.position == Rotary(base=500.0, fraction=0.25)
    changed = Decoder(width=64, ffn=Gated(hidden=5)).changed({"norm.kind": "rms"})
    assert (changed.width, changed.ffn, changed.norm) == (64, Gated(hidden=5), RmsNorm())


def test_overrides_read_toml_values_and_bare_words() -> None:
    words = ["model.attention.kv_heads=2", "model.position.kind=rotary", "a.b = 1e-3", "a.c=[1, 2]", "a.d=none"]
    assert read_overrides([*words, "a.e='x y'"]) == {
        "model": {"attention": {"kv_heads": 2}, "position": {"kind": "rotary"}},
        "a": {"b": 0.001, "c": [1, 2], "d": "none", "e": "x y"},
    }
    assert read_overrides(["a=true", "b=1_000", "c=x=y", "d="]) == {"a": True, "b": 1000, "c": "x=y", "d": ""}
    assert read_overrides(["a.b=1", "a.b=2"]) == {"a": {"b": 2}}
    assert nested({"a": {"b": 1}, "a.c": 2, "a.d": {"e.f": 3}}) == {"a": {"b": 1, "c": 2, "d": {"e": {"f": 3}}}}


def test_every_variant_survives_toml_and_is_documented() -> None:
    for name, cls in VARIANTS.items():
        value = example(cls)
        text = to_toml(value)
        assert from_toml(cls, text) == value, name
        assert tomllib.loads(text).get("kind") == kind_of(cls), name
        assert (cls.__doc__ or "").strip().endswith((".", "?", ")")), name
        for field, kind, meaning in describe(cls):
            assert kind, field
            assert meaning.endswith((".", "?")), f"{name}.{field}: {meaning!r}"
    assert to_table(Attention()) == {"heads": 8, "bias": True, "qk_norm_joint": False, "sinks": False, "dropout": 0.0}


def test_words_that_are_not_unicode() -> None:
    """As Python reads them from a command line that is not UTF-8."""
    with pytest.raises(SettingsError, match="data"):
        parse(AnyData, {"kind": "\udcff"}, "data")
