"""What examples become: pairs, documents, a stream or images, as numbers.

A form describes; its shaper works, in two steps for each chunk of examples. `encode` knows nothing of what came before,
so that several chunks may be in it at once. `shape` gets one chunk after the other, in order: it joins the pieces of a
document, puts special tokens around texts, and treats what is too long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from regard.data.examples import Located, Tally, Text
from regard.data.prepared import Writer
from regard.data.ragged import Mask, Ragged
from regard.data.settings import Data, Pairs, RawTexts
from regard.errors import SettingsError
from regard.settings import Table
from regard.text.tokenizer import Tokenizer, TokenizerPair, tag

Sides: TypeAlias = dict[str, Ragged]
TooLong: TypeAlias = Literal["skip", "truncate", "split"]
Frame: TypeAlias = Literal["document", "stream", "encoder"]


@dataclass(frozen=True)
class Chunk:
    """Some examples in a row."""

    first: int
    """The number of the first of them, counted from 0."""
    placed: list[Located[Any]]


@dataclass(frozen=True)
class Limit:
    """The most tokens of one side as a model reads it, and what is done with more."""

    longest: int | None = None
    too_long: TooLong = "skip"

    def room(self, special: int) -> int | None:
        """Tokens of text that may stand beside so many special ones."""
        if self.longest is not None and self.longest <= special:
            raise SettingsError(
                f"the longest example may have {self.longest} tokens, which leaves none for text beside special ones; "
                f"set data.longest (or the model's length) to more than {special}"
            )
        return None if self.longest is None else self.longest - special


@dataclass(frozen=True)
class Drawn:
    """One of several ways in which BPE-dropout splits all texts."""

    seed: int
    variant: int

    def seeds(self, chunk: Chunk, side: str) -> list[int]:
        """A seed for each text that depends on nothing but the text's own number."""
        begun = blake2b(f"{self.seed}/{self.variant}/{side}/".encode(), digest_size=8)
        found = []
        for number in range(chunk.first, chunk.first + len(chunk.placed)):
            digest = begun.copy()
            digest.update(b"%d" % number)
            found.append(int.from_bytes(digest.digest(), "little"))
        return found


class Shaper(Protocol):
    """Turns the chunks of one split into what is stored, and counts."""

    too_long: Tally
    unknown: Counter[str]
    """Tokens by side that stand for what the vocabulary cannot write."""

    def encode(self, chunk: Chunk, /) -> Sides: ...

    def shape(self, chunk: Chunk, sides: Sides, /) -> Sides: ...

    def finish(self, writer: Writer, /) -> Table:
        """What is left to do once all is written; what it gives is noted with the rest."""
        ...


class Form(Protocol):
    """Describes what examples become."""

    @property
    def vocabularies(self) -> Mapping[str, int]:
        """How many different numbers each side has."""
        ...

    @property
    def dropout(self) -> bool:
        """Whether texts are split at random."""
        ...

    def key(self) -> Table:
        """What decides the result, beside the examples."""
        ...

    def fits(self, settings: Data) -> bool:
        """Whether data of this kind give such examples."""
        ...

    def shaper(self, limit: Limit, drawn: Drawn | None) -> Shaper: ...


def has_dropout(tokenizer: Tokenizer) -> bool:
    return getattr(tokenizer.settings, "dropout", 0.0) > 0


def _ids(tokenizer: Tokenizer, chunk: Chunk, side: str, drawn: Drawn | None) -> Ragged:
    """The tokens of one side's texts, which an example has under the name of the side."""
    texts = [getattr(placed.example, side) for placed in chunk.placed]
    ids = tokenizer.ids(texts)
    if side == "source" and chunk.placed[0].example.to is not None:
        ids = [[tokenizer.extra[tag(placed.example.to)], *each] for placed, each in zip(chunk.placed, ids, strict=True)]
    return Ragged.of(ids)


def _count_unknown(tokenizer: Tokenizer, ids: Ragged) -> int:
    unknown = tokenizer.roles.get("unknown")
    return 0 if unknown is None else int(np.count_nonzero(ids.tokens == unknown))


# --------------------------------------------------------------------------------------------------------------- pairs


@dataclass(frozen=True)
class PairForm:
    """Sources with an end, and a tag first where a model must be told the language; targets with start and end."""

    tokenizers: TokenizerPair

    @property
    def vocabularies(self) -> Mapping[str, int]:
        return dict(zip(("source", "target"), self.tokenizers.sizes, strict=True))

    @property
    def dropout(self) -> bool:
        return has_dropout(self.tokenizers.source) or has_dropout(self.tokenizers.target)

    def key(self) -> Table:
        return {"form": "pairs", "tokenizers": [self.tokenizers.source.checksum, self.tokenizers.target.checksum]}

    def fits(self, settings: Data) -> bool:
        if not isinstance(settings, Pairs):
            return False
        tags = [tag(target) for _, target in settings.directions] if settings.both else []
        if missing := [each for each in tags if each not in self.tokenizers.source.extra]:
            raise SettingsError(
                f"data.both needs a tokenizer with the special token {missing[0]}; train one with "
                f"text.special.extra={tags}"
            )
        return True

    def shaper(self, limit: Limit, drawn: Drawn | None) -> Shaper:
        return _PairShaper(self.tokenizers, limit, drawn)


