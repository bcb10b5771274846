"""Options of a translation, and its result. Importing this module does not import torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Self, TypeAlias

from pydantic import Field, model_validator

from regard.blocks.settings import Positive
from regard.decoding.settings import Beam, Greedy, LengthPenalty, Paper, Rules, Sampling, Search, Stop
from regard.settings import Settings

if TYPE_CHECKING:  # the command line reads the options for its help, which must be fast
    import numpy as np
    from numpy.typing import NDArray

    Weights: TypeAlias = NDArray[np.float32]

Words: TypeAlias = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(strict=False)]

AHEAD = 1_000
"""Number of lines that are read before the first of them is written."""
_CONSTRAINED_BEAM = 5
"""Smallest beam of a search with words that must occur."""


class TranslateOptions(Settings):
    """How to translate, and what to return."""

    to: str | None = None
    """Target language; none: the only one of the model."""
    source: str | None = None
    """Source language, which is only checked; none: the one that the model reads for `to`."""
    beam: Positive = 5
    """Beam size; 1 is greedy search, which is faster."""
    nbest: Positive = 1
    """Number of translations of each text, best first."""
    length: LengthPenalty = Paper()
    """Length penalty."""
    coverage: float = Field(default=0.0, ge=0)
    """Weight of the coverage penalty on source tokens with little attention; 0: none."""
    stop: Stop = "all"
    """When a beam search stops; see `Beam.stop`."""
    sampling: Sampling | None = None
    """Samples tokens instead of searching."""
    rules: Rules = Rules()
    """Rules for every translation: largest and smallest length, penalties of repetition."""
    prefix: str = ""
    """The start of the translation."""
    must: Words = ()
    """Words that must occur (terminology). The text is then translated without splitting into sentences."""
    must_not: Words = ()
    """Words that must not occur. They win over `keep`."""
    split: bool = True
    """Whether texts are split into sentences. They are always split into lines."""
    keep: bool = True
    """Whether placeholders, addresses, HTML and XML tags, and numbers are kept; see docs/translating.md."""
    align: bool = False
    """Whether the result contains a word alignment."""
    layer: int | None = None
    """The decoder layer whose attention aligns words, from 0; none: the model's own choice."""
    details: bool = False
    """Whether the result contains scores and tokens; implied by nbest and align."""
    batch_tokens: Positive | None = None
    """Number of tokens in a batch, counted once for every beam; none: the default."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.sampling is None and self.nbest > self.beam:
            raise ValueError(f"nbest ({self.nbest}) must be at most beam ({self.beam}); raise beam")
        if self.sampling is not None and self.must:
            raise ValueError("must needs a beam search and cannot be combined with sampling; leave one of them out")
        return self

    @property
    def detailed(self) -> bool:
        """Whether the result is a `Translation` or a list of them, not a string."""
        return self.details or self.align or self.nbest > 1

    def search(self, nbest: int, must: bool = False) -> Search:
        """The search for `nbest` translations. Words that must occur need a beam."""
        if must:
            return Beam(size=max(self.beam, _CONSTRAINED_BEAM), nbest=nbest, length=self.length, stop=self.stop)
        if self.sampling is not None:
            return self.sampling
        if self.beam == 1:
            return Greedy()
        return Beam(size=self.beam, nbest=nbest, length=self.length, coverage=self.coverage, stop=self.stop)


class Block(NamedTuple):
    """The weights of one sentence, and the indices of its first target word (row) and source word (column)."""

    row: int
    column: int
    weights: Weights


@dataclass(frozen=True)
class Alignment:
    """A word alignment of a text and its translation."""

    source: list[str]
    target: list[str]
    pairs: list[tuple[int, int]]
    """Indices of aligned source and target words, from 0."""
    blocks: tuple[Block, ...] = field(compare=False, repr=False)
    """Weights of single sentences; the weights of a whole book would not fit into memory."""

    @property
    def weights(self) -> Weights:
        """`[target words, source words]`: attention weights; zero across sentences."""
        import numpy as np

        table = np.zeros((len(self.target), len(self.source)), np.float32)
        for row, column, some in self.blocks:
            table[row : row + some.shape[0], column : column + some.shape[1]] = some
        return table

    def __str__(self) -> str:
        """As alignment tools write it: 0-0 1-2."""
        return " ".join(f"{source}-{target}" for source, target in self.pairs)


@dataclass(frozen=True)
class Translation:
    """A translation of a text."""

    text: str
    score: float
    """The score of the search: log-probabilities with penalties, summed over sentences."""
    tokens: list[str]
    """Tokens as written in the vocabulary, without ends; stand-ins where something was kept."""
    token_scores: list[float]
    """Log-probability of each token and of the end of each sentence."""
    finished: bool
    """Whether every sentence has its end, and none was cut off at the largest length."""
    looped: bool
    """Whether a sentence ends in a repetition, a sign of a failing model."""
    kept: bool
    """Whether everything that `keep` protects is present."""
    alignment: Alignment | None = None
    """The word alignment, if asked for."""

    def as_table(self) -> dict[str, Any]:
        """For JSON."""
        names = ("text", "score", "tokens", "token_scores", "finished", "looped", "kept")
        table = {name: getattr(self, name) for name in names}
        if self.alignment is not None:
            table["alignment"] = {name: getattr(self.alignment, name) for name in ("source", "target", "pairs")}
        return table


def joined(text: str, parts: Sequence[Translation], align: bool) -> Translation:
    """The translation of a text from the translations of its sentences."""
    return Translation(
        text,
        sum(part.score for part in parts),
        [token for part in parts for token in part.tokens],
        [score for part in parts for score in part.token_scores],
        all(part.finished for part in parts),
        any(part.looped for part in parts),
        all(part.kept for part in parts),
        _joined_alignment([part.alignment for part in parts if part.alignment is not None]) if align else None,
    )


def _joined_alignment(parts: Sequence[Alignment]) -> Alignment:
    whole = Alignment([], [], [], ())
    blocks: list[Block] = []
    for part in parts:
        row, column = len(whole.target), len(whole.source)
        whole.pairs.extend((column + first, row + second) for first, second in part.pairs)
        blocks += [Block(row + block.row, column + block.column, block.weights) for block in part.blocks]
        whole.source.extend(part.source)
        whole.target.extend(part.target)
    return Alignment(whole.source, whole.target, whole.pairs, tuple(blocks))
