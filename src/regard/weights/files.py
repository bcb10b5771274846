"""Safetensors files, read with suspicion, and written so that a kill at any moment leaves the old or the new one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from regard.errors import WeightsError
from regard.files import write_beside

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
"""Hugging Face's names: one file, or the list of which tensor lies in which shard."""


# ----------------------------------------------------------------------------------------------------------- reading


def read_tensors(path: Path, allow_non_finite: bool = False) -> dict[str, Tensor]:
    """The tensors of one safetensors file, or of a directory that holds one, whole or in shards.

    The values stay in the file until they are used (memory-mapped), except that all are looked at once, since NaN or
    infinity in weights otherwise shows up far from its cause; `allow_non_finite` leaves that out.
    """
    tensors = _read_directory(path) if path.is_dir() else _read_file(path)
    if not allow_non_finite:
        _refuse_non_finite(path, tensors)
    return tensors


def _read_file(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise WeightsError(f"{path} does not exist; give a safetensors file, or a directory that holds one")
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            return {name: file.get_tensor(name) for name in file.keys()}
    except SafetensorError as error:
        raise WeightsError(
            f"{path} is damaged or cut short ({path.stat().st_size:,} bytes; {error}); copy or download it again"
        ) from None


def _read_directory(directory: Path) -> dict[str, Tensor]:
    if (directory / SINGLE).is_file():
        return _read_file(directory / SINGLE)
    index = directory / INDEX
    if not index.is_file():
        pickles = sorted(file.name for file in directory.glob("*.bin"))
        remedy = (
            f"it holds {', '.join(pickles[:3])}, which is pickle and could run any code, so it is never opened; "
            "save the model again as safetensors"
            if pickles
            else "give the directory of a whole model"
        )
        raise WeightsError(f"{directory} has neither {SINGLE} nor {INDEX}: {remedy}")
    tensors: dict[str, Tensor] = {}
    for shard, names in _shards(index).items():
        if not (directory / shard).is_file():
            raise WeightsError(
                f"{directory / shard} is missing, and {INDEX} says that it holds {len(names)} tensors, such as "
                f"{names[0]}; download it again"
            )
        found = _read_file(directory / shard)
        lost = [name for name in names if name not in found]
        if lost:
            raise WeightsError(
                f"{directory / shard} lacks {listed(lost)}, which {INDEX} says that it holds; "
                "download both from the same version"
            )
        tensors.update((name, found[name]) for name in names)
    return tensors


def _shards(index: Path) -> dict[str, list[str]]:
    """Which tensors each shard holds."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise WeightsError(f"{index} has no weight_map, so the shards cannot be found; download it again")
    shards: dict[str, list[str]] = {}
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise WeightsError(f"{index} places {name} in {shard!r}, which is no file of its own directory; correct it")
        shards.setdefault(shard, []).append(name)
    return shards


def _refuse_non_finite(path: Path, tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and tensor.element_size() > 1 and not bool(torch.isfinite(tensor).all()):
            bad = int((~torch.isfinite(tensor)).sum())
            raise WeightsError(
                f"{name} in {path} has {bad:,} of {tensor.numel():,} values that are NaN or infinite; take an earlier "
                "checkpoint, or look at it with regard.weights.files.read_tensors(path, allow_non_finite=True)"
            )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file that must hold an object."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise WeightsError(f"{path} is not valid JSON ({error}); copy or download it again") from None
    if not isinstance(content, dict):
        raise WeightsError(f"{path} must hold a JSON object, not {type(content).__name__}; copy or download it again")
    return content


# ----------------------------------------------------------------------------------------------------------- writing


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """One safetensors file. A tensor that stands under several names is written once, under the first of them."""
    unique: dict[str, Tensor] = {}
    seen: set[tuple[Any, ...]] = set()
    for name, tensor in tensors.items():
        place = (tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        if tensor.numel() and place in seen:
            continue
        seen.add(place)
        unique[name] = tensor.detach()
    plain = _independent(unique)

    def write(partial: Path) -> None:
        partial.touch()
        mode = partial.stat().st_mode
        # An empty table beside no tensors (an optimiser without state) would be a file that cannot be read.
        save_file(plain, partial, dict(metadata) if metadata else None)
        partial.chmod(mode)  # safetensors lets nobody but the owner read its files

    write_beside(path, write)


def _independent(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors on the CPU, contiguous, no two in the same storage (views are copied, as safetensors needs)."""
    result: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        plain = tensor.cpu().contiguous()
        storage = plain.untyped_storage()
        if storage.data_ptr() in storages or storage.nbytes() != plain.numel() * plain.element_size():
            plain = plain.clone()
        storages.add(plain.untyped_storage().data_ptr())
        result[name] = plain
    return result


# ---------------------------------------------------------------------------------------------------------- messages


def listed(names: list[str], limit: int = 5) -> str:
    """Up to `limit` names, and how many more."""
    more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {more} more" if more > 0 else "")
