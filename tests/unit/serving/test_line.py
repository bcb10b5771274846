"""Whose turn it is."""

from __future__ import annotations

from regard.serving.line import Line, Ticket
from regard.serving.translating import Route

ROUTE = Route("de", "en")


def ticket(name: str, *sizes: int, route: Route = ROUTE) -> Ticket:
    return Ticket(route, [f"{name}{number}" for number in range(len(sizes))], sizes)


def taken(line: Line, tokens: int) -> list[str]:
    return [turn.text for turn in line.take(tokens)]


def test_requests_take_turns_text_by_text() -> None:
    line = Line()
    for one in (ticket("many", 1, 1, 1), ticket("a", 1), ticket("b", 1)):
        line.join(one)
    assert taken(line, 4) == ["many0", "a0", "b0", "many1"]
    line.join(ticket("c", 1))
    assert taken(line, 4) == ["many2", "c0"]
    assert (line.texts, line.tokens, len(line)) == (0, 0, 0)


def test_the_first_goes_whatever_its_size_and_one_that_does_not_fit_becomes_first() -> None:
    line = Line()
    for one in (ticket("a", 2), ticket("long", 9), ticket("b", 2), ticket("c", 2)):
        line.join(one)
    assert taken(line, 4) == ["a0", "b0"]
    line.join(ticket("d", 2))
    assert taken(line, 4) == ["long0"]
    assert taken(line, 4) == ["c0", "d0"]


def test_a_long_text_is_never_overtaken_for_ever() -> None:
    line = Line()
    line.join(ticket("short", 2))
    line.join(ticket("long", 100))
    batches = []
    for _ in range(3):
        batches.append(taken(line, 4))
        line.join(ticket("short", 2))
        line.join(ticket("short", 2))
    assert ["long0"] in batches


def test_only_what_goes_the_same_way_is_taken_together() -> None:
    line = Line()
    other, more = Route("en", "de"), Route("de", "en", alternatives=2)
    for one in (ticket("a", 1), ticket("b", 1, route=other), ticket("c", 1, route=more), ticket("d", 1)):
        line.join(one)
    assert [taken(line, 9), taken(line, 9), taken(line, 9)] == [["a0", "d0"], ["b0"], ["c0"]]
    assert taken(line, 9) == []


def test_who_leaves_frees_every_place() -> None:
    line = Line()
    leaving = ticket("a", 1, 2, 3)
    line.join(leaving)
    line.join(ticket("b", 5))
    assert taken(line, 1) == ["a0"]
    assert (line.texts, line.tokens) == (3, 10)
    line.leave(leaving)
    line.leave(leaving)
    assert (line.texts, line.tokens) == (1, 5)
    assert taken(line, 9) == ["b0"]
