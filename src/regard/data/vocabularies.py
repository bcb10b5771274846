"""Tokenizers learned from training data. The same data and settings find the same tokenizer in the cache."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import tokenizers

from regard.data.cache import cached, fingerprint
from regard.data.examples import Example
from regard.data.prepare import data_key, require_files
from regard.data.settings import Texts
from regard.data.source import Source
from regard.errors import SettingsError
from regard.settings import to_table
from regard.text.settings import AnyTokenizer
from regard.text.tokenizer import TokenizerPair
from regard.text.train import Progress, train_pair, train_tokenizer

VERSION = 1
"""Raise it when the same data and settings give another tokenizer."""
MOST_TEXTS = 1_000_000
"""More texts change a vocabulary only little, and training takes longer."""
FOLDER = "tokenizers"


def learn_tokenizers(
    source: Source, settings: AnyTokenizer, *, most: int = MOST_TEXTS, report: Progress | None = None
) -> TokenizerPair:
    """The tokenizers of a split, learned from at most `most` texts, evenly spaced.

    Source and target of pairs have one each unless `settings.shared`; all other texts share one.
    """
    if not isinstance(source.settings, Texts):
        raise SettingsError(
            f"data.kind ({source.settings.kind}) has no texts to learn a tokenizer from; choose another kind"
        )
    require_files(source)
    key = {
        "version": [VERSION, tokenizers.__version__],
        "split": source.split,
        "data": data_key(source),
        "text": to_table(settings),
        "most": most,
    }

    def make(directory: Path) -> None:
        sample = _Sample(source, most)
        if not settings.shared and sample.sides == ("source", "target"):
            pair = train_pair(settings, _Sample(source, most, "source"), _Sample(source, most, "target"), report)
        else:
            pair = TokenizerPair.of(train_tokenizer(settings, sample, report))
        pair.save(directory)

    return cached(FOLDER, fingerprint(source.origin, key), make, TokenizerPair.load)


class _Sample:
    """The texts of a split, or of one side of it: all, or about `most`, of evenly spaced examples.

    The examples are counted by reading them once, so that only one text is in memory.
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
    def sides(self) -> tuple[str, ...]:
        return tuple(next(iter(self._read())).sides())

    @cached_property
    def _size(self) -> int:
        known = self._source.size
        return sum(1 for _ in self._read()) if known is None else known

    @cached_property
    def _each(self) -> int:
        """Texts of an example: a sample has all of them, or one side would be left out."""
        return len(self._texts(next(iter(self._read()))))

    @property
    def _wanted(self) -> int:
        return min(self._size, max(1, self._most // self._each))

    def _read(self) -> Source:
        return Source(self._source.settings, self._source.split)

    def _texts(self, example: Example) -> list[str]:
        return [str(text) for name, text in example.sides().items() if self._side in (None, name)]
