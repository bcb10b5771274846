"""Settings: strict, frozen, written as TOML and back, changed by dotted overrides, and clear about mistakes."""

from __future__ import annotations

import tomllib
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from regard.blocks import settings as blocks
from regard.blocks.settings import Alibi, Attention, Gated, LinearScaling, NoPosition, RmsNorm, Rotary, Sinusoidal
from regard.errors import RegardError, SettingsError
from regard.models import settings as models
from regard.models.settings import AnyModel, Classification, Decoder, Encoder, EncoderDecoder, Tagging, Vision
from regard.settings import (
    Settings,
    describe,
    did_you_mean,
    from_toml,
    kind_of,
    merge,
    nested,
    parse,
    read_overrides,
    read_toml,
    to_table,
    to_toml,
    type_text,
    variants,
)

UNIONS = [
    models.AnyModel,
    models.Initial,
    models.TextHead,
    models.ImageHead,
    blocks.Norm,
    blocks.FeedForward,
    blocks.TextPosition,
    blocks.ImagePosition,
    blocks.RotaryScaling,
]
VARIANTS = {cls.__name__: cls for union in UNIONS for cls in variants(union).values()} | {"Attention": Attention}
REQUIRED = {"factor": 2.0, "original_length": 64}

DECODER_KEYS = (
    "attention, depth, dropout, embedding_norm, embedding_scale, ffn, final_norm, initial, kind, layer_scale, norm, "
    "norm_place, output_bias, position, stochastic_depth, tied, vocabulary, width"
)


def example(cls: type[Settings]) -> Settings:
    """A value of the class with nothing given but what it requires."""
    needed = {name: REQUIRED[name] for name, field in cls.model_fields.items() if field.is_required()}
    return cls(**needed)


def message(action: Any) -> str:
    with pytest.raises(SettingsError) as caught:
        action()
    return str(caught.value)


# ----------------------------------------------------------------------------------------------- strict and frozen


def test_a_value_cannot_be_changed_afterwards() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Decoder().width = 3


def test_equal_settings_are_equal_values() -> None:
    assert Decoder(width=64) == Decoder(width=64)
    assert Decoder(width=64) != Decoder(width=128)
    assert hash(Decoder(width=64)) == hash(Decoder(width=64))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"width": "512"}, "width ('512') is wrong: input should be a valid integer"),
        ({"width": 512.0}, "width (512.0) is wrong: input should be a valid integer"),
        ({"width": True}, "width (True) is wrong: input should be a valid integer"),
        ({"width": 0}, "width (0) is wrong: input should be greater than 0"),
        ({"dropout": 1.0}, "dropout (1.0) is wrong: input should be less than 1"),
        ({"dropout": True}, "dropout (True) is wrong: input should be a valid number"),
        ({"tied": 1}, "tied (1) is wrong: input should be a valid boolean"),
        ({"width": "none"}, "width ('none') is wrong: input should be a valid integer"),
        ({"attention.window": 0}, "attention.window (0) is wrong: input should be greater than 0"),
        ({"position.base": 1.0}, "position.base (1.0) is wrong: input should be greater than 1"),
    ],
)
def test_values_are_refused_rather_than_converted(changes: dict[str, Any], expected: str) -> None:
    assert message(lambda: Decoder().changed(changes)) == expected


def test_a_whole_number_is_a_float() -> None:
    assert Decoder().changed({"position.base": 1000}).position == Sinusoidal(base=1000.0)


def test_changing_validates_and_leaves_the_original_alone() -> None:
    settings = Decoder()
    changed = settings.changed({"attention.heads": 4, "ffn": {"hidden": 99}})
    assert (changed.attention.heads, changed.ffn.hidden) == (4, 99)
    assert settings == Decoder()


