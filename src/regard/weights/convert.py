"""Converts a model directory: to Hugging Face, to CTranslate2, or to a smaller one of Regard."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeAlias

from regard.blocks.settings import Rotary
from regard.data.examples import Labels, Sort
from regard.data.settings import directions_of
from regard.errors import RunError, WeightsError
from regard.files import read_json, write_text
from regard.models.build import Model
from regard.models.settings import Decoder, EncoderDecoder, Vision
from regard.settings import Table
from regard.text.chat import TEMPLATE_FILE, chat_template
from regard.text.tokenizer import (
    FILE,
    HUGGINGFACE_ROLES,
    SOURCE_FILE,
    Tokenizer,
    TokenizerPair,
    framed_json,
    write_huggingface,
)
from regard.weights.checkpoints import checksum, write_checksums
from regard.weights.ctranslate2 import write_ctranslate2
from regard.weights.directory import CONFIG, LISTED, load_labels, load_model, read_config, save_labels, save_model
from regard.weights.huggingface.directory import find_tokenizers, named_labels, write_pretrained
from regard.weights.huggingface.tables import CONFIG_JSON, GENERATION
from regard.weights.tensors import build_with

Form: TypeAlias = Literal["ctranslate2", "huggingface", "timm", "int8", "bf16", "regard"]

STATED = ("max_position_embeddings", "bos_token_id", "eos_token_id")
"""Keys of a Hugging Face decoder's config that decide where its texts begin and end."""
LUMINANCE = (0.299, 0.587, 0.114)
"""The shares of red, green and blue in grey (ITU-R BT.601)."""
OF_TRAINING = ("id", "prepared", "reference")
"""Tables of a run's `config.toml` that do not describe its model."""


def convert(
    source: Path | str,
    target: Path | str,
    form: Form,
    *,
    language: str | None = None,
    force: bool = False,
    report: Callable[[str], None] = lambda note: None,
) -> list[Path]:
    """Write the model of a run directory or a Hugging Face directory into `target` in another form, and list its files.

    Tokenizers and labels go with it. A model of two directions is written for one: `language` is its target language,
    and the exported tokenizer adds the language's tag. `target` must be empty or absent unless `force` is set.
    `report` is called with each thing that is not written as it was.
    """
    source, target = Path(source), Path(target)
    _require_free(source, target, form, force)
    model = load_model(source)
    tokenizers = find_tokenizers(source)
    tables = read_config(source) if (source / CONFIG).is_file() else _stated(source, model)
    if form == "timm":
        names = {str(number): name for number, name in enumerate(_labels(source).get("label", ()))}
        for note in write_pretrained(model, target, {"id2label": names}, timm=True):
            report(note)
    elif form == "huggingface":
        for note in _write_huggingface(source, target, model, tokenizers, tables, _tagged(source, tables, language)):
            report(note)
    elif form == "ctranslate2":
        if tokenizers is None:
            raise WeightsError(f"{source} has no tokenizer, and ctranslate2 needs its tokens; add {FILE}")
        tagged = _tagged(source, tables, language)
        write_ctranslate2(model, tokenizers, target)
        tokenizers.save(target)
        # CTranslate2 adds the end itself.
        content = framed_json(tokenizers.source, tokenizers.source.tagged([[]], [tagged])[0], [])
        name = FILE if tokenizers.shared else SOURCE_FILE
        write_text(target / name, json.dumps(content, ensure_ascii=False, indent=1) + "\n")
    else:
        target.mkdir(parents=True, exist_ok=True)
        if tokenizers is not None:
            tokenizers.save(target)
        if labels := _labels(source):
            save_labels(labels, target)
        kept = {name: table for name, table in tables.items() if name not in ("model", *OF_TRAINING)}
        save_model(model, target, None if form == "regard" else form, kept)
        listed = [target / name for name in LISTED]
        write_checksums(target, {path.name: checksum(path) for path in listed if path.is_file()})
    if form not in ("ctranslate2", "timm"):
        if (template := chat_template(source, tables)) is not None:
            write_text(target / TEMPLATE_FILE, template)
        if isinstance(model.settings, Decoder) and (source / GENERATION).is_file():
            write_text(target / GENERATION, (source / GENERATION).read_text(encoding="utf-8"))
    return sorted(path for path in target.rglob("*") if path.is_file())


def _require_free(source: Path, target: Path, form: Form, force: bool) -> None:
    if target.resolve() == source.resolve():
        raise RunError(f"{target} is the model itself and would be overwritten; choose another directory")
    if target.is_file():
        raise RunError(f"{target} is a file; choose a directory")
    if not force and target.is_dir() and any(target.iterdir()):
        raise RunError(f"{target} is not empty; choose another directory, or replace its files with --force")
    other = CONFIG_JSON if form in ("int8", "bf16", "regard") else CONFIG
    if (target / other).is_file():
        raise RunError(f"{target} contains a model in another form ({other}); remove it first")


