"""Vocabularies learnt from texts, one function a kind, each giving the same vocabulary for the same texts.

The trainers of `tokenizers` walk through hash tables in a random order. That leaves no trace in BPE and words, but in
WordPiece (ids and ties), in a limited alphabet (ties) and in unigram (the scores of rare characters, and last digits of
all others): those are put in order here.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Literal, Protocol, TypeAlias

import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from regard.errors import DataError
from regard.text import pipeline
from regard.text.settings import (
    BYTES,
    AnyTokenizer,
    Bpe,
    ByteBpe,
    Bytes,
    Characters,
    Unigram,
    WordPiece,
    Words,
)

Stage: TypeAlias = Literal["alphabet", "reading"]
"""What texts are read for: to count their characters beforehand, or to learn from."""


class Texts(Protocol):
    """Texts that can be read more than once."""

    def read(self, stage: Stage) -> Iterator[str]: ...


def learn(settings: AnyTokenizer, texts: Texts) -> models.Model:
    match settings:
        case ByteBpe() | Bpe():
            return _merges(settings, texts)
        case Unigram():
            return _unigram(settings, texts)
        case WordPiece():
            return _wordpiece(settings, texts)
        case Words():
            return _words(settings, texts)
        case Characters():
            return _characters(settings, texts)
        case Bytes():
            return _bytes(settings)


# ---------------------------------------------------------------------------------------------------------------- BPE


def _merges(settings: ByteBpe | Bpe, texts: Texts) -> models.Model:
    special = settings.special.tokens()
    limited = isinstance(settings, Bpe) and settings.alphabet is not None
    alphabet = _alphabet(settings, texts, settings.alphabet) if isinstance(settings, Bpe) and limited else []
    trainer = trainers.BpeTrainer(
        vocab_size=settings.size,
        min_frequency=settings.frequency,
        special_tokens=[*special, *alphabet],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if isinstance(settings, ByteBpe) else [],
        max_token_length=settings.longest_piece,
        show_progress=False,
    )
    if limited:
        trainer.limit_alphabet = 0  # the one given, and no other
    content = _train(settings, models.BPE(), trainer, texts)
    _refuse_large_alphabet(settings, len(content["vocab"]))
    # A text may hold what is spelt like a special token; without these merges it never becomes one.
    taken = set(special)
    merges = [(left, right) for left, right in content["merges"] if not taken.intersection((left, right, left + right))]
    if isinstance(settings, Bpe):
        return models.BPE(content["vocab"], merges, unk_token=settings.special.unknown)
    return models.BPE(content["vocab"], merges)


def _refuse_large_alphabet(settings: ByteBpe | Bpe | WordPiece, size: int) -> None:
    if size > settings.size:
        raise DataError(
            f"the texts have so many different characters that single ones and special tokens alone make {size:,} "
            f"tokens, and text.size is {settings.size:,}; raise it, or keep fewer characters with text.alphabet"
        )


def _alphabet(settings: Bpe | WordPiece, texts: Texts, limit: int | None) -> list[str]:
    """Single characters, with the marks that they carry in this kind; at most `limit` of them, the commonest."""
    counts: Counter[str] = Counter()
    normalise = pipeline.normalizer(settings)

    def counted() -> Iterator[str]:
        for text in texts.read("alphabet"):
            counts.update(normalise.normalize_str(text) if normalise else text)
            yield text

    # A vocabulary of size 0 is the alphabet alone.
    if isinstance(settings, WordPiece):
        trainer = trainers.WordPieceTrainer(vocab_size=0, show_progress=False)
        content = _train(settings, models.WordPiece(), trainer, counted())
    else:
        content = _train(settings, models.BPE(), trainers.BpeTrainer(vocab_size=0, show_progress=False), counted())
    counts[pipeline.MARK] = max(counts.values(), default=1)
    characters = sorted((piece for piece in content["vocab"] if len(piece) == 1), key=lambda c: (-counts[c], c))[:limit]
    kept = {*characters, *(pipeline.CONTINUATION + character for character in characters)}
    return sorted(kept.intersection(content["vocab"]), key=lambda piece: (len(piece), piece))


# ------------------------------------------------------------------------------------------------- the other subwords


_FORBIDDEN = -1e6
"""Score of a special token, far below any spelling of it, so that no text becomes one."""


def _unigram(settings: Unigram, texts: Texts) -> models.Model:
    special = settings.special.tokens()
    trainer = trainers.UnigramTrainer(
        vocab_size=settings.size,
        special_tokens=special,
        unk_token=settings.special.unknown,
        initial_alphabet=sorted(set("".join(special))),
        max_piece_length=settings.longest_piece,
        show_progress=False,
    )
    crowded = DataError(
        f"text.size ({settings.size:,}) is too small for the characters of the texts, each of which is a token; "
        "raise it, or choose kind = byte-bpe"
    )
    try:
        content = _train(settings, models.Unigram(), trainer, texts)
    except Exception as error:  # the library raises plain Exception
        raise (crowded if "not large enough" in str(error) else error) from None
    scores = {piece: score for piece, score in content["vocab"] if piece not in special}
    # Characters that no likely piece needs are given the lowest score plus 0, 1, 2 … steps of 0.0001, in random order.
    lowest = min(scores.values(), default=0.0)
    characters = [piece for piece in scores if len(piece) == 1]
    steps = {piece: (scores[piece] - lowest) * 10_000 for piece in characters}
    for piece, step in steps.items():
        if step < len(characters) and abs(step - round(step)) < 1e-4:
            scores[piece] = lowest
    ordered = sorted(((round(score, 6), piece) for piece, score in scores.items()), key=lambda s: (-s[0], s[1]))
    vocabulary = [*((token, _FORBIDDEN) for token in special), *((piece, score) for score, piece in ordered)]
    if len(vocabulary) > settings.size:
        raise crowded
    return models.Unigram(vocabulary, unk_id=special.index(settings.special.unknown), byte_fallback=False)


def _wordpiece(settings: WordPiece, texts: Texts) -> models.Model:
    alphabet = _alphabet(settings, texts, settings.alphabet)
    trainer = trainers.WordPieceTrainer(
        vocab_size=settings.size,
        min_frequency=settings.frequency,
        special_tokens=[*settings.special.tokens(), *alphabet],
        limit_alphabet=0,
        show_progress=False,
    )
    content = _train(settings, models.WordPiece(), trainer, texts)
    _refuse_large_alphabet(settings, len(content["vocab"]))
    return models.WordPiece(
        content["vocab"],
        unk_token=settings.special.unknown,
        max_input_chars_per_word=settings.longest_word,
        continuing_subword_prefix=pipeline.CONTINUATION,
    )


# ----------------------------------------------------------------------------------------- words, characters and bytes


def _words(settings: Words, texts: Texts) -> models.Model:
    trainer = trainers.WordLevelTrainer(
        vocab_size=settings.size,
        min_frequency=settings.frequency,
        special_tokens=settings.special.tokens(),
        show_progress=False,
    )
    content = _train(settings, models.WordLevel(), trainer, texts)
    return models.WordLevel(content["vocab"], unk_token=settings.special.unknown)


def _characters(settings: Characters, texts: Texts) -> models.Model:
    counts: Counter[str] = Counter()
    normalise = pipeline.normalizer(settings)
    for text in texts.read("reading"):
        counts.update(normalise.normalize_str(text) if normalise else text)
    known = sorted((c for c, count in counts.items() if count >= settings.frequency), key=lambda c: (-counts[c], c))
    tokens = [*settings.special.tokens(), *known][: settings.size]
    return models.BPE(_numbered(tokens), [], unk_token=settings.special.unknown)


def _bytes(settings: Bytes) -> models.Model:
    return models.BPE(_numbered([*settings.special.tokens(), *byte_signs()]), [])


def _numbered(tokens: list[str]) -> dict[str, int]:
    return {token: number for number, token in enumerate(tokens)}


def byte_signs() -> list[str]:
    """The visible character that GPT-2 writes for each byte: itself, or from U+0100 on in the order of the bytes."""
    visible = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(BYTES) if byte not in visible]
    return [chr(byte) if byte in visible else chr(BYTES + hidden.index(byte)) for byte in range(BYTES)]


# ------------------------------------------------------------------------------------------------------------ training


def _train(
    settings: AnyTokenizer, model: models.Model, trainer: trainers.Trainer, texts: Texts | Iterator[str]
) -> dict[str, Any]:
    """The model that the library learns, as its JSON says it."""
    draft = tokenizers.Tokenizer(model)
    if normalise := pipeline.normalizer(settings):
        draft.normalizer = normalise
    draft.pre_tokenizer = pipeline.pre_tokenizer(settings)
    stream: Iterable[str] = texts if isinstance(texts, Iterator) else texts.read("reading")
    draft.train_from_iterator(stream, trainer)
    content: dict[str, Any] = json.loads(draft.to_str())["model"]
    return content
