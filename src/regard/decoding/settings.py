"""Settings and values of decoding: searches, rules, requests and results. No torch at import.

A length is a number of written tokens, the end included; the start token and a prompt are not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Self, TypeAlias, TypedDict

from pydantic import Field, model_validator

from regard.blocks.settings import Positive
from regard.settings import Settings, Table

Token: TypeAlias = Annotated[int, Field(ge=0)]
Word: TypeAlias = Annotated[tuple[Token, ...], Field(strict=False, min_length=1)]
"""A word as a sequence of tokens."""
LEAST_TEMPERATURE = 1e-9
"""Logits that are divided by less can exceed a float32."""


class Power(Settings):
    """Divides a score by length^alpha (as transformers and fairseq do; 1: the mean over tokens)."""

    kind: Literal["power"] = "power"
    alpha: float = 1.0
    """The exponent; above 0 favours long sequences, 0: scores are sums of log-probabilities."""

    def divisor(self, length: float) -> float:
        return float(length**self.alpha)


class Paper(Settings):
    """Divides a score by ((5 + length) / 6)^alpha (Wu et al. 2016; Vaswani et al. 2017 with 0.6)."""

    kind: Literal["paper"] = "paper"
    alpha: float = 0.6
    """The exponent; above 0 favours long sequences, 0 changes nothing."""

    def divisor(self, length: float) -> float:
        return float(((5 + length) / 6) ** self.alpha)


LengthPenalty: TypeAlias = Annotated[Power | Paper, Field(discriminator="kind")]

Stop: TypeAlias = Literal["all", "best", "first"]


class Greedy(Settings):
    """Takes the most likely token at each step."""

    kind: Literal["greedy"] = "greedy"


class Filters(Settings):
    """Which tokens a sample is drawn from."""

    temperature: float = Field(default=1.0, ge=0)
    """Divides the logits; 0 takes the most likely token each time (greedy)."""
    top_k: Positive | None = None
    """Sample among this many most likely tokens; none: all."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Sample among the most likely tokens that together have this probability (Holtzman et al. 2020)."""
    min_p: float = Field(default=0.0, ge=0, le=1)
    """Sample among tokens with at least this share of the highest probability (Nguyen et al. 2024)."""


class Sampling(Filters):
    """Draws a random token at each step. Temperature, top-k, top-p and min-p apply in this order."""

    kind: Literal["sampling"] = "sampling"
    temperature: float = Field(default=1.0, ge=LEAST_TEMPERATURE)
    """Divides the logits: towards 0 the result is greedy, above 1 it is more random."""
    seed: int = Field(default=0, ge=0)
    """Each input has its own random stream, made from this seed and its index among the inputs."""


class Beam(Settings):
    """Keeps the best of several sequences at each step."""

    kind: Literal["beam"] = "beam"
    size: Positive = 4
    """Open sequences, and finished ones that are kept."""
    nbest: Positive = 1
    """Finished sequences that are returned."""
    length: LengthPenalty = Paper()
    """How the score of a finished sequence depends on its length."""
    coverage: float = Field(default=0.0, ge=0)
    """Weight of the penalty for source tokens with little attention (beta of Wu et al. 2016), by the mean over the last
    layer's heads; 0: none."""
    stop: Stop = "all"
    """all: when no open sequence can be among the nbest any more (transformers: early_stopping "never"); best: when no
    open sequence would be among the kept ones if it ended now (False); first: when size sequences have ended (True)."""

    @model_validator(mode="after")
    def _enough(self) -> Self:
        if self.nbest > self.size:
            raise ValueError(f"nbest ({self.nbest}) must be at most size ({self.size}); raise size")
        return self


Search: TypeAlias = Greedy | Sampling | Beam


class Absolute(Settings):
    """The same length for every input."""

    kind: Literal["absolute"] = "absolute"
    tokens: Positive = 256
    """Written tokens, the end included."""

    def of(self, read: int) -> int:
        return self.tokens


