"""Tensors in files: reading and writing safetensors, reading PyTorch's, int8 storage, and models built from them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from typing import Literal, TypeAlias

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from regard.errors import WeightsError
from regard.files import read_json, write_beside
from regard.models.build import Model, build
from regard.models.settings import ModelSettings

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLED = "pytorch_model.bin"
"""Hugging Face's names for a single file, and for the index of a model in several files; and of older models."""

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

Storage: TypeAlias = Literal["int8", "bf16"]
SCALE = ".scale"
"""Suffix of the tensor that holds the scales of an int8 matrix."""
LARGEST = 127
"""−128 is not used, so that the range is symmetric."""
SMALLEST_QUANTIZED = 1024
"""Matrices with fewer elements are not quantized."""


def read_tensors(path: Path, allow_non_finite: bool = False) -> dict[str, Tensor]:
    """The tensors of a file, or of a directory that holds one file or several shards. Safetensors win over *.bin.

    The tensors are memory-mapped. All values are checked once for NaN and infinity, unless `allow_non_finite`.
    """
    tensors = _read_directory(path) if path.is_dir() else _read_file(path)
    for name, tensor in {} if allow_non_finite else tensors.items():
        if tensor.is_floating_point() and tensor.element_size() > 1 and not bool(torch.isfinite(tensor).all()):
            bad = int((~torch.isfinite(tensor)).sum())
            raise WeightsError(f"{name} in {path} contains {bad:,} NaN or infinite values; use an earlier checkpoint")
    return tensors


