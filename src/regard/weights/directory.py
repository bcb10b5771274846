"""A run directory as a model: the settings in `config.toml`, the weights in `weights.safetensors`, their checksum.

Training keeps more in it (`regard.training.run`), checkpoints above all; while a run is going on, or after it was
killed, the newest of these is its model.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w
import torch
from torch import Tensor, nn

from regard.errors import RunError, SettingsError, WeightsError
from regard.files import flush_directory, write_text
from regard.models.build import Model
from regard.models.settings import AnyModel, ModelSettings
from regard.settings import Table, parse, read_toml, to_table
from regard.weights import checkpoints, checksums
from regard.weights.assign import build_with
from regard.weights.checksums import FORMAT, Checksums, checksum, difference
from regard.weights.files import read_tensors, write_tensors
from regard.weights.quantized import Storage, packed, unpacked

CONFIG = "config.toml"
WEIGHTS = "weights.safetensors"
SNAPSHOTS = "snapshots"


# ----------------------------------------------------------------------------------------------------------- writing


def save(
    model: nn.Module, directory: Path | str, storage: Storage | None = None, tables: Mapping[str, Any] | None = None
) -> None:
    """Write a model into `directory`, which is made if need be. The settings come last: with them it is whole.

    `storage` keeps the weights smaller than they are (`regard.weights.quantized`). `tables` are further ones of
    `config.toml`, such as `task` and `data`.
    """
    model, directory = uncompiled(model), Path(directory)
    settings = settings_of(model)
    if (directory / checkpoints.DIRECTORY).is_dir():
        raise WeightsError(f"{directory} holds a run with checkpoints, which would be lost; choose another directory")
    directory.mkdir(parents=True, exist_ok=True)
    tensors: Mapping[str, Tensor] = dict(model.named_parameters())
    write_weights(directory, packed(tensors, storage) if storage else tensors)
    write_config(directory, {**(tables or {}), "model": to_table(settings)})


def write_weights(directory: Path, tensors: Mapping[str, Tensor]) -> None:
    """`weights.safetensors` and its checksum; a kill at any moment leaves the old pair or the new one."""
    path = directory / WEIGHTS
    staged = path.with_name(f".{WEIGHTS}.{os.getpid()}.staged.partial")
    try:
        write_tensors(staged, tensors)
        fresh = {WEIGHTS: checksum(staged)}
        # Two files cannot be replaced at once: for a moment, both weights are right.
        checksums.write(directory, Checksums(fresh, before=_known(path)))
        os.replace(staged, path)
        flush_directory(directory)
    finally:
        staged.unlink(missing_ok=True)
    checksums.write(directory, Checksums(fresh))


def _known(path: Path) -> dict[str, checksums.Checksum]:
    """The checksum of the weights that are there, unless they are known to be damaged."""
    return {WEIGHTS: checksum(path)} if path.is_file() and _damage(path) is None else {}


# ----------------------------------------------------------------------------------------------------------- reading


def load(directory: Path | str, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Model:
    """The model of a run directory; without `dtype`, in that of its file, which is float32 where it is kept smaller."""
    directory = Path(directory)
    settings = read_settings(directory)
    path = find_weights(directory)
    return build_with(settings, unpacked(read_tensors(path), str(path)), device, dtype, source=str(path))


def find_weights(directory: Path) -> Path:
    """The file that holds the model of a run directory, checked where there is a checksum."""
    path = directory / WEIGHTS
    if path.is_file():
        if damage := _damage(path):
            raise WeightsError(f"{path} cannot be used: {damage}; {_remedy(directory)}")
        return path
    found = checkpoints.newest(directory)
    if found.checkpoint is not None:
        return found.checkpoint.model
    if found.damaged:
        place, reason = found.damaged[0]
        raise WeightsError(
            f"{directory} has no {WEIGHTS}, and no checkpoint of it is whole (in {place.name}, {reason}); "
            f"{_remedy(directory)}"
        )
    trains = "train" in read_config(directory)
    remedy = "it has no checkpoint either: train it first" if trains else "save the model again"
    raise WeightsError(f"{directory} has no {WEIGHTS}, so it is no whole run directory; {remedy}")


def _damage(path: Path) -> str | None:
    """How the weights differ from their checksum, in words; nothing where there is none to hold them against."""
    directory = path.parent
    if not (directory / checksums.FILE).is_file():
        return None
    try:
        known = checksums.read(directory)
    except ValueError as error:
        return f"{error}, so they cannot be checked"
    if path.name not in known.files:
        return f"{checksums.FILE} does not list {path.name}"
    damage = difference(path, known.files[path.name])
    if damage and path.name in known.before and difference(path, known.before[path.name]) is None:
        return None
    return damage


def _remedy(directory: Path) -> str:
    """What can take the place of weights that are damaged."""
    found = checkpoints.newest(directory).checkpoint
    if found is not None:
        return f"remove it, and the newest checkpoint ({found.path}) is loaded in its place"
    snapshots = sorted((directory / SNAPSHOTS).glob("[0-9]*.safetensors"), key=lambda path: (len(path.name), path.name))
    if snapshots:
        return f"put the newest snapshot ({snapshots[-1]}) in its place, and remove {directory / checksums.FILE}"
    return "copy it again, or save the model again"


def read_settings(directory: Path) -> ModelSettings:
    """The `[model]` table of a run directory."""
    table = read_config(directory)
    if not isinstance(table.get("model"), dict):
        raise SettingsError(f"{directory / CONFIG} has no [model] table; save the model again")
    settings: ModelSettings = parse(AnyModel, table["model"], where="model")
    return settings


def write_config(directory: Path, tables: Table) -> None:
    """`config.toml` of a run directory, whole or not at all."""
    write_text(directory / CONFIG, tomli_w.dumps({"format": FORMAT, **tables}))


def read_config(directory: Path) -> Table:
    """All tables of `config.toml`, without `format`, which must be the one that is known here."""
    path = directory / CONFIG
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise WeightsError(
            f"{directory} has no {CONFIG}, so it is no whole run directory; save the model again"
        ) from None
    except OSError as error:
        raise RunError(f"{path} cannot be read ({error.strerror}); change its permissions, or copy it again") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{path} is not UTF-8 text; save the model again") from None
    table = read_toml(text, source=str(path))
    found = table.pop("format", FORMAT)
    if found != FORMAT:
        newer = isinstance(found, int) and found > FORMAT
        remedy = "install a newer regard" if newer else "read it with the version of regard that wrote it"
        raise RunError(f"{path} has format {found!r}, and this version of regard reads format {FORMAT}; {remedy}")
    return table


# ------------------------------------------------------------------------------------------------------------ models


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
