"""Tokenizers in the files that Hugging Face models had before `tokenizer.json`, as equal ones of `tokenizers`.

- `vocab.txt`: WordPiece (BERT)
- `vocab.json` and `merges.txt`: byte-level BPE (GPT-2, BART)
- `spiece.model` or `tokenizer.model`: SentencePiece (T5, LLaMA)
- `source.spm`, `target.spm` and `vocab.json`: SentencePiece for each side, ids from one table (Marian, OPUS-MT)
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from regard.errors import DataError
from regard.files import read_json
from regard.settings import Table
from regard.text.settings import Role
from regard.text.tokenizer import CONFIG_FILE, Tokenizer, check_charsmap, edge, find_roles

SOURCE_SPM, TARGET_SPM, VOCABULARY = "source.spm", "target.spm", "vocab.json"
MERGES, WORDPIECES = "merges.txt", "vocab.txt"
SENTENCEPIECE = ("spiece.model", "tokenizer.model")
FRAMES: dict[str, tuple[Role | None, Role | None]] = {
    "bert": ("class_token", "separator"),
    "bart": ("start", "end"),
    "gpt2": (None, None),
    "llama": ("start", None),
    "t5": (None, "end"),
    "marian": (None, "end"),
}
"""The special tokens before and after a text, by type of model."""
MARK = "▁"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
"""SentencePiece's types of pieces."""
_SPECIAL = re.compile(r"<[^<>]+>|>>.+<<")
"""Tokens such as </s>, <extra_id_0> and >>fr<<."""
NEVER = -1e9
"""The score of special tokens, whose spelling in a text is not read as them."""


def read_hub_tokenizers(directory: Path) -> tuple[Tokenizer, Tokenizer] | None:
    """The tokenizers of source and target in a directory without `tokenizer.json`, or None if it has none."""
    read = {
        SOURCE_SPM: _read_marian,
        WORDPIECES: _read_wordpiece,
        MERGES: _read_byte_bpe,
        **dict.fromkeys(SENTENCEPIECE, _read_sentencepiece),
    }
    found = next((name for name in read if (directory / name).is_file()), None)
    if found is None:
        return None
    return read[found](_Files(directory, found))


