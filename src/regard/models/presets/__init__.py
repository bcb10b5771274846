"""Presets: well-known models as plain settings, by the names that people type. No torch in here.

`preset("gpt2")` gives the settings alone; `find("gpt2")` also what the authors printed about the model.
"""

from __future__ import annotations

from typing import Any

from regard.errors import SettingsError
from regard.models.presets.decoders import DECODERS
from regard.models.presets.encoder_decoders import ENCODER_DECODERS
from regard.models.presets.encoders import ENCODERS
from regard.models.presets.entry import Preset, Published
from regard.models.presets.giants import GIANTS
from regard.models.presets.paper import PAPER
from regard.models.presets.vision import VISION
from regard.models.settings import ModelSettings
from regard.settings import did_you_mean

__all__ = ["PRESETS", "Preset", "Published", "find", "preset", "preset_names"]

PRESETS: tuple[Preset, ...] = (*PAPER, *ENCODER_DECODERS, *ENCODERS, *DECODERS, *VISION, *GIANTS)
"""All of them, in the order in which they are listed."""

_BY_NAME = {entry.name: entry for entry in PRESETS}


def preset(name: str, /, **changes: Any) -> ModelSettings:
    """The settings of a preset, with `changes` laid over them.

    A change is a keyword (`depth=4`), a table (`attention={"heads": 4}`) or another settings value
    (`position=Rotary()`). Keywords belong here, at the public edge, where they are the names of settings and checked
    as such; nothing behind takes them.
    """
    settings = find(name).settings
    return settings.changed(changes) if changes else settings


def preset_names() -> tuple[str, ...]:
    """The names of all presets, in the order in which they are listed."""
    return tuple(_BY_NAME)


def find(name: str) -> Preset:
    """The preset of this name, or a `SettingsError` that says which is nearest."""
    if name not in _BY_NAME:
        raise SettingsError(f"preset ({name}) is not known{did_you_mean(name, _BY_NAME)}; `regard presets` lists all")
    return _BY_NAME[name]