# ------------------------------------------------------------------------------------------------ unknown settings


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (
            {"kind": "decoder", "widht": 3},
            f"unknown setting model.widht (did you mean width?); known here: {DECODER_KEYS}",
        ),
        (
            {"kind": "decoder", "zzz": 3},
            f"unknown setting model.zzz; known here: {DECODER_KEYS}",
        ),
        (
            {"kind": "decoder", "attention": {"headz": 3}},
            "unknown setting model.attention.headz (did you mean heads?); known here: bias, dropout, head_size, heads, "
            "kv_heads, output_bias, qk_norm, scale, soft_cap, value_size, window",
        ),
        (
            {"kind": "decoder", "position": {"kind": "sinusoidal", "bse": 3}},
            "unknown setting model.position.bse (did you mean base?); known here: base, kind, order",
        ),
        (
            {"kind": "decoder", "attention": {"qk_norm": {"kind": "rms", "epz": 1.0}}},
            "unknown setting model.attention.qk_norm.epz (did you mean eps?); known here: eps, kind, unit_offset",
        ),
        (
            {
                "kind": "decoder",
                "position": {"kind": "rotary", "scaling": {"kind": "linear", "factor": 2.0, "fast": 1}},
            },
            "unknown setting model.position.scaling.fast (did you mean factor?); known here: factor, kind",
        ),
        (
            {"kind": "encoder", "heads": {"words": {"kind": "tagging", "clases": 3}}},
            "unknown setting model.heads.words.clases (did you mean classes?); known here: classes, dropout, kind",
        ),
        (
            {"kind": "encoder", "heads": {"tagging": {"kind": "tagging", "clases": 3}}},
            "unknown setting model.heads.tagging.clases (did you mean classes?); known here: classes, dropout, kind",
        ),
    ],
)
def test_an_unknown_key_names_its_place_and_the_nearest_known_one(table: dict[str, Any], expected: str) -> None:
    assert message(lambda: parse(AnyModel, table, "model")) == expected


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (
            {"kind": "encdr"},
            "model.kind (encdr) is not known (did you mean encoder?); choose one of encoder-decoder, encoder, decoder, "
            "vision",
        ),
        (
            {"kind": "decoder", "position": {"kind": "rotry"}},
            "model.position.kind (rotry) is not known (did you mean rotary?); choose one of sinusoidal, learned, "
            "relative, transformer-xl, rotary, alibi, none",
        ),
        (
            {"kind": "decoder", "norm_place": "prae"},
            "model.norm_place (prae) is not known (did you mean pre?); choose one of pre, post, sandwich",
        ),
        (
            {"kind": "vision", "heads": {"a": {"kind": "masked"}}},
            "model.heads.a.kind (masked) is not known; choose one of classification, pooling",
        ),
        (
            {"kind": "encoder-decoder", "tied": ["source", "outputs"]},
            "model.tied.1 (outputs) is not known (did you mean output?); choose one of source, target, output",
        ),
    ],
)
def test_an_unknown_choice_names_the_nearest_and_all(table: dict[str, Any], expected: str) -> None:
    assert message(lambda: parse(AnyModel, table, "model")) == expected


def test_a_table_without_its_kind_says_where_to_write_it() -> None:
    assert message(lambda: parse(AnyModel, {}, "model")) == 'model needs a kind; write model.kind = "..."'
    assert message(lambda: parse(AnyModel, {})) == 'the table needs a kind; write kind = "..."'
    table = {"kind": "encoder", "heads": {"a": {}}}
    assert message(lambda: parse(AnyModel, table)) == 'heads.a needs a kind; write heads.a.kind = "..."'


def test_a_missing_value_is_named() -> None:
    table = {"kind": "rotary", "scaling": {"kind": "linear"}}
    assert message(lambda: parse(Rotary, table, "model.position")) == (
        "model.position.scaling.factor is missing; give it a value"
    )


def test_several_mistakes_are_told_at_once() -> None:
    lines = message(lambda: Decoder().changed({"widht": 1, "dropout": 2.0, "norm.epz": 1.0})).splitlines()
    assert [line.split(" (")[0] for line in lines] == ["unknown setting norm.epz", "dropout", "unknown setting widht"]


def test_a_settings_error_is_a_value_error_of_ours() -> None:
    assert issubclass(SettingsError, RegardError)
    assert issubclass(SettingsError, ValueError)


def test_did_you_mean_stays_silent_when_nothing_is_near() -> None:
    assert did_you_mean("rotry", ["rotary", "alibi"]) == " (did you mean rotary?)"
    assert did_you_mean("xyz", ["rotary", "alibi"]) == ""


# ------------------------------------------------------------------------------------------ settings that contradict


