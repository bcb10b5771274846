"""Numbers in a text and in its translation: the same ones, however either language writes them."""

from __future__ import annotations

import re
import unicodedata
from collections import deque

from regard.text.sentences import Span

_NUMBER = re.compile(r"\d{1,3}(?:[ \u00a0\u202f]\d{3})+(?!\d)|\d+(?:[.,'’\u00a0\u202f٫٬]\d+)*")
_GROUPING = 3
"""Digits between two separators of thousands."""


def numbers(text: str) -> list[str]:
    """The numbers as they are written: 1990, 3,5, 1.000.000; a date such as 3.5.2024 is one."""
    return [match[0] for match in _NUMBER.finditer(text)]


def number_spans(text: str) -> list[Span]:
    """Where each of them is."""
    return [match.span() for match in _NUMBER.finditer(text)]


def missing(source: str, target: str) -> list[str]:
    """The numbers of one text that are not in the other, each as often as it is missing."""
    there: dict[
        str, deque[int]
    ] = {}  # by what it may mean, so that a text full of numbers takes no longer than another
    for place, number in enumerate(numbers(target)):
        for reading in readings(number):
            there.setdefault(reading, deque()).append(place)
    taken: set[int] = set()
    left = []
    for number in numbers(source):
        first = [_first(there.get(reading), taken) for reading in readings(number)]
        known = [place for place in first if place is not None]
        if known:
            taken.add(min(known))
        else:
            left.append(number)
    return left


def _first(places: deque[int] | None, taken: set[int]) -> int | None:
    """The first that is not taken; those that are leave the list."""
    while places and places[0] in taken:
        places.popleft()
    return places[0] if places else None


def readings(number: str) -> frozenset[str]:
    """What a number may mean, with a point for the decimal sign: 3.500 is 3500 to some and 3.5 to others.

    What cannot be a single number (dates, versions) is its groups of digits.
    """
    groups = re.split(r"\D", _ascii(number))
    signs = re.sub(r"\d", "", number)
    if len(groups) == 1:
        return frozenset(groups)
    thousands = all(len(group) == _GROUPING for group in groups[1:]) and len(groups[0]) <= _GROUPING
    found = {"/".join(groups)}
    if len(set(signs)) == 1:
        if thousands:
            found = {"".join(groups)}
        if len(groups) == 2:
            found.add(".".join(groups))
            found.discard("/".join(groups))
    elif len(set(signs[:-1])) == 1 and all(len(group) == _GROUPING for group in groups[1:-1]):
        found = {"".join(groups[:-1]) + "." + groups[-1]}
    return frozenset(found)


def _ascii(text: str) -> str:
    """Digits of every script as 0 to 9."""
    if text.isascii():
        return text
    return "".join(str(unicodedata.digit(each)) if each.isdigit() else each for each in text)
