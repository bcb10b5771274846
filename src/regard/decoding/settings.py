"""Settings of decoding: how to search, and the rules that every sequence keeps. No torch in here.

A length is a number of written tokens, the end included; the start token and a prompt are never counted.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self, TypeAlias

from pydantic import Field, model_validator

from regard.blocks.settings import Positive
from regard.settings import Settings

Token: TypeAlias = Annotated[int, Field(ge=0)]
Word: TypeAlias = Annotated[tuple[Token, ...], Field(strict=False, min_length=1)]
"""A word as the tokens that it is made of."""

# ----------------------------------------------------------------------------------------------------------- lengths


class Power(Settings):
    """Divides a score by length^alpha (transformers' and fairseq's; 1 is the mean of a token)."""

    kind: Literal["power"] = "power"
    alpha: float = 1.0
    """The exponent; above 0 favours long sequences, 0 leaves scores as they are."""

    def divisor(self, length: float) -> float:
        return float(length**self.alpha)


class Paper(Settings):
    """Divides a score by ((5 + length) / 6)^alpha (Wu et al. 2016; Vaswani et al. 2017 with 0.6)."""

    kind: Literal["paper"] = "paper"
    alpha: float = 0.6
    """The exponent; above 0 favours long sequences, 0 leaves scores as they are."""

    def divisor(self, length: float) -> float:
        return float(((5 + length) / 6) ** self.alpha)


class NoPenalty(Settings):
    """Scores are sums of log-probabilities, which favours short sequences."""

    kind: Literal["none"] = "none"
    alpha: Literal[0] = 0
    """No exponent."""

    def divisor(self, length: float) -> float:
        return 1.0


LengthPenalty: TypeAlias = Annotated[Power | Paper | NoPenalty, Field(discriminator="kind")]

# ---------------------------------------------------------------------------------------------------------- searches

Stop: TypeAlias = Literal["all", "best", "first"]


class Greedy(Settings):
    """The likeliest token, each time."""

    kind: Literal["greedy"] = "greedy"


class Sampling(Settings):
    """A random token, each time. Temperature, top-k, top-p and min-p are applied in this order."""

    kind: Literal["sampling"] = "sampling"
    temperature: float = Field(default=1.0, gt=0)
    """Scores are divided by this: near 0 is greedy, above 1 is bolder than the model."""
    top_k: Positive | None = None
    """Only so many of the likeliest tokens; none: all."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Only the likeliest tokens that together have this probability (Holtzman et al. 2020)."""
    min_p: float = Field(default=0.0, ge=0, le=1)
    """Only tokens at least this share as likely as the likeliest (Nguyen et al. 2024)."""
    seed: int = Field(default=0, ge=0)
    """Each input draws from its own stream, made from this and its place among the inputs."""


class Beam(Settings):
    """The best of several sequences that grow side by side."""

    kind: Literal["beam"] = "beam"
    size: Positive = 4
    """Open sequences, and finished ones that are kept."""
    nbest: Positive = 1
    """Finished sequences that are given back."""
    length: LengthPenalty = Paper()
    """How the score of a finished sequence depends on its length."""
    coverage: float = Field(default=0.0, ge=0)
    """Weight of the penalty on source tokens that got little attention (Wu et al. 2016: beta), by the mean of the last
    layer's heads; 0: none."""
    stop: Stop = "all"
    """all: when no open sequence can come among the nbest any more, whatever it ends with (transformers:
    early_stopping "never"); best: when none could come among the kept ones by ending at its present length, which
    long sequences may still disprove (False); first: when size sequences have ended (True)."""

    @model_validator(mode="after")
    def _enough(self) -> Self:
        if self.nbest > self.size:
            raise ValueError(f"nbest ({self.nbest}) must be at most size ({self.size}); widen the beam")
        return self


Search: TypeAlias = Greedy | Sampling | Beam
AnySearch: TypeAlias = Annotated[Search, Field(discriminator="kind")]
"""What `parse` takes to read a search's table, told apart by its `kind`."""

# ------------------------------------------------------------------------------------------------------------- rules


class Absolute(Settings):
    """The same length for every input."""

    kind: Literal["absolute"] = "absolute"
    tokens: Positive = 256
    """Written tokens, the end included."""

    def of(self, read: int) -> int:
        return self.tokens


class ToSource(Settings):
    """A length that grows with the input's: the paper's is its length + 50."""

    kind: Literal["to-source"] = "to-source"
    ratio: float = Field(default=1.0, ge=0)
    """Written tokens for each token that was read."""
    extra: Positive = 50
    """Written tokens beyond that."""

    def of(self, read: int) -> int:
        return int(self.ratio * read) + self.extra


class Rules(Settings):
    """What every written sequence keeps. Applied in the order of the fields, as transformers applies them.

    They change log-probabilities in a beam search and raw scores otherwise, and nothing is normalised afterwards.
    """

    repetition: float = Field(default=1.0, gt=0)
    """Divides the positive and multiplies the negative score of each token that was read (by a decoder alone) or
    written before (Keskar et al. 2019); 1: none."""
    frequency: float = 0.0
    """Taken from a token's score for each time that it was written, as OpenAI does; 0: none."""
    presence: float = 0.0
    """Taken from the score of every token that was written at least once, as OpenAI does; 0: none."""
    ngram: int = Field(default=0, ge=0)
    """No sequence of so many tokens occurs twice, start and prompt included; 0: any may."""
    must_not: tuple[Word, ...] = Field(default=(), strict=False)
    """Sequences of tokens that never occur."""
    shortest: int = Field(default=0, ge=0)
    """Tokens that come before the end at least."""
    longest: Annotated[Absolute | ToSource, Field(discriminator="kind")] = ToSource()
    """After so many tokens a sequence is taken as it is."""
    end_at_longest: bool = False
    """Whether the last token within longest is the end, whatever the model says, and costs nothing."""
    loop_ngram: Positive = 8
    """The longest run of tokens whose repetition at the end of a sequence counts as a loop."""
    loop_times: int = Field(default=4, ge=2)
    """How often it must stand there, one behind the other, for `Hypothesis.looped`."""