@pytest.mark.parametrize(
    ("settings", "changes", "expected"),
    [
        (
            Decoder(),
            {"attention.heads": 7},
            "width (512) must be a multiple of heads (7); set attention.head_size to choose freely",
        ),
        (
            Decoder(),
            {"attention.kv_heads": 3},
            "attention.heads (8) must be a multiple of attention.kv_heads (3); choose a divisor",
        ),
        (
            Decoder(),
            {"position": {"kind": "rotary", "fraction": 0.3}},
            "position.fraction (0.3) of the head size (64) gives 19 channels to turn, which must be even and at least "
            "2; choose another fraction",
        ),
        (
            EncoderDecoder(),
            {"tied": ["source"]},
            "tied (['source']) must name two or three different matrices, or none: []",
        ),
        (
            EncoderDecoder(),
            {"target_vocabulary": 5},
            "tied (['source', 'target', 'output']) needs one vocabulary, but vocabulary is 37000 and target_vocabulary "
            '5; tie ["target", "output"] at the most',
        ),
        (
            Vision(),
            {"image": [230, 224]},
            "image ([230, 224]) must be multiples of patch (16); choose another patch",
        ),
        (
            Vision(),
            {"width": 510, "attention.heads": 5, "position.kind": "sinusoidal-2d"},
            "width (510) must be a multiple of 4 for sinusoidal-2d positions",
        ),
        (
            Vision(),
            {"width": 510, "attention.heads": 5, "position.kind": "rotary-2d"},
            "head size (102) must be a multiple of 4 for rotary-2d positions; set attention.head_size",
        ),
        (
            Vision(),
            {"class_token": False, "heads.label.kind": "classification"},
            'a head with pooling "class" needs class_token = true; or choose pooling "mean"',
        ),
    ],
)
def test_contradictions_name_values_rule_and_remedy(settings: Settings, changes: dict[str, Any], expected: str) -> None:
    assert message(lambda: settings.changed(changes)) == expected


def test_a_contradiction_names_its_table() -> None:
    table = {"kind": "decoder", "attention": {"heads": 7}}
    assert message(lambda: parse(AnyModel, table, "model")) == (
        "model: width (512) must be a multiple of heads (7); set attention.head_size to choose freely"
    )


def test_the_remedies_work() -> None:
    assert Decoder().changed({"attention.heads": 7, "attention.head_size": 64}).head_size == 64
    assert EncoderDecoder().changed({"target_vocabulary": 5, "tied": ["target", "output"]}).target_size == 5
    assert EncoderDecoder().changed({"tied": []}).tied == ()


# -------------------------------------------------------------------------------------------------------- overrides


def test_overriding_a_kind_resets_its_table() -> None:
    settings = Decoder(position=Rotary(base=500.0, fraction=0.5))
    assert settings.changed({"position.kind": "sinusoidal"}).position == Sinusoidal()
    assert settings.changed({"position.kind": "alibi"}).position == Alibi()
    assert settings.changed({"position": {"kind": "sinusoidal", "base": 7}}).position == Sinusoidal(base=7.0)


def test_overriding_a_kind_by_itself_keeps_its_table() -> None:
    settings = Decoder(position=Rotary(base=500.0))
    assert settings.changed({"position.kind": "rotary", "position.fraction": 0.5}).position == Rotary(
        base=500.0, fraction=0.5
    )


def test_overriding_a_kind_leaves_its_neighbours_alone() -> None:
    changed = Decoder(width=64, ffn=Gated(hidden=5)).changed({"norm.kind": "rms"})
    assert (changed.width, changed.ffn, changed.norm) == (64, Gated(hidden=5), RmsNorm())


def test_none_empties_an_optional_setting() -> None:
    settings = Decoder(attention=Attention(window=4, qk_norm=RmsNorm()))
    changed = settings.changed({"attention.window": "none", "attention.qk_norm": "none"})
    assert (changed.attention.window, changed.attention.qk_norm) == (None, None)


def test_none_is_also_a_kind() -> None:
    assert Decoder().changed({"position.kind": "none"}).position == NoPosition()


def test_optional_settings_are_empty_unless_given() -> None:
    """TOML leaves empty fields out, so a field that may be empty must also start empty, or a file would lose it."""
    for cls in VARIANTS.values():
        for name, field in cls.model_fields.items():
            if type(None) in get_args(field.annotation):
                assert field.default is None, f"{cls.__name__}.{name}"


def test_heads_are_added_by_name() -> None:
    changed = Encoder().changed(
        {"heads.words.kind": "tagging", "heads.label": {"kind": "classification", "classes": 3}}
    )
    assert changed.heads == {"words": Tagging(), "label": Classification(classes=3)}


def test_overrides_read_toml_values_and_bare_words() -> None:
    assert read_overrides(
        [
            "model.attention.kv_heads=2",
            "model.position.kind=rotary",
            "a.b = 1e-3",
            "a.c=[1, 2]",
            "a.d=none",
            "a.e='x y'",
        ]
    ) == {
        "model": {"attention": {"kv_heads": 2}, "position": {"kind": "rotary"}},
        "a": {"b": 0.001, "c": [1, 2], "d": "none", "e": "x y"},
    }
    assert read_overrides(["a=true", "b=1_000", "c=x=y", "d="]) == {"a": True, "b": 1000, "c": "x=y", "d": ""}


