"""Filters: what is taken out of training data, counted by reason with the first examples.

Each check gives the reason to remove an example, or None to keep it; the first reason that is found counts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias, TypeVar

from regard.data.examples import Example, Pair, Placed, Side, excerpt, place_of
from regard.data.filter_settings import Filters, Language, PairFilters, Script, TextFilters
from regard.data.languages import another_language
from regard.data.problems import Tally
from regard.data.scripts import script_share

E = TypeVar("E", bound=Example)
Check: TypeAlias = Callable[[Example], str | None]


def filtered(examples: Iterator[Placed[E]], settings: Filters | None, removed: Tally) -> Iterator[Placed[E]]:
    """The examples that every filter keeps; `removed` counts the others."""
    checks = checks_of(settings) if settings is not None else []
    return _kept(examples, checks, removed) if checks else examples


def _kept(examples: Iterator[Placed[E]], checks: Sequence[Check], removed: Tally) -> Iterator[Placed[E]]:
    for placed in examples:
        reason = next((reason for check in checks if (reason := check(placed.example)) is not None), None)
        if reason is None:
            yield placed
        else:
            removed.count(reason, f"{place_of(placed)} ({excerpt(placed.example)})")


def checks_of(settings: Filters) -> list[Check]:
    """The checks that are switched on, the quick ones before those that must remember or look at every letter."""
    checks = _length_checks(settings)
    if isinstance(settings, PairFilters):
        checks += _pair_checks(settings)
    elif isinstance(settings, TextFilters):
        checks += _side_checks("text", settings.scripts, settings.script_share, settings.language)
        if settings.duplicates:
            checks.append(_Repeated("is a duplicate", None))
    return checks


def fingerprint(*sides: Side) -> int:
    """64 bits of a text, the same in every process; two texts share them once in about 10^19."""
    digest = hashlib.blake2b(digest_size=8)
    for side in sides:
        data = side.encode("utf-8") if isinstance(side, str) else side
        digest.update(b"%d:" % len(data))  # so that ("ab", "c") and ("a", "bc") differ
        digest.update(data)
    return int.from_bytes(digest.digest(), "little")


# ------------------------------------------------------------------------------------------------------------- lengths


def _length_checks(settings: Filters) -> list[Check]:
    checks: list[Check] = []
    if settings.min_characters is not None or settings.max_characters is not None:
        checks.append(_bounded("characters", len, settings.min_characters, settings.max_characters))
    if settings.min_words is not None or settings.max_words is not None:
        checks.append(_bounded("words", _words, settings.min_words, settings.max_words))
    return checks


def _words(text: Side) -> int:
    return len(text.split())


def _bounded(what: str, measure: Callable[[Side], int], least: int | None, most: int | None) -> Check:
    low, high = least or 0, float("inf") if most is None else most

    def check(example: Example) -> str | None:
        lengths = [measure(side) for side in example.sides().values()]
        if min(lengths) < low:
            return f"has fewer than {low:,} {what}"
        return f"has more than {high:,} {what}" if max(lengths) > high else None

    return check


# --------------------------------------------------------------------------------------------------------------- pairs


def _pair_checks(settings: PairFilters) -> list[Check]:
    checks: list[Check] = []
    if settings.ratio is not None:
        checks.append(_even(settings.ratio))
    if settings.copies:
        checks.append(_copy)
    share = settings.script_share
    checks += _side_checks("source", settings.source_scripts, share, settings.source_language)
    checks += _side_checks("target", settings.target_scripts, share, settings.target_language)
    if settings.duplicates is not None:
        only = None if settings.duplicates == "pair" else settings.duplicates
        checks.append(_Repeated(f"is a duplicate{f' by its {only}' if only else ''}", only))
    return checks


def _even(ratio: float) -> Check:
    def check(example: Example) -> str | None:
        lengths = [max(1, _words(side)) for side in example.sides().values()]
        return f"has a side over {ratio:g} times as long" if max(lengths) > ratio * min(lengths) else None

    return check


def _copy(example: Example) -> str | None:
    if not isinstance(example, Pair):
        return None
    same = example.source.casefold().split() == example.target.casefold().split()
    return "copies its source" if same else None


# -------------------------------------------------------------------------------------------------------- what it is in


def _side_checks(side: str, scripts: Sequence[Script], share: float, language: Language | None) -> list[Check]:
    checks: list[Check] = []
    if scripts:
        checks.append(_in_scripts(side, scripts, share))
    if language is not None:
        checks.append(_in_language(side, language))
    return checks


def _text(example: Example, side: str) -> str:
    return str(example.sides()[side])


def _in_scripts(side: str, scripts: Sequence[Script], share: float) -> Check:
    def check(example: Example) -> str | None:
        found = script_share(_text(example, side), scripts)
        return f"has a {side} that is not {' or '.join(scripts)}" if found < share else None

    return check


def _in_language(side: str, language: Language) -> Check:
    def check(example: Example) -> str | None:
        other = another_language(_text(example, side), language)
        return f"has a {side} in {other}, not {language}" if other else None

    return check


class _Repeated:
    """Remembers 64 bits of each example, so that memory grows by the number of examples and not by their length."""

    def __init__(self, reason: str, side: str | None) -> None:
        self._reason, self._side = reason, side
        self._seen: set[int] = set()

    def __call__(self, example: Example) -> str | None:
        sides = example.sides()
        mark = fingerprint(*sides.values()) if self._side is None else fingerprint(sides[self._side])
        if mark in self._seen:
            return self._reason
        self._seen.add(mark)
        return None
