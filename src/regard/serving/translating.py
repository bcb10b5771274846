"""What the server asks of a translator, and no more: a quick one may stand in for a model. No torch in here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Route:
    """What can be translated together."""

    source: str
    target: str
    alternatives: int = 0


@dataclass(frozen=True)
class Translated:
    """A text in another language, the best version first."""

    versions: tuple[str, ...]
    tokens: int = 0
    """Written for the best one."""


class Translating(Protocol):
    """Translates texts. Only `sizes` may be called while another call is under way."""

    @property
    def directions(self) -> Sequence[tuple[str, str]]:
        """From which language into which, by their codes."""
        ...

    def sizes(self, texts: Sequence[str], route: Route) -> list[int]:
        """How many tokens each text has, for a fair share of a batch."""
        ...

    def translate(self, texts: Sequence[str], route: Route) -> Sequence[Translated]:
        """Each text, in their order, with at most so many alternatives as the route asks for."""
        ...

    def stream(self, text: str, route: Route) -> Iterator[str]:
        """One text, in pieces that are the translation when they are put together."""
        ...
