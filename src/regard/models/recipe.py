"""From a recipe to a model's settings: its `[model]` table is a preset with changes laid over it, or spells all out.

```toml
[model]
preset = "transformer-tiny"
dropout = 0.2
attention.kv_heads = 2
```

A file that holds a model and nothing else, as `to_toml` writes it, may leave the line `[model]` out.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from regard.errors import SettingsError
from regard.models.presets import find_preset
from regard.models.settings import AnyModel, ModelSettings
from regard.settings import Table, did_you_mean, merge, parse, read_toml, to_table

PARTS = ("task", "data", "text", "model", "train", "reference")
"""What a recipe may hold: its job, and a table for each part of it."""


def read_recipe(path: Path) -> Table:
    """The tables of a recipe as they stand in the file; each reader takes its own, and what none knows is refused."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"recipe ({path}) cannot be read: {error.strerror}; give a TOML file") from None
    except UnicodeDecodeError:
        raise SettingsError(f"recipe ({path}) is not UTF-8 text; give a TOML file") from None
    recipe = read_toml(text, source=f"recipe ({path})")
    if "kind" in recipe or "preset" in recipe:
        return {"model": recipe}
    if unknown := [key for key in recipe if key not in PARTS]:
        name = unknown[0]
        known = ", ".join(PARTS)
        raise SettingsError(f"recipe ({path}): unknown setting {name}{did_you_mean(name, PARTS)}; known here: {known}")
    return recipe


def model_settings(recipe: Mapping[str, Any], changes: Mapping[str, Any] | None = None) -> ModelSettings:
    """The model of a recipe, with `changes` (a table like `[model]`: a command line's overrides) laid over it.

    First the preset, then the recipe's own table, then the changes: a `kind` is thus held against the one that it
    replaces, and resets its table only where it differs.
    """
    table = recipe.get("model", {})
    if not isinstance(table, Mapping):
        raise SettingsError(f"model ({table!r}) must be a table; write [model] and, below it, preset = {table!r}")
    changes = changes or {}
    name = changes.get("preset", table.get("preset"))
    base = {} if name is None else _preset_table(name)
    for layer in (table, changes):
        base = merge(base, {key: value for key, value in layer.items() if key != "preset"})
    if "kind" not in base:
        raise SettingsError('model needs a preset or a kind; write preset = "transformer-base", or another, in [model]')
    settings: ModelSettings = parse(AnyModel, base, "model")
    return settings


def _preset_table(name: object) -> Table:
    if not isinstance(name, str):
        raise SettingsError(f'model.preset ({name!r}) must be a name; write preset = "transformer-base", or another')
    return to_table(find_preset(name).settings)
