"""Reads and writes Hugging Face directories: `config.json` and safetensors."""

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
from regard.weights.directory import settings_of, uncompiled
from regard.weights.huggingface.bert import Bert
from regard.weights.huggingface.gpt2 import Gpt2
from regard.weights.huggingface.llama import Llama
from regard.weights.huggingface.seq2seq import Bart, Marian, Pegasus
from regard.weights.huggingface.t5 import T5
from regard.weights.huggingface.tables import CONFIG_JSON, Config, Family
from regard.weights.huggingface.vit import Vit
from regard.weights.tensors import INDEX, SINGLE, build_with, read_json, read_tensors, write_tensors

FAMILIES: dict[str, Family] = {
    family.model_type: family for family in (Bert(), Gpt2(), Vit(), Marian(), Pegasus(), Bart(), T5(), Llama())
}


def read_pretrained(
    directory: Path | str, dtype: torch.dtype | None = None, device: torch.device | str | None = None
) -> Model:
    """Read the model of a directory that transformers' `save_pretrained` wrote.

    Without `dtype`, the weights keep theirs.
    """
    directory = Path(directory)
    path = directory / CONFIG_JSON
    if not path.is_file():
        raise WeightsError(f"{directory} has no {CONFIG_JSON}, so it is not a Hugging Face directory; give another one")
    config = Config(read_json(path), str(path))
    family = family_named(config)
    tensors = family.current_names(read_tensors(directory))
    settings = family.read_settings(config, tensors)
    shapes = dict(build(settings, device="meta").named_parameters())
    ours = family.tensor_map(settings, config, shapes).to_ours(tensors, shapes, str(directory))
    return build_with(settings, ours, device, dtype, source=str(directory))


def family_named(config: Config) -> Family:
    """Return the family of a config's model type.

    There is no hint for an unknown type: RoBERTa resembles BERT and mT5 resembles T5, and both give wrong results when
    they are read as such.
    """
    model_type = str(config.values.get("model_type"))
    if model_type not in FAMILIES:
        raise config.error("model_type", f"is not supported; supported types are {', '.join(FAMILIES)}")
    return FAMILIES[model_type]


def write_pretrained(
    model: nn.Module,
    directory: Path | str,
    model_type: str | None = None,
    architecture: str | None = None,
    config: Mapping[str, Any] | None = None,
    shard_bytes: int | None = None,
) -> None:
    """Write a model so that transformers reads it.

    By default, `model_type` is the first that can express the settings, and `architecture` is the class with the same
    heads. `config` adds values that a model does not have, such as `pad_token_id` and `id2label`. With `shard_bytes`,
    no file is larger, except for a single larger tensor.
    """
    model = uncompiled(model)
    given = settings_of(model)
    family = family_for(given, model_type)
    settings = family.equivalent(given)
    architecture = architecture or family.architecture_for(settings)
    if architecture not in family.architectures:
        known = ", ".join(family.architectures)
        raise WeightsError(
            f"architecture ({architecture}) is not supported for {family.model_type}; choose one of {known}"
        )
    whole = family.write_config(settings, architecture, config)
    family.require_expressible(settings, whole)
    ours = family.rewritten({name: tensor.detach() for name, tensor in model.named_parameters()}, given)
    tensors = family.tensor_map(settings, whole, ours).to_file(ours)
    family.require_expressible(settings, whole, tensors)
    dtype = str(next(iter(ours.values())).dtype).removeprefix("torch.")
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    _write_shards(directory, family.names_for(architecture, tensors), shard_bytes)
    write_text(directory / CONFIG_JSON, json.dumps({**whole.values, "dtype": dtype}, indent=2) + "\n")


def family_for(settings: ModelSettings, model_type: str | None = None) -> Family:
    """Return the first family that can express the settings, or the given one."""
    if model_type is not None:
        family = family_named(Config({"model_type": model_type}, "write_pretrained"))
        if not isinstance(settings, family.settings):
            wanted = family.settings.model_fields["kind"].default
            raise family.cannot(f"its kind is {settings.kind}, and {model_type} is of kind {wanted}")
        return family
    reasons = []
    for family in FAMILIES.values():
        if isinstance(settings, family.settings):
            same = family.equivalent(settings)
            try:
                family.require_expressible(same, family.write_config(same, family.architecture_for(same)))
            except WeightsError as error:
                reasons.append(str(error))
            else:
                return family
    raise WeightsError("\n".join(reasons))


def _write_shards(directory: Path, tensors: Mapping[str, Tensor], limit: int | None) -> None:
    """Write one file, or shards and their index, and remove the files of an earlier model."""
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        if limit is not None and shards[-1] and size + tensor.nbytes > limit:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += tensor.nbytes
    count = len(shards)
    names = [SINGLE] if count == 1 else [f"model-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)]
    for name, shard in zip(names, shards, strict=True):
        write_tensors(directory / name, shard, {"format": "pt"})
    if count > 1:
        index = {
            "metadata": {"total_size": sum(tensor.nbytes for tensor in tensors.values())},
            "weight_map": {tensor: name for name, shard in zip(names, shards, strict=True) for tensor in shard},
        }
        write_text(directory / INDEX, json.dumps(index, indent=2) + "\n")
        names.append(INDEX)
    for old in {*directory.glob("model*.safetensors"), *directory.glob(INDEX)}:
        if old.name not in names:
            old.unlink()
