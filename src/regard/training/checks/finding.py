"""What a check says of a run. No torch in here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from regard.training.checks.evidence import Evidence

Level: TypeAlias = Literal["fine", "note", "odd", "bad"]

LEVELS: tuple[Level, ...] = ("bad", "odd", "note", "fine")
"""The gravest first."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    level: Level
    """fine: as it should be; note: worth knowing; odd: probably wrong; bad: wrong."""
    title: str
    evidence: str
    """The numbers that it rests on."""
    remedy: str = ""
    """What to do about it; empty where nothing is to be done."""


Check: TypeAlias = Callable[[Evidence], Finding | None]


def fine(title: str, evidence: str) -> Finding:
    return Finding("fine", title, evidence)
