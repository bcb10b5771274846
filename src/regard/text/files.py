"""`tokenizer.json`, ours and Hugging Face's, read and written.

Ours is theirs with one table more, inside `model`, that holds the roles of the special tokens and the settings. Where
it is missing, roles are taken from `tokenizer_config.json` and `special_tokens_map.json` beside the file, then from the
names that special tokens usually have.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tokenizers

from regard.errors import DataError
from regard.files import write_text
from regard.settings import parse
from regard.text.settings import AnyTokenizer, Role
from regard.text.tokenizer import OURS, VERSION, Tokenizer

FILE = "tokenizer.json"
CONFIG = "tokenizer_config.json"
SPECIAL = "special_tokens_map.json"

KEYS: dict[Role, str] = {
    "pad": "pad_token",
    "start": "bos_token",
    "end": "eos_token",
    "unknown": "unk_token",
    "mask": "mask_token",
    "class_token": "cls_token",
    "separator": "sep_token",
}
"""What Hugging Face calls the roles."""

NAMES: dict[Role, tuple[str, ...]] = {
    "pad": ("<pad>", "[PAD]", "<|pad|>", "<|padding|>", "<|finetune_right_pad_id|>"),
    "start": ("<s>", "<bos>", "[BOS]", "<|begin_of_text|>", "<|startoftext|>", "<|endoftext|>"),
    "end": ("</s>", "<eos>", "[EOS]", "<|end_of_text|>", "<|endoftext|>"),
    "unknown": ("<unk>", "[UNK]", "<|unk|>"),
    "mask": ("<mask>", "[MASK]", "<|mask|>"),
    "class_token": ("[CLS]", "<cls>"),
    "separator": ("[SEP]", "<sep>"),
}
"""Names by which a role is known where no file says it; the first that the vocabulary holds."""


# ------------------------------------------------------------------------------------------------------------- writing


def save(tokenizer: Tokenizer, path: Path | str) -> None:
    """One file; `path` is its name, or the directory in which `tokenizer.json` is to be."""
    path = Path(path)
    write_text(path / FILE if path.is_dir() else path, tokenizer.json + "\n")


def write_huggingface(tokenizer: Tokenizer, directory: Path | str, *, sources: bool = False) -> None:
    """`tokenizer.json` and `tokenizer_config.json`, so that `transformers` knows the roles too.

    With `sources`, theirs puts an end behind texts and no start before them, as an encoder-decoder reads its sources.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    content = json.loads(tokenizer.json)
    if sources:
        content["post_processor"] = _only_end(tokenizer)
    write_text(directory / FILE, json.dumps(content, ensure_ascii=False, indent=1) + "\n")
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    config |= {KEYS[role]: tokenizer.token(number) for role, number in tokenizer.roles.items()}
    if tokenizer.extra:
        config["additional_special_tokens"] = list(tokenizer.extra)
    write_text(directory / CONFIG, json.dumps(config, ensure_ascii=False, indent=2) + "\n")


def _only_end(tokenizer: Tokenizer) -> dict[str, Any]:
    number = tokenizer.role("end")
    end = tokenizer.token(number)
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    last = {"SpecialToken": {"id": end, "type_id": 0}}
    special = {end: {"id": end, "ids": [number], "tokens": [end]}}
    return {
        "type": "TemplateProcessing",
        "single": [first, last],
        "pair": [first, second, last],
        "special_tokens": special,
    }


# ------------------------------------------------------------------------------------------------------------- reading


def load(path: Path | str) -> Tokenizer:
    """The tokenizer of a file, or of a directory that holds `tokenizer.json`, ours or Hugging Face's."""
    path = Path(path)
    file = path / FILE if path.is_dir() else path
    if not file.is_file():
        raise DataError(_missing(path, file))
    text = _read_text(file)
    content = _as_json(file, text)
    model = content.get("model")
    if not isinstance(model, dict) or "vocab" not in model:
        raise DataError(f"{file} has no model with a vocab, so it is no tokenizer; give a {FILE}")
    ours = model.get(OURS)
    if ours is None:
        inner = _parse(file, text)
        roles, extra = _roles(inner, model, file.parent)
        return Tokenizer(inner, roles, extra)
    if not isinstance(ours, dict) or ours.get("version") != VERSION:
        found = ours.get("version") if isinstance(ours, dict) else ours
        raise DataError(f"{file} has format {found!r}, and this version of regard reads {VERSION}; install a newer one")
    inner = _parse(file, text)
    vocabulary = inner.get_vocab()
    roles, extra = ours.get("roles", {}), ours.get("extra", [])
    for token in (*roles.values(), *extra):
        if token not in vocabulary:
            raise DataError(f"{file} gives a role to {token}, which is not in its vocabulary; copy it again")
    settings = parse(AnyTokenizer, ours["settings"], "text") if "settings" in ours else None
    return Tokenizer(inner, {role: roles[role] for role in KEYS if role in roles}, extra, settings)


def _roles(inner: tokenizers.Tokenizer, model: dict[str, Any], directory: Path) -> tuple[dict[Role, str], list[str]]:
    """Roles by what the files beside say, by the model's own word for unknown, and by usual names."""
    vocabulary = inner.get_vocab()
    said = dict(_said(directory))
    roles: dict[Role, str] = {}
    for role, key in KEYS.items():
        known = (said.get(key), _unknown(model) if role == "unknown" else None, *NAMES[role])
        token = next((name for name in known if isinstance(name, str) and name in vocabulary), None)
        if token is not None:
            roles[role] = token
    special = [token.content for token in inner.get_added_tokens_decoder().values() if token.special]
    return roles, [token for token in dict.fromkeys(special) if token not in roles.values()]


def _said(directory: Path) -> Iterator[tuple[str, Any]]:
    """Keys and tokens of the files beside; the later file has the last word."""
    for name in (SPECIAL, CONFIG):
        if (directory / name).is_file():
            for key, value in _as_json(directory / name, _read_text(directory / name)).items():
                yield key, value.get("content") if isinstance(value, dict) else value


def _unknown(model: dict[str, Any]) -> str | None:
    if isinstance(model.get("unk_id"), int) and isinstance(model["vocab"], list):
        return str(model["vocab"][model["unk_id"]][0])
    name = model.get("unk_token")
    return name if isinstance(name, str) else None


def _parse(file: Path, text: str) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises plain Exception
        raise DataError(f"{file} is no tokenizer that tokenizers {tokenizers.__version__} reads: {error}") from None


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{file} is not UTF-8 ({error}); copy or download it again") from None


def _as_json(file: Path, text: str) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{file} is not valid JSON ({error}); copy or download it again") from None
    if not isinstance(content, dict):
        raise DataError(f"{file} must hold a JSON object, not {type(content).__name__}; copy or download it again")
    return content


def _missing(path: Path, file: Path) -> str:
    if not path.is_dir():
        return f"{file} does not exist; give a {FILE}, or the directory that holds one"
    older = ("vocab.txt", "vocab.json", "merges.txt", "source.spm", "spiece.model", "tokenizer.model")
    found = [name for name in older if (path / name).is_file()]
    if not found:
        return f"{path} holds no {FILE}; give the directory of a whole model"
    return (
        f"{path} holds no {FILE}, but {', '.join(found)}; let transformers convert it: "
        f"AutoTokenizer.from_pretrained(DIRECTORY).save_pretrained(DIRECTORY)"
    )
