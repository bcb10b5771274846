"""Tokenizers in the files that Hugging Face models had before `tokenizer.json`, as equal ones of `tokenizers`.

- `vocab.txt`: WordPiece (BERT); `vocab.json` and `merges.txt`: byte-level BPE (GPT-2, BART)
- `spiece.model` or `tokenizer.model`: SentencePiece (T5, LLaMA)
- `source.spm`, `target.spm` and `vocab.json`: SentencePiece for each side, ids from one table (Marian, OPUS-MT)
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from regard.errors import DataError
from regard.files import read_json
from regard.settings import Table
from regard.text.settings import Role
from regard.text.tokenizer import CONFIG_FILE, Tokenizer, check_charsmap, edge, find_roles, frame_template

Ends: TypeAlias = tuple[Role | None, Role | None]
FRAMES: dict[str, Ends] = {"bert": ("class_token", "separator"), "bart": ("start", "end"), "gpt2": (None, None)}
FRAMES |= {"t5": (None, "end"), "marian": (None, "end")}
FRAMES |= dict.fromkeys(("llama", "mistral", "gemma", "gemma2", "gemma3_text"), ("start", None))
"""The special tokens before and after a text, by type of model."""
KINDS = {"vocab.txt": "bert", "merges.txt": "gpt2", "spiece.model": "t5", "tokenizer.model": "t5"}
"""The type of model if no file states it."""
MARK = "▁"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
"""SentencePiece's types of pieces."""
SPECIAL = re.compile(r"<[^<>]+>|>>.+<<")
"""Tokens such as </s>, <extra_id_0> and >>fr<<."""
NEVER = -1e9
"""The score of special tokens, whose spelling in a text is not read as them."""


def read_hub_tokenizers(directory: Path) -> tuple[Tokenizer, Tokenizer] | None:
    """The tokenizers of source and target in a directory without `tokenizer.json`, or None if it has none."""
    if (directory / "source.spm").is_file():
        source = _vocabulary(directory / "vocab.json")
        separate = _json(directory / CONFIG_FILE).get("separate_vocabs") is True
        target = _vocabulary(directory / "target_vocab.json") if separate else source
        return _marian(directory / "source.spm", source), _marian(directory / "target.spm", target)
    found = next((directory / name for name in KINDS if (directory / name).is_file()), None)
    if found is None:
        return None
    stated = _json(directory / CONFIG_FILE)
    named = str(stated.get("tokenizer_class") or KINDS[found.name]).removesuffix("Fast").removesuffix("Tokenizer")
    kind = str(_json(directory / "config.json").get("model_type", named.lower()))
    if kind not in FRAMES:
        raise DataError(
            f"{found} cannot be read for a model of type {kind}, only for {', '.join(FRAMES)}; convert it with "
            "transformers: AutoTokenizer.from_pretrained(DIRECTORY).save_pretrained(DIRECTORY)"
        )
    if found.name == "vocab.txt":
        inner = _wordpiece(found, stated)
    elif found.name == "merges.txt":
        inner = _byte_bpe(found, stated)
    else:
        count = stated.get("extra_ids", 100) if kind == "t5" else 0
        inner = _sentencepiece(found, extra=[f"<extra_id_{i}>" for i in range(count if count in range(1_000) else 0)])
    tokenizer = finished(inner, kind, directory)
    return tokenizer, tokenizer


def _json(path: Path) -> Table:
    return read_json(path, DataError) if path.is_file() else {}


def _vocabulary(path: Path) -> dict[str, int]:
    """A table of tokens and ids. A few ids may have no token."""
    table = _json(path)
    most = 2 * len(table) + 1_000
    if not table or len({each for each in table.values() if type(each) is int and 0 <= each < most}) != len(table):
        raise DataError(f"{path} must exist and give each token an id of its own, from 0 on; download it again")
    return table


def _wordpiece(path: Path, stated: Table) -> tokenizers.Tokenizer:
    with edge("be read", path):
        lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
        vocabulary = {token: number for number, token in enumerate(lines)}
        inner = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token=str(stated.get("unk_token", "[UNK]"))))
    accents, chinese = stated.get("strip_accents"), stated.get("tokenize_chinese_chars") is not False
    accents, lowercase = accents if isinstance(accents, bool) else None, stated.get("do_lower_case") is not False
    inner.normalizer = normalizers.BertNormalizer(True, chinese, accents, lowercase)
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece(prefix="##")
    return inner