@dataclass(frozen=True)
class _Files:
    """A directory with the files of a tokenizer."""

    directory: Path
    main: str

    @property
    def path(self) -> Path:
        return self.directory / self.main

    def json(self, name: str) -> Table:
        return read_json(self.directory / name, DataError) if (self.directory / name).is_file() else {}

    def vocabulary(self, name: str = VOCABULARY) -> dict[str, int]:
        """A table of tokens and ids, which must be different and small enough."""
        path = self.directory / name
        if not path.is_file():
            raise DataError(f"{path} does not exist, but {self.main} needs it; copy or download it too")
        table = self.json(name)
        most = 2 * len(table) + 1_000  # a few ids may have no token
        numbers = {number for number in table.values() if type(number) is int and 0 <= number < most}
        if len(numbers) != len(table) or not table:
            raise DataError(f"{path} must give each token an id of its own, from 0 on; copy it again")
        return table

    def kind(self, default: str) -> str:
        """The type of the model: of config.json, or the class in tokenizer_config.json."""
        stated = self.json(CONFIG_FILE).get("tokenizer_class")
        named = str(stated or default).removesuffix("Fast").removesuffix("Tokenizer").lower()
        kind = str(self.json("config.json").get("model_type", named))
        if kind not in FRAMES:
            raise DataError(
                f"{self.path} cannot be read for a model of type {kind}, only for {', '.join(FRAMES)}; convert it with "
                "transformers: AutoTokenizer.from_pretrained(DIRECTORY).save_pretrained(DIRECTORY)"
            )
        return kind

    def finish(self, inner: tokenizers.Tokenizer, kind: str, size: int | None = None) -> Tokenizer:
        """The tokenizer with its added and special tokens, and its frame."""
        stated = self.json(CONFIG_FILE)
        added = {token: number for token, number in self.json("added_tokens.json").items() if type(number) is int}
        decoder = stated.get("added_tokens_decoder")
        for number, token in decoder.items() if isinstance(decoder, dict) else ():
            if str(number).isdecimal() and isinstance(token, dict) and isinstance(token.get("content"), str):
                added[token["content"]] = int(number)
        for token, number in sorted(added.items(), key=lambda each: each[1]):
            inner.add_special_tokens(_special([token]))
            if inner.token_to_id(token) != number:
                raise DataError(f"{self.directory} adds {token} as id {number}, which is taken or leaves a gap; fix it")
        roles, _ = find_roles(inner, {"vocab": {}}, self.directory)
        inner.add_special_tokens(_special(dict.fromkeys(roles.values())))
        keys: tuple[tuple[str, Role], ...] = (("add_bos_token", "start"), ("add_eos_token", "end"))
        frame = [
            (role if stated[key] is True else None) if key in stated else usual
            for (key, role), usual in zip(keys, FRAMES[kind], strict=True)
        ]
        opening, closing = ([roles[role]] if role in roles else [] for role in frame)
        second = [*closing, "$B:1"] if kind == "bart" else ["$B:1"]
        single = [*opening, "$A", *closing]
        if used := [*opening, *closing]:
            inner.post_processor = processors.TemplateProcessing(
                single=single,
                pair=[*single, *second, *(f"{token}:1" for token in closing)],
                special_tokens=[(token, inner.token_to_id(token)) for token in dict.fromkeys(used)],
            )
        return Tokenizer(inner, *find_roles(inner, {"vocab": {}}, self.directory), size=size)


def _read_wordpiece(files: _Files) -> tuple[Tokenizer, Tokenizer]:
    stated = files.json(CONFIG_FILE)
    tokens = _text(files.path).removesuffix("\n").split("\n")
    vocabulary = {token.rstrip("\r"): number for number, token in enumerate(tokens)}
    with edge("be read", files.path):
        inner = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token=str(stated.get("unk_token", "[UNK]"))))
    accents = stated.get("strip_accents")
    inner.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=stated.get("tokenize_chinese_chars") is not False,
        strip_accents=accents if isinstance(accents, bool) else None,
        lowercase=stated.get("do_lower_case") is not False,
    )
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece(prefix="##")
    found = files.finish(inner, files.kind("bert"))
    return found, found


def _read_byte_bpe(files: _Files) -> tuple[Tokenizer, Tokenizer]:
    lines = [line.rstrip("\r").split(" ") for line in _text(files.path).split("\n") if not line.startswith("#version")]
    merges = [(line[0], line[1]) for line in lines if len(line) == 2]
    with edge("be read", files.path):
        inner = tokenizers.Tokenizer(models.BPE(files.vocabulary(), merges))
    prefix = files.json(CONFIG_FILE).get("add_prefix_space") is True
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    inner.decoder = decoders.ByteLevel()
    found = files.finish(inner, files.kind("gpt2"))
    return found, found


def _read_sentencepiece(files: _Files) -> tuple[Tokenizer, Tokenizer]:
    model, kind = _SentencePiece.read(files.path), files.kind("t5")
    names = [piece for piece, _, _ in model.pieces]
    if kind == "t5":  # sentinels, from the last to the first
        count = files.json(CONFIG_FILE).get("extra_ids", 100)
        names += [f"<extra_id_{number}>" for number in reversed(range(count if count in range(1_000) else 0))]
    inner = model.build({name: number for number, name in enumerate(names)}, len(names))
    inner.add_special_tokens(_special(names[len(model.pieces) :]))
    found = files.finish(inner, kind)
    return found, found


