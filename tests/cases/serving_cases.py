"""A translator without a model: it repeats texts, and fails or waits on request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from threading import Event

from regard.errors import InputError
from regard.serving.translation import Route, Translated

BAD = "BAD"
"""A text that makes the whole batch fail."""
PANIC = "PANIC"
"""A text that makes a library panic, which no `except Exception` catches."""
WRONG = "WRONG"
"""A text with an error that its sender can correct."""


class Parrot:
    """Answers `de>en:text`, and as alternatives the same with a number. Waits while `go` is not set."""

    def __init__(self, directions: Sequence[tuple[str, str]] = (("de", "en"), ("en", "de"))) -> None:
        self.directions = directions
        self.batches: list[list[str]] = []
        self.go = Event()
        self.go.set()
        self.begun = Event()

    def sizes(self, texts: Sequence[str], route: Route) -> list[int]:
        if any(f"count {PANIC}" in text for text in texts):
            raise BaseException(f"secret {PANIC}")
        return [len(text.split()) + 1 for text in texts]

    def translate(self, texts: Sequence[str], route: Route) -> list[Translated]:
        self.batches.append(list(texts))
        self.begun.set()
        assert self.go.wait(10)
        if any(BAD in text for text in texts):
            raise RuntimeError(f"secret {BAD}")
        if any(PANIC in text for text in texts):
            raise BaseException(f"secret {PANIC}")
        if any(WRONG in text for text in texts):
            raise InputError("input 0 is wrong; correct it")
        return [
            Translated(tuple(said(text, route, number) for number in range(route.alternatives + 1)), 3)
            for text in texts
        ]

    def stream(self, text: str, route: Route) -> Iterator[str]:
        for word in said(text, route).split(" "):
            self.begun.set()
            assert self.go.wait(10)
            if word == BAD:
                raise RuntimeError(f"secret {BAD}")
            yield f"{word} "

    def hold(self) -> None:
        """The next calls wait for `go.set()`."""
        self.begun.clear()
        self.go.clear()


def said(text: str, route: Route, number: int = 0) -> str:
    return f"{route.source}>{route.target}:{text}" + (f"#{number}" if number else "")
