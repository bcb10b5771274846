"""A model on the disk written again in another form: ours, ours made small, Hugging Face's, CTranslate2's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from torch import nn

from regard.data.labels import Labels, Sort
from regard.errors import RunError, WeightsError
from regard.models.settings import EncoderDecoder
from regard.settings import Table
from regard.text.tokenizer import FILE, HUGGINGFACE_ROLES, SOURCE_FILE, TARGET_FILE, TokenizerPair, write_huggingface
from regard.weights import ctranslate2
from regard.weights import directory as run_directory
from regard.weights.directory import load_labels, load_model, save_labels, settings_of
from regard.weights.huggingface.directory import write_pretrained
from regard.weights.huggingface.tables import CONFIG_JSON

Form: TypeAlias = Literal["ctranslate2", "huggingface", "int8", "bf16", "regard"]
FORMS: tuple[Form, ...] = get_args(Form)

OF_TRAINING = ("prepared", "reference")
"""Tables of a run's `config.toml` that say nothing of the model or where it comes from."""


@dataclass(frozen=True)
class Content:
    """All of a directory that belongs to its model."""

    model: nn.Module
    tokenizers: TokenizerPair | None
    """None for models that read no text, and where there is none."""
    labels: Mapping[Sort, Labels]
    tables: Table
    """Of `config.toml`, where there is one, but for the model's."""


def convert(source: Path | str, target: Path | str, form: Form, *, force: bool = False) -> list[Path]:
    """Write the model of a run directory or a Hugging Face directory into `target` in another form.

    Tokenizers and labels go with it. `target` must be empty or not there unless `force` says that files in it may be
    replaced. Gives the files that `target` holds then.
    """
    source, target = Path(source), Path(target)
    _require_free(source, target, form, force)
    content = read(source)
    if form == "ctranslate2":
        if content.tokenizers is None:
            raise WeightsError(f"{source} holds no tokenizer, and ctranslate2 needs its tokens; put {FILE} into it")
        ctranslate2.write(content.model, content.tokenizers, target)
        content.tokenizers.save(target)
    elif form == "huggingface":
        _write_huggingface(content, target)
    else:
        _write_ours(content, target, form)
    return sorted(path for path in target.rglob("*") if path.is_file())


def read(directory: Path) -> Content:
    """The model of a directory, with all that belongs to it."""
    model = load_model(directory)
    has_text = any((directory / name).is_file() for name in (FILE, SOURCE_FILE, TARGET_FILE))
    ours = (directory / run_directory.CONFIG).is_file()
    tables = run_directory.read_config(directory) if ours else {}
    return Content(
        model,
        TokenizerPair.load(directory) if has_text else None,
        load_labels(directory),
        {name: table for name, table in tables.items() if name not in ("model", *OF_TRAINING)},
    )


def _require_free(source: Path, target: Path, form: Form, force: bool) -> None:
    if target.resolve() == source.resolve():
        raise RunError(f"{target} is the model itself, which would be overwritten; name another directory")
    if target.is_file():
        raise RunError(f"{target} is a file; name a directory")
    if not force and target.is_dir() and any(target.iterdir()):
        raise RunError(f"{target} is not empty; name another directory, or let its files be replaced with --force")
    other = CONFIG_JSON if form in ("int8", "bf16", "regard") else run_directory.CONFIG
    if (target / other).is_file():
        raise RunError(f"{target} holds a model in another form ({other}), and both would be mixed; remove it first")


def _write_ours(content: Content, target: Path, form: Literal["int8", "bf16", "regard"]) -> None:
    target.mkdir(parents=True, exist_ok=True)
    if content.tokenizers is not None:
        content.tokenizers.save(target)
    if content.labels:
        save_labels(content.labels, target)
    run_directory.save_model(content.model, target, None if form == "regard" else form, content.tables)


def _write_huggingface(content: Content, target: Path) -> None:
    """One tokenizer lies beside the weights; two have a directory each."""
    write_pretrained(content.model, target, config=_config(content))
    pair = content.tokenizers
    if pair is None:
        return
    sources = isinstance(settings_of(content.model), EncoderDecoder)
    if pair.shared:
        write_huggingface(pair.source, target, sources=sources)
    else:
        write_huggingface(pair.source, target / "source", sources=sources)
        write_huggingface(pair.target, target / "target", sources=sources)


def _config(content: Content) -> dict[str, Any]:
    """What a model does not know and transformers wants to be told: special tokens, and the names of classes."""
    config: dict[str, Any] = {}
    if content.tokenizers is not None:
        tokenizer = content.tokenizers.target
        roles = {role: number for role, number in tokenizer.roles.items() if role in ("pad", "start", "end")}
        config |= {f"{HUGGINGFACE_ROLES[role]}_id": number for role, number in roles.items()}
        if isinstance(settings_of(content.model), EncoderDecoder):
            config["decoder_start_token_id"] = tokenizer.role("start")
    if "label" in content.labels:
        names = content.labels["label"].names
        config["id2label"] = {str(number): name for number, name in enumerate(names)}
        config["label2id"] = {name: number for number, name in enumerate(names)}
    return config
