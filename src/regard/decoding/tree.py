"""The tree of a beam search: every continuation that was weighed, also those that were dropped."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from regard.decoding.beam import Batch, BeamSearch, Field
from regard.decoding.choose import NEVER
from regard.decoding.decode import jobs_for, require_possible
from regard.decoding.likeliest import Continuations
from regard.decoding.request import Ends, Hypothesis, Wish
from regard.decoding.settings import Beam, Rules
from regard.decoding.source import Model, source_of
from regard.errors import InputError

Fate: TypeAlias = Literal["open", "finished", "dropped"]
"""What became of a continuation: it went on, it ended, or better ones took its place."""


@dataclass(frozen=True)
class Node:
    """A token that was weighed behind others."""

    step: int
    """From 0."""
    parent: int | None
    """Number of the node that it continues; none: the beginning."""
    token: int
    chance: float
    """Log-probability of the token, after those before it."""
    total: float
    """Log-probability of all up to it."""
    fate: Fate
    score: float | None = None
    """What a finished one is ranked by: its total, divided as the length penalty says."""


@dataclass(frozen=True)
class Tree:
    """A search of one input. Nodes are in the order in which they were weighed, the best of a step first."""

    nodes: list[Node]
    found: list[Hypothesis]
    """What the search gave, the best first."""

    def path(self, node: int) -> list[int]:
        """Numbers of the nodes from the beginning to one of them."""
        numbers: list[int] = []
        at: int | None = node
        while at is not None:
            numbers.append(at)
            at = self.nodes[at].parent
        return numbers[::-1]


def search_tree(
    model: Model,
    tokens: list[int],
    ends: Ends,
    beam: Beam | None = None,
    rules: Rules | None = None,
    wish: Wish | None = None,
) -> Tree:
    """What `decode` does with one input, and all that it weighed on the way: 2 × `beam.size` continuations a step."""
    beam, rules, wish = beam or Beam(), rules or Rules(), wish or Wish()
    if wish.must:
        raise InputError("words that must occur are searched for in another way, without such a tree; leave them out")
    with torch.inference_mode():
        source = source_of(model, ends)
        (job,) = jobs_for(source, [tokens], ends, rules, [wish])
        require_possible(job, ends, beam, rules, source.vocabulary)
        traced = _Traced(Batch(source, [job], ends, rules, beam))
        (found,) = traced.run()
    return Tree(traced.nodes, found)


class _Traced(BeamSearch):
    """A search of one input that takes notes."""

    def __init__(self, batch: Batch) -> None:
        batch.fused = False  # which takes none
        super().__init__(batch)
        self.nodes: list[Node] = []
        self._ends: list[int | None] = [None]
        """The node that each open sequence ends with."""
        self._weighed: Continuations
        self._rank_BK: Tensor

    def _candidates(self) -> Continuations:
        self._weighed = super()._candidates()
        return self._weighed

    def _ranks(self, steps_BKF: Tensor, sums_BK: Tensor, hit_BK: Tensor) -> Tensor:
        self._rank_BK = super()._ranks(steps_BKF, sums_BK, hit_BK)
        return self._rank_BK

    def choose(self) -> Tensor:
        rows_BK = super().choose()
        weighed = zip(*(each[0].tolist() for each in self._weighed), strict=True)
        ranks = self._rank_BK[0].tolist()
        numbers: dict[tuple[int, int], int] = {}
        for place, (total, chance, parent, token) in enumerate(weighed):
            if total > NEVER and (parent, token) not in numbers:
                numbers[parent, token] = len(self.nodes)
                ended = place < len(ranks) and ranks[place] > NEVER
                fate: Fate = "finished" if ended else "dropped"
                score = ranks[place] if ended else None
                self.nodes.append(Node(self.step, self._ends[parent], token, chance, total, fate, score))
        kept = self.open.history_LBKF[self.step, 0][:, [Field.PARENT, Field.TOKEN]].long().tolist()
        is_open = (self.open.sums_BK[0] > NEVER).tolist()
        self._ends = [
            numbers[parent, token] if goes_on else None for (parent, token), goes_on in zip(kept, is_open, strict=True)
        ]
        for number in self._ends:
            if number is not None:
                self.nodes[number] = replace(self.nodes[number], fate="open")
        return rows_BK
