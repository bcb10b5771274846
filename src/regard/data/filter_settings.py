"""Settings of filters: what is removed from training data. Each is off until it is set. No torch in here."""

from __future__ import annotations

from typing import Annotated, Literal, Self, TypeAlias

from pydantic import Field, model_validator

from regard.blocks.settings import Positive
from regard.settings import Settings

Script: TypeAlias = Literal[
    "latin",
    "cyrillic",
    "greek",
    "arabic",
    "hebrew",
    "armenian",
    "georgian",
    "devanagari",
    "bengali",
    "gujarati",
    "gurmukhi",
    "tamil",
    "telugu",
    "kannada",
    "malayalam",
    "sinhala",
    "thai",
    "lao",
    "khmer",
    "myanmar",
    "tibetan",
    "ethiopic",
    "han",
    "hiragana",
    "katakana",
    "hangul",
]
Scripts: TypeAlias = Annotated[tuple[Script, ...], Field(strict=False)]

Language: TypeAlias = Literal["de", "en", "es", "fr", "it", "nl"]
"""Languages that are told apart by their function words (`languages.py`)."""


class Filters(Settings):
    """What every filter table has. Valid and test are never filtered: a score is over all of them."""

    min_words: Positive | None = None
    """A text of fewer words is removed."""
    max_words: Positive | None = None
    """A text of more words is removed."""
    min_characters: Positive | None = None
    """A text of fewer characters is removed."""
    max_characters: Positive | None = None
    """A text of more characters is removed."""
    script_share: float = Field(default=0.5, gt=0, le=1)
    """The least share of a text's letters that must be of the wanted scripts."""

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        for what in ("words", "characters"):
            least, most = getattr(self, f"min_{what}"), getattr(self, f"max_{what}")
            if least is not None and most is not None and least > most:
                raise ValueError(f"min_{what} ({least}) must not be above max_{what} ({most}); nothing would be left")
        return self


class TextFilters(Filters):
    """Filters of raw and of labelled text."""

    duplicates: bool = False
    """Whether a text that came before is removed."""
    scripts: Scripts = ()
    """Scripts that a text may be written in; none given: any. Japanese needs han, hiragana and katakana."""
    language: Language | None = None
    """A text that is plainly in another language is removed; short ones without a function word are kept."""


class PairFilters(Filters):
    """Filters of parallel text; lengths hold for both sides."""

    ratio: float | None = Field(default=None, ge=1)
    """A pair is removed when one side has more than this many times the words of the other."""
    duplicates: Literal["pair", "source", "target"] | None = None
    """Pairs are removed that came before: as a whole, or with the same source or target."""
    copies: bool = False
    """Whether a pair is removed whose target is its source, but for case and spaces."""
    source_scripts: Scripts = ()
    """Scripts that the source may be written in; none given: any."""
    target_scripts: Scripts = ()
    """Scripts that the target may be written in; none given: any."""
    source_language: Language | None = None
    """A pair is removed when its source is plainly in another language."""
    target_language: Language | None = None
    """A pair is removed when its target is plainly in another language."""