class _PairShaper:
    def __init__(self, tokenizers: TokenizerPair, limit: Limit, drawn: Drawn | None) -> None:
        self.too_long = Tally()
        self.unknown: Counter[str] = Counter()
        self._tokenizers, self._limit, self._drawn = tokenizers, limit, drawn
        # A decoder reads all of a target but its end, so that both sides have room for one special token.
        self._room = limit.room(1)

    def encode(self, chunk: Chunk) -> Sides:
        return {
            "source": _ids(self._tokenizers.source, chunk, "source", self._drawn),
            "target": _ids(self._tokenizers.target, chunk, "target", self._drawn),
        }

    def shape(self, chunk: Chunk, sides: Sides) -> Sides:
        source, target = sides["source"], sides["target"]
        if self._room is not None:
            over = {side: found.lengths > self._room for side, found in sides.items()}
            self._tell(chunk, over)
            if self._limit.too_long == "truncate":
                source, target = source.cut(self._room), target.cut(self._room)
            elif (either := over["source"] | over["target"]).any():
                source, target = source.only(~either), target.only(~either)
        self.unknown["source"] += _count_unknown(self._tokenizers.source, source)
        self.unknown["target"] += _count_unknown(self._tokenizers.target, target)
        last, first = self._tokenizers.source.role("end"), self._tokenizers.target.role("start")
        return {
            "source": source.framed(None, last),
            "target": target.framed(first, self._tokenizers.target.role("end")),
        }

    def finish(self, writer: Writer) -> Table:
        return {}

    def _tell(self, chunk: Chunk, over: Mapping[str, Mask]) -> None:
        for number in np.flatnonzero(over["source"] | over["target"]).tolist():
            side = "source" if over["source"][number] else "target"
            reason = f"has a {side} of over {self._limit.longest:,} tokens"
            self.too_long.count(reason, chunk.placed[number].where)


# --------------------------------------------------------------------------------------------------------------- texts


@dataclass(frozen=True)
class TextForm:
    """Raw text, in one of three frames.

    document: start and end around each; stream: an end behind each, for windows over all of them; encoder: class token
    and separator.
    """

    tokenizer: Tokenizer
    frame: Frame = "document"

    @property
    def vocabularies(self) -> Mapping[str, int]:
        return {"text": self.tokenizer.size}

    @property
    def dropout(self) -> bool:
        return has_dropout(self.tokenizer)

    def key(self) -> Table:
        return {"form": self.frame, "tokenizers": [self.tokenizer.checksum]}

    def fits(self, settings: Data) -> bool:
        return isinstance(settings, RawTexts)

    def shaper(self, limit: Limit, drawn: Drawn | None) -> Shaper:
        return _TextShaper(self, limit, drawn)


class _TextShaper:
    def __init__(self, form: TextForm, limit: Limit, drawn: Drawn | None) -> None:
        self.too_long = Tally()
        self.unknown: Counter[str] = Counter()
        self._form, self._limit, self._drawn = form, limit, drawn
        # A decoder reads all of a document but its end; an encoder reads all of it.
        self._room = None if form.frame == "stream" else limit.room(2 if form.frame == "encoder" else 1)
        self._open: list[NDArray[Any]] = []
        """What has come so far of a document that has not ended."""
        self._told = False
        """Whether it is known to be too long."""

    def encode(self, chunk: Chunk) -> Sides:
        return {"text": _ids(self._form.tokenizer, chunk, "text", self._drawn)}

    def shape(self, chunk: Chunk, sides: Sides) -> Sides:
        pieces, tokenizer = sides["text"], self._form.tokenizer
        ends = np.fromiter((placed.example.ends for placed in chunk.placed), np.bool_, len(chunk.placed))
        if self._form.frame == "stream":
            self.unknown["text"] += _count_unknown(tokenizer, pieces)
            return {"text": pieces.framed(None, tokenizer.role("end"), ends)}
        whole = not self._open and bool(ends.all())
        texts = self._limited(chunk, pieces) if whole else Ragged.joined(self._joined(chunk, pieces))
        self.unknown["text"] += _count_unknown(tokenizer, texts)
        around: tuple[Literal["start", "class_token"], Literal["end", "separator"]] = (
            ("class_token", "separator") if self._form.frame == "encoder" else ("start", "end")
        )
        return {"text": texts.framed(tokenizer.role(around[0]), tokenizer.role(around[1]))}

    def finish(self, writer: Writer) -> Table:
        return {}

    def _limited(self, chunk: Chunk, texts: Ragged) -> Ragged:
        """Whole documents, all at once."""
        room = self._room
        if room is None or not (over := texts.lengths > room).any():
            return texts
        for number in np.flatnonzero(over).tolist():
            self._tell(chunk.placed[number])
        if self._limit.too_long == "skip":
            return texts.only(~over)
        return texts.cut(room) if self._limit.too_long == "truncate" else texts.split(room)

    def _joined(self, chunk: Chunk, pieces: Ragged) -> Iterator[NDArray[Any]]:
        """Documents of several pieces, one by one. Of one that is too long no more is held than is needed."""
        room, way = self._room, self._limit.too_long
        for placed, ids in zip(chunk.placed, pieces.parts(), strict=True):
            self._open.append(ids)
            if room is not None and sum(map(len, self._open)) > room:
                if not self._told:
                    self._tell(placed)
                self._told = True
                held = np.concatenate(self._open)
                if way == "split":
                    *full, rest = Ragged(held, np.array([len(held)])).split(room).parts()
                    yield from full
                    self._open = [rest]
                else:
                    self._open = [held[:room]]
            if placed.example.ends:
                if not (self._told and way == "skip"):
                    yield np.concatenate(self._open)
                self._open, self._told = [], False

    def _tell(self, placed: Located[Text]) -> None:
        self.too_long.count(f"has over {self._limit.longest:,} tokens", placed.where)