def _tagged(source: Path, tables: Table, language: str | None) -> str | None:
    """Return the language whose tag sources begin with; None: the model has one direction and no tags."""
    known, tagged = directions_of(tables)
    if not tagged or len(known) == 1:
        return known[0][1] if tagged else None
    if language not in known[0]:
        raise WeightsError(f"{source} translates into {' and '.join(known[0])}; set --to {known[0][1]}")
    return language


def _write_huggingface(
    source: Path, target: Path, model: Model, pair: TokenizerPair | None, tables: Table, language: str | None
) -> list[str]:
    """Write one tokenizer next to the weights, or two in a directory each. Return notes."""
    config: dict[str, Any] = {}
    translates = isinstance(model.settings, EncoderDecoder)
    if pair is not None:
        roles = {role: number for role, number in pair.target.roles.items() if role in ("pad", "start", "end")}
        config = {f"{HUGGINGFACE_ROLES[role]}_id": number for role, number in roles.items()}
        if translates:
            config["decoder_start_token_id"] = pair.target.role("start")
            config["forced_bos_token_id"] = next(iter(pair.target.opening), None)
    if isinstance(model.settings, Decoder):
        context, position = tables.get("task", {}).get("context"), model.settings.position
        if context and isinstance(position, Rotary) and position.scaling is None:
            config["max_position_embeddings"] = context
        config |= tables.get("generation", {})
    if "problem_type" in tables:
        config["problem_type"] = tables["problem_type"]
    labels = _labels(source)
    if names := labels.get("label") or labels.get("tags"):
        config["id2label"] = {str(number): name for number, name in enumerate(names)}
        config["label2id"] = {name: number for number, name in enumerate(names)}
    notes: list[str] = []
    if isinstance(model.settings, Vision) and model.settings.channels == 1:
        model, notes = _in_colour(model), ["its grey images are written as images of three channels"]
    notes += write_pretrained(model, target, config=config)
    if isinstance(model.settings, Vision):
        write_text(target / "preprocessor_config.json", json.dumps(_preprocessor(model.settings), indent=2) + "\n")
    if pair is None:
        return notes
    content = _template(pair.source, model, tables, language)
    # A tokenizer with the ids of both sides reads sources and writes targets.
    segments = getattr(model.settings, "segments", 0) > 1
    write_huggingface(pair.source, target if pair.joint else target / "source", content, segments)
    if not pair.shared:
        write_huggingface(pair.target, target / "target", _template(pair.target, model, tables, None))
    return notes


def _labels(source: Path) -> dict[Sort, Labels]:
    """The names of classes of a run, or those that the config of a Hugging Face model states, if they all differ."""
    config = read_json(source / CONFIG_JSON) if (source / CONFIG_JSON).is_file() else {}
    stated = named_labels(config) if {"id2label", "label_names"} & {*config} else {}
    return load_labels(source) or {sort: names for sort, names in stated.items() if len({*names}) == len(names)}


def _stated(source: Path, model: Model) -> Table:
    """What neither settings nor tokenizer hold of a Hugging Face model: how it is used, its context, its ends."""
    config = read_json(source / CONFIG_JSON) if (source / CONFIG_JSON).is_file() else {}
    found: Table = {"problem_type": config["problem_type"]} if config.get("problem_type") else {}
    if config and isinstance(model.settings, Decoder):
        found["generation"] = {key: config[key] for key in STATED if config.get(key) is not None}
    return found


def _template(tokenizer: Tokenizer, model: Model, tables: Table, language: str | None) -> dict[str, Any] | None:
    """The content of a `tokenizer.json` that frames texts as the model reads them; None: as the tokenizer does."""
    if isinstance(model.settings, EncoderDecoder):
        before = tokenizer.tagged([[]], [language])[0]
        return framed_json(tokenizer, [*tokenizer.opening, *before], [tokenizer.role("end")])
    if isinstance(model.settings, Decoder) and "task" in tables:  # an end after a prompt would end the text
        across = tables["task"].get("across", True) is True
        return framed_json(tokenizer, [] if across else [tokenizer.role("start")], [])
    return None


def _in_colour(model: Model) -> Model:
    """A model of three channels with the same results: grey is the weighted sum by which Pillow computes it.

    The pipelines of transformers make every image one of three channels.
    """
    tensors = {name: parameter.detach() for name, parameter in model.named_parameters()}
    patches = tensors["embedding.patches.weight"]
    tensors["embedding.patches.weight"] = patches * patches.new_tensor(LUMINANCE).view(3, 1, 1)
    return build_with(model.settings.model_copy(update={"channels": 3}), tensors)


def _preprocessor(settings: Vision) -> Table:
    """How transformers resizes and scales images: as `regard.tasks.image`."""
    steps = dict.fromkeys(("do_resize", "do_rescale", "do_normalize"), True)
    size = {"size": {"height": settings.image[0], "width": settings.image[1]}, "resample": 2}  # bilinear
    mean, deviation = (list(each) * (3 // len(each)) for each in (settings.mean, settings.deviation))
    scale = {"rescale_factor": 1 / 255, "image_mean": mean, "image_std": deviation}
    return {"image_processor_type": "ViTImageProcessor", **steps, **size, **scale}