def test_the_last_override_wins() -> None:
    assert read_overrides(["a.b=1", "a.b=2"]) == {"a": {"b": 2}}


@pytest.mark.parametrize("text", ["dropout", "=3", "a..b=1", ".a=1", "a.=1"])
def test_what_is_no_override_is_refused(text: str) -> None:
    assert message(lambda: read_overrides([text])) == (
        f"{text!r} is no override; write key=value, such as model.dropout=0.2"
    )


def test_a_value_and_a_table_at_one_place_is_refused() -> None:
    assert message(lambda: nested({"a": 5, "a.b": 1})) == "a.b: a is given a value and a table; give one of them"


def test_dotted_and_nested_keys_mix() -> None:
    assert nested({"a": {"b": 1}, "a.c": 2, "a.d": {"e.f": 3}}) == {"a": {"b": 1, "c": 2, "d": {"e": {"f": 3}}}}


def test_merge_does_not_touch_what_it_is_given() -> None:
    base: dict[str, Any] = {"a": {"kind": "x", "b": 1}, "c": 2}
    changes: dict[str, Any] = {"a": {"kind": "y"}}
    assert merge(base, changes) == {"a": {"kind": "y"}, "c": 2}
    assert base == {"a": {"kind": "x", "b": 1}, "c": 2}
    assert changes == {"a": {"kind": "y"}}


# ------------------------------------------------------------------------------------------------------------- TOML


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_every_variant_survives_toml(name: str) -> None:
    value = example(VARIANTS[name])
    text = to_toml(value)
    assert from_toml(type(value), text) == value
    assert tomllib.loads(text).get("kind") == kind_of(type(value))


def test_a_whole_model_survives_toml() -> None:
    settings = Decoder(
        attention=Attention(kv_heads=2, qk_norm=RmsNorm(eps=1e-5), window=128),
        ffn=Gated(hidden=100),
        norm=RmsNorm(unit_offset=True),
        norm_place="sandwich",
        position=Rotary(base=5e5, fraction=0.5, scaling=LinearScaling(factor=4.0)),
        final_norm=False,
        layer_scale=1e-4,
    )
    assert parse(AnyModel, read_toml(to_toml(settings))) == settings


def test_toml_is_read_as_people_write_it() -> None:
    text = """
        width = 256
        attention = { heads = 4, window = "none" }

        [position]
        kind = "rotary"
        base = 500_000
        """
    assert from_toml(Decoder, text) == Decoder(width=256, attention=Attention(heads=4), position=Rotary(base=500_000.0))


def test_broken_toml_names_its_source() -> None:
    text = message(lambda: read_toml("width = ", "recipes/a.toml"))
    assert text.startswith("recipes/a.toml is not valid TOML: ")


def test_a_table_leaves_out_what_is_empty() -> None:
    assert to_table(Attention()) == {"heads": 8, "bias": True, "dropout": 0.0}


# ------------------------------------------------------------------------------------------------------ description


@pytest.mark.parametrize("name", sorted(VARIANTS))
def test_every_class_and_field_says_what_it_is(name: str) -> None:
    cls = VARIANTS[name]
    assert cls.__doc__
    assert cls.__doc__.strip().endswith((".", "?", ")"))
    for field, kind, default, meaning in describe(cls):
        assert kind, field
        assert default, field
        assert meaning.endswith((".", "?")), f"{name}.{field}: {meaning!r}"


def test_types_are_told_as_a_recipe_writes_them() -> None:
    told = {name: kind for name, kind, _, _ in [*describe(Attention), *describe(Encoder), *describe(EncoderDecoder)]}
    assert told["window"] == "int | none"
    assert told["qk_norm"] == "layer | rms | none"
    assert told["norm_place"] == '"pre" | "post" | "sandwich"'
    assert told["heads"] == "table of masked | next-sentence | classification | tagging | spans | pooling"
    assert told["tied"] == 'list of "source" | "target" | "output"'
    assert type_text(Attention) == "Attention"


def test_variants_are_found_by_kind() -> None:
    assert list(variants(blocks.FeedForward)) == ["dense", "gated"]
    assert kind_of(Gated) == "gated"
    assert kind_of(Attention) is None
