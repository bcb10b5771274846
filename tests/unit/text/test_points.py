"""Points go as near to their words as their order allows, and many of them take no time."""

from __future__ import annotations

import itertools
import time

import pytest

from regard.text import points
from regard.text.points import Aligned, Point, in_order, places

OPTIONS = {"a": [0, 2, 5], "b": [1, 5], "c": [0, 3, 5], "d": [4, 5]}


@pytest.mark.parametrize("kinds", ["abcd", "aabb", "dcba", "caac"])
def test_the_nearest_places_in_order_are_the_best_of_all(kinds: str) -> None:
    """Against every way to choose."""
    options = [OPTIONS[kind] for kind in kinds]
    ways = [way for way in itertools.product(*options) if list(way) == sorted(way)]
    for wanted in itertools.product(range(6), repeat=4):
        best = min(sum(abs(a - b) for a, b in zip(way, wanted, strict=True)) for way in ways)
        found = in_order(wanted, list(kinds), OPTIONS)
        assert found == sorted(found)
        assert all(place in some for place, some in zip(found, options, strict=True))
        assert sum(abs(a - b) for a, b in zip(found, wanted, strict=True)) == best


def test_too_many_are_still_in_order_and_at_places_of_their_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(points, "MOST", 0)
    for wanted in itertools.product(range(6), repeat=4):
        found = in_order(wanted, list("abcd"), OPTIONS)
        assert found == sorted(found)
        assert all(place in OPTIONS[kind] for place, kind in zip(found, "abcd", strict=True))


def tags(count: int, words: int) -> list[Point]:
    """Tags that open and close in turn, spread over words of one letter."""
    kinds = itertools.cycle(("open", "close"))
    return [Point(2 * (i * words // count), "<b>", next(kinds), "b", ("", "")) for i in range(count)]


@pytest.mark.parametrize(("count", "words"), [(30_000, 4), (5_000, 500), (20_000, 20_000)])
def test_many_points_take_little_time(count: int, words: int) -> None:
    spans = [(2 * i, 2 * i + 1) for i in range(words)]
    text = "x " * words
    pairs = [(i, words - 1 - i) for i in range(words)]
    began = time.perf_counter()
    found = places(tags(count, words), Aligned(text, text, spans, spans, pairs))
    assert time.perf_counter() - began < 20
    assert found == sorted(found)


def test_nested_points_that_each_cover_all_take_little_time() -> None:
    words = 5_000
    spans = [(2 * i, 2 * i + 1) for i in range(words)]
    opened = [Point(2 * i, "<b>", "open", "b", ("", "")) for i in range(words // 2)]
    closed = [Point(2 * i, "</b>", "close", "b", ("", "")) for i in range(words // 2, words)]
    began = time.perf_counter()
    found = places(
        [*opened, *closed], Aligned("x " * words, "x " * words, spans, spans, [(i, i) for i in range(words)])
    )
    assert time.perf_counter() - began < 20
    assert found[:3] == [0, 2, 4]
    assert found[-3:] == [2 * words - 7, 2 * words - 5, 2 * words - 3]


def test_a_point_goes_to_the_nearer_of_its_neighbours_that_has_a_translation() -> None:
    """After a word that is known to have become C, before two of which only the second has become anything."""
    word = Point(2, "{x}", "placeholder", "", (" ", " "))
    aligned = Aligned("a b c", "C B A", [(0, 1), (2, 3), (4, 5)], [(0, 1), (2, 3), (4, 5)], [(0, 0), (2, 2)])
    assert places([word], aligned) == [1]
    assert places([Point(4, "{x}", "placeholder", "", (" ", " "))], aligned) == [4]


@pytest.mark.parametrize("written", ["A .", "A."])
def test_a_point_before_a_sign_stands_behind_the_word(written: str) -> None:
    """So that the space before the sign, if there is one, stays before it."""
    spans = [(0, 1), (len(written) - 1, len(written))]
    aligned = Aligned("a .", written, [(0, 1), (2, 3)], spans, [(1, 1)])
    assert places([Point(2, "{x}", "placeholder", "", (" ", " "))], aligned) == [1]
