"""Reads and writes Hugging Face directories: `config.json` and safetensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard.blocks.recording import network_of
from regard.data.examples import Labels, Sort
from regard.errors import WeightsError
from regard.files import read_json, write_text
from regard.models.build import Model, build
from regard.models.settings import ModelSettings, Vision
from regard.settings import Table
from regard.text.settings import Role
from regard.text.tokenizer import TokenizerPair
from regard.weights.huggingface.decoders import DECODERS
from regard.weights.huggingface.encoders import ENCODERS
from regard.weights.huggingface.seq2seq import SEQ2SEQ
from regard.weights.huggingface.tables import CONFIG_JSON, GENERATION, GGUF_FILE, Config, Family
from regard.weights.huggingface.vit import IMAGES, Timm
from regard.weights.tensors import INDEX, SINGLE, build_with, read_tensors, require_layers, write_tensors

FAMILIES: dict[str, Family] = {family.model_type: family for family in (*ENCODERS, *DECODERS, *IMAGES, *SEQ2SEQ)}
TIMM = Timm()
PREPROCESSOR = "preprocessor_config.json"


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
    values = read_json(path)
    if (directory / PREPROCESSOR).is_file():
        scaling = read_json(directory / PREPROCESSOR)
        values = {key: scaling[key] for key in ("image_mean", "image_std") if key in scaling} | values
    config = Config(values, str(path))
    # The error suggests no similar type: RoBERTa resembles BERT, loads as one and gives wrong results.
    model_type = str(config.values.get("model_type"))
    of_timm = "model_type" not in config.values and isinstance(config.values.get("architecture"), str)
    if not of_timm and model_type not in FAMILIES:
        raise config.error("model_type", f"is not supported; supported types are {', '.join(FAMILIES)}")
    family = TIMM if of_timm else FAMILIES[model_type]
    if GGUF_FILE in config.values:
        from regard.weights.gguf import read_gguf  # it imports this module's tables

        tensors = family.current_names(read_gguf(Path(str(config.values[GGUF_FILE]))))
    else:
        tensors = family.current_names(read_tensors(directory))
    settings = family.read_settings(config, tensors)
    require_layers(settings, tensors, str(directory))
    shapes = dict(build(settings, device="meta").named_parameters())
    ours = family.tensor_map(settings, config, shapes).to_ours(tensors, shapes, str(directory))
    return build_with(settings, ours, device, dtype, source=str(directory))


def find_tokenizers(directory: Path) -> TokenizerPair | None:
    """The tokenizers of a run or a Hugging Face directory, with the special tokens that the model's config states."""
    pair = TokenizerPair.find(directory)
    if pair is None or not (directory / CONFIG_JSON).is_file():
        return pair
    stated = read_json(directory / CONFIG_JSON)
    generation = directory / GENERATION
    stated |= read_json(generation) if generation.is_file() else {}
    keys: dict[Role, str] = {"pad": "pad_token_id", "start": "decoder_start_token_id", "end": "eos_token_id"}
    size = pair.target.size
    ids: dict[Role, Any] = {role: stated[key] for role, key in keys.items() if stated.get(key) in range(size)}
    bare, framed = (pair.source.encode("a", framed=framed).ids for framed in (False, True))
    opens = stated.get("is_encoder_decoder") is True and framed[: len(bare)] != bare
    roles: dict[Role, str] = {"class_token": pair.target.token(framed[0])} if opens else {}
    roles |= {role: pair.target.token(number) for role, number in ids.items()}
    source = pair.source.with_roles(roles, opens)
    return TokenizerPair(source, source if pair.shared else pair.target.with_roles(roles, opens))


def write_pretrained(
    model: nn.Module, directory: Path | str, config: Mapping[str, Any] | None = None, timm: bool = False
) -> list[str]:
    """Write a model so that transformers (or timm) reads it, as the first type that can express it. Return notes.

    `config` adds values that a model does not have, such as `pad_token_id` and `id2label`. A pooler next to another
    head is left out, because no class has both; no task of Regard trains it.
    """
    network, notes = _without_pooler(network_of(model))
    given = network.settings
    if timm and not isinstance(given, Vision):
        raise WeightsError(f"timm has no models of kind {given.kind}; choose another form")
    family = TIMM if timm else family_for(given)
    settings = family.equivalent(given)
    whole = family.write_config(settings, config)
    ours = family.rewritten({name: tensor.detach() for name, tensor in network.named_parameters()}, given)
    tensors = family.tensor_map(settings, whole, ours).to_file(ours)
    family.require_expressible(settings, whole, tensors)
    if whole.values["architectures"] == [family.base]:
        tensors = {name.removeprefix(family.prefix): tensor for name, tensor in tensors.items()}
    dtype = str(next(iter(ours.values())).dtype).removeprefix("torch.")
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    for old in {*directory.glob("model-*.safetensors"), *directory.glob(INDEX)}:  # shards of an earlier model
        old.unlink()
    write_tensors(directory / SINGLE, tensors, {"format": "pt"})
    write_text(directory / CONFIG_JSON, json.dumps({**whole.values, "dtype": dtype}, indent=2) + "\n")
    return notes


def named_labels(config: Table) -> dict[Sort, Labels]:
    """The names of the classes of a Hugging Face model, which are numbered if its config does not name them."""
    names = config.get("id2label")
    if isinstance(config.get("label_names"), list):  # timm's
        names = {str(index): name for index, name in enumerate(config["label_names"])}
    if not isinstance(names, dict) or not names:
        count = config.get("num_labels", config.get("num_classes"))
        names = {str(index): f"LABEL_{index}" for index in range(count if isinstance(count, int) else 2)}
    ordered = tuple(str(names[key]) for key in sorted(names, key=lambda key: int(key)))
    return {"label": ordered, "tags": ordered}


def _without_pooler(model: Model) -> tuple[Model, list[str]]:
    heads = getattr(model.settings, "heads", {})
    kept = {name: head for name, head in heads.items() if head.kind != "pooling"}
    if not kept or kept == heads:
        return model, []
    unused = tuple(f"heads.{name}." for name in heads if name not in kept)
    tensors = {name: x for name, x in model.named_parameters() if not name.startswith(unused)}
    notes = [f"the head {name.split('.')[1]} (pooling) is left out: no task trains it" for name in unused]
    return build_with(model.settings.model_copy(update={"heads": kept}), tensors), notes


def family_for(settings: ModelSettings) -> Family:
    """Return the first family that can express the settings. The error names the five with the fewest differences."""
    reasons = []
    for family in FAMILIES.values():
        if isinstance(settings, family.settings):
            same = family.equivalent(settings)
            try:
                family.require_expressible(same, family.write_config(same))
            except WeightsError as error:
                reasons.append(str(error))
            else:
                return family
    # A reason without settings, such as heads that no class has, ends the comparison, so it is the farthest.
    nearest = sorted(reasons, key=lambda reason: reason.count(", only ") or 99)[:5]
    raise WeightsError("\n".join(nearest) or f"model.kind ({settings.kind}) cannot be written for transformers")
