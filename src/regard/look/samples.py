"""Sentences in which a word has two senses: what the Vectors view shows until it is given others."""

from __future__ import annotations

from typing import NamedTuple

from regard.use.model import Loaded
from regard.use.translator import Translator


class Sample(NamedTuple):
    """Some sentences, and the word in them to look at first."""

    word: str
    lines: list[str]


SAMPLES = {
    "de": Sample(
        "Bank",
        [
            "Die Bank im Garten ist frisch gestrichen.",
            "Die Bank vor dem Haus ist aus Holz.",
            "Die Bank senkt die Zinsen.",
            "Die Bank verleiht Geld an Firmen.",
            "Das Schloss des Königs steht auf einem Berg.",
            "Das Schloss im Park ist sehr schön.",
            "Das Schloss an der Tür ist kaputt.",
            "Das Schloss hat keinen Schlüssel mehr.",
        ],
    ),
    # What tells the senses apart stands before the word: a decoder sees nothing behind it.
    "en": Sample(
        "bank",
        [
            "They were fishing from the river bank.",
            "We sat down on the grassy bank.",
            "She keeps her money in the bank.",
            "He got a loan from the bank.",
            "In the dark cave there hung a bat.",
            "At night a moth fled from the bat.",
            "He hit the ball hard with his bat.",
            "The player swung and then broke his bat.",
        ],
    ),
}


def sample_for(loaded: Loaded, to: str | None = None) -> Sample:
    """Sentences in the language that a model reads, as far as that is known."""
    directions = loaded.directions if isinstance(loaded, Translator) else []
    sources = [source for source, target in directions if target == to] or [source for source, _ in directions]
    return SAMPLES.get(sources[0] if sources else "en", SAMPLES["en"])
