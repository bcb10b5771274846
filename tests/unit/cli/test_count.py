"""`regard count` and `regard presets`: tables for people, JSON for programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from regard.cli.app import app
from regard.cli.count import complete_preset, read_model
from regard.errors import SettingsError
from regard.format import amount, difference, size
from regard.models.presets import preset, preset_names

RECIPE = """
task = "translate"
[model]
preset = "transformer-tiny"
dropout = 0.2
[train]
tokens = 16_384
"""


def shown(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["count", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def as_json(*arguments: str) -> Any:
    return json.loads(shown(*arguments, "--json"))


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE, encoding="utf-8")
    return str(path)


# --------------------------------------------------------------------------------------------------------- for people


def test_a_table_for_people() -> None:
    text = shown("gpt2", "--by", "part")
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.strip()}
    assert rows["total"] == ["124,439,808"]
    assert rows["embedding.tokens"] == ["38,597,376", "31.0", "%"]
    assert "published: 124 M (openai/gpt-2" in text
    assert "tokens and output share one matrix, counted once" in text
    for line in ("FLOPs a token, forward", "memory of weights", "memory to train", "cache of a written token"):
        assert line in text


def test_the_difference_to_the_published_size() -> None:
    assert "published: 65 M (Vaswani et al. 2017, table 3); counted: 63.0 M, -3.0 %" in shown("transformer-base")


def test_a_changed_preset_has_no_published_size() -> None:
    assert "published" not in shown("gpt2", "depth=3")
    assert "published" in shown("gpt2", "depth=12")


def test_every_tensor() -> None:
    text = shown("llama-tiny", "--by", "tensor")
    row = next(line for line in text.splitlines() if line.startswith("decoder.4.attention.k.weight"))
    assert row.split() == ["decoder.4.attention.k.weight", "32", "x", "64", "2,048"]


def test_an_image_and_no_cache() -> None:
    text = shown("vit-b16")
    assert "FLOPs an image, forward" in text
    assert "cache" not in text


# ------------------------------------------------------------------------------------------------------- for programs


def test_json_for_programs() -> None:
    result = as_json("bert-base")
    assert result["parameters"] == sum(result["parts"].values()) == 109_482_240
    assert result["published"]["parameters"] == 110_000_000
    assert result["published"]["difference"] == 109_482_240 - 110_000_000
    assert result["flops"]["training"] == 3 * result["flops"]["forward"]
    assert result["memory"]["weights"] == 2 * 109_482_240
    assert (result["length"], result["batch"], result["dtype"]) == (512, 1, "bfloat16")
    assert result["settings"]["kind"] == "encoder"


def test_json_of_every_tensor() -> None:
    assert as_json("gpt2", "--by", "tensor")["tensors"]["embedding.tokens.weight"] == [50_257, 768]


def test_options_reach_the_count() -> None:
    result = as_json("gpt2", "--length", "100", "--batch", "8", "--dtype", "float32")
    assert (result["length"], result["batch"], result["memory"]["weights"]) == (100, 8, 4 * 124_439_808)


# --------------------------------------------------------------------------------------------- presets and overrides


@pytest.mark.parametrize("prefix", ["", "model."])
def test_overrides_with_and_without_prefix(prefix: str) -> None:
    overrides = [f"{prefix}attention.kv_heads=2", f"{prefix}position.kind=rotary"]
    expected = preset("gpt2", attention={"kv_heads": 2}, position={"kind": "rotary"})
    assert read_model("gpt2", overrides) == expected


def test_a_recipe(recipe: str) -> None:
    assert read_model(recipe, []) == preset("transformer-tiny", dropout=0.2)
    assert read_model(recipe, ["model.depth=2"]) == preset("transformer-tiny", dropout=0.2, depth=2)
    assert as_json(recipe)["parameters"] == as_json("transformer-tiny")["parameters"]


def test_a_preset_wins_over_a_file_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gpt2").write_text(RECIPE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert read_model("gpt2", []) == preset("gpt2")


def test_unknown_settings_are_named() -> None:
    with pytest.raises(SettingsError, match=r"unknown setting model.attention.hedas \(did you mean heads\?\)"):
        read_model("gpt2", ["attention.hedas=3"])


@pytest.mark.parametrize(
    "arguments", [["gpt2", "--length", "0"], ["gpt2", "--by", "layer"], ["gpt2", "--dtype", "int8"], []]
)
def test_wrong_usage(arguments: list[str]) -> None:
    assert CliRunner().invoke(app, ["count", *arguments]).exit_code == 2


def test_completion_of_presets() -> None:
    assert complete_preset("bert-m") == ["bert-mini", "bert-medium"]
    assert complete_preset("") == list(preset_names())


# ---------------------------------------------------------------------------------------------------- regard presets


def test_presets_are_listed() -> None:
    result = CliRunner().invoke(app, ["presets"])
    listed = [line.split()[0] for line in result.stdout.splitlines()[1:]]
    assert listed == list(preset_names())
    gpt3 = next(line for line in result.stdout.splitlines() if line.startswith("gpt3 "))
    assert gpt3.rstrip().endswith("counted only")


def test_presets_for_programs() -> None:
    listing = json.loads(CliRunner().invoke(app, ["presets", "--json"]).stdout)
    gpt2 = next(entry for entry in listing if entry["name"] == "gpt2")
    assert (gpt2["parameters"], gpt2["published"], gpt2["kind"]) == (124_439_808, "124 M", "decoder")


# ----------------------------------------------------------------------------------------------------------- figures


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1 k"),
        (63_045_632, "63.0 M"),
        (434_519_040, "435 M"),
        (1.5e9, "1.50 B"),
        (3e21, "3,000 E"),
    ],
)
def test_amounts(number: float, text: str) -> None:
    assert amount(number) == text


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 B"), (1023, "1,023 B"), (12_288, "12 KiB"), (126_091_264, "120 MiB"), (2**50, "1 PiB")]
)
def test_sizes(number: float, text: str) -> None:
    assert size(number) == text


def test_differences() -> None:
    assert difference(63, 65) == "-3.1 %"
    assert difference(2_598_912, 2_600_000) == "+0.0 %"
