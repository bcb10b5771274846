"""Tokenizers learnt from training data, once: the same data and settings find the same one again."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import tokenizers

from regard.data.cache import Cache, move, refuse_input, unfinished
from regard.data.examples import Example
from regard.data.prepare import ELSEWHERE
from regard.data.prepared import fingerprint
from regard.data.settings import Pairs, Texts
from regard.data.source import Source
from regard.errors import DataError, SettingsError
from regard.settings import to_table
from regard.text.settings import AnyTokenizer
from regard.text.tokenizer import Tokenizer, TokenizerPair
from regard.text.train import Progress, train_pair, train_tokenizer

VERSION = 1
"""Raise it when the same data and settings give another tokenizer."""
MOST_TEXTS = 1_000_000
"""More texts than these change a vocabulary by little, and training takes the longer."""
ROOM = "tokenizers"

T = TypeVar("T")


def learn_tokenizer(
    source: Source,
    settings: AnyTokenizer,
    *,
    most: int = MOST_TEXTS,
    report: Progress | None = None,
    cache: Cache | None = None,
) -> Tokenizer:
    """A tokenizer learnt from all texts of a split, or from `most` of them, spread evenly over it."""

    def learn(beside: Path) -> None:
        train_tokenizer(settings, _Sample(source, most), report).save(beside)

    return _kept(source, settings, most, cache, learn, Tokenizer.load)


def learn_pair(
    source: Source,
    settings: AnyTokenizer,
    *,
    most: int = MOST_TEXTS,
    report: Progress | None = None,
    cache: Cache | None = None,
) -> TokenizerPair:
    """The tokenizers of parallel text: one learnt from both sides if `settings.shared`, else one from each."""
    if not isinstance(source.settings, Pairs):
        raise SettingsError(f"data.kind ({source.settings.kind}) has no pairs of texts; choose one that has")

    def learn(beside: Path) -> None:
        if settings.shared:
            pair = TokenizerPair.of(train_tokenizer(settings, _Sample(source, most), report))
        else:
            pair = train_pair(settings, _Sample(source, most, "source"), _Sample(source, most, "target"), report)
        pair.save(beside)

    return _kept(source, settings, most, cache, learn, TokenizerPair.load)


def _kept(
    source: Source,
    settings: AnyTokenizer,
    most: int,
    cache: Cache | None,
    learn: Callable[[Path], None],
    read: Callable[[Path], T],
) -> T:
    """What is in the cache, or what `learn` puts there."""
    if not isinstance(source.settings, Texts):
        raise SettingsError(
            f"data.kind ({source.settings.kind}) has no texts to learn a tokenizer from; choose another"
        )
    cache = Cache() if cache is None else cache
    refuse_input(source.files)
    data = {name: value for name, value in to_table(source.settings).items() if name not in ELSEWHERE}
    key = {
        "version": [VERSION, tokenizers.__version__],
        "split": source.split,
        "data": data,
        "text": to_table(settings),
        "most": most,
    }
    place = cache.room(ROOM) / fingerprint(cache.checksums(source.origin), key)
    try:
        return read(place)
    except DataError:  # not there, or damaged
        shutil.rmtree(place, ignore_errors=True)
    with cache.writing(), unfinished(place) as beside:
        beside.mkdir()
        learn(beside)
        move(beside, place)
    return read(place)


class _Sample:
    """The texts of a split, or of one side of it: all, or about as many as are wanted, of examples at equal distances.

    How many examples there are is found out by reading once more, so that only the text at hand is in memory.
    """

    def __init__(self, source: Source, most: int, side: str | None = None) -> None:
        self._source, self._most, self._side = source, most, side

    def __len__(self) -> int:
        return self._wanted * self._each

    def __iter__(self) -> Iterator[str]:
        size, wanted = self._size, self._wanted
        for number, example in enumerate(self._read()):
            if (number + 1) * wanted // size > number * wanted // size:
                yield from self._texts(example)

    @cached_property
    def _size(self) -> int:
        known = self._source.size
        return sum(1 for _ in self._read()) if known is None else known

    @cached_property
    def _each(self) -> int:
        """Texts of an example: a sample takes all of them, or one side would be left out."""
        return len(self._texts(next(iter(self._read()))))

    @property
    def _wanted(self) -> int:
        return min(self._size, max(1, self._most // self._each))

    def _read(self) -> Source:
        return Source(self._source.settings, self._source.split)

    def _texts(self, example: Example) -> list[str]:
        sides = example.sides()
        return [str(text) for name, text in sides.items() if self._side in (None, name)]
