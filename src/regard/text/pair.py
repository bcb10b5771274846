"""The tokenizers of a translation: one for both sides, or one for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from regard.errors import DataError
from regard.text.files import FILE, load, save
from regard.text.tags import tag
from regard.text.tokenizer import Tokenizer

SOURCE = "tokenizer.source.json"
TARGET = "tokenizer.target.json"


@dataclass(frozen=True)
class TokenizerPair:
    """Source and target; the same one twice where the vocabulary is shared."""

    source: Tokenizer
    target: Tokenizer

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> TokenizerPair:
        return cls(tokenizer, tokenizer)

    @property
    def shared(self) -> bool:
        return self.source is self.target or self.source == self.target

    @property
    def sizes(self) -> tuple[int, int]:
        """The vocabularies that a model needs."""
        return self.source.size, self.target.size

    def ids(self, sources: Sequence[str], targets: Sequence[str]) -> tuple[list[list[int]], list[list[int]]]:
        """Sources with an end, targets with start and end: what a model is trained on."""
        return self.source.ids(sources, end=True), self.target.ids(targets, start=True, end=True)

    def inputs(self, sources: Sequence[str], to: Sequence[str | None] | None = None) -> list[list[int]]:
        """Sources as a model reads them: with an end, and first a tag where one must be told the language to write."""
        ids = self.source.ids(sources, end=True)
        if to is None:
            return ids
        return [
            each if language is None else [self.source.extra[tag(language)], *each]
            for each, language in zip(ids, to, strict=True)
        ]

    def save(self, directory: Path | str) -> None:
        """`tokenizer.json`, or one file for each side; files of the other form go."""
        directory = Path(directory)
        if self.shared:
            save(self.source, directory / FILE)
        else:
            save(self.source, directory / SOURCE)
            save(self.target, directory / TARGET)
        for name in (SOURCE, TARGET) if self.shared else (FILE,):
            (directory / name).unlink(missing_ok=True)

    @classmethod
    def load(cls, directory: Path | str) -> TokenizerPair:
        directory = Path(directory)
        separate = [(directory / name).is_file() for name in (SOURCE, TARGET)]
        if all(separate) and not (directory / FILE).is_file():
            return cls(load(directory / SOURCE), load(directory / TARGET))
        if any(separate) and not (directory / FILE).is_file():
            raise DataError(f"{directory} holds only one of {SOURCE} and {TARGET}; copy the other one too")
        return cls.of(load(directory))
