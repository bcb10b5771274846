"""What is told of a translation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from regard.decoding.attention import Weights


class Block(NamedTuple):
    """The weights of a sentence, from a target word and a source word on."""

    row: int
    column: int
    weights: Weights


@dataclass(frozen=True)
class Alignment:
    """Which words of a text and of its translation belong together."""

    source: list[str]
    target: list[str]
    pairs: list[tuple[int, int]]
    """Numbers of a source word and of a target word, from 0."""
    blocks: tuple[Block, ...] = field(compare=False, repr=False)
    """Weights of the sentences alone: those of a whole book would not fit into memory."""

    @property
    def weights(self) -> Weights:
        """`[target words, source words]`: how much each looked at each; zero across sentences."""
        table = np.zeros((len(self.target), len(self.source)), np.float32)
        for row, column, some in self.blocks:
            table[row : row + some.shape[0], column : column + some.shape[1]] = some
        return table

    def __str__(self) -> str:
        """As alignment tools write it: 0-0 1-2."""
        return " ".join(f"{source}-{target}" for source, target in self.pairs)


@dataclass(frozen=True)
class Translation:
    """A text in another language."""

    text: str
    score: float
    """What translations are ranked by: log-probabilities with the penalties of the search; a sum over sentences."""
    tokens: list[str]
    """As the vocabulary writes them, without ends; those of stand-ins where something was kept."""
    token_scores: list[float]
    """Log-probability of each token, and of the end of each sentence."""
    finished: bool
    """Whether every sentence ended, and was not cut."""
    looped: bool
    """Whether a sentence repeats itself at its end: a sign that the model is lost."""
    kept: bool
    """Whether everything is in it that `keep` looks after; numbers may fail."""
    alignment: Alignment | None = None
    """Where it was asked for."""

    def as_table(self) -> dict[str, Any]:
        """For JSON."""
        table: dict[str, Any] = {
            "text": self.text,
            "score": self.score,
            "tokens": self.tokens,
            "token_scores": self.token_scores,
            "finished": self.finished,
            "looped": self.looped,
            "kept": self.kept,
        }
        if self.alignment is not None:
            alignment = self.alignment
            table["alignment"] = {"source": alignment.source, "target": alignment.target, "pairs": alignment.pairs}
        return table


def together(text: str, parts: Sequence[Translation], align: bool) -> Translation:
    """The translation of a text from those of its sentences."""
    return Translation(
        text,
        sum(part.score for part in parts),
        [token for part in parts for token in part.tokens],
        [score for part in parts for score in part.token_scores],
        all(part.finished for part in parts),
        any(part.looped for part in parts),
        all(part.kept for part in parts),
        _joined([part.alignment for part in parts if part.alignment is not None]) if align else None,
    )


def _joined(parts: Sequence[Alignment]) -> Alignment:
    source = [word for part in parts for word in part.source]
    target = [word for part in parts for word in part.target]
    pairs: list[tuple[int, int]] = []
    blocks: list[Block] = []
    row = column = 0
    for part in parts:
        pairs += [(column + first, row + second) for first, second in part.pairs]
        blocks += [Block(row + block.row, column + block.column, block.weights) for block in part.blocks]
        row, column = row + len(part.target), column + len(part.source)
    return Alignment(source, target, pairs, tuple(blocks))
