"""Which heads matter: what changes in a figure when they are silenced, beside what random heads change.

The figure is whatever a function without arguments gives that runs the model: a loss, a share of answers that flip.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from regard.blocks.recording import record
from regard.errors import InputError
from regard.look.addresses import Head, ablation, heads_of
from regard.use.model import Loaded

Metric: TypeAlias = Callable[[], float]
"""Runs the model and gives a figure."""
DRAWN = 20
"""Random heads, or sets of heads, of a control."""


class Importance(NamedTuple):
    """What silencing one head does."""

    head: Head
    figure: float
    """Without the head."""
    change: float
    """Against the figure of the whole model."""


class Control(NamedTuple):
    """What silencing as many heads does that were drawn at random."""

    change: float
    """The mean over the draws."""
    changes: list[float]
    drawn: list[tuple[Head, ...]]


class Found(NamedTuple):
    """A set of heads, and what silencing them does."""

    heads: tuple[Head, ...]
    figure: float
    """Without them."""
    reached: bool
    """Whether that is what was wanted."""


def drawn(heads: Sequence[Head], beside: Collection[Head], count: int = DRAWN, seed: int = 0) -> list[tuple[Head, ...]]:
    """Sets of as many heads as those beside them, drawn from all others; single heads at most once each."""
    others = [head for head in heads if head not in beside]
    if len(others) < len(beside) or not beside:
        raise InputError(
            f"a control needs as many other heads as those beside it ({len(beside)}), and the model has "
            f"{len(others)} others; name at least one head and fewer than half of them"
        )
    draw = random.Random(seed)
    if len(beside) == 1:
        return [(head,) for head in draw.sample(others, min(count, len(others)))]
    return [tuple(sorted(draw.sample(others, len(beside)))) for _ in range(count)]


class Ablation:
    """A model and a figure of it, worked out with any heads silenced.

    Silenced heads give zero; with `means`, of `mean_outputs`, what they give on average.
    """

    def __init__(self, model: nn.Module | Loaded, metric: Metric, means: Mapping[str, Tensor] | None = None) -> None:
        self.model, self.metric, self.means = model, metric, means
        self.heads = heads_of(model)
        self.plain = self.without(())
        """The figure of the whole model."""

    def without(self, heads: Sequence[Head]) -> float:
        """The figure without some heads."""
        with torch.no_grad():
            if not heads:
                return float(self.metric())
            with record(self.model, edit=ablation(heads, self.means)):
                return float(self.metric())

    def each(self, heads: Sequence[Head] | None = None) -> list[Importance]:
        """Every head silenced alone, the largest change first, whichever way it goes."""
        figures = [(head, self.without([head])) for head in (self.heads if heads is None else heads)]
        found = [Importance(head, figure, figure - self.plain) for head, figure in figures]
        return sorted(found, key=lambda one: -abs(one.change))

    def drawn(self, beside: Collection[Head], count: int = DRAWN, seed: int = 0) -> list[tuple[Head, ...]]:
        """Sets of as many heads, drawn from all others; single heads at most once each."""
        return drawn(self.heads, beside, count, seed)

    def control(self, beside: Collection[Head], count: int = DRAWN, seed: int = 0) -> Control:
        """What as many heads do that are drawn from all others."""
        drawn = self.drawn(beside, count, seed)
        changes = [self.without(heads) - self.plain for heads in drawn]
        return Control(sum(changes) / len(changes), changes, drawn)

    def smallest(self, wanted: float, heads: Sequence[Head], most: int | None = None) -> Found:
        """The smallest set of some heads that raises the figure to what is wanted, or the best one where none does.

        All sets are tried, small ones first, up to `most` heads; of one size the one with the highest figure counts.
        That is 2ⁿ runs in all of n heads, so name few.
        """
        best = Found((), self.plain, self.plain >= wanted)
        for size in range(1, (len(heads) if most is None else most) + 1):
            if best.reached:
                break
            sets = list(combinations(heads, size))
            figures = [self.without(chosen) for chosen in sets]
            figure = max(figures)
            if figure > best.figure:
                best = Found(tuple(sorted(sets[figures.index(figure)])), figure, figure >= wanted)
        return best

    def greedy(
        self, wanted: float, heads: Sequence[Head] | None = None, guide: Metric | None = None, most: int | None = None
    ) -> Found:
        """Heads are taken one by one, the one that raises the figure most, until it reaches what is wanted.

        Then those go without which it still does. Few heads have an effect alone: with `guide`, which is asked after
        each run, the one is taken that raises this most.
        """
        offered = list(self.heads if heads is None else heads)
        chosen: list[Head] = []
        figure = self.plain
        while figure < wanted and len(chosen) < min(len(offered), most or len(offered)):
            tried = []
            for head in offered:
                if head not in chosen:
                    reached = self.without([*chosen, head])
                    tried.append((reached if guide is None else guide(), reached, head))
            _, figure, best = max(tried)
            chosen.append(best)
        for head in chosen[:-1] if figure >= wanted else []:
            fewer = [one for one in chosen if one != head]
            if (left := self.without(fewer)) >= wanted:
                chosen, figure = fewer, left
        return Found(tuple(sorted(chosen)), figure, figure >= wanted)
