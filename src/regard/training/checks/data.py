"""Are the data fit to learn from? No torch in here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.format import percent
from regard.training.checks.evidence import Evidence
from regard.training.checks.finding import Finding, fine

UNKNOWN = 0.01
LOST = {"skipped": 0.01, "too_long": 0.05, "removed": 0.3}
"""Share of the examples from which on each way of losing them is worth a word."""


def unknown(run: Evidence) -> Finding | None:
    """Tokens that the vocabulary cannot write."""
    shares = {split: counts["unknown"] for split, counts in _splits(run).items() if counts.get("unknown") is not None}
    if not shares:
        return None
    told = ", ".join(f"{percent(share)} of {split}" for split, share in shares.items())
    if max(shares.values()) > UNKNOWN:
        return Finding(
            "odd",
            "many tokens are unknown",
            told,
            "raise text.size or lower text.frequency, or choose text.kind=byte-bpe, which can write everything",
        )
    return fine("hardly a token is unknown", told)


def lost(run: Evidence) -> Finding | None:
    """Examples that could not be read, were too long, or were filtered."""
    if not _splits(run):
        return None
    worst: list[tuple[float, str]] = []
    for split, counts in _splits(run).items():
        whole = counts.get("examples", 0) + sum(counts.get(name) or 0 for name in LOST)
        for name, bound in LOST.items():
            number = counts.get(name) or 0
            if whole and number / whole > bound:
                worst.append((number / whole / bound, f"{percent(number / whole)} of {split} {name.replace('_', ' ')}"))
    if not worst:
        return fine("few examples are lost", f"{sum(c.get('examples', 0) for c in _splits(run).values()):,} are used")
    skipped = any("skipped" in text for _, text in worst)
    return Finding(
        "odd" if skipped else "note",
        "many examples are lost",
        "; ".join(text for _, text in sorted(worst, reverse=True)),
        "`regard data` shows the first ones and why; raise data.longest for those that are too long",
    )


def _splits(run: Evidence) -> dict[str, Mapping[str, Any]]:
    return {split: counts for split, counts in run.data.items() if isinstance(counts, Mapping)}
