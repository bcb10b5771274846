"""What can be asked of a translation, by keywords in Python, options in the shell, or a request. No torch in here."""

from __future__ import annotations

from typing import Annotated, Self, TypeAlias

from pydantic import Field, model_validator

from regard.blocks.settings import Positive
from regard.decoding.settings import Beam, Greedy, LengthPenalty, Paper, Rules, Sampling, Search, Stop
from regard.settings import Settings

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
