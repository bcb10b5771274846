"""Which heads matter: what changes in a figure when they are silenced, beside what random heads change.

The figure is whatever a function without arguments gives that runs the model: a loss, a share of answers that flip.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from regard.errors import InputError
from regard.look.addresses import Head, ablation, heads_of
from regard.look.record import record
from regard.tasks.loaded import Loaded

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


class Smallest(NamedTuple):
    """Heads whose silence has a wanted effect, and none of which could be left out."""

    heads: tuple[Head, ...]
    figure: float
    """Without them."""
    reached: bool
    """Whether that is what was wanted."""
    steps: list[tuple[Head, float]]
    """The heads as they were taken, and the figure after each."""


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

    def control(self, beside: Collection[Head], count: int = DRAWN, seed: int = 0) -> Control:
        """What as many heads do that are drawn from all others."""
        others = [head for head in self.heads if head not in beside]
        if len(others) < len(beside) or not beside:
            raise InputError(
                f"a control needs as many other heads as those beside it ({len(beside)}), and the model has "
                f"{len(others)} others; name at least one head and fewer than half of them"
            )
        draw = random.Random(seed)
        if len(beside) == 1:  # each at most once, while there are enough
            singles = draw.sample(others, min(count, len(others)))
            drawn: list[tuple[Head, ...]] = [(head,) for head in singles]
        else:
            drawn = [tuple(sorted(draw.sample(others, len(beside)))) for _ in range(count)]
        changes = [self.without(heads) - self.plain for heads in drawn]
        return Control(sum(changes) / len(changes), changes, drawn)

    def smallest(
        self, wanted: float, heads: Sequence[Head] | None = None, hint: Metric | None = None, most: int | None = None
    ) -> Smallest:
        """Heads are taken one by one, each time the one that raises the figure most, until it reaches what is wanted.

        Then those go without which it still does. `hint` is asked after every run of the metric, and says which head
        to take among those with the same figure: few have an effect alone.
        """
        offered = list(self.heads if heads is None else heads)
        chosen: list[Head] = []
        steps: list[tuple[Head, float]] = []
        figure = self.plain
        while figure < wanted and len(chosen) < min(len(offered), most or len(offered)):
            tried = []
            for head in offered:
                if head not in chosen:
                    reached = self.without([*chosen, head])
                    tried.append((reached, 0.0 if hint is None else hint(), head))
            figure, _, best = max(tried, key=lambda one: one[:2])
            chosen.append(best)
            steps.append((best, figure))
        for head in chosen[:-1] if figure >= wanted else []:
            fewer = [one for one in chosen if one != head]
            if (left := self.without(fewer)) >= wanted:
                chosen, figure = fewer, left
        return Smallest(tuple(sorted(chosen)), figure, figure >= wanted, steps)
