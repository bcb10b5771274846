"""Presets: well-known models as settings, by name. `presets.toml` lists them with their exact and published sizes.

This module must not import torch, so that `regard presets` starts fast. A test builds each preset.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from regard.errors import SettingsError
from regard.models.settings import AnyModel, ModelSettings
from regard.settings import Table, did_you_mean, merge, parse, variants


@dataclass(frozen=True)
class Preset:
    """Model settings with a name."""

    name: str
    settings: ModelSettings
    parameters: int
    """The exact number of parameters."""
    description: str
    """One line."""
    published: tuple[str, str] | None = None
    """The size as its authors print it ("65 M"), and where."""
    counted_only: bool = False
    """Whether the model is listed for its size only: it is too large or too special to run here."""

    @property
    def printed(self) -> int:
        """The published size as a number; 0 if there is none."""
        amount, unit = self.published[0].split() if self.published else ("0", "k")
        return round(float(amount) * {"k": 10**3, "M": 10**6, "B": 10**9}[unit])


def preset(name: str, /, **changes: Any) -> ModelSettings:
    """Return the settings of a preset with changes.

    A change is a keyword (`depth=4`), a table (`attention={"heads": 4}`) or a settings value (`position=Rotary()`).
    Example: `regard.preset("gpt2", depth=2, attention={"heads": 4})`.
    """
    settings = find_preset(name).settings
    return settings.changed(changes) if changes else settings


def preset_names() -> tuple[str, ...]:
    """Return the names of all presets. Example: `"gpt2" in regard.preset_names()`."""
    return tuple(_tables())


def all_presets() -> list[Preset]:
    return [find_preset(name) for name in _tables()]


@cache
def find_preset(name: str) -> Preset:
    """Return the preset with this name, or raise a `SettingsError` that suggests the nearest name."""
    tables = _tables()
    if name not in tables:
        raise SettingsError(
            f"preset ({name}) is not known{did_you_mean(str(name), tables)}; `regard presets` lists all"
        )
    table = dict(tables[name])
    model = table.pop("model", {})
    if "like" in table:
        model = merge(tables[table.pop("like")]["model"], model)
    table["published"] = tuple(table["published"]) if "published" in table else None
    return Preset(name, parse(variants(AnyModel)[model["kind"]], model), **table)


@cache
def _tables() -> dict[str, Table]:
    return tomllib.loads(Path(__file__).with_name("presets.toml").read_text(encoding="utf-8"))
