"""Settings of tokenizers. A kind is a type, and its `kind` is what a recipe writes. No torch, no tokenizers in here."""

from __future__ import annotations

from typing import Annotated, Literal, Self, TypeAlias

from pydantic import Field, model_validator

from regard.settings import Settings

Positive: TypeAlias = Annotated[int, Field(gt=0)]
UnicodeForm: TypeAlias = Literal["none", "nfc", "nfkc"]
Spaces: TypeAlias = Literal["collapse", "keep"]
Split: TypeAlias = Literal["punctuation", "spaces"]
Role: TypeAlias = Literal["pad", "start", "end", "unknown", "mask", "class_token", "separator"]

ROLES: tuple[Role, ...] = ("pad", "start", "end", "unknown", "mask", "class_token", "separator")
"""In the order of their ids."""

BYTES = 256


# ----------------------------------------------------------------------------------------------------- special tokens


class SpecialTokens(Settings):
    """Tokens that stand for no text, by their role. An empty one is left out; two roles may share one token."""

    pad: str = "<pad>"
    """Fills up short sequences."""
    start: str = "<s>"
    """Stands before a text; a decoder begins with it."""
    end: str = "</s>"
    """Stands behind a text; a decoder stops with it."""
    unknown: str = "<unk>"
    """Stands for what the vocabulary cannot write."""
    mask: str = "<mask>"
    """Hides a token in masked language modelling."""
    class_token: str = ""
    """Stands before a text that is classified; empty: `start` does."""
    separator: str = ""
    """Stands behind each text of a pair; empty: `end` does."""
    extra: tuple[str, ...] = Field(default=(), strict=False)
    """Further ones, such as the tags of languages."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for token in self.tokens():
            if len(token) < 2 or any(character.isspace() for character in token):
                raise ValueError(
                    f"{token!r} must have at least two characters and no space, so that no text is taken for it; "
                    "write it like <name>"
                )
        return self

    def by_role(self) -> dict[Role, str]:
        """The token of each role that has one."""
        named: dict[Role, str] = {
            "pad": self.pad,
            "start": self.start,
            "end": self.end,
            "unknown": self.unknown,
            "mask": self.mask,
            "class_token": self.class_token,
            "separator": self.separator,
        }
        return {role: token for role, token in named.items() if token}

    def tokens(self) -> list[str]:
        """All of them, each once, in the order of their ids, which begin with 0."""
        return list(dict.fromkeys((*self.by_role().values(), *(token for token in self.extra if token))))


class ByteSpecialTokens(SpecialTokens):
    """Those of tokenizers that write every text with bytes, so that nothing is unknown."""

    unknown: str = ""


class BertSpecialTokens(SpecialTokens):
    """BERT's (Devlin et al. 2019)."""

    pad: str = "[PAD]"
    start: str = ""
    end: str = ""
    unknown: str = "[UNK]"
    mask: str = "[MASK]"
    class_token: str = "[CLS]"
    separator: str = "[SEP]"


# -------------------------------------------------------------------------------------------------------------- kinds


class TextSettings(Settings):
    """What every kind of tokenizer has."""

    shared: bool = True
    """Whether source and target of a translation have one vocabulary, learnt from both."""
    unicode: UnicodeForm = "none"
    """Unicode normal form that texts are brought into: nfc joins accents to their letters, nfkc also replaces
    look-alikes (½, full-width letters, ligatures); none leaves them alone."""
    lowercase: bool = False
    """Whether texts are lower-cased."""
    special: SpecialTokens = SpecialTokens()
    """The special tokens."""


class _Sized(TextSettings):
    size: Positive = 8_000
    """Number of tokens, special ones included; fewer where the texts do not hold as many."""

    @model_validator(mode="after")
    def _check_size(self) -> Self:
        special, base = len(self.special.tokens()), BYTES if isinstance(self, ByteBpe) else 1
        if self.size < base + special:
            least = "the 256 bytes" if base == BYTES else "one token"
            raise ValueError(
                f"size ({self.size}) must be at least {base + special}: {least} and {special} special ones; raise size"
            )
        return self


class _Unknowing(TextSettings):
    @model_validator(mode="after")
    def _check_unknown(self) -> Self:
        if not self.special.unknown:
            raise ValueError(
                "special.unknown is empty, but this kind cannot write every text; give it a token, "
                "or choose kind = byte-bpe or bytes"
            )
        return self


class _Merging(_Sized):
    frequency: Positive = 2
    """What occurs less often in the texts is not made a token."""
    longest_piece: Positive = 32
    """Longest token, in characters (in bytes for byte-bpe)."""
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Share of merges left out at random in training, so that a model sees words split in many ways
    (Provilkov et al. 2020: BPE-dropout)."""


class ByteBpe(_Merging):
    """Byte pairs merged by frequency, from single bytes up (Radford et al. 2019: GPT-2). Writes any text exactly."""

    kind: Literal["byte-bpe"] = "byte-bpe"
    size: Positive = 16_000
    longest_piece: Positive = 64
    special: ByteSpecialTokens = ByteSpecialTokens()


class Bpe(_Merging, _Unknowing):
    """Pairs merged by frequency, from characters up (Sennrich et al. 2016); ▁ marks the beginning of a word."""

    kind: Literal["bpe"] = "bpe"
    unicode: UnicodeForm = "nfkc"
    spaces: Spaces = "collapse"
    """collapse: any white space between words becomes one space, that around a text goes; keep: all of it is text."""
    alphabet: Positive | None = None
    """Most characters that are kept, the commonest; none: all."""


class Unigram(_Sized, _Unknowing):
    """The likeliest pieces under a unigram model, pruned to size (Kudo 2018); ▁ marks the beginning of a word."""

    kind: Literal["unigram"] = "unigram"
    unicode: UnicodeForm = "nfkc"
    spaces: Spaces = "collapse"
    """As in bpe."""
    longest_piece: Positive = 16
    """Longest token, in characters."""


class WordPiece(_Sized, _Unknowing):
    """Longest pieces from the left, split at spaces and punctuation; ## marks what continues a word (BERT)."""

    kind: Literal["wordpiece"] = "wordpiece"
    size: Positive = 30_000
    frequency: Positive = 2
    """What occurs less often in the texts is not made a token."""
    alphabet: Positive = 1_000
    """Most characters that are kept, the commonest."""
    accents: bool = True
    """Whether accents are kept."""
    longest_word: Positive = 100
    """A word of more characters is unknown."""
    special: BertSpecialTokens = BertSpecialTokens()


class Words(_Sized, _Unknowing):
    """Whole words, the commonest."""

    kind: Literal["words"] = "words"
    size: Positive = 30_000
    unicode: UnicodeForm = "nfc"
    frequency: Positive = 1
    """Words that occur less often are unknown."""
    split: Split = "punctuation"
    """Where words end: at spaces and around punctuation, or at spaces alone (texts that are tokenised already)."""


class Characters(_Unknowing):
    """One token for each character."""

    kind: Literal["characters"] = "characters"
    unicode: UnicodeForm = "nfc"
    size: Positive | None = None
    """Most tokens, special ones included; none: as many as there are characters."""
    frequency: Positive = 1
    """Characters that occur less often are unknown."""


class Bytes(TextSettings):
    """One token for each byte of the text in UTF-8. Writes any text exactly, and needs no training."""

    kind: Literal["bytes"] = "bytes"
    special: ByteSpecialTokens = ByteSpecialTokens()


AnyTokenizer: TypeAlias = Annotated[
    ByteBpe | Bpe | Unigram | WordPiece | Words | Characters | Bytes, Field(discriminator="kind")
]