class ToSource(Settings):
    """A length relative to the input: by default its length + 50, as in the paper."""

    kind: Literal["to-source"] = "to-source"
    ratio: float = Field(default=1.0, ge=0)
    """Written tokens for each token of the input."""
    extra: Positive = 50
    """Further written tokens."""

    def of(self, read: int) -> int:
        return int(self.ratio * read) + self.extra


class Penalties(Settings):
    """Penalties of tokens that were written before."""

    repetition: float = Field(default=1.0, gt=0)
    """Divides the positive and multiplies the negative score of each token that was written before, or that a prompt
    contains (Keskar et al. 2019); 1: none."""
    frequency: float = 0.0
    """Subtracted from a token's score for each time that it was written (as OpenAI does); 0: none."""
    presence: float = 0.0
    """Subtracted from the score of every token that was written at least once (as OpenAI does); 0: none."""
    ngram: int = Field(default=0, ge=0)
    """No sequence of this many tokens occurs twice, start token and prompt included; 0: no limit."""


class Rules(Penalties):
    """Rules for all written sequences. They apply in the order of the fields, as in transformers.

    They change log-probabilities in a beam search and logits otherwise.
    """

    must_not: tuple[Word, ...] = Field(default=(), strict=False)
    """Sequences of tokens that never occur."""
    shortest: int = Field(default=0, ge=0)
    """Smallest number of tokens before the end."""
    longest: Annotated[Absolute | ToSource, Field(discriminator="kind")] = ToSource()
    """Largest number of tokens; a sequence without an end is cut there."""
    end_at_longest: bool = False
    """Whether the last token within longest is always the end, at no cost."""
    renormalize: bool = False
    """Whether the probabilities that the rules leave are divided by their sum (transformers: renormalize_logits)."""

    @property
    def looks_back(self) -> bool:
        """Whether any rule but `must_not` depends on the tokens written so far."""
        return self.repetition != 1 or self.frequency != 0 or self.presence != 0 or self.ngram > 0


LOOP_TOKENS, LOOP_TIMES = 8, 4
"""The longest run of tokens, and its repetitions at the end of a sequence, that count as a loop."""
AHEAD = 1_000
"""Number of lines that are read before the first of them is written."""
_CONSTRAINED_BEAM = 5
"""Smallest beam of a search with words that must occur."""
_Strings: TypeAlias = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(strict=False)]


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
    must: _Strings = ()
    """Words that must occur (terminology). The text is then translated without splitting into sentences."""
    must_not: _Strings = ()
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
        if self.sampling is not None:
            return self.sampling
        if self.beam == 1 and not must:
            return Greedy()
        size, coverage = (max(self.beam, _CONSTRAINED_BEAM), 0.0) if must else (self.beam, self.coverage)
        # The values are valid already.
        return Beam.model_construct(size=size, nbest=nbest, length=self.length, coverage=coverage, stop=self.stop)


class GenerateOptions(Penalties, Filters):
    """How to continue a prompt, and what to return."""

    tokens: Positive = 256
    """Most tokens to write."""
    stop: _Strings = ()
    """The text ends before the first of these strings."""
    n: Positive = 1
    """Number of samples for each prompt."""
    seed: int = Field(default=0, ge=0)
    """Random seed. A prompt has the same samples alone and among others."""
    logprobs: int | None = Field(default=None, ge=0, le=100)
    """Number of alternatives of each token that are returned with their log-probabilities; none: no alternatives."""
    echo: bool = False
    """Whether the text begins with the prompt."""
    chat: bool = False
    """Whether a prompt is a message to a chat model, put into the model's chat template."""
    special: bool = False
    """Whether special tokens in a prompt, such as `<|im_start|>`, are read as tokens."""
    slide: bool | None = None
    """What happens when the context is full: the older half of it is dropped, or the text ends; none: as the model was
    trained, so that a model of running text goes on."""
    draft: str | None = None
    """What guesses the next tokens, for speed: lookup (copies from the text so far), or a smaller model with the same
    vocabulary; none: nothing. Samples keep their distribution, and greedy text stays the same."""
    details: bool = False
    """Whether the result is a `Generation` with log-probabilities; implied by n above 1 and by logprobs."""
    rows: Positive = 32
    """Most texts that are written at the same time."""

    @property
    def detailed(self) -> bool:
        """Whether the result is a `Generation` or a list of them, not a string."""
        return self.details or self.n > 1 or self.logprobs is not None

    def search(self) -> Greedy | Sampling:
        if self.temperature < LEAST_TEMPERATURE:
            return Greedy()
        names = (*Filters.model_fields, "seed")
        return Sampling.model_construct(**{name: getattr(self, name) for name in names})  # they are valid already

    def rules(self) -> Rules:
        return Rules.model_construct(**{name: getattr(self, name) for name in Penalties.model_fields})


