"""Errors of settings: they name the setting, its value, the rule and the remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from regard.blocks.settings import Attention, Llama3Scaling, Relative, Rotary, YarnScaling
from regard.errors import RegardError, SettingsError
from regard.models.build import build
from regard.models.count import count
from regard.models.settings import AnyModel, Decoder, Encoder, EncoderDecoder, Vision
from regard.settings import USUAL_NAMES, Settings, nested, parse, read_overrides, read_toml, variants
from regard.tasks.recipe import make_job
from regard.tasks.task import find_task
from regard.training.settings import Train


def message(action: Callable[[], object]) -> str:
    with pytest.raises(SettingsError) as caught:
        action()
    return str(caught.value)


def test_values_are_refused_rather_than_converted() -> None:
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"width": "512"}, "width ('512')", "integer"),
        ({"width": True}, "width (True)", "integer"),
        ({"width": 0}, "width (0)", "greater than 0"),
        ({"dropout": 1.0}, "dropout (1.0)", "less than 1"),
        ({"tied": 1}, "tied (1)", "boolean"),
        ({"attention.window": 0}, "attention.window (0)", "greater than 0"),
        ({"position.base": float("inf")}, "position.base (inf)", "finite"),
    ]
    for changes, start, rule in cases:
        text = message(lambda changes=changes: Decoder().changed(changes))  # type: ignore[misc]
        assert text.startswith(start), text
        assert rule in text, text


def test_a_wrong_number_of_two_kinds_is_named_as_in_a_recipe() -> None:
    for warmup in (-1, 1.5, "x"):
        lines = message(lambda warmup=warmup: Train().changed({"schedule.warmup": warmup})).splitlines()  # type: ignore[misc]
        assert {line.split(" is wrong")[0] for line in lines} == {f"schedule.warmup ({warmup!r})"}


def test_an_unknown_key_names_its_path_and_the_nearest_key() -> None:
    scaling = {"kind": "rotary", "scaling": {"kind": "linear", "factor": 2.0, "fast": 1}}
    cases: list[tuple[dict[str, Any], str, str, str]] = [
        ({"kind": "decoder", "widht": 3}, "widht", "width", "attention, depth, dropout"),
        ({"kind": "decoder", "attention": {"headz": 3}}, "attention.headz", "heads", "bias, dropout, head_size"),
        (
            {"kind": "decoder", "attention": {"qk_norm": {"kind": "rms", "epz": 1.0}}},
            "attention.qk_norm.epz",
            "eps",
            "",
        ),
        ({"kind": "decoder", "position": scaling}, "position.scaling.fast", "factor", "factor, kind"),
        ({"kind": "encoder", "heads": {"x": {"kind": "tagging", "clases": 3}}}, "heads.x.clases", "classes", ""),
    ]
    for table, key, near, known in cases:
        text = message(lambda table=table: parse(AnyModel, table, "model"))  # type: ignore[misc]
        hint = f" (did you mean {near}?)" if near else ""
        assert text.startswith(f"unknown setting model.{key}{hint}"), text
        assert f"known here: {known}" in text


def test_names_of_other_libraries_are_hints() -> None:
    for path in " or ".join(USUAL_NAMES).split(" or "):  # every suggestion is a setting
        part, *names = path.split(".")
        owner: Any = {"train": Train, "model": EncoderDecoder, "task": find_task("translate").settings_type}[part]
        for name in names:
            assert name in owner.model_fields, path
            owner = next(iter(variants(owner.model_fields[name].annotation).values()), Attention)
    for name, ours in (
        ("lr", "train.optimizer.rate"),
        ("batch_size", "train.tokens or train.examples"),
        ("d_model", "model.width"),
        ("n_heads", "model.attention.heads"),
        ("epochs", "train.epochs"),
        ("minutes", "train.minutes"),
        ("dropout", "model.dropout"),
    ):
        hint = f"unknown setting {name} (did you mean {ours}?)"
        assert message(lambda name=name: make_job("x", {}, {name: 1})).startswith(hint)  # type: ignore[misc]
    wrong = {"train.optimizer.lr": "train.optimizer.rate", "train.batch_size": "train.tokens or train.examples"}
    for path, ours in wrong.items():
        table = {"task": "translate", **nested({path: 1})}
        assert f"unknown setting {path} (did you mean {ours}?)" in message(lambda table=table: make_job("x", table, {}))  # type: ignore[misc]
    assert "unknown setting d_model (did you mean width?)" in message(lambda: Decoder(d_model=3))  # type: ignore[call-arg]


def test_an_unknown_choice_names_the_nearest_and_all() -> None:
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"kind": "encdr"}, "model.kind (encdr)", "(did you mean encoder?); choose one of encoder-decoder, encoder, "),
        ({"kind": "decoder", "position": {"kind": "rotry"}}, "model.position.kind (rotry)", "(did you mean rotary?)"),
        (
            {"kind": "decoder", "norm_place": "prae"},
            "model.norm_place (prae)",
            "(did you mean pre?); choose one of pre",
        ),
        (
            {"kind": "encoder-decoder", "tied": ["source", "outputs"]},
            "model.tied.1 (outputs)",
            "(did you mean output?)",
        ),
    ]
    for table, start, hint in cases:
        text = message(lambda table=table: parse(AnyModel, table, "model"))  # type: ignore[misc]
        assert text.startswith(start), text
        assert hint in text, text


def test_tables_and_lists() -> None:
    assert 'write model.kind = "..."' in message(lambda: parse(AnyModel, {}, "model"))
    assert 'write kind = "..."' in message(lambda: parse(AnyModel, {}))
    table = {"kind": "encoder", "heads": {"a": {}}}
    assert 'write heads.a.kind = "..."' in message(lambda: parse(AnyModel, table))
    for changes, remedy in (
        ({"position": "rotary"}, 'position.kind = "rotary"'),
        ({"position": 5}, "position.KEY = VALUE"),
        ({"attention": 8}, "attention.KEY = VALUE"),
        ({"heads": [1]}, "heads.KEY = VALUE"),
    ):
        assert f"must be a table; write {remedy}" in message(lambda changes=changes: Encoder().changed(changes))  # type: ignore[misc]
    table = {"kind": "rotary", "scaling": {"kind": "linear"}}
    assert "model.position.scaling.factor is missing" in message(lambda: parse(Rotary, table, "model.position"))
    assert "image (384) must be a list" in message(lambda: Vision(image=384))  # type: ignore[arg-type]


def test_several_mistakes_are_reported_at_once() -> None:
    lines = message(lambda: Decoder().changed({"widht": 1, "dropout": 2.0, "norm.epz": 1.0})).splitlines()
    assert {line.split(" (")[0] for line in lines} == {"dropout", "unknown setting norm.epz", "unknown setting widht"}
    assert issubclass(SettingsError, RegardError)
    assert issubclass(SettingsError, ValueError)


def test_settings_that_contradict() -> None:
    odd: dict[str, Any] = {"width": 510, "attention.heads": 5}
    cases: list[tuple[Settings, dict[str, Any], tuple[str, ...]]] = [
        (Decoder(), {"attention.heads": 7}, ("width (512)", "heads (7)", "attention.head_size")),
        (Decoder(), {"attention.kv_heads": 3}, ("attention.heads (8)", "attention.kv_heads (3)")),
        (Decoder(), {"position": {"kind": "rotary", "fraction": 0.3}}, ("position.fraction (0.3)", "19")),
        (EncoderDecoder(), {"tied": ["source"]}, ("tied (['source'])", "[]")),
        (EncoderDecoder(), {"target_vocabulary": 5}, ("tied", "37000", "target_vocabulary 5", '["target", "output"]')),
        (Vision(), {"image": [230, 224]}, ("image ([230, 224])", "patch (16)")),
        (Vision(), odd | {"position.kind": "sinusoidal-2d"}, ("width (510)", "sinusoidal-2d")),
        (Vision(), odd | {"position.kind": "rotary-2d"}, ("attention.head_size (102)", "multiple of 4")),
        (Vision(), {"class_token": False, "heads.label.kind": "classification"}, ("class_token", 'pooling "mean"')),
        (Vision(), {"attention.window": 3}, ("attention.window (3)",)),
        (Decoder(), {"attention.latent": {"rank": 8, "rotary": 8}}, ("attention.latent", 'position.kind = "rotary"')),
        (Vision(), {"attention.latent": {"rank": 8, "rotary": 8}}, ("attention.latent", "images")),
        (
            Decoder(),
            {"attention.latent": {"rank": 8, "rotary": 80}},
            ("attention.latent.rotary (80)", "head size (64)"),
        ),
        (Decoder(), {"attention": {"kv_heads": 2, "latent": {"rank": 8, "rotary": 8}}}, ("latent", "kv_heads")),
        (Decoder(), {"attention.pattern": ["window"]}, ("attention: pattern (['window'])", "needs window")),
        (Decoder(), {"attention.window": 4, "attention.pattern": ["full"]}, ("pattern (['full'])", '"window"')),
        (Decoder(), {"position": {"kind": "rotary", "window_base": 10.0}}, ("position.window_base (10.0)", "window")),
    ]
    for settings, changes, parts in cases:
        text = message(lambda settings=settings, changes=changes: settings.changed(changes))  # type: ignore[misc]
        assert all(part in text for part in parts), text
    for kind, fields in (
        (Relative, {"buckets": 32, "longest": 16}),
        (YarnScaling, {"factor": 2.0, "original_length": 8, "beta_fast": 1.0, "beta_slow": 32.0}),
        (Llama3Scaling, {"low_frequency_factor": 4.0}),
    ):
        assert list(fields)[-1] in message(lambda kind=kind, fields=fields: kind(**fields))  # type: ignore[misc]
    table = {"kind": "decoder", "attention": {"heads": 7}}
    assert message(lambda: parse(AnyModel, table, "model")).startswith("model: width (512)")


def test_the_remedies_work() -> None:
    assert Decoder().changed({"attention.heads": 7, "attention.head_size": 64}).head_size == 64
    assert EncoderDecoder().changed({"target_vocabulary": 5, "tied": ["target", "output"]}).target_size == 5
    assert EncoderDecoder().changed({"tied": []}).tied == ()


def test_files_and_overrides() -> None:
    assert message(lambda: read_toml("width = ", "recipes/a.toml")).startswith("recipes/a.toml is not valid TOML: ")
    for text in ("dropout", "=3", "a..b=1", ".a=1", "a.=1"):
        assert repr(text) in message(lambda text=text: read_overrides([text]))  # type: ignore[misc]
    assert message(lambda: nested({"a": 5, "a.b": 1})).startswith("a.b: a ")
    assert message(lambda: nested({"a.b": 1, "a": 5})).startswith("a has")
    assert read_overrides(["dropout=0.1\nwidth=3"]) == {"dropout": "0.1\nwidth=3"}  # no second setting


def test_absurd_numbers_and_nesting() -> None:
    """One sentence for each, at once; no traceback, no endless work."""
    digits = "9" * 5_000
    texts = [f"width = {digits}", f"width = 0x{'f' * 6_000}", "width = " + "[" * 9_000, "a = " + "[" * 60 + "]" * 60]
    texts += [".".join("a" * 9_000) + " = 1", "[" + ".".join("a" * 50) + "]", f"depth = {2**60}"]
    for text in texts:
        with pytest.raises(SettingsError) as caught:
            parse(Decoder, read_toml(text))
        assert len(str(caught.value)) < 600
    for override in (f"width={digits}", f"width=0x{'f' * 6_000}", "width=" + "[" * 9_000, ".".join("a" * 9_000) + "=1"):
        with pytest.raises(SettingsError) as caught:
            parse(Decoder, read_overrides([override]))
        assert len(str(caught.value)) < 600
    for changes in ({"depth": 99_999_999}, {"width": 2**40, "attention.heads": 1}, {"attention.heads": 10**30}):
        with pytest.raises(SettingsError, match=next(iter(changes)).rpartition(".")[2]):
            Decoder().changed(changes)
    for sizes in ({"batch": 10**18}, {"length": 10**20}, {"length": 0}):
        with pytest.raises(SettingsError, match=next(iter(sizes))):
            count(Decoder(), **sizes)
    with pytest.raises(SettingsError, match="too large for PyTorch"):
        build(Vision(image=(2**20, 2**20), patch=2**20, channels=2**20, width=2**20), "meta")
