"""What can be said of every head on one input: its kind beside chance, how widely and how far it looks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch

from regard.blocks.layout import layout_of
from regard.look.addresses import Head, heads_in
from regard.look.estimate import estimate
from regard.look.heads import Score, Seen, induction, kinds_of, seen_by, spreads_of
from regard.look.sides import Side
from regard.look.study import Run, Study
from regard.models.vision import Vision


@dataclass(frozen=True)
class HeadNote:
    """A head on one input. What there is nothing to measure by is None."""

    name: str | None
    """Its kind, of `regard.look.heads.NAMES`; None: it is too near to chance in all."""
    best: str | None
    """The pattern that it follows most."""
    score: float | None
    """The share of its attention that follows that pattern."""
    chance: float | None
    """The same of a head that looks at all it can see alike."""
    entropy: float | None
    """In nats, the mean over queries."""
    share: float | None
    """Of the highest entropy there can be: 1 is uniform."""
    distance: float | None
    """Places between query and key, on average."""
    signed: float | None
    """The same with a sign: negative where it looks back."""


class HeadNotes:
    """Notes on the heads of a study's runs; what does not depend on the input is worked out once."""

    def __init__(self, study: Study) -> None:
        self.study = study

    @cached_property
    def repeated(self) -> Mapping[Head, Score]:
        """Induction, on random tokens that are repeated, with every head at work."""
        return {} if isinstance(self.study.network, Vision) else induction(self.study.network)

    def of(self, run: Run) -> dict[str, HeadNote]:
        """A note on each head, by its address."""
        found = {}
        for attention, seen, delimiters in self._seen(run):
            heads = heads_in(self.study.network, attention)
            reports = kinds_of(seen, heads, delimiters, self.repeated)
            for report, spread in zip(reports, spreads_of(seen, heads), strict=True):
                numbers = (report.score, report.chance, spread.entropy, spread.share, spread.distance, spread.signed)
                known = [None if math.isnan(number) else number for number in numbers]
                found[str(report.head)] = HeadNote(report.name, report.best, *known)
        return found

    def _seen(self, run: Run) -> Iterator[tuple[str, Seen, list[int]]]:
        """Every attention, a few recorded at a time, with the delimiters among its keys."""
        study = self.study
        sides = {stack: self._side(run, stack) for stack in run.sides}
        marks = {stack: self._marks(run, stack) for stack in run.sides}
        lengths = [len(side.tokens) for side in run.sides.values()]
        for place in study.attentions:
            paths = [f"{place.stack}.{layer}.{place.kind}" for layer in range(place.layers)]
            size = estimate(study.network, f"{paths[0]}.weights", length=lengths[-1], source=lengths[0])
            together = max(study.room // 8 // max(size, 1), 1)
            for first in range(0, len(paths), together):
                some = paths[first : first + together]
                seen = study.values(run, [f"{path}.{part}" for path in some for part in ("weights", "scores")])
                for path in some:
                    weights, scores = (seen.pop(f"{path}.{part}")[None] for part in ("weights", "scores"))
                    yield path, seen_by(weights, scores, sides[place.queries], sides[place.keys]), marks[place.keys]

    def _side(self, run: Run, stack: str) -> Side:
        if isinstance(self.study.network, Vision):
            return Side()
        tokens = torch.tensor([run.sides[stack].ids])
        return Side(tokens, layout_of(tokens, None))

    def _marks(self, run: Run, stack: str) -> list[int]:
        """Tokens that only separate others: special ones, and marks without letters and digits."""
        tokenizers = self.study.loaded.tokenizers
        if tokenizers is None:
            return []
        tokenizer = tokenizers.source if stack == "encoder" else tokenizers.target
        special = {*tokenizer.roles.values(), *tokenizer.extra.values()}
        each = run.sides[stack].tokens
        return sorted({token.id for token in each if token.id in special or not _spells(token.text)})


def _spells(text: str) -> bool:
    return any(letter.isalnum() for letter in text)