def _read_file(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise WeightsError(f"{path} does not exist; give a safetensors file, or download the model again")
    if path.suffix == ".bin":
        return _read_pickled(path)
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            return {name: file.get_tensor(name) for name in file.keys()}
    except SafetensorError as error:
        raise WeightsError(f"{path} is damaged or truncated ({error}); copy or download it again") from None


def _read_pickled(path: Path) -> dict[str, Tensor]:
    """The tensors of a file of `torch.save`. With `weights_only`, PyTorch refuses everything that could run code."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about other versions of pickle
            found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle raises anything
        reason = str(error).partition("\n")[0]
        raise WeightsError(
            f"{path} is damaged, or holds more than tensors ({reason}); download it again, or use safetensors"
        ) from None
    if not isinstance(found, dict):
        raise WeightsError(f"{path} holds a {type(found).__name__}, expected a table of tensors; use another file")
    for name, tensor in found.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor) or tensor.layout != torch.strided:
            raise WeightsError(f"{path}: {name!r} is not a plain tensor; save the model as safetensors")
    return found


def _read_directory(directory: Path) -> dict[str, Tensor]:
    names = [name for single in (SINGLE, PICKLED) for name in (single, f"{single}.index.json")]
    found = next((name for name in names if (directory / name).is_file()), None)
    if found is None:
        raise WeightsError(f"{directory} has no {' and no '.join(names)}; give the directory of a complete model")
    if not found.endswith(".json"):
        return _read_file(directory / found)
    index = directory / found
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise WeightsError(f"{index} has no weight_map, so the shards are unknown; download it again")
    shards: dict[str, dict[str, Tensor]] = {}
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise WeightsError(f"{index} assigns {name} to {shard!r}, expected a file in the same directory; fix it")
        if shard not in shards:
            shards[shard] = _read_file(directory / shard)
        if name not in shards[shard]:
            raise WeightsError(f"{directory / shard} lacks {name}, which {found} assigns to it; download both again")
    return {name: shards[shard][name] for name, shard in weight_map.items()}


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    plain: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        # safetensors requires contiguous tensors that do not share storage.
        copy = tensor.detach().cpu().contiguous()
        storage = copy.untyped_storage()
        if storage.data_ptr() in storages or storage.nbytes() != copy.numel() * copy.element_size():
            copy = copy.clone()
        storages.add(copy.untyped_storage().data_ptr())
        plain[name] = copy

    def write(partial: Path) -> None:
        partial.touch()
        mode = partial.stat().st_mode
        # safetensors cannot read a file with empty metadata and no tensors, such as the state of plain SGD.
        save_file(plain, partial, dict(metadata) if metadata else None)
        partial.chmod(mode)  # safetensors makes files readable by the owner only

    write_beside(path, write)


def quantize(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """An int8 tensor, and one float32 scale for each row that maps its largest magnitude to 127.

    The error is at most half a step. Clipping the largest values does not reduce the squared error with 8 bits.
    """
    rows = tensor.detach().float().flatten(1)
    scale = rows.abs().amax(1) / LARGEST
    scale = torch.where(scale > 0, scale, 1.0)
    values = (rows / scale[:, None]).round().clamp(-LARGEST, LARGEST)
    return values.to(torch.int8).view(tensor.shape), scale


def quantized(tensors: Mapping[str, Tensor], storage: Storage) -> dict[str, Tensor]:
    """The tensors in reduced precision; vectors and small matrices stay float32."""
    stored: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.dim() < 2 or tensor.numel() < SMALLEST_QUANTIZED:
            stored[name] = tensor.detach().float()
        elif storage == "bf16":
            stored[name] = tensor.detach().bfloat16()
        else:
            stored[name], stored[name + SCALE] = quantize(tensor)
    return stored


def dequantized(tensors: Mapping[str, Tensor], source: str) -> dict[str, Tensor]:
    """The tensors with int8 values multiplied by their scales; other tensors are unchanged."""
    result = dict(tensors)
    for name, tensor in tensors.items():
        if tensor.dtype == torch.int8:
            scale = result.pop(name + SCALE, None)
            if scale is None or scale.shape != tensor.shape[:1] or scale.dtype != torch.float32:
                raise WeightsError(
                    f"{name} in {source} is int8, and {name}{SCALE} is missing or not a float32 for each of its "
                    f"{len(tensor):,} rows; save the model again"
                )
            result[name] = tensor * scale.view(-1, *[1] * (tensor.dim() - 1))  # in float32
    return result


def build_with(
    settings: ModelSettings,
    tensors: Mapping[str, Tensor],
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    source: str = "the weights",
) -> Model:
    """A model in evaluation mode whose parameters are copies of `tensors`.

    The model is built on the meta device, so each weight is allocated once. Without `dtype`, the smallest dtype that
    holds all tensors is used.
    """
    if dtype is None:
        for name, tensor in tensors.items():
            if tensor.dtype not in FLOATS:
                raise WeightsError(f"{name} in {source} is {tensor.dtype}, expected 16- to 64-bit floating point")
        dtype = reduce(torch.promote_types, {tensor.dtype for tensor in tensors.values()} or {torch.float32})
    require_layers(settings, tensors, source)
    model = build(settings, device="meta")
    check({name: tuple(parameter.shape) for name, parameter in model.named_parameters()}, tensors, source)
    kept = torch.contiguous_format
    copies = {name: x.to(device or "cpu", dtype, copy=True, memory_format=kept) for name, x in tensors.items()}
    model.load_state_dict(copies, strict=False, assign=True)  # not strict: shared parameters have several names
    return model.eval()


def require_layers(settings: ModelSettings, tensors: Mapping[str, Tensor], source: str) -> None:
    """Refuse more layers than there are tensors, before they are built: each takes time, even without memory."""
    layers = settings.depth + getattr(settings, "decoder_layers", 0)
    if layers > len(tensors):
        raise WeightsError(
            f"{source} lacks layers: the settings have {layers:,}, and it has {len(tensors):,} tensors; use the "
            "settings that the weights were trained with"
        )


def check(shapes: Mapping[str, tuple[int, ...]], tensors: Mapping[str, Tensor], source: str, remedy: str = "") -> None:
    """Raise `WeightsError` unless the names and shapes of `tensors` are exactly those of `shapes`."""
    wrong = [
        f"{name} is {list(tensors[name].shape)}, expected {list(shape)}"
        for name, shape in shapes.items()
        if name in tensors and tuple(tensors[name].shape) != shape
    ]
    problems = {
        "lacks": [name for name in shapes if name not in tensors],
        "has unexpected tensors:": [name for name in tensors if name not in shapes],
        "has tensors of a wrong shape:": wrong,
    }
    if found := [f"{problem} {listed(names)}" for problem, names in problems.items() if names]:
        remedy = remedy or "use the settings that the weights were trained with"
        raise WeightsError(f"{source} {'; it '.join(found)}; {remedy}")


def listed(names: list[str], limit: int = 5) -> str:
    """Up to `limit` names, and the number of further ones."""
    more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {more} more" if more > 0 else "")
