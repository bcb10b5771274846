"""From a recipe's model table to settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from settings_cases import to_toml

from regard.blocks.settings import Learned, Rotary
from regard.errors import SettingsError
from regard.models.presets import preset
from regard.models.settings import Decoder
from regard.settings import read_overrides, read_toml
from regard.tasks.recipe import model_settings, read_recipe


def test_a_preset_with_changes() -> None:
    recipe = read_toml(
        'task = "translate"\n[model]\npreset = "transformer-tiny"\ndropout = 0.2\nattention.kv_heads = 2'
    )
    assert model_settings(recipe) == preset("transformer-tiny", dropout=0.2, attention={"kv_heads": 2})


def test_everything_spelled_out() -> None:
    recipe = read_toml('[model]\nkind = "decoder"\nvocabulary = 100\nposition.kind = "rotary"')
    assert model_settings(recipe) == Decoder(vocabulary=100, position=Rotary())


def test_overrides_come_last() -> None:
    recipe = read_toml('[model]\npreset = "gpt2"\ndropout = 0.2\ndepth = 3')
    assert model_settings(recipe, read_overrides(["dropout=0.3"])) == preset("gpt2", dropout=0.3, depth=3)


def test_an_override_may_name_another_preset() -> None:
    recipe = read_toml('[model]\npreset = "gpt2"\ndropout = 0.2')
    assert model_settings(recipe, read_overrides(["preset=llama-tiny"])) == preset("llama-tiny", dropout=0.2)


def test_a_kind_resets_its_table_only_where_it_differs() -> None:
    recipe = read_toml('[model]\npreset = "gpt2"\nposition.length = 77')
    assert model_settings(recipe, read_overrides(["position.kind=learned"])) == preset(
        "gpt2", position=Learned(length=77)
    )
    assert model_settings(recipe, read_overrides(["position.kind=rotary"])) == preset("gpt2", position=Rotary())
    assert model_settings(recipe, read_overrides(["kind=decoder"])) == preset("gpt2", position=Learned(length=77))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "model needs a preset or a kind"),
        ("[model]\ndepth = 3", "model needs a preset or a kind"),
        ('model = "gpt2"', r"model \('gpt2'\) must be a table"),
        ("[model]\npreset = 3", r"model.preset \(3\) must be a name"),
        ('[model]\npreset = "gtp2"', r"did you mean gpt2\?"),
        (
            '[model]\npreset = "gpt2"\nattention.hedas = 3',
            r"unknown setting model.attention.hedas \(did you mean heads\?\)",
        ),
        ('[model]\nkind = "decodr"', r"did you mean decoder\?"),
    ],
)
def test_bad_recipes(text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        model_settings(read_toml(text))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"recipe \(.*none.toml\) cannot be read: No such file"):
        read_recipe(tmp_path / "none.toml")
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsError, match="is not UTF-8"):
        read_recipe(binary)
    broken = tmp_path / "broken.toml"
    broken.write_text("[model", encoding="utf-8")
    with pytest.raises(SettingsError, match=r"recipe \(.*broken.toml\) is not valid TOML"):
        read_recipe(broken)


def test_an_unknown_table_names_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text("[dta]\ntrain = []\n", encoding="utf-8")
    with pytest.raises(SettingsError) as caught:
        read_recipe(path)
    assert str(caught.value).startswith(f"recipe ({path}): unknown setting dta (did you mean data?)")


def test_a_file_that_is_a_model_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "model.toml"
    path.write_text(to_toml(preset("gpt2")), encoding="utf-8")
    assert model_settings(read_recipe(path)) == preset("gpt2")
    path.write_text('preset = "gpt2"\ndropout = 0.0\n', encoding="utf-8")
    assert model_settings(read_recipe(path)) == preset("gpt2", dropout=0.0)
