"""What settings say about mistakes: the setting, its value, the rule and the remedy, each sentence in full."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from regard.blocks.settings import Llama3Scaling, Relative, Rotary, YarnScaling
from regard.errors import RegardError, SettingsError
from regard.models.settings import AnyModel, Decoder, Encoder, EncoderDecoder, Vision
from regard.settings import Settings, did_you_mean, nested, parse, read_overrides, read_toml

DECODER_KEYS = (
    "attention, depth, dropout, embedding_norm, embedding_scale, ffn, final_norm, initial, kind, layer_scale, norm, "
    "norm_place, output_bias, position, stochastic_depth, tied, vocabulary, width"
)


def message(action: Callable[[], object]) -> str:
    with pytest.raises(SettingsError) as caught:
        action()
    return str(caught.value)


# --------------------------------------------------------------------------------------------------------- wrong values


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
        ({"position.base": float("inf")}, "position.base (inf) is wrong: input should be a finite number"),
        ({"position.base": 1.0}, "position.base (1.0) is wrong: input should be greater than 1"),
    ],
)
def test_values_are_refused_rather_than_converted(changes: dict[str, Any], expected: str) -> None:
    assert message(lambda: Decoder().changed(changes)) == expected


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


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"position": "rotary"}, "position ('rotary') must be a table; write position.kind = \"rotary\""),
        ({"position": 5}, "position (5) must be a table; write position.KEY = VALUE"),
        ({"attention": 8}, "attention (8) must be a table; write attention.KEY = VALUE"),
        ({"heads": [1]}, "heads ([1]) must be a table; write heads.KEY = VALUE"),
    ],
)
def test_a_value_where_a_table_belongs_says_how_to_write_it(changes: dict[str, Any], expected: str) -> None:
    assert message(lambda: Encoder().changed(changes)) == expected


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
            "image ([230, 224]) must be multiples of patch (16); change one",
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


# -------------------------------------------------------------------------------------------------- files and overrides


def test_broken_toml_names_its_source() -> None:
    text = message(lambda: read_toml("width = ", "recipes/a.toml"))
    assert text.startswith("recipes/a.toml is not valid TOML: ")


@pytest.mark.parametrize("text", ["dropout", "=3", "a..b=1", ".a=1", "a.=1"])
def test_what_is_no_override_is_refused(text: str) -> None:
    assert message(lambda: read_overrides([text])) == (
        f"{text!r} is no override; write key=value, such as model.dropout=0.2"
    )


def test_a_value_and_a_table_at_one_place_is_refused() -> None:
    assert message(lambda: nested({"a": 5, "a.b": 1})) == "a.b: a is given a value and a table; give one of them"
    assert message(lambda: nested({"a.b": 1, "a": 5})) == "a is given a value and a table; give one of them"


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        (
            Relative,
            {"buckets": 32, "longest": 16},
            "longest (16) must be more than half of buckets (32), which hold one distance each; "
            "raise longest or lower buckets",
        ),
        (
            YarnScaling,
            {"factor": 2.0, "original_length": 8, "beta_fast": 1.0, "beta_slow": 32.0},
            "beta_slow (32.0) must not be above beta_fast (1.0); exchange them",
        ),
        (
            Llama3Scaling,
            {"low_frequency_factor": 4.0},
            "low_frequency_factor (4.0) must be below high_frequency_factor (4.0); the usual ones are 1 and 4",
        ),
    ],
)
def test_positions_that_would_divide_by_zero(kind: type[Settings], fields: dict[str, float], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        kind(**fields)
    assert str(caught.value) == message


def test_case_does_not_hide_what_was_meant() -> None:
    assert did_you_mean("GPT2", ["gpt2", "bert-base"]) == " (did you mean gpt2?)"


def test_a_line_break_gives_no_second_setting() -> None:
    assert read_overrides(["dropout=0.1\nwidth=3"]) == {"dropout": "0.1\nwidth=3"}


def test_a_list_is_asked_for_by_its_name() -> None:
    assert message(lambda: Vision(image=384)) == (
        "image (384) must be a list; write it in brackets, words in quotes: [...]"
    )
