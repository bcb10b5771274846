"""Converts a model directory: to Hugging Face, to CTranslate2, or to a smaller one of Regard."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, TypeAlias

from regard.errors import RunError, WeightsError
from regard.files import write_text
from regard.models.build import Model
from regard.models.settings import EncoderDecoder
from regard.settings import Table
from regard.text.tokenizer import (
    FILE,
    HUGGINGFACE_ROLES,
    SOURCE_FILE,
    TokenizerPair,
    source_json,
    write_huggingface,
)
from regard.weights.checkpoints import checksum, write_checksums
from regard.weights.ctranslate2 import write_ctranslate2
from regard.weights.directory import CONFIG, LISTED, load_labels, load_model, read_config, save_labels, save_model
from regard.weights.huggingface.directory import write_pretrained
from regard.weights.huggingface.tables import CONFIG_JSON

Form: TypeAlias = Literal["ctranslate2", "huggingface", "int8", "bf16", "regard"]

OF_TRAINING = ("prepared", "reference")
"""Tables of a run's `config.toml` that do not describe its model."""


def convert(
    source: Path | str, target: Path | str, form: Form, *, language: str | None = None, force: bool = False
) -> list[Path]:
    """Write the model of a run directory or a Hugging Face directory into `target` in another form, and list its files.

    Tokenizers and labels go with it. A model of two directions is written for one: `language` is its target language,
    and the exported tokenizer adds the language's tag. `target` must be empty or absent unless `force` is set.
    """
    source, target = Path(source), Path(target)
    _require_free(source, target, form, force)
    model = load_model(source)
    tokenizers = TokenizerPair.find(source)
    tables = read_config(source) if (source / CONFIG).is_file() else {}
    if form == "huggingface":
        _write_huggingface(source, target, model, tokenizers, _tagged(source, tables, language))
    elif form == "ctranslate2":
        if tokenizers is None:
            raise WeightsError(f"{source} has no tokenizer, and ctranslate2 needs its tokens; add {FILE}")
        tagged = _tagged(source, tables, language)
        write_ctranslate2(model, tokenizers, target)
        tokenizers.save(target)
        # CTranslate2 adds the end itself.
        content = source_json(tokenizers.source, tagged, end=False)
        name = FILE if tokenizers.shared else SOURCE_FILE
        write_text(target / name, json.dumps(content, ensure_ascii=False, indent=1) + "\n")
    else:
        target.mkdir(parents=True, exist_ok=True)
        if tokenizers is not None:
            tokenizers.save(target)
        if labels := load_labels(source):
            save_labels(labels, target)
        kept = {name: table for name, table in tables.items() if name not in ("model", *OF_TRAINING)}
        save_model(model, target, None if form == "regard" else form, kept)
        listed = [target / name for name in LISTED]
        write_checksums(target, {path.name: checksum(path) for path in listed if path.is_file()})
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
    data = tables.get("data")
    if not isinstance(data, dict) or data.get("both") is not True:
        return None
    languages = [str(each) for each in data["languages"]]
    if language not in languages:
        raise WeightsError(f"{source} translates into {' and '.join(languages)}; set --to {languages[-1]}")
    return language


def _write_huggingface(
    source: Path, target: Path, model: Model, pair: TokenizerPair | None, language: str | None
) -> None:
    """Write one tokenizer next to the weights, or two in a directory each."""
    config: dict[str, Any] = {}
    translates = isinstance(model.settings, EncoderDecoder)
    if pair is not None:
        roles = {role: number for role, number in pair.target.roles.items() if role in ("pad", "start", "end")}
        config = {f"{HUGGINGFACE_ROLES[role]}_id": number for role, number in roles.items()}
        if translates:
            config["decoder_start_token_id"] = pair.target.role("start")
    if label := load_labels(source).get("label"):
        config["id2label"] = {str(number): name for number, name in enumerate(label)}
        config["label2id"] = {name: number for number, name in enumerate(label)}
    write_pretrained(model, target, config=config)
    if pair is not None:
        place = target if pair.shared else target / "source"
        write_huggingface(pair.source, place, sources=translates, language=language)
        if not pair.shared:
            write_huggingface(pair.target, target / "target", sources=translates)
