"""A model directory: `config.toml`, `weights.safetensors`, `labels.json`, and `checksums.json`, which is written last.

A run directory (`regard.training.run`) is a model directory with checkpoints. Until the run has finished, its newest
checkpoint is its model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w
import torch
from torch import Tensor

from regard.blocks.recording import network_of
from regard.data.examples import Labels, Sort
from regard.errors import RunError, SettingsError, WeightsError
from regard.files import flush_directory, read_json, write_text
from regard.models.build import Model
from regard.models.settings import AnyModel, ModelSettings
from regard.settings import Table, parse, read_toml, to_table
from regard.text.tokenizer import FILE, SOURCE_FILE, TARGET_FILE
from regard.weights import checkpoints
from regard.weights.checkpoints import CHECKPOINTS, CHECKSUMS, FORMAT, WEIGHTS, newest_checkpoint
from regard.weights.tensors import Storage, build_with, dequantized, quantized, read_tensors, write_tensors

CONFIG = "config.toml"
LABELS = "labels.json"
LISTED = (WEIGHTS, FILE, SOURCE_FILE, TARGET_FILE, LABELS)
"""Files that may have a checksum."""
OF_RUN = ("id", "prepared")
"""Entries of `config.toml` that are not settings: the name of the run, and those of its prepared data."""
SORTS: tuple[Sort, ...] = ("label", "tags")


def save_model(
    model: Any, directory: Path | str, storage: Storage | None = None, tables: Mapping[str, Any] | None = None
) -> None:
    """Write a model into `directory`. `config.toml` is written last: a directory that has one is complete.

    `storage` reduces the precision of the weights on the disk. `tables` are further tables of `config.toml`, such as
    `task` and `data`.
    """
    model, directory = network_of(model), Path(directory)
    if (directory / CHECKPOINTS).is_dir():
        raise WeightsError(f"{directory} contains the checkpoints of a run; choose another directory")
    directory.mkdir(parents=True, exist_ok=True)
    tensors: Mapping[str, Tensor] = dict(model.named_parameters())
    write_weights(directory, quantized(tensors, storage) if storage else tensors)
    write_config(directory, {**(tables or {}), "model": to_table(model.settings)})


def write_weights(directory: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write `weights.safetensors` and its checksum.

    The old checksum is removed before the weights are replaced, and the new one is written last. A kill in between
    leaves old or new weights without a checksum, which are still loaded.
    """
    (directory / CHECKSUMS).unlink(missing_ok=True)
    flush_directory(directory)
    write_tensors(directory / WEIGHTS, tensors)
    checkpoints.write_checksums(directory, {WEIGHTS: checkpoints.checksum(directory / WEIGHTS)})


def write_config(directory: Path, tables: Table) -> None:
    """Write `config.toml`. Its last line is a checksum, in a comment."""
    text = tomli_w.dumps({"format": FORMAT, **tables})
    write_text(directory / CONFIG, text + _checksum_line(text))


def _checksum_line(text: str) -> str:
    return f"# sha256 {hashlib.sha256(text.encode()).hexdigest()}\n"


def require_unchanged(directory: Path) -> None:
    """Raise `RunError` if `config.toml` is not as it was written."""
    *lines, last = (directory / CONFIG).read_text(encoding="utf-8").splitlines(keepends=True) or [""]
    if last != _checksum_line("".join(lines)):
        raise RunError(
            f"{directory / CONFIG} was changed after it was written, or an older version of regard wrote it: its last "
            f"line is not its checksum; restore it, or start a new run from its weights with train.start={directory}"
        )


def save_labels(labels: Mapping[Sort, Labels], directory: Path) -> None:
    """Write `labels.json`: the names of the classes that a model predicts, in order."""
    content = {sort: list(known) for sort, known in labels.items()}
    write_text(directory / LABELS, json.dumps(content, ensure_ascii=False, indent=1) + "\n")


def load_model(path: Path | str, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Model:
    """The model in a run directory or a Hugging Face directory, in evaluation mode.

    The default device is the CPU. The default dtype is that of the file; quantized weights become float32.
    """
    # Not at the top: it imports this module.
    from regard.weights.huggingface.directory import read_pretrained
    from regard.weights.huggingface.tables import CONFIG_JSON

    directory = Path(path)
    if (directory / CONFIG).is_file():
        settings, weights = read_settings(directory), find_weights(directory)
        tensors = dequantized(read_tensors(weights), str(weights))
        return build_with(settings, tensors, device, dtype, source=str(weights))
    if (directory / CONFIG_JSON).is_file():
        return read_pretrained(directory, device=device, dtype=dtype)
    expected = f"{CONFIG} (a run directory) or {CONFIG_JSON} (a Hugging Face directory)"
    if directory.is_dir():
        raise WeightsError(f"{directory} contains no model: it has no {expected}; give the directory of a model")
    problem = "is a file" if directory.exists() else "does not exist"
    raise WeightsError(f"{directory} {problem}; give a directory with {expected}")


def find_weights(directory: Path) -> Path:
    """The file with the weights of a run: `weights.safetensors`, or that of the newest intact checkpoint."""
    path, damage = directory / WEIGHTS, None
    if path.is_file():
        if (directory / CHECKSUMS).is_file():
            try:
                files = checkpoints.read_checksums(directory)[0]
                names = (name for name in LISTED if name in files or name == WEIGHTS)
                found = (checkpoints.find_damage(directory / name, files.get(name)) for name in names)
                damage = next(filter(None, found), None)
            except ValueError as error:
                damage = str(error)
        if damage is None:
            return path
    checkpoint, damaged = newest_checkpoint(directory)
    if damage is not None:
        remedy = "copy it again, or save the model again"
        if checkpoint is not None:
            remedy = f"remove it to load the newest checkpoint ({checkpoint.path}) instead"
        raise WeightsError(f"{path} cannot be used: {damage}; {remedy}")
    if checkpoint is not None:
        return checkpoint.model
    reasons = "".join(f" ({first.name}: {reason})" for first, reason in damaged[:1])
    raise WeightsError(f"{directory} has no {WEIGHTS} and no intact checkpoint{reasons}; train the model first")


def read_settings(directory: Path) -> ModelSettings:
    table = read_config(directory)
    if not isinstance(table.get("model"), dict):
        raise SettingsError(f"{directory / CONFIG} has no [model] table; save the model again")
    settings: ModelSettings = parse(AnyModel, table["model"], where="model")
    return settings


def read_config(directory: Path) -> Table:
    path = directory / CONFIG
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise WeightsError(f"{directory} has no {CONFIG}, so it is not a run directory; save the model again") from None
    except OSError as error:
        raise RunError(f"{path} cannot be read ({error.strerror}); change its permissions, or copy it again") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{path} is not UTF-8 text; save the model again") from None
    table = read_toml(text, source=str(path))
    found = table.pop("format", FORMAT)
    if found != FORMAT:
        raise RunError(f"{path} has format {found!r}, but this version reads {FORMAT}; use the version that wrote it")
    return table


def load_labels(directory: Path) -> dict[Sort, Labels]:
    path = directory / LABELS
    if not path.is_file():
        return {}
    content = read_json(path)
    found: dict[Sort, Labels] = {}
    for sort in SORTS:
        if (names := content.pop(sort, None)) is not None:
            strings = isinstance(names, list) and all(isinstance(name, str) for name in names)
            if not strings or len(set(names)) != len(names):
                raise WeightsError(f"{sort} in {path} must be a list of different names; copy the file again")
            found[sort] = tuple(names)
    if content:
        raise WeightsError(f"{path} has an unknown key {next(iter(content))}, expected {', '.join(SORTS)}")
    return found
