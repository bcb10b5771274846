"""English inflection: plurals, verb forms, comparison, and a or an."""

from __future__ import annotations

import re
from typing import NamedTuple

VOWELS = "aeiou"


def _syllables(word: str) -> int:
    return len(re.findall(r"[aeiouy]+", re.sub(r"e$", "", word)) or [word])


def _doubles(word: str) -> bool:
    """stop -> stopped, big -> bigger: one syllable that ends in one vowel and one consonant."""
    return (_syllables(word) == 1 or word == "forget") and bool(re.search(r"[^aeiou][aeiou][^aeiouwxy]$", word))


def with_s(word: str) -> str:
    """The plural of a noun, or the third person of a verb."""
    if re.search(r"[^aeiou]y$", word):
        return f"{word[:-1]}ies"
    return word + ("es" if word.endswith(("s", "x", "z", "ch", "sh", "o")) else "s")


def _with(word: str, ending: str) -> str:
    if word.endswith("e"):
        return word[:-1] + ending
    return (word + word[-1] if _doubles(word) else word) + ending


class Forms(NamedTuple):
    """The forms of an English verb; a particle (wake up, look for) follows every one of them."""

    base: str
    third: str
    past: str
    participle: str
    progressive: str
    particle: tuple[str, ...]


def verb_forms(entry: str) -> Forms:
    """`cross`, `eat ate eaten`, `put put put`, `wake+up woke woken`, `look+for`."""
    parts = entry.split()
    base, *particle = parts[0].split("+")
    past = _with(base, "ed")
    if re.search(r"[^aeiou]y$", base):
        past = f"{base[:-1]}ied"
    past, participle = (parts[1], parts[2]) if len(parts) == 3 else (past, past)
    if base.endswith("ie"):
        progressive = f"{base[:-2]}ying"
    else:
        progressive = f"{base}ing" if base.endswith("ee") else _with(base, "ing")
    third = "has" if base == "have" else with_s(base)
    return Forms(base, third, past, participle, progressive, tuple(particle))


def comparison(adjective: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Comparative and superlative as words: (older,), (oldest,); (more, famous), (most, famous)."""
    if adjective.endswith("y") and _syllables(adjective) <= 2:
        return (f"{adjective[:-1]}ier",), (f"{adjective[:-1]}iest",)
    if _syllables(adjective) == 1 or adjective in ("narrow", "quiet", "clever", "simple"):
        return (_with(adjective, "er"),), (_with(adjective, "est"),)
    return ("more", adjective), ("most", adjective)


def a_or_an(following: str) -> str:
    return "an" if following[0] in VOWELS else "a"
