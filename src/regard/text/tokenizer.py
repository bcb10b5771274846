"""Tokenizers: text to ids and back, and the files that hold them.

A tokenizer file is a `tokenizer.json` of Hugging Face's `tokenizers` with one additional table, `model.regard`, for the
roles of the special tokens and the settings. Where that table is missing, roles are taken from
`tokenizer_config.json` and `special_tokens_map.json` in the same directory, then from usual names such as `[PAD]`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias, cast

import tokenizers

from regard.errors import DataError, InputError, RegardError, SettingsError
from regard.files import read_json, write_text
from regard.settings import parse, to_table
from regard.text.settings import ROLES, AnyTokenizer, Role

FILE = "tokenizer.json"
SOURCE_FILE = "tokenizer.source.json"
TARGET_FILE = "tokenizer.target.json"
CONFIG_FILE = "tokenizer_config.json"

LARGEST = 2**24
VERSION = 1

HUGGINGFACE_ROLES: dict[Role, str] = {
    "pad": "pad_token",
    "start": "bos_token",
    "end": "eos_token",
    "unknown": "unk_token",
    "mask": "mask_token",
    "class_token": "cls_token",
    "separator": "sep_token",
}

_USUAL_NAMES: dict[Role, tuple[str, ...]] = {
    "pad": ("<pad>", "[PAD]", "<|pad|>", "<|padding|>", "<|finetune_right_pad_id|>"),
    "start": ("<s>", "<bos>", "[BOS]", "<|begin_of_text|>", "<|startoftext|>", "<|endoftext|>"),
    "end": ("</s>", "<eos>", "[EOS]", "<|end_of_text|>", "<|endoftext|>"),
    "unknown": ("<unk>", "[UNK]", "<|unk|>"),
    "mask": ("<mask>", "[MASK]", "<|mask|>"),
    "class_token": ("[CLS]", "<cls>"),
    "separator": ("[SEP]", "<sep>"),
}
"""Names by which a role is recognised if no file states it; the first one in the vocabulary is used."""

_SUBSTITUTES: dict[Role, Role] = {
    "class_token": "start",
    "start": "class_token",
    "separator": "end",
    "end": "separator",
}
"""The role whose token is used if a role has no token of its own."""

Span: TypeAlias = tuple[int, int]
"""A range of characters: the first one, and the one after the last."""

_WORD = re.compile(r"\w+(?:['’.,-]\w+)*|[^\w\s]")


def word_spans(text: str) -> list[Span]:
    """The words of a text: runs of letters and digits (What's, 3.5, well-known), and each other sign by itself."""
    return [match.span() for match in _WORD.finditer(text)]


def tag(language: str) -> str:
    """The special token at the start of a source that selects the target language (Johnson et al. 2017)."""
    return f"<2{language}>"


class Tokenizer:
    """Text to ids and back. Tokenizers are immutable, compare by content, and can be pickled.

    Texts are taken literally: `</s>` inside a text is four characters, not the end token. Only `encode(...,
    special=True)` reads special tokens from a text.
    """

    def __init__(
        self,
        inner: tokenizers.Tokenizer,
        roles: Mapping[Role, str],
        extra: Sequence[str] = (),
        settings: AnyTokenizer | None = None,
        size: int | None = None,
        framed: bool = False,
    ) -> None:
        """`size` is the vocabulary size of a Marian model; pieces with larger ids stand for the unknown token."""
        self.settings = settings
        """The settings it was trained with; None if it was not trained by Regard."""
        self._inner = inner
        inner.encode_special_tokens = True
        inner.no_padding()  # a Hugging Face file may state padding and truncation
        inner.no_truncation()
        self._tokens: dict[Role, str] = {role: roles[role] for role in ROLES if role in roles}
        self._extra = tuple(extra)
        vocabulary = inner.get_vocab()
        most = max(vocabulary.values(), default=-1) + 1
        self.size = most if size is None else size
        """The vocabulary size that a model needs: the largest id plus one."""
        self._looked_up = size is not None
        self.opening = [vocabulary[self._tokens["class_token"]]] if framed else []
        """What an encoder-decoder reads and writes before each text: nothing, or the class token (BART)."""
        if self.size > LARGEST:
            raise DataError(f"the tokenizer has a token with id {self.size - 1:,}, expected less than {LARGEST:,}")
        self.roles: Mapping[Role, int] = {role: vocabulary[token] for role, token in self._tokens.items()}
        """The id of the special token of each role."""
        self.extra: Mapping[str, int] = {token: vocabulary[token] for token in self._extra}
        """The ids of the special tokens without a role."""

    def encode(
        self, text: str, pair: str | None = None, *, framed: bool = True, special: bool = False
    ) -> tokenizers.Encoding:
        """The tokens of a text or of a pair of texts, with `ids`, `tokens`, `offsets`, `word_ids` and `type_ids`.

        Offsets count characters of the text as given. `framed` adds start and end, or class token and separator.
        `special` reads special tokens, such as `[MASK]`, from the text.
        """
        check_texts([text] if pair is None else [text, pair])
        with edge("encode this text"):
            inner = self._reading if special else self._inner
            return self._clipped(inner.encode(text, pair, add_special_tokens=framed))

    def encode_batch(self, texts: Sequence[str], *, framed: bool = True) -> list[tokenizers.Encoding]:
        """As `encode`, for many texts, on all cores."""
        check_texts(texts)
        with edge("encode these texts"):
            found = self._inner.encode_batch(cast(Any, texts), add_special_tokens=framed)
        return [self._clipped(each) for each in found]

    def ids(self, texts: Sequence[str], *, end: bool = False) -> list[list[int]]:
        """The ids of many texts, on all cores; `end` adds that token."""
        if isinstance(texts, str):
            check_texts(texts)
        try:
            with edge("encode these texts"):
                # The fast one gives no tokens.
                encode = self._inner.encode_batch if self._looked_up else self._inner.encode_batch_fast
                found = encode(cast(Any, texts), add_special_tokens=False)
        except TypeError:
            check_texts(texts)
            raise
        last = [self.role("end")] if end else []
        return [self._clipped(encoding).ids + last for encoding in found]

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of ids, without special tokens unless `special`."""
        return self.decode_batch([ids], special=special)[0]

    def decode_batch(self, batch: Sequence[Sequence[int]], *, special: bool = False) -> list[str]:
        for ids in batch:
            if len(ids) and not (min(ids) >= 0 and max(ids) < self.size):
                wrong = next(number for number in ids if not 0 <= number < self.size)
                raise InputError(
                    f"token id {wrong} is out of range, expected 0 to {self.size - 1:,}; use the tokenizer that the "
                    "model was trained with"
                )
        with edge("decode these tokens"):
            return self._inner.decode_batch(cast(Any, batch), skip_special_tokens=not special)

    def tag(self, language: str) -> int | None:
        """The id of the tag that selects a target language, as Regard (`<2de>`) or OPUS-MT (`>>de<<`) write it."""
        found = (self.id(token) for token in (tag(language), f">>{language}<<"))
        return next((number for number in found if number is not None), None)

    def tagged(self, batch: list[list[int]], to: Sequence[str | None]) -> list[list[int]]:
        """The ids of sources with the tag of the target language first, where one is named."""
        tags: dict[str | None, list[int]] = {None: []}
        for language in filter(None, dict.fromkeys(to)):
            if (number := self.tag(language)) is None:
                needed = f"data.both needs a tokenizer with the special token {tag(language)}"
                raise SettingsError(f"{needed}; train one with text.special.extra={[tag(language)]}")
            tags[language] = [number]
        return [[*tags[language], *ids] if language else ids for ids, language in zip(batch, to, strict=True)]

    def role(self, name: Role) -> int:
        """The id of the special token of a role. Start and class token, end and separator replace each other."""
        for known in (name, _SUBSTITUTES.get(name, name)):
            if known in self.roles:
                return self.roles[known]
        raise InputError(
            f"the tokenizer has no {name} token (roles: {', '.join(self.roles) or 'none'}); set text.special.{name} "
            "and train it again"
        )

    def known(self, ids: Sequence[int]) -> list[int]:
        """The ids that have a token. A model may have more rows than its tokenizer, as T5's."""
        return [number for number in ids if number < self.size]

    def token(self, number: int) -> str:
        """The token of an id, as written in the vocabulary."""
        found = self._inner.id_to_token(number) if number >= 0 else None
        if found is None:
            raise InputError(f"token id {number} is not in the vocabulary of {self.size:,} tokens")
        return found.lstrip(" ") if self._looked_up else found

    def id(self, token: str) -> int | None:
        """The id of a token as written in the vocabulary, or None."""
        found = self._inner.token_to_id(token)
        return self._inner.token_to_id(f" {token}") if found is None and self._looked_up else found

    @cached_property
    def frame(self) -> tuple[list[int], list[int], list[int]]:
        """The special tokens before a text, between the texts of a pair, and after them.

        They are those of the tokenizer's template. What it lacks at the end or between texts is the separator.
        """
        found = self._inner.encode("a", "b")
        sides = found.sequence_ids if {0, 1} <= {*found.sequence_ids} else [0, 1]
        ids = found.ids if len(sides) == len(found.ids) else [0, 0]
        first, second = sides.index(0), sides.index(1)
        last = len(sides) - sides[::-1].index(1)
        separator = [self.role("separator")]
        between = [number for number, side in zip(ids[first:second], sides[first:second], strict=True) if side is None]
        return ids[:first], between or separator, ids[last:] or separator

    @cached_property
    def json(self) -> str:
        """The content of its `tokenizer.json`."""
        content = json.loads(self._inner.to_str())
        ours: dict[str, Any] = {"version": VERSION, "roles": self._tokens, "extra": list(self._extra)}
        if self.settings is not None:
            ours["settings"] = to_table(self.settings)
        if self._looked_up:
            ours["size"] = self.size
        if self.opening:
            ours["framed"] = True
        content["model"]["regard"] = ours
        return json.dumps(content, ensure_ascii=False, indent=1)

    @cached_property
    def checksum(self) -> str:
        return hashlib.sha256(self.json.encode()).hexdigest()

    @classmethod
    def from_json(cls, text: str) -> Tokenizer:
        """The tokenizer of a string that `json` returned."""
        ours = json.loads(text)["model"]["regard"]
        table = {key: value for key, value in ours.get("settings", {}).items() if key != "dropout"}  # an old setting
        settings = parse(AnyTokenizer, table, "text") if table else None
        more = {key: ours[key] for key in ("size", "framed") if key in ours}
        return cls(tokenizers.Tokenizer.from_str(text), ours["roles"], ours["extra"], settings, **more)

    def with_roles(self, roles: Mapping[Role, str], framed: bool) -> Tokenizer:
        """The same tokenizer with other roles of its special tokens."""
        size = self.size if self._looked_up else None
        return Tokenizer(self._inner, {**self._tokens, **roles}, self._extra, self.settings, size, framed)

    @classmethod
    def load(cls, path: Path | str) -> Tokenizer:
        """The tokenizer in a file, or in the `tokenizer.json` of a directory, of Regard or of Hugging Face."""
        path = Path(path)
        file = path / FILE if path.is_dir() else path
        if not file.is_file():
            raise DataError(
                f"{file} does not exist; if the model has another form of tokenizer, convert it with transformers: "
                "AutoTokenizer.from_pretrained(DIRECTORY).save_pretrained(DIRECTORY)"
            )
        content = read_json(file, DataError)
        model = content.get("model")
        if not isinstance(model, dict) or "vocab" not in model:
            raise DataError(f"{file} has no model.vocab, so it is not a tokenizer file; give a {FILE}")
        _check_normalizer(content.get("normalizer"), file)
        with edge("be read", file):
            inner = tokenizers.Tokenizer.from_file(str(file))
        ours = model.get("regard")
        if ours is None:
            return cls(inner, *find_roles(inner, model, file.parent))
        version = ours.get("version") if isinstance(ours, dict) else ours
        if version != VERSION:
            raise DataError(f"{file} has format {version!r}, expected {VERSION}; install a newer version of regard")
        roles, extra = ours.get("roles"), ours.get("extra")
        if not isinstance(roles, dict) or not isinstance(extra, list):
            raise DataError(f"{file} has no roles and extra tokens in model.regard; copy it again")
        if type(ours.get("size", 1)) is not int or (ours.get("framed") and "class_token" not in roles):
            raise DataError(f"{file} has no valid size or frame in model.regard; copy it again")
        for token in (*roles.values(), *extra):
            if not isinstance(token, str) or inner.token_to_id(token) is None:
                raise DataError(
                    f"{file} names the special token {token}, which is not in its vocabulary; copy it again"
                )
        return cls.from_json(file.read_text(encoding="utf-8"))

    def save(self, path: Path | str) -> None:
        """Writes a file; for a directory, its `tokenizer.json`."""
        path = Path(path)
        write_text(path / FILE if path.is_dir() else path, self.json + "\n")

    def __reduce__(self) -> tuple[Any, ...]:
        return Tokenizer.from_json, (self.json,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokenizer) and self.json == other.json

    def __hash__(self) -> int:
        return hash(self.checksum)

    @cached_property
    def names(self) -> dict[int, str]:
        """The token of each id. Tokens of the other side, which no text of this side contains, begin with a space."""
        found = self._inner.get_vocab().items()
        return {number: token.lstrip(" ") or token for token, number in found if number < self.size}

    def _clipped(self, encoding: tokenizers.Encoding) -> tokenizers.Encoding:
        """The encoding as Marian's, which splits a text with one vocabulary and looks the pieces up in another one.

        Pieces that it lacks are unknown. A piece that is unknown to the first vocabulary may be a token of the other
        side; these begin with a space.
        """
        if not self._looked_up:
            return encoding
        unknown, ids = self.role("unknown"), encoding.ids
        if unknown not in ids and max(ids, default=0) < self.size:
            return encoding
        for place, (number, token) in enumerate(zip(ids, encoding.tokens, strict=True)):
            if number == unknown or number >= self.size:
                ids[place] = self._inner.token_to_id(f" {token}") or unknown
        rest = {name: getattr(encoding, name) for name in ("tokens", "offsets", "word_ids", "type_ids")}
        return cast(tokenizers.Encoding, SimpleNamespace(ids=ids, **rest))

    @cached_property
    def _reading(self) -> tokenizers.Tokenizer:
        """A copy that reads special tokens. The library keeps this switch as state, and threads share `_inner`."""
        reading = tokenizers.Tokenizer.from_str(self._inner.to_str())
        reading.encode_special_tokens = False
        return reading


@dataclass(frozen=True)
class TokenizerPair:
    """The tokenizers of source and target; the same object twice if the vocabulary is shared."""

    source: Tokenizer
    target: Tokenizer

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> TokenizerPair:
        return cls(tokenizer, tokenizer)

    @property
    def shared(self) -> bool:
        return self.source is self.target or self.source == self.target

    @property
    def joint(self) -> bool:
        """Whether both sides have the same ids, also if they split texts in different ways."""
        return self.source is self.target or self.source.names == self.target.names

    @property
    def sizes(self) -> tuple[int, int]:
        """The vocabulary sizes that a model needs."""
        return self.source.size, self.target.size

    def inputs(self, sources: Sequence[str], to: Sequence[str | None] | None = None) -> list[list[int]]:
        """Sources as a model reads them: with an end token and, if `to` names a language, its tag first."""
        ids = self.source.tagged(self.source.ids(sources, end=True), to or [None] * len(sources))
        return [[*self.source.opening, *each] for each in ids] if self.source.opening else ids

    def save(self, directory: Path | str) -> None:
        """Writes `tokenizer.json`, or one file per side; removes files of the other form."""
        directory = Path(directory)
        if self.shared:
            self.source.save(directory / FILE)
        else:
            self.source.save(directory / SOURCE_FILE)
            self.target.save(directory / TARGET_FILE)
        for name in (SOURCE_FILE, TARGET_FILE) if self.shared else (FILE,):
            (directory / name).unlink(missing_ok=True)

    @classmethod
    def find(cls, directory: Path) -> TokenizerPair | None:
        """The tokenizers of a directory, or None if it has none.

        They are one file, a file for each side, a directory for each side (`source`, if not above, and `target`), or
        older files of Hugging Face.
        """
        one, separate = directory / FILE, [directory / name for name in (SOURCE_FILE, TARGET_FILE)]
        if (target := directory / "target" / FILE).is_file() and not any(file.is_file() for file in separate):
            return cls(Tokenizer.load(one if one.is_file() else directory / "source"), Tokenizer.load(target))
        if one.is_file():
            return cls.of(Tokenizer.load(one))
        if all(file.is_file() for file in separate):
            return cls(*map(Tokenizer.load, separate))
        if any(file.is_file() for file in separate):
            raise DataError(f"{directory} contains only one of {SOURCE_FILE} and {TARGET_FILE}; copy the other one too")
        from regard.text.hub import read_hub_tokenizers  # it imports this module, and few models need it

        pair = read_hub_tokenizers(directory)
        return None if pair is None else cls(*pair)

    @classmethod
    def load(cls, directory: Path | str) -> TokenizerPair:
        """The tokenizers of a directory or a file; one must exist."""
        found = cls.find(Path(directory)) if Path(directory).is_dir() else None
        return found or cls.of(Tokenizer.load(directory))


@contextmanager
def edge(task: str, file: Path | None = None) -> Iterator[None]:
    """Turns errors of the library into ours: it raises plain `Exception`, and a panic in Rust is a `BaseException`."""
    try:
        yield
    except (TypeError, MemoryError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        problem = f"cannot {task} with tokenizers {tokenizers.__version__} ({error}); use the file of a good tokenizer"
        raise (InputError(f"the tokenizer {problem}") if file is None else DataError(f"{file} {problem}")) from None


def _check_normalizer(normalizer: object, file: Path) -> None:
    """Refuses a SentencePiece map that is shorter than it states: the library would allocate what it states."""
    waiting = [normalizer]
    while waiting:
        each = waiting.pop()
        if isinstance(each, list):
            waiting += each
        elif isinstance(each, dict):
            waiting += each.values()
            if isinstance(text := each.get("precompiled_charsmap"), str):
                try:
                    check_charsmap(base64.b64decode(text, validate=True), file)
                except binascii.Error as error:
                    raise DataError(f"{file}: precompiled_charsmap is not base64 ({error}); copy it again") from None


def check_charsmap(charsmap: bytes, file: Path) -> None:
    """Checks that a precompiled map of characters contains the trie whose size it states."""
    if len(charsmap) < 4 or int.from_bytes(charsmap[:4], "little") > len(charsmap) - 4:
        raise DataError(f"{file}: the precompiled map of characters is truncated; copy or download the file again")


def check_texts(texts: object) -> None:
    """Raises an error if `texts` is a single string, or contains something other than valid strings."""
    if isinstance(texts, str):
        raise InputError(f"texts ({texts[:20]!r}) is a str, expected a list of str; write [text]")
    if not isinstance(texts, Iterable) or isinstance(texts, Mapping | bytes):
        name = type(texts).__name__
        raise InputError(f"texts is {'an' if name[0] in 'aeiou' else 'a'} {name}, expected a str or a list of str")
    for place, text in enumerate(texts):
        check_text(text, place)


def check_text(text: object, place: int, error: type[RegardError] = InputError) -> None:
    """Raises an error that names `texts[place]` unless `text` is a valid string."""
    if not isinstance(text, str):
        name = type(text).__name__
        raise error(f"texts[{place}] is {'an' if name[0] in 'aeiou' else 'a'} {name}, expected str")
    try:
        text.encode()
    except UnicodeEncodeError as problem:
        raise error(
            f"texts[{place}] contains a lone surrogate ({text[problem.start]!r}) at character {problem.start}, which "
            "is not valid Unicode; read the file with errors='replace'"
        ) from None


def find_roles(
    inner: tokenizers.Tokenizer, model: dict[str, Any], directory: Path
) -> tuple[dict[Role, str], list[str]]:
    """Roles and other special tokens of a Hugging Face tokenizer."""
    vocabulary = inner.get_vocab()
    stated: dict[str, Any] = {}
    for name in ("special_tokens_map.json", CONFIG_FILE):  # the second one wins
        if (directory / name).is_file():
            stated |= read_json(directory / name, DataError)
    unknown = model.get("unk_token")
    if isinstance(model.get("unk_id"), int) and isinstance(model["vocab"], list):
        unknown = model["vocab"][model["unk_id"]][0]
    roles: dict[Role, str] = {}
    for role, key in HUGGINGFACE_ROLES.items():
        value = stated.get(key)
        candidates = [value.get("content") if isinstance(value, dict) else value]
        candidates += [unknown] if role == "unknown" else []
        for token in (*candidates, *_USUAL_NAMES[role]):
            if isinstance(token, str) and token in vocabulary:
                roles[role] = token
                break
    special = [added.content for added in inner.get_added_tokens_decoder().values() if added.special]
    return roles, [token for token in dict.fromkeys(special) if token not in roles.values()]


def frame_template(
    opening: Sequence[str], closing: Sequence[str], ids: Mapping[str, int], again: Sequence[str] = ()
) -> tokenizers.processors.PostProcessor | None:
    """The template with these tokens before and after a text, and `again` before the second text of a pair."""
    single = [*opening, "$A", *closing]
    pair = [*single, *again, "$B:1", *(f"{token}:1" for token in closing)]
    used = [(token, ids[token]) for token in dict.fromkeys((*opening, *closing))]
    return tokenizers.processors.TemplateProcessing(single=single, pair=pair, special_tokens=used) if used else None


def framed_json(tokenizer: Tokenizer, before: Sequence[int], after: Sequence[int]) -> dict[str, Any]:
    """The content of a `tokenizer.json` whose template adds these tokens before and after a text."""
    content: dict[str, Any] = json.loads(tokenizer.json)
    if content["model"].get("type") == "Unigram":  # pieces that Marian reads as unknown
        del content["model"]["vocab"][tokenizer.size :]
    opening, closing = ([tokenizer.token(number) for number in ids] for ids in (before, after))
    template = tokenizers.processors.TemplateProcessing(
        single=[*opening, "$A", *closing],
        pair=[*opening, "$A", "$B", *closing],
        special_tokens=list({tokenizer.token(number): number for number in (*before, *after)}.items()),
    )
    content["post_processor"] = json.loads(template.__getstate__())
    return content


def write_huggingface(
    tokenizer: Tokenizer, directory: Path | str, content: dict[str, Any] | None = None, segments: bool = False
) -> None:
    """Writes `tokenizer.json` and `tokenizer_config.json`, so that `transformers` knows the roles too.

    `content` is that of `tokenizer.json`, if it differs from the tokenizer's own. `segments`: the model reads them.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    text = tokenizer.json if content is None else json.dumps(content, ensure_ascii=False, indent=1)
    write_text(directory / FILE, text + "\n")
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    config |= {HUGGINGFACE_ROLES[role]: tokenizer.token(number) for role, number in tokenizer.roles.items()}
    if tokenizer.extra:
        config["additional_special_tokens"] = list(tokenizer.extra)
    if segments:
        config["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    write_text(directory / CONFIG_FILE, json.dumps(config, ensure_ascii=False, indent=2) + "\n")
