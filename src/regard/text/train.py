"""Training a tokenizer, or the two of a translation, from any source of texts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass
from itertools import chain
from typing import Literal, TypeAlias

import tokenizers

from regard.errors import DataError
from regard.text import pipeline
from regard.text.learn import Stage, learn
from regard.text.pair import TokenizerPair
from regard.text.settings import AnyTokenizer
from regard.text.tokenizer import Tokenizer

_EVERY = 1_000
"""Texts between two reports of progress."""

_LONGEST_RUN = 1_000
"""Characters without a space, or of nothing but space. Trainers need time quadratic in the length of a word."""

_LONG_RUN = re.compile(rf"\S{{{_LONGEST_RUN + 1}}}|\s{{{_LONGEST_RUN + 1}}}")


@dataclass(frozen=True)
class Progress:
    """How far training has come: texts that were read or, once done, tokens that were learnt."""

    stage: Stage | Literal["done"]
    """alphabet and reading: the texts are read (the former only where characters are counted first); done: learnt."""
    done: int
    """Texts read so far, or tokens in the vocabulary."""
    total: int | None
    """Texts in all, or tokens that were asked for; none: not known."""


Report: TypeAlias = Callable[[Progress], None]


def train(settings: AnyTokenizer, texts: Iterable[str], report: Report | None = None) -> Tokenizer:
    """A tokenizer learnt from texts; the same texts, in any order, give the same one.

    `texts` is read once or twice; an iterator, which can be read only once, is kept in memory where that is needed.
    The vocabulary is smaller than asked for where the texts do not hold as many tokens. `report` is called every now
    and then while texts are read, and at the end. Learning itself runs in the library, which reports nothing.
    """
    model = learn(settings, _Corpus(texts, report))
    inner = tokenizers.Tokenizer(model)
    if normalise := pipeline.normalizer(settings):
        inner.normalizer = normalise
    inner.pre_tokenizer = pipeline.pre_tokenizer(settings)
    if decode := pipeline.decoder(settings):
        inner.decoder = decode
    inner.add_special_tokens([tokenizers.AddedToken(token, special=True) for token in settings.special.tokens()])
    if frame := pipeline.frame(settings, inner.get_vocab()):
        inner.post_processor = frame
    tokenizer = Tokenizer(inner, settings.special.by_role(), settings.special.extra, settings)
    if report:
        report(Progress("done", tokenizer.size, getattr(settings, "size", None)))
    return tokenizer


def train_pair(
    settings: AnyTokenizer, source: Iterable[str], target: Iterable[str], report: Report | None = None
) -> TokenizerPair:
    """The tokenizers of a translation: one learnt from both sides if `settings.shared`, else one from each."""
    if settings.shared:
        once = isinstance(source, Iterator) or isinstance(target, Iterator)
        return TokenizerPair.of(train(settings, chain(source, target) if once else _Both(source, target), report))
    return TokenizerPair(train(settings, source, report), train(settings, target, report))


# ------------------------------------------------------------------------------------------------------------- reading


class _Corpus:
    """Texts as trainers need them: readable again, counted, none with an endless word."""

    def __init__(self, texts: Iterable[str], report: Report | None) -> None:
        if isinstance(texts, str):
            raise DataError(
                f"the texts are a single one ({texts[:20]!r}); give a list of texts, such as a file's lines"
            )
        self.texts = texts
        self.report = report

    def read(self, stage: Stage) -> Iterator[str]:
        if stage == "alphabet" and isinstance(self.texts, Iterator):
            self.texts = list(self.texts)
        total = len(self.texts) if isinstance(self.texts, Sized) else None
        count, empty = 0, True
        for count, text in enumerate(self.texts, 1):
            _check(text, count)
            empty = empty and (not text or text.isspace())
            yield from _cut(text)
            if self.report and count % _EVERY == 0:
                self.report(Progress(stage, count, total))
        if empty:
            raise DataError(
                f"there is nothing to learn a tokenizer from: {count:,} texts were read, and none holds a character; "
                "give it texts"
            )
        if self.report:
            self.report(Progress(stage, count, total))


def _check(text: object, number: int) -> None:
    if not isinstance(text, str):
        raise DataError(f"text {number:,} ({text!r:.40}) is no text but {type(text).__name__}; give strings")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"text {number:,} has a lone surrogate ({text[error.start]!r}) at character {error.start + 1:,}, which no "
            "file in UTF-8 can hold; read its file with errors='replace'"
        ) from None


def _cut(text: str) -> Iterator[str]:
    """The text, or pieces of it if it has a run so long that a trainer would not come to an end."""
    if len(text) > _LONGEST_RUN and _LONG_RUN.search(text):
        for start in range(0, len(text), _LONGEST_RUN):
            yield text[start : start + _LONGEST_RUN]
    else:
        yield text


class _Both:
    """Sources one after the other, as often as wanted."""

    def __init__(self, *sources: Iterable[str]) -> None:
        self.sources = sources

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self.sources)