class GenerateKeywords(TypedDict, total=False):
    """The types of `GenerateOptions` as keywords, without those that decide the type of the result."""

    tokens: int
    temperature: float
    top_k: int | None
    top_p: float
    min_p: float
    repetition: float
    frequency: float
    presence: float
    ngram: int
    stop: Sequence[str]
    seed: int
    echo: bool
    chat: bool
    special: bool
    slide: bool | None
    draft: str | None
    rows: int


class Keywords(TypedDict, total=False):
    """The types of `TranslateOptions` as keywords, without those that decide the type of the result."""

    to: str | None
    source: str | None
    beam: int
    length: LengthPenalty | Table
    coverage: float
    stop: Stop
    sampling: Sampling | Table | None
    rules: Rules | Table
    prefix: str
    must: Sequence[str]
    must_not: Sequence[str]
    split: bool
    keep: bool
    layer: int | None
    batch_tokens: int | None


class AllKeywords(Keywords, total=False):
    """The types of `TranslateOptions` as keywords, without `nbest`."""

    align: bool
    details: bool


@dataclass(frozen=True)
class Ends:
    """The tokens that begin and end a written sequence."""

    start: int | None = None
    """Input of an encoder-decoder at the first step; a decoder reads its prompt instead."""
    end: int | None = None
    """Ends a sequence; none: only the length limit does."""


@dataclass(frozen=True)
class Wish:
    """Constraints of one input, in addition to the rules."""

    prefix: Sequence[int] = ()
    """The first written tokens. They have no cost, as forced tokens in transformers."""
    must: Sequence[Sequence[int]] = ()
    """Words, as tokens, that must occur (terminology); needs a beam search."""
    must_not: Sequence[Sequence[int]] = ()
    """Words, as tokens, that must not occur."""


@dataclass(frozen=True)
class Hypothesis:
    """A written sequence."""

    tokens: list[int]
    """Without the end."""
    score: float
    """The ranking score: a sum of log-probabilities; in a beam search, with its penalties."""
    token_scores: list[float]
    """Log-probability of each token, and of the end if there is one; in a beam search, after the rules."""
    finished: bool
    """Whether it ended, and was not cut."""

    @staticmethod
    def of(written: list[int], score: float, chances: list[float], ended: bool) -> Hypothesis:
        """From written tokens, the end included."""
        return Hypothesis(written[:-1] if ended else written, score, chances[: len(written)], ended)

    @property
    def looped(self) -> bool:
        """Whether it ends in several repetitions of a few tokens."""
        for size in range(1, min(LOOP_TOKENS, len(self.tokens) // LOOP_TIMES) + 1):
            tail = self.tokens[len(self.tokens) - size * LOOP_TIMES :]
            if tail[size:] == tail[:-size]:
                return True
        return False


@dataclass(frozen=True)
class Job:
    """One input with its constraints and limit."""

    index: int
    """Among the inputs."""
    tokens: Sequence[int]
    wish: Wish = Wish()
    longest: int = 0
    """Largest number of written tokens."""


def is_steady(rules: Rules, wishes: Iterable[Wish]) -> bool:
    """Whether rules and wishes leave every score as it is."""
    plain = not (rules.looks_back or rules.must_not or rules.end_at_longest or rules.shortest)
    return plain and not any(wish.prefix or wish.must or wish.must_not for wish in wishes)
