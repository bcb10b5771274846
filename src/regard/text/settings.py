"""Settings of tokenizers: the table `[text]` of a recipe. Imports neither torch nor tokenizers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self, TypeAlias

from pydantic import Field, model_validator

from regard.blocks.settings import Positive
from regard.settings import Settings

UnicodeForm: TypeAlias = Literal["none", "nfc", "nfkc"]
Spaces: TypeAlias = Literal["collapse", "keep"]
Role: TypeAlias = Literal["pad", "start", "end", "unknown", "mask", "class_token", "separator"]

ROLES: tuple[Role, ...] = ("pad", "start", "end", "unknown", "mask", "class_token", "separator")
"""In the order of their ids."""

BYTES = 256


class SpecialTokens(Settings):
    """Tokens with a role. An empty string leaves a role out; two roles may share a token."""

    pad: str = "<pad>"
    """Padding."""
    start: str = "<s>"
    """Start of a text; the first input of a decoder."""
    end: str = "</s>"
    """End of a text; a decoder stops at it."""
    unknown: str = "<unk>"
    """Replaces text that the vocabulary cannot represent."""
    mask: str = "<mask>"
    """Hides a token in masked language modelling."""
    class_token: str = ""
    """First token of a text to classify; empty: `start` is used."""
    separator: str = ""
    """Last token of each text of a pair; empty: `end` is used."""
    extra: tuple[str, ...] = Field(default=(), strict=False)
    """Further special tokens, such as language tags."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for token in self.tokens():
            if len(token) < 2 or any(character.isspace() for character in token):
                raise ValueError(
                    f"special token {token!r} must have at least two characters and no space; write it like <name>"
                )
        return self

    def by_role(self) -> dict[Role, str]:
        return {role: token for role in ROLES if (token := getattr(self, role))}

    def tokens(self) -> list[str]:
        """All special tokens, each once, in the order of their ids, from 0."""
        return list(dict.fromkeys((*self.by_role().values(), *(token for token in self.extra if token))))


class ByteSpecialTokens(SpecialTokens):
    """Special tokens of byte-level tokenizers, which can represent any text and need no unknown token."""

    unknown: str = ""


class BertSpecialTokens(SpecialTokens):
    """Special tokens of BERT (Devlin et al. 2019)."""

    pad: str = "[PAD]"
    start: str = ""
    end: str = ""
    unknown: str = "[UNK]"
    mask: str = "[MASK]"
    class_token: str = "[CLS]"
    separator: str = "[SEP]"


class TextSettings(Settings):
    """Settings of every kind of tokenizer."""

    removed: ClassVar[Mapping[str, object]] = {"dropout": 0.0}

    shared: bool = True
    """Whether source and target of a translation share one vocabulary, trained on both."""
    unicode: UnicodeForm = "none"
    """Unicode normalisation: nfc composes accents, nfkc also replaces compatibility characters (½, full-width letters,
    ligatures)."""
    lowercase: bool = False
    """Whether texts are lower-cased."""
    special: SpecialTokens = SpecialTokens()
    """The special tokens."""


class _Sized(TextSettings):
    size: Positive = 8_000
    """Size of the vocabulary including special tokens; smaller if the texts contain fewer tokens."""

    @model_validator(mode="after")
    def _check_size(self) -> Self:
        special, base = len(self.special.tokens()), BYTES if isinstance(self, ByteBpe) else 1
        if self.size < base + special:
            raise ValueError(
                f"size ({self.size}) must be at least {base + special} ({base} plus {special} special tokens); raise it"
            )
        return self


class _NeedsUnknown(TextSettings):
    @model_validator(mode="after")
    def _check_unknown(self) -> Self:
        if not self.special.unknown:
            raise ValueError(
                "special.unknown is empty, but this kind cannot represent every text; set it, or choose kind byte-bpe "
                "or bytes"
            )
        return self


class _Merging(_Sized):
    frequency: Positive = 2
    """Pairs that occur less often are not merged."""
    longest_piece: Positive = 32
    """Longest token, in characters (byte-bpe: in bytes)."""


class ByteBpe(_Merging):
    """Byte-level BPE (Radford et al. 2019: GPT-2). Any text round-trips exactly."""

    kind: Literal["byte-bpe"] = "byte-bpe"
    size: Positive = 16_000
    longest_piece: Positive = 64
    special: ByteSpecialTokens = ByteSpecialTokens()


class Bpe(_Merging, _NeedsUnknown):
    """BPE on characters (Sennrich et al. 2016); ▁ marks the start of a word."""

    kind: Literal["bpe"] = "bpe"
    unicode: UnicodeForm = "nfkc"
    spaces: Spaces = "collapse"
    """collapse: white space between words becomes one space, white space around a text is removed; keep: it is text."""
    alphabet: Positive | None = None
    """Number of characters to keep, the most frequent; none: all."""


class Unigram(_Sized, _NeedsUnknown):
    """Unigram language model (Kudo 2018); ▁ marks the start of a word."""

    kind: Literal["unigram"] = "unigram"
    unicode: UnicodeForm = "nfkc"
    spaces: Spaces = "collapse"
    """As in bpe."""
    longest_piece: Positive = 16
    """Longest token, in characters."""


class WordPiece(_Sized, _NeedsUnknown):
    """Longest match from the left within a word; ## marks a continuation (BERT)."""

    kind: Literal["wordpiece"] = "wordpiece"
    size: Positive = 30_000
    frequency: Positive = 2
    """Pairs that occur less often are not merged."""
    alphabet: Positive = 1_000
    """Number of characters to keep, the most frequent."""
    accents: bool = True
    """Whether accents are kept."""
    longest_word: Positive = 100
    """A word with more characters becomes unknown."""
    special: BertSpecialTokens = BertSpecialTokens()


class Words(_Sized, _NeedsUnknown):
    """Whole words, the most frequent."""

    kind: Literal["words"] = "words"
    size: Positive = 30_000
    unicode: UnicodeForm = "nfc"
    frequency: Positive = 1
    """Words that occur less often become unknown."""
    split: Literal["punctuation", "spaces"] = "punctuation"
    """Split at spaces and punctuation, or at spaces only (for text that is already tokenized)."""


class Characters(_NeedsUnknown):
    """One token per character."""

    kind: Literal["characters"] = "characters"
    unicode: UnicodeForm = "nfc"
    size: Positive | None = None
    """Largest size of the vocabulary including special tokens; none: no limit."""
    frequency: Positive = 1
    """Characters that occur less often become unknown."""


class Bytes(TextSettings):
    """One token per UTF-8 byte. Any text round-trips exactly; no training is needed."""

    kind: Literal["bytes"] = "bytes"
    special: ByteSpecialTokens = ByteSpecialTokens()


AnyTokenizer: TypeAlias = Annotated[
    ByteBpe | Bpe | Unigram | WordPiece | Words | Characters | Bytes, Field(discriminator="kind")
]
