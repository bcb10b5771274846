"""What can be said of every head on one input: its kind beside chance, how widely and how far it looks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from regard.blocks.layout import layout_of
from regard.errors import InputError
from regard.look.addresses import Head, attentions_of, heads_in
from regard.look.heads import Score, induction, kinds_of, seen_by, spreads_of
from regard.look.sides import Side
from regard.look.study import AttentionPlace, Run, Study
from regard.models.families import Vision
from regard.settings import did_you_mean


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
        self._kept: tuple[str, AttentionPlace, Tensor] | None = None

    @cached_property
    def repeated(self) -> Mapping[Head, Score]:
        """Induction, on random tokens that are repeated, with every head at work."""
        return {} if isinstance(self.study.network, Vision) else induction(self.study.network)

    def of(self, run: Run) -> dict[str, HeadNote]:
        """A note on each head, by its address."""
        found: dict[str, HeadNote] = {}
        for attention in attentions_of(self.study.network):
            found |= self.at(run, attention)
        return found

    def at(self, run: Run, attention: str) -> dict[str, HeadNote]:
        """Notes on the heads of one attention, such as `decoder.1.cross`."""
        known = attentions_of(self.study.network)
        if attention not in known:
            near = did_you_mean(attention, known)
            raise InputError(f"at ({attention[:40]}) is no attention of this model{near}; name one such as {known[-1]}")
        stack, _, kind = attention.split(".")
        (place,) = (each for each in self.study.attentions if (each.stack, each.kind) == (stack, kind))
        weights = self.study.tensor(run.key, f"{attention}.weights")[None]
        query, key = (self._side(run, side) for side in (place.queries, place.keys))
        seen = seen_by(weights, self._scores(run, place), query, key)
        heads = heads_in(self.study.network, attention)
        reports = kinds_of(seen, heads, self._marks(run, place.keys), self.repeated)
        found = {}
        for report, spread in zip(reports, spreads_of(seen, heads), strict=True):
            numbers = (report.score, report.chance, spread.entropy, spread.share, spread.distance, spread.signed)
            real = [None if math.isnan(number) else number for number in numbers]
            found[str(report.head)] = HeadNote(report.name, report.best, *real)
        return found

    def _scores(self, run: Run, place: AttentionPlace) -> Tensor:
        """`[1, 1, Q, K]`: those of one head of the first layer, which sees what all others see."""
        if self._kept is None or self._kept[:2] != (run.key, place):
            name = f"{place.stack}.0.{place.kind}.scores"
            self._kept = run.key, place, self.study.values(run, [name])[name][None, :1]
        return self._kept[2]

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