def _read_marian(files: _Files) -> tuple[Tokenizer, Tokenizer]:
    """One table of ids for both sides, or one for each (`target_vocab.json`)."""
    separate = files.json(CONFIG_FILE).get("separate_vocabs") is True
    source = files.vocabulary()
    target = files.vocabulary("target_vocab.json") if separate else source

    def side(name: str, ids: Mapping[str, int]) -> Tokenizer:
        inner = _SentencePiece.read(files.directory / name).build(ids, size := max(ids.values()) + 1, both_ends=True)
        # A text can begin with the code of its target language, as in >>fr<< Hello.
        codes = [token for token in ids if token.startswith(">>") and token.endswith("<<")]
        inner.add_tokens([AddedToken(token, normalized=False) for token in codes])
        return files.finish(inner, "marian", size)

    return side(SOURCE_SPM, source), side(TARGET_SPM, target)


_Pieces: TypeAlias = Mapping[str, tuple[float, int]]


@dataclass(frozen=True)
class _SentencePiece:
    """The content of a SentencePiece model (Kudo and Richardson 2018)."""

    path: Path
    pieces: list[tuple[str, float, int]]
    """Spelling, score and type."""
    bpe: bool
    charsmap: bytes
    prefix: bool
    """Whether a space is added before the text."""
    collapse: bool
    """Whether spaces are removed that follow another one, or begin or end the text."""

    @classmethod
    def read(cls, path: Path) -> _SentencePiece:
        if not path.is_file():
            raise DataError(f"{path} does not exist; copy or download it too")
        try:
            fields = list(_fields(path.read_bytes()))
            pieces = [_piece(dict(_fields(value))) for number, value in fields if number == 1]
            messages = dict(fields)
            trainer, normalizer, denormalizer = (dict(_fields(messages.get(number, b""))) for number in (2, 3, 5))
        except (ValueError, KeyError, TypeError, struct.error) as error:
            raise DataError(f"{path} is not a SentencePiece model ({error}); copy or download it again") from None
        kind, charsmap = trainer.get(3, 1), normalizer.get(2, b"")
        unknown = sum(each == UNKNOWN for _, _, each in pieces)
        if kind not in (1, 2) or denormalizer.get(2) or trainer.get(24) or unknown != 1 or isinstance(charsmap, int):
            raise DataError(f"{path} is not a plain unigram or BPE model, and no other is supported; give another one")
        if charsmap:
            check_charsmap(charsmap, path)
        return cls(path, pieces, kind == 2, charsmap, bool(normalizer.get(3, 1)), bool(normalizer.get(4, 1)))

    def build(self, ids: Mapping[str, int], size: int, both_ends: bool = False) -> tokenizers.Tokenizer:
        """A tokenizer with the given ids. Pieces without an id get one from `size` on, which are unknown.

        Tokens that are no pieces of this model begin with a space here, so that no text contains them. Decoding removes
        spaces at the beginning, or at both ends.
        """
        known = {piece: (score, kind) for piece, score, kind in self.pieces}
        unknown = next(piece for piece, (_, kind) in known.items() if kind == UNKNOWN)
        if unknown not in ids:
            raise DataError(f"{self.path.parent} has no id for {unknown}; copy or download its files again")
        table = {token if token in known or _SPECIAL.fullmatch(token) else f" {token}": ids[token] for token in ids}
        table |= {piece: size + place for place, piece in enumerate(piece for piece in known if piece not in ids)}
        with edge("be read", self.path):
            inner = tokenizers.Tokenizer((self._bpe if self.bpe else self._unigram)(known, table, unknown))
            self._set_pipeline(inner, both_ends)
        return inner

    def _unigram(self, known: _Pieces, table: Mapping[str, int], unknown: str) -> models.Unigram:
        usual = [score for score, kind in known.values() if kind == NORMAL] or [0.0]
        by_id = {number: token for token, number in table.items()}
        lowest, highest = min(usual), max(usual)
        vocabulary = []
        for number in range(max(by_id) + 1):
            token = by_id.get(number, f" {number}")
            score, kind = known.get(token, (lowest, NORMAL) if token.startswith(" ") else (NEVER, CONTROL))
            if kind == USER_DEFINED:  # as SentencePiece prefers them
                score = len(token) * highest - 0.1
            vocabulary.append((token, NEVER if kind in (UNKNOWN, CONTROL) else score))
        fallback = any(kind == BYTE for _, kind in known.values())
        return models.Unigram(vocabulary, unk_id=table[unknown], byte_fallback=fallback)

    def _bpe(self, known: _Pieces, table: Mapping[str, int], unknown: str) -> models.BPE:
        pieces = {piece for piece, (_, kind) in known.items() if kind in (NORMAL, USER_DEFINED)}
        merges = [
            (piece[:cut], piece[cut:])
            for piece in sorted(pieces, key=lambda piece: (-known[piece][0], table[piece]))
            for cut in range(1, len(piece))
            if piece[:cut] in pieces and piece[cut:] in pieces
        ]
        fallback = any(kind == BYTE for _, kind in known.values())
        return models.BPE(dict(table), merges, unk_token=unknown, fuse_unk=True, byte_fallback=fallback)

    def _set_pipeline(self, inner: tokenizers.Tokenizer, both_ends: bool) -> None:
        steps: list[normalizers.Normalizer] = [normalizers.Precompiled(self.charsmap)] if self.charsmap else []
        if self.collapse:
            steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Replace(Regex("^ | $"), "")]
        steps += [normalizers.Replace(" ", MARK), *([normalizers.Prepend(MARK)] if self.prefix else [])]
        inner.normalizer = normalizers.Sequence(steps)
        # Without pieces that cross words, words can be split independently, which is faster.
        crosses = any(MARK in piece[1:].rstrip(MARK) or piece.endswith(MARK * 2) for piece, _, _ in self.pieces)
        inner.pre_tokenizer = pre_tokenizers.Metaspace(MARK, prepend_scheme="never", split=not crosses)
        edges = "^ +| +$" if both_ends else "^ +" if self.collapse else "^ "
        words = [decoders.Replace(" ", ""), decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
        inner.decoder = decoders.Sequence([*words, decoders.Replace(Regex(edges), "")])


def _piece(fields: Mapping[int, int | bytes]) -> tuple[str, float, int]:
    text, score, kind = fields[1], fields.get(2, bytes(4)), fields.get(3, NORMAL)
    if not isinstance(text, bytes) or not isinstance(score, bytes) or not isinstance(kind, int):
        raise ValueError("a piece is not valid")
    # More digits change when `tokenizers` reads a file that it wrote.
    return text.decode(), round(struct.unpack("<f", score)[0], 9), kind


def _fields(data: int | bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protocol buffer: their numbers, and values that are integers or bytes."""
    if isinstance(data, int):
        raise ValueError("a message is missing")
    place = 0

    def integer() -> int:
        nonlocal place
        value = shift = 0
        while True:
            if place >= len(data) or shift > 63:
                raise ValueError("it is truncated")
            value |= (data[place] & 127) << shift
            place, shift = place + 1, shift + 7
            if data[place - 1] < 128:
                return value

    while place < len(data):
        key = integer()
        if key & 7 == 0:
            yield key >> 3, integer()
            continue
        sizes: dict[int, Callable[[], int]] = {1: lambda: 8, 2: integer, 5: lambda: 4}
        if key & 7 not in sizes:
            raise ValueError(f"a field of type {key & 7}")
        size = sizes[key & 7]()
        place += size
        if place > len(data):
            raise ValueError("it is truncated")
        yield key >> 3, data[place - size : place]


def _special(tokens: Iterable[str]) -> list[AddedToken]:
    return [AddedToken(token, normalized=False, special=True) for token in tokens]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise DataError(f"{path} is not UTF-8 text; copy or download it again") from None
