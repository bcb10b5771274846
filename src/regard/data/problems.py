"""The tally of what was left out: how often, for which reason, and the first examples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from regard.data.files import shown_name
from regard.errors import DataError

SHOWN = 3
"""First examples that are kept for each reason."""


@dataclass(frozen=True)
class Reason:
    """How often something was left out for one reason, and the first times."""

    count: int
    first: tuple[str, ...]


class Tally:
    """Counts by reason, each with its first examples; memory does not grow with the counts."""

    def __init__(self) -> None:
        self._reasons: dict[str, Reason] = {}

    def count(self, reason: str, example: str) -> None:
        old = self._reasons.get(reason, Reason(0, ()))
        first = old.first if len(old.first) == SHOWN else (*old.first, example)
        self._reasons[reason] = Reason(old.count + 1, first)

    @property
    def reasons(self) -> Mapping[str, Reason]:
        """In the order in which they first occurred."""
        return dict(self._reasons)

    @property
    def total(self) -> int:
        return sum(reason.count for reason in self._reasons.values())

    def text(self) -> str:
        """A few lines for people; empty when there is nothing to tell."""
        return "\n".join(
            f"{reason.count:,} × {name}: {'; '.join(reason.first)}{'; …' if reason.count > len(reason.first) else ''}"
            for name, reason in self._reasons.items()
        )


class Problems(Tally):
    """What could not be used. Each is counted and passed over, or, where `bad` is "stop", ends the run."""

    def __init__(self, bad: Literal["skip", "stop"] = "skip") -> None:
        super().__init__()
        self.bad = bad

    def add(self, file: str, place: str, reason: str, detail: str = "") -> None:
        """`place` is what stands there, with its number: "line 7"."""
        where = f"{shown_name(file)}, {place}" if place else shown_name(file)
        if self.bad == "stop":
            told = f"{reason} ({detail})" if detail else reason
            raise DataError(f'{where} {told}; mend it, or set data.bad = "skip" to pass over such examples')
        self.count(reason, f"{where} ({detail})" if detail else where)
