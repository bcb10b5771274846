"""A run directory: everything about one model. So far `config.toml`, its settings, and `weights.safetensors`."""

from __future__ import annotations

from pathlib import Path

import tomli_w
import torch
from torch import nn

from regard.errors import SettingsError, WeightsError
from regard.files import write_text
from regard.models.build import Model
from regard.models.settings import AnyModel, ModelSettings
from regard.settings import parse, read_toml, to_table
from regard.weights.assign import build_with
from regard.weights.files import read_tensors, write_tensors

CONFIG = "config.toml"
WEIGHTS = "weights.safetensors"


def save(model: nn.Module, directory: Path | str) -> None:
    """Write a model into `directory`, which is made if need be. The settings come last: with them it is whole."""
    model, directory = uncompiled(model), Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    write_tensors(directory / WEIGHTS, dict(model.named_parameters()))
    write_text(directory / CONFIG, tomli_w.dumps({"model": to_table(settings_of(model))}))


def load(directory: Path | str, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Model:
    """The model of a run directory; without `dtype`, in that of its file."""
    directory = Path(directory)
    for name in (CONFIG, WEIGHTS):
        if not (directory / name).is_file():
            raise WeightsError(f"{directory} has no {name}, so it is no whole run directory; save the model again")
    tensors = read_tensors(directory / WEIGHTS)
    return build_with(read_settings(directory), tensors, device, dtype, source=str(directory / WEIGHTS))


def read_settings(directory: Path) -> ModelSettings:
    """The `[model]` table of a run directory."""
    path = directory / CONFIG
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise SettingsError(f"{path} is not UTF-8 text; save the model again") from None
    table = read_toml(text, source=str(path))
    if not isinstance(table.get("model"), dict):
        raise SettingsError(f"{path} has no [model] table; save the model again")
    settings: ModelSettings = parse(AnyModel, table["model"], where="model")
    return settings


def uncompiled(model: nn.Module) -> nn.Module:
    """The model itself: `torch.compile` wraps it and puts a word before the names of all its parameters."""
    original = getattr(model, "_orig_mod", model)
    assert isinstance(original, nn.Module)
    return original


def settings_of(model: nn.Module) -> ModelSettings:
    """The settings that a model was built from; every model that `build` made carries them."""
    settings = getattr(model, "settings", None)
    if not isinstance(settings, ModelSettings):
        raise WeightsError(f"{type(model).__name__} carries no settings; only models made by regard.build can be saved")
    return settings
