"""Which of a model's languages a text is in, with a confidence in per cent. No torch in here.

By function words (`regard.data.languages`), and by letters that few languages have. A text of a word or two may hold
none of them; then nothing is known, and the confidence is 0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regard.data.languages import evidence

LETTERS = {
    "de": "äöüß",
    "es": "ñ¿¡áíóú",
    "fr": "éèêëàâçîïôûùœ",
    "it": "àèéìòù",
    "nl": "ëïĳ",
}
"""Letters that stand in one language and hardly in the others; one that n of them share counts 1/n for each."""

DOUBT = 0.5
"""Function words that might have pointed elsewhere: one alone is two thirds of a proof."""


@dataclass(frozen=True)
class Detected:
    """A language, and how sure that is, from 0 to 100."""

    language: str
    confidence: float


def detect(texts: Iterable[str], languages: Sequence[str]) -> list[Detected]:
    """The languages that have evidence for them, the surest first; where none has, the first one, with nothing.

    Evidence for languages that are not among them counts as doubt: French is neither German nor English.
    """
    found: defaultdict[str, float] = defaultdict(float)
    for text in texts:
        parts: tuple[Mapping[Any, float], ...] = (evidence(text), _letters(text))
        for part in parts:
            for language, amount in part.items():
                found[language] += amount
    total = sum(found.values()) + DOUBT
    seen = [
        Detected(language, round(100 * found[language] / total, 1)) for language in languages if found.get(language)
    ]
    return sorted(seen, key=lambda each: -each.confidence) or [Detected(language, 0.0) for language in languages[:1]]


def _letters(text: str) -> dict[str, float]:
    """One point at most for each language, however often its letters occur: a name may be full of them."""
    seen = set(text.lower())
    found: dict[str, float] = {}
    for language, letters in LETTERS.items():
        shares = [1 / sum(letter in others for others in LETTERS.values()) for letter in letters if letter in seen]
        if shares:
            found[language] = max(shares)
    return found
