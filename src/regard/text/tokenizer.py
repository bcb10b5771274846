"""A tokenizer: text to ids and back. A value: it never changes, two with the same content are equal, it pickles."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from random import Random
from typing import Any, NoReturn, cast

import tokenizers

from regard.errors import InputError
from regard.settings import parse, to_table
from regard.text.dropout import Merging
from regard.text.encoding import Encoding
from regard.text.settings import ROLES, AnyTokenizer, Role

OURS = "regard"
"""Key under which roles and settings stand inside the JSON, in the table `model`, where other readers pass over it."""

VERSION = 1

_STANDS_FOR: dict[Role, Role] = {
    "class_token": "start",
    "start": "class_token",
    "separator": "end",
    "end": "separator",
}
"""What serves where a role has no token of its own."""


class Tokenizer:
    """Text to ids and back.

    Texts are taken literally: one that holds `</s>` gives the tokens of those four characters, not the end of the text,
    and comes back as it was. Only where a call says `special=True` are special tokens read from a text.
    """

    def __init__(
        self,
        inner: tokenizers.Tokenizer,
        roles: Mapping[Role, str],
        extra: Sequence[str] = (),
        settings: AnyTokenizer | None = None,
    ) -> None:
        self.settings = settings
        """What it was trained with; none: it comes from elsewhere."""
        self._inner = inner
        inner.encode_special_tokens = True
        inner.no_padding()  # a file of Hugging Face's may say how its last batch was padded and cut
        inner.no_truncation()
        self._tokens: dict[Role, str] = {role: roles[role] for role in ROLES if role in roles}
        self._extra = tuple(extra)
        vocabulary = inner.get_vocab()
        self.size = max(vocabulary.values(), default=-1) + 1
        """Number of ids, special ones included: the vocabulary that a model needs."""
        self.roles: Mapping[Role, int] = {role: vocabulary[token] for role, token in self._tokens.items()}
        """The ids of the special tokens by their role."""
        self.extra: Mapping[str, int] = {token: vocabulary[token] for token in self._extra}
        """The ids of the special tokens without a role."""

    # ------------------------------------------------------------------------------------------------- text to ids

    def encode(self, text: str, pair: str | None = None, *, framed: bool = True, special: bool = False) -> Encoding:
        """The tokens of a text, or of two (the second is segment 1), with their places, words and segments.

        `framed` puts the tokenizer's own special tokens around them: start and end, or class token and separator.
        `special` reads special tokens that stand in the text, such as `[MASK]`.
        """
        try:
            return Encoding(self._for(special).encode(text, pair, add_special_tokens=framed))
        except TypeError:
            _refuse([text] if pair is None else [text, pair])

    def encode_batch(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        framed: bool = True,
        special: bool = False,
    ) -> list[Encoding]:
        """As `encode`, for many texts at once, on all cores."""
        _refuse_single(texts)
        if pairs is not None and len(pairs) != len(texts):
            raise InputError(f"{len(texts)} texts cannot be paired with {len(pairs)}; give as many of both")
        batch: Sequence[Any] = texts if pairs is None else list(zip(texts, pairs, strict=True))
        try:
            found = self._for(special).encode_batch(batch, add_special_tokens=framed)
        except TypeError:
            _refuse([*texts, *(pairs or ())])
        return [Encoding(encoding) for encoding in found]

    def ids(
        self, texts: Sequence[str], *, start: bool = False, end: bool = False, special: bool = False
    ) -> list[list[int]]:
        """Ids alone, of many texts, on all cores: the fastest way. `start` and `end` put those tokens around each."""
        _refuse_single(texts)
        try:
            found = self._for(special).encode_batch_fast(cast(Any, texts), add_special_tokens=False)
        except TypeError:
            _refuse(texts)
        return self._between([encoding.ids for encoding in found], start, end)

    def sample(
        self,
        texts: Sequence[str],
        seeds: Sequence[int],
        rate: float | None = None,
        *,
        start: bool = False,
        end: bool = False,
    ) -> list[list[int]]:
        """As `ids`, with BPE-dropout: words are split at random. A seed for each text makes it repeatable.

        `rate` is the settings' `dropout` unless given. It runs in Python, on one core, three to four times slower there
        than `ids`; worker processes make up for it.
        """
        _refuse_single(texts)
        chosen = getattr(self.settings, "dropout", 0.0) if rate is None else rate
        if not 0 <= chosen < 1:
            raise InputError(f"rate ({rate}) must be at least 0 and less than 1; 0.1 is usual")
        if not chosen:
            return self.ids(texts, start=start, end=end)
        if len(seeds) != len(texts):
            raise InputError(f"{len(texts)} texts need as many seeds, not {len(seeds)}")
        merging, normalizer, cut = self._merging, self._inner.normalizer, self._inner.pre_tokenizer
        result: list[list[int]] = []
        for text, seed in zip(texts, seeds, strict=True):
            random = Random(seed)
            try:
                words = cut.pre_tokenize_str(normalizer.normalize_str(text) if normalizer else text)
            except (TypeError, UnicodeEncodeError):
                _refuse(texts)
            result.append([token for word, _ in words for token in merging.sample(word, chosen, random)])
        return self._between(result, start, end)

    # ------------------------------------------------------------------------------------------------- ids to text

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of ids; special tokens are left out unless `special`."""
        return self.decode_batch([ids], special=special)[0]

    def decode_batch(self, batch: Sequence[Sequence[int]], *, special: bool = False) -> list[str]:
        for ids in batch:
            if len(ids) and not (min(ids) >= 0 and max(ids) < self.size):
                wrong = next(number for number in ids if not 0 <= number < self.size)
                raise InputError(
                    f"token {wrong} is out of range: the tokenizer has {self.size:,}, from 0 to {self.size - 1:,}; "
                    "use the one that the model was trained with"
                )
        return self._inner.decode_batch(cast(Any, batch), skip_special_tokens=not special)

    # -------------------------------------------------------------------------------------------------- vocabulary

    def role(self, name: Role) -> int:
        """The id of the special token of a role. Start and class token, end and separator stand for each other."""
        for known in (name, _STANDS_FOR.get(name, name)):
            if known in self.roles:
                return self.roles[known]
        raise InputError(
            f"the tokenizer has no {name} token (it has {', '.join(self.roles) or 'none'}); "
            f"train it with text.special.{name}"
        )

    def token(self, number: int) -> str:
        """The token of an id, as the vocabulary writes it."""
        found = self._inner.id_to_token(number) if number >= 0 else None
        if found is None:
            raise InputError(f"token {number} is not in the vocabulary of {self.size:,}; give one from 0 on")
        return found

    def id(self, token: str) -> int | None:
        """The id of a token, as the vocabulary writes it; none: it is not there."""
        return self._inner.token_to_id(token)

    # ----------------------------------------------------------------------------------------------------- as JSON

    @cached_property
    def json(self) -> str:
        """All of it as `tokenizer.json`, which Hugging Face's libraries read too."""
        content = json.loads(self._inner.to_str())
        ours: dict[str, Any] = {"version": VERSION, "roles": self._tokens, "extra": list(self._extra)}
        if self.settings is not None:
            ours["settings"] = to_table(self.settings)
        content["model"][OURS] = ours
        return json.dumps(content, ensure_ascii=False, indent=1)

    @cached_property
    def checksum(self) -> str:
        """SHA-256 of the JSON: what was prepared with one tokenizer is not taken for another's."""
        return hashlib.sha256(self.json.encode()).hexdigest()

    @classmethod
    def from_json(cls, text: str) -> Tokenizer:
        """What `json` wrote. `regard.text.files.load` reads files, also of others, and says what is wrong with them."""
        ours = json.loads(text)["model"][OURS]
        settings = parse(AnyTokenizer, ours["settings"], "text") if "settings" in ours else None
        return cls(tokenizers.Tokenizer.from_str(text), ours["roles"], ours["extra"], settings)

    def __reduce__(self) -> tuple[Any, ...]:
        return Tokenizer.from_json, (self.json,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokenizer) and self.json == other.json

    def __hash__(self) -> int:
        return hash(self.checksum)

    def __repr__(self) -> str:
        kind = "a tokenizer of others" if self.settings is None else self.settings.kind
        return f"Tokenizer({kind}, size={self.size})"

    # ------------------------------------------------------------------------------------------------------ inside

    @cached_property
    def _reading(self) -> tokenizers.Tokenizer:
        """A second one, since reading special tokens from texts is a state of the library's, and threads share it."""
        reading = tokenizers.Tokenizer.from_str(self._inner.to_str())
        reading.encode_special_tokens = False
        return reading

    def _for(self, special: bool) -> tokenizers.Tokenizer:
        return self._reading if special else self._inner

    def _between(self, batch: list[list[int]], start: bool, end: bool) -> list[list[int]]:
        if start:
            first = self.role("start")
            batch = [[first, *ids] for ids in batch]
        if end:
            last = self.role("end")
            for ids in batch:
                ids.append(last)
        return batch

    @cached_property
    def _merging(self) -> Merging:
        model = json.loads(self._inner.to_str())["model"]
        foreign = ("continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "fuse_unk", "ignore_merges")
        if model["type"] != "BPE" or any(model.get(key) for key in foreign):
            kind = "tokenizer is of another kind" if self.settings is None else f"text.kind is {self.settings.kind}"
            raise InputError(f"words can be split at random only by plain BPE, and the {kind}; choose bpe or byte-bpe")
        unknown = model["vocab"].get(model["unk_token"])
        return Merging(model["vocab"], [(left, right) for left, right in model["merges"]], unknown)


# ------------------------------------------------------------------------------------------------------------- messages


def _refuse_single(texts: object) -> None:
    if isinstance(texts, str):
        raise InputError(f"a list of texts is wanted here, not a single one ({texts[:20]!r}); write [text]")


def _refuse(texts: Sequence[object]) -> NoReturn:
    """Says which text the library refused, and why."""
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str):
            raise InputError(f"text {number:,} ({text!r:.40}) is no text but {type(text).__name__}; give strings")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"text {number:,} has a lone surrogate ({text[error.start]!r}) at character {error.start + 1:,}, which "
                "no file in UTF-8 can hold; read it with errors='replace'"
            ) from None
    raise InputError("the texts are no list of strings; give a list")
