"""A Hugging Face directory as a model, and a model as a Hugging Face directory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import WeightsError
from regard.files import write_text
from regard.models.build import Model, build
from regard.models.settings import ModelSettings
from regard.settings import did_you_mean
from regard.weights.directory import settings_of, uncompiled
from regard.weights.huggingface.bart import Bart
from regard.weights.huggingface.bert import Bert
from regard.weights.huggingface.config import CONFIG, Config
from regard.weights.huggingface.family import Family
from regard.weights.huggingface.gpt2 import Gpt2
from regard.weights.huggingface.llama import Llama
from regard.weights.huggingface.marian import Marian, Pegasus
from regard.weights.huggingface.t5 import T5
from regard.weights.huggingface.vit import Vit
from regard.weights.tensors import INDEX, SINGLE, build_with, read_json, read_tensors, write_tensors

FAMILIES: dict[str, Family[Any]] = {
    family.model_type: family for family in (Bert(), Gpt2(), Vit(), Marian(), Pegasus(), Bart(), T5(), Llama())
}


# ----------------------------------------------------------------------------------------------------------- reading


def read(directory: Path | str, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Model:
    """The model of a directory that `save_pretrained` of transformers wrote, or anyone in that form.

    It keeps the type of its numbers unless `dtype` is given.
    """
    directory = Path(directory)
    path = directory / CONFIG
    if not path.is_file():
        raise WeightsError(f"{directory} has no {CONFIG}, so it is no Hugging Face directory; give one that has")
    config = Config(read_json(path), str(path))
    family = family_of(config)
    tensors = family.usual_names(read_tensors(directory))
    settings = family.checked_settings(config, tensors)
    shapes = dict(build(settings, device="meta").named_parameters())
    ours = family.table(settings, config).to_ours(tensors, shapes, str(directory))
    return build_with(settings, ours, device, dtype, source=str(directory))


def family_of(config: Config) -> Family[Any]:
    """The family of a config's model type."""
    if config.model_type not in FAMILIES:
        near = did_you_mean(config.model_type, FAMILIES)
        raise config.refuse("model_type", f"is not known{near}; known: {', '.join(FAMILIES)}")
    return FAMILIES[config.model_type]


# ----------------------------------------------------------------------------------------------------------- writing


def write(
    model: nn.Module,
    directory: Path | str,
    model_type: str | None = None,
    architecture: str | None = None,
    config: Mapping[str, Any] | None = None,
    shard_bytes: int | None = None,
) -> None:
    """Write a model so that transformers reads it.

    The model type is the one that can express the settings, unless `model_type` asks for one; the class is the one
    with the same heads, unless `architecture` does. `config` adds values that a model does not know, such as
    `pad_token_id` and `id2label`. With `shard_bytes`, no file is larger, but for a single larger tensor.
    """
    model = uncompiled(model)
    given = settings_of(model)
    family = choose(given, model_type)
    settings = family.equivalent(given)
    architecture = architecture or family.architecture_for(settings)
    if architecture not in family.architectures:
        raise WeightsError(
            f"architecture ({architecture}) is not known for {family.model_type}"
            f"{did_you_mean(architecture, family.architectures)}; known: {', '.join(family.architectures)}"
        )
    whole = family.whole_config(settings, architecture, config)
    family.require_expressible(settings, whole)
    ours = family.rewritten({name: tensor.detach() for name, tensor in model.named_parameters()}, given)
    tensors = family.table(settings, whole).to_file(ours)
    family.require_expressible(settings, whole, tensors)
    dtype = str(next(iter(ours.values())).dtype).removeprefix("torch.")
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    _write_tensors(directory, family.names_for(architecture, tensors), shard_bytes)
    write_text(directory / CONFIG, json.dumps({**whole.values, "dtype": dtype}, indent=2) + "\n")


def choose(settings: ModelSettings, model_type: str | None = None) -> Family[Any]:
    """The family that can express the settings."""
    if model_type is not None:
        family = family_of(Config({"model_type": model_type}, "write"))
        if not isinstance(settings, family.settings):
            wanted = family.settings.model_fields["kind"].default
            raise family.cannot(f"it is of kind {settings.kind}, and {model_type} is of kind {wanted}")
        return family
    reasons = []
    for family in FAMILIES.values():
        if isinstance(settings, family.settings):
            same = family.equivalent(settings)
            try:
                family.require_expressible(same, family.whole_config(same, family.architecture_for(same)))
            except WeightsError as error:
                reasons.append(str(error))
            else:
                return family
    raise WeightsError("\n".join(reasons))


def _write_tensors(directory: Path, tensors: Mapping[str, Tensor], shard_bytes: int | None) -> None:
    """One file, or shards and their index; files of an earlier writing are removed."""
    shards = _shards(tensors, shard_bytes)
    if len(shards) == 1:
        names = [SINGLE]
    else:
        names = [f"model-{number:05d}-of-{len(shards):05d}.safetensors" for number in range(1, len(shards) + 1)]
    for name, shard in zip(names, shards, strict=True):
        write_tensors(directory / name, shard, {"format": "pt"})
    if len(shards) > 1:
        weight_map = {tensor: name for name, shard in zip(names, shards, strict=True) for tensor in shard}
        size = sum(tensor.nbytes for tensor in tensors.values())
        write_text(
            directory / INDEX, json.dumps({"metadata": {"total_size": size}, "weight_map": weight_map}, indent=2) + "\n"
        )
    for old in {*directory.glob("model*.safetensors"), *directory.glob(INDEX)}:
        if old.name not in names and not (old.name == INDEX and len(shards) > 1):
            old.unlink()


def _shards(tensors: Mapping[str, Tensor], limit: int | None) -> list[dict[str, Tensor]]:
    """The tensors in their order, each shard filled as far as it goes."""
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        if limit is not None and shards[-1] and size + tensor.nbytes > limit:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += tensor.nbytes
    return shards