def _byte_bpe(path: Path, stated: Table) -> tokenizers.Tokenizer:
    with edge("be read", path):
        lines = [line.split(" ") for line in path.read_text(encoding="utf-8").split("\n")]
        merges = [(line[0], line[1]) for line in lines if len(line) == 2 and line[0] != "#version:"]
        inner = tokenizers.Tokenizer(models.BPE(_vocabulary(path.with_name("vocab.json")), merges))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=stated.get("add_prefix_space") is True)
    inner.decoder = decoders.ByteLevel()
    return inner


def _marian(path: Path, ids: Mapping[str, int]) -> Tokenizer:
    inner = _sentencepiece(path, ids, edges="^ +| +$")
    # A text can begin with the code of its target language, as in >>fr<< Hello.
    codes = [token for token in ids if token.startswith(">>") and token.endswith("<<")]
    inner.add_tokens([AddedToken(token, normalized=False) for token in codes])
    return finished(inner, "marian", path.parent, max(ids.values()) + 1)


def _special(tokens: Iterable[str]) -> list[AddedToken]:
    return [AddedToken(token, normalized=False, special=True) for token in tokens]


def finished(inner: tokenizers.Tokenizer, kind: str, directory: Path, size: int | None = None) -> Tokenizer:
    """The tokenizer with its added and special tokens, and its frame."""
    stated = _json(directory / CONFIG_FILE)
    listed = stated.get("added_tokens_decoder")
    tokens = listed.items() if isinstance(listed, dict) else ()
    added = {str(each.get("content")): number for number, each in tokens if isinstance(each, dict)}
    added |= _json(directory / "added_tokens.json")
    for token, number in sorted(added.items(), key=lambda each: str(each[1]).zfill(9)):
        inner.add_special_tokens(_special([token]))
        if str(inner.token_to_id(token)) != str(number):
            raise DataError(f"{directory} adds {token} as id {number}, which is taken or leaves a gap; correct it")
    roles, _ = find_roles(inner, {"vocab": {}}, directory)
    inner.add_special_tokens(_special(dict.fromkeys(roles.values())))
    first, last = FRAMES[kind]
    first = first if "add_bos_token" not in stated else "start" if stated["add_bos_token"] else None
    last = last if "add_eos_token" not in stated else "end" if stated["add_eos_token"] else None
    opening, closing = ([roles[role]] if role in roles else [] for role in (first, last))
    if template := frame_template(opening, closing, inner.get_vocab(), again=closing if kind == "bart" else []):
        inner.post_processor = template
    return Tokenizer(inner, *find_roles(inner, {"vocab": {}}, directory), size=size)


def _sentencepiece(
    path: Path, ids: Mapping[str, int] | None = None, extra: list[str] | None = None, edges: str = "^ +"
) -> tokenizers.Tokenizer:
    """A file of SentencePiece (Kudo and Richardson 2018) with its own ids and `extra` tokens, or with the given ids."""
    try:
        fields = list(_fields(path.read_bytes()))
        pieces = [_piece(dict(_fields(value))) for number, value in fields if number == 1]
        trainer, normalizer = (dict(_fields(dict(fields).get(number, b""))) for number in (2, 3))
        known = {piece: (score, kind) for piece, score, kind in pieces}
        (unknown,) = (piece for piece, _, kind in pieces if kind == UNKNOWN)
    except (OSError, ValueError, LookupError, TypeError, struct.error) as error:
        raise DataError(f"{path} is not a SentencePiece model ({error}); copy or download it again") from None
    if trainer.get(3, 1) not in (1, 2) or trainer.get(24):
        raise DataError(f"{path} is not a plain unigram or BPE model, and no other is supported; give another one")
    return sentencepiece(path, known, unknown, trainer.get(3) == 2, normalizer, ids, extra, edges)


