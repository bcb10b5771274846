"""What decoding is given for each input, and what it gives back: tokens in, tokens out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from regard.errors import InputError


@dataclass(frozen=True)
class Ends:
    """The tokens that begin and end what is written."""

    start: int | None = None
    """Read before the first written token by an encoder-decoder; a decoder alone reads its prompt instead."""
    end: int | None = None
    """Ends a sequence; none: only its length does."""


@dataclass(frozen=True)
class Wish:
    """What one input asks for beside the rules."""

    prefix: Sequence[int] = ()
    """The first written tokens, whatever the model says. They cost nothing, as forced tokens in transformers."""
    must: Sequence[Sequence[int]] = ()
    """Words, as tokens, each of which must occur somewhere (terminology); needs a beam search."""
    must_not: Sequence[Sequence[int]] = ()
    """Words, as tokens, that must not occur, beside those of the rules."""


@dataclass(frozen=True)
class Hypothesis:
    """One sequence that was written."""

    tokens: list[int]
    """Without the end."""
    score: float
    """What hypotheses are ranked by: a sum of log-probabilities, in a beam search with its penalties."""
    token_scores: list[float]
    """Log-probability of each token, and of the end where there is one; with the rules' changes in a beam search."""
    finished: bool
    """Whether it ended, and was not only cut."""
    looped: bool
    """Whether it repeats itself at its end; see `Rules.loop_ngram`."""


@dataclass(frozen=True)
class Job:
    """One input with all that belongs to it."""

    place: int
    """Among the inputs."""
    tokens: Sequence[int]
    wish: Wish
    longest: int
    """Written tokens at most."""


NO_WISH = Wish()


def wishes_for(inputs: Sequence[Sequence[int]], wishes: Sequence[Wish] | None) -> Sequence[Wish]:
    """One wish for each input."""
    if wishes is None:
        return [NO_WISH] * len(inputs)
    if len(wishes) != len(inputs):
        raise InputError(f"{len(wishes)} wishes do not fit {len(inputs)} inputs; give one for each, Wish() for none")
    return wishes


def loops(tokens: Sequence[int], ngram: int, times: int) -> bool:
    """Whether the tokens end in some run of at most `ngram` tokens that stands there `times` times."""
    for size in range(1, min(ngram, len(tokens) // times) + 1):
        tail = tokens[len(tokens) - size * times :]
        if tail[size:] == tail[:-size]:
            return True
    return False
