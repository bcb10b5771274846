"""What can be asked of a translation, by keywords in Python, options in the shell, or a request. No torch in here."""

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
"""Lines that are read before the first of them is written."""
REPAIR_BEAM = 5
"""The least beam with which words that must occur are searched for."""


class TranslateOptions(Settings):
    """How a text is translated, and how much is told of it."""

    to: str | None = None
    """The language to write; none: the only one that the model writes."""
    source: str | None = None
    """The language of the texts; none: the one that the model reads for `to`. It is only checked."""
    beam: Positive = 5
    """Sequences that grow side by side; 1: the likeliest token each time, which is faster."""
    nbest: Positive = 1
    """Translations of each text, the best first."""
    length: LengthPenalty = Paper()
    """How the score of a translation depends on its length."""
    coverage: float = Field(default=0.0, ge=0)
    """Weight of the penalty on source tokens that got little attention; 0: none."""
    stop: Stop = "all"
    """When a beam search ends; see `Beam.stop`."""
    sampling: Sampling | None = None
    """Draws words at random in place of a beam search."""
    rules: Rules = Rules()
    """What every translation keeps: its longest and shortest length, penalties of repetition."""
    prefix: str = ""
    """How the translation begins, whatever the model says."""
    must: Words = ()
    """Words that must occur (terminology). A text is then translated in one piece."""
    must_not: Words = ()
    """Words that must not occur."""
    split: bool = True
    """Whether texts are cut into sentences, which are translated one by one. Lines always are."""
    keep: bool = True
    """Whether placeholders, addresses, tags of HTML and XML, and numbers are kept; see docs/translating.md."""
    align: bool = False
    """Whether it is told which words belong together."""
    layer: int | None = None
    """The layer of the decoder by whose attention words are aligned, from 0; none: the usual one."""
    details: bool = False
    """Whether scores and tokens are told too; nbest and align imply it."""
    batch_tokens: Positive | None = None
    """Tokens that are read at once, each counted once for every beam; none: the usual number."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.sampling is None and self.nbest > self.beam:
            raise ValueError(f"nbest ({self.nbest}) must be at most beam ({self.beam}); widen the beam")
        if self.sampling is not None and self.must:
            raise ValueError("must needs a beam search and does not go with sampling; leave one of them out")
        return self

    @property
    def told(self) -> bool:
        """Whether more than a text is asked for."""
        return self.details or self.align or self.nbest > 1

    def search(self, nbest: int, must: bool = False) -> Search:
        """The search for so many translations; words that must occur need a beam."""
        if must:
            return Beam(size=max(self.beam, REPAIR_BEAM), nbest=nbest, length=self.length, stop=self.stop)
        if self.sampling is not None:
            return self.sampling
        if self.beam == 1:
            return Greedy()
        return Beam(size=self.beam, nbest=nbest, length=self.length, coverage=self.coverage, stop=self.stop)


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