def sentencepiece(
    path: Path,
    known: Mapping[str, tuple[float, int]],
    unknown: str,
    bpe: bool,
    normalizer: Mapping[int, Any],
    ids: Mapping[str, int] | None = None,
    extra: list[str] | None = None,
    edges: str = "^ +",
) -> tokenizers.Tokenizer:
    """The tokenizer of pieces with their scores and types.

    Pieces without an id get a larger one than all others. Tokens that are no pieces begin with a space here, so that no
    text contains them. Decoding removes spaces at the `edges`.
    """
    if ids is None:
        ids = {token: number for number, token in enumerate([*known, *reversed(extra or ())])}
    if unknown not in ids:
        raise DataError(f"{path.parent} has no id for {unknown}; copy or download its files again")
    table = {token if token in known or SPECIAL.fullmatch(token) else f" {token}": ids[token] for token in ids}
    rest = enumerate((piece for piece in known if piece not in ids), max(ids.values()) + 1)
    table |= {piece: number for number, piece in rest}
    with edge("be read", path):
        inner = tokenizers.Tokenizer((_bpe if bpe else _unigram)(known, table, unknown))
        inner.add_special_tokens(_special(extra or ()))
        steps: list[normalizers.Normalizer] = []
        if charsmap := normalizer.get(2):
            check_charsmap(charsmap, path)
            steps = [normalizers.Precompiled(charsmap)]
        if collapses := normalizer.get(4, 1):
            steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Replace(Regex("^ | $"), "")]
        steps += [normalizers.Replace(" ", MARK), *([normalizers.Prepend(MARK)] if normalizer.get(3, 1) else [])]
        inner.normalizer = normalizers.Sequence(steps)
        # Without pieces that cross words, words can be split independently, which is faster.
        crosses = any(MARK in piece[1:].rstrip(MARK) or piece.endswith(MARK * 2) for piece in known)
        inner.pre_tokenizer = pre_tokenizers.Metaspace(MARK, prepend_scheme="never", split=not crosses)
        words = [decoders.Replace(" ", ""), decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
        inner.decoder = decoders.Sequence([*words, decoders.Replace(Regex(edges if collapses else "^ "), "")])
    return inner


def _unigram(known: Mapping[str, tuple[float, int]], table: Mapping[str, int], unknown: str) -> models.Model:
    usual = [score for score, kind in known.values() if kind == NORMAL] or [0.0]
    lowest, highest = min(usual), max(usual)
    by_id, vocabulary = {number: token for token, number in table.items()}, []
    for number in range(max(by_id) + 1):
        token = by_id.get(number, f" {number}")
        score, kind = known.get(token, (lowest, NORMAL if token.startswith(" ") else CONTROL))
        if kind in (UNKNOWN, CONTROL):
            score = NEVER
        elif kind == USER_DEFINED:  # as SentencePiece prefers them
            score = len(token) * highest - 0.1
        vocabulary.append((token, score))
    return models.Unigram(vocabulary, table[unknown], any(kind == BYTE for _, kind in known.values()))


def _bpe(known: Mapping[str, tuple[float, int]], table: Mapping[str, int], unknown: str) -> models.Model:
    pieces = {piece for piece, (_, kind) in known.items() if kind in (NORMAL, USER_DEFINED)}
    merges = [
        (piece[:cut], piece[cut:])
        for piece in sorted(pieces, key=lambda piece: (-known[piece][0], table[piece]))
        for cut in range(1, len(piece))
        if piece[:cut] in pieces and piece[cut:] in pieces
    ]
    fallback = any(kind == BYTE for _, kind in known.values())
    return models.BPE(dict(table), merges, unk_token=unknown, fuse_unk=True, byte_fallback=fallback)


def _piece(fields: Mapping[int, Any]) -> tuple[str, float, int]:
    # More digits change when `tokenizers` reads a file that it wrote.
    return str(fields[1], "utf-8"), round(struct.unpack("<f", fields.get(2, bytes(4)))[0], 9), fields.get(3, NORMAL)


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a protocol buffer: their numbers, and values that are integers or bytes."""
    place = 0

    def integer() -> int:
        nonlocal place
        value = shift = 0
        while shift < 64:
            value |= (data[place] & 127) << shift
            place, shift = place + 1, shift + 7
            if data[place - 1] < 128:
                return value
        raise ValueError("an integer is too long")

    while place < len(data):
        key = integer()
        value: Any = integer() if key & 7 in (0, 2) else {1: 8, 5: 4}[key & 7]
        if key & 7:  # the value is a size
            place += value
            value = data[place - value : place]
        yield key >> 3, value
    if place > len(data):
        raise ValueError("it is truncated")
