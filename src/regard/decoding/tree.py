"""The tree of a beam search: every candidate, also those that were dropped."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from regard.decoding.beam import BeamBatch, BeamField, BeamSearch
from regard.decoding.decode import jobs_for
from regard.decoding.fast import Continuations
from regard.decoding.model import Model, SearchModel
from regard.decoding.rules import NEVER
from regard.decoding.settings import Beam, Ends, Hypothesis, Rules, Wish
from regard.errors import InputError

Fate: TypeAlias = Literal["open", "finished", "dropped"]
"""Whether a candidate stayed open, ended, or was displaced by better ones."""


@dataclass(frozen=True)
class Node:
    """A candidate token."""

    step: int
    """From 0."""
    parent: int | None
    """Index of the node that it continues; none: the beginning."""
    token: int
    chance: float
    """Log-probability of the token given those before it."""
    total: float
    """Log-probability of the sequence up to it."""
    fate: Fate
    score: float | None = None
    """Ranking score of a finished sequence: its total after the length penalty."""


@dataclass(frozen=True)
class Tree:
    """The search of one input. Nodes are ordered by step, the best of a step first."""

    nodes: list[Node]
    found: list[Hypothesis]
    """The results of the search, the best first."""

    def path(self, node: int) -> list[int]:
        """Indices of the nodes from the beginning to a node."""
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
    """Decodes one input as `decode` does, and returns all candidates: 2 × `beam.size` at each step."""
    beam, rules, wish = beam or Beam(), rules or Rules(), wish or Wish()
    if wish.must:
        raise InputError("must (words that must occur) uses another search, which has no tree; leave it out")
    with torch.inference_mode():
        prepared = SearchModel(model, ends)
        (job,) = jobs_for(prepared, [tokens], ends, beam, rules, [wish])
        traced = _Traced(BeamBatch(prepared, [job], ends, rules, beam))
        (found,) = traced.run()
    return Tree(traced.nodes, found)


class _Traced(BeamSearch):
    """A search of one input that stores its candidates."""

    def __init__(self, batch: BeamBatch) -> None:
        super().__init__(batch)
        self.nodes: list[Node] = []
        self._ends: list[int | None] = [None]
        """The node that each open sequence ends with."""

    def _candidates(self) -> Continuations:
        self._found_candidates = super()._candidates()
        return self._found_candidates

    def _ranks(self, steps_BKF: Tensor, sums_BK: Tensor, hit_BK: Tensor) -> Tensor:
        self._rank_BK = super()._ranks(steps_BKF, sums_BK, hit_BK)
        return self._rank_BK

    def choose(self) -> Tensor:
        rows_BK = super().choose()
        candidates = zip(*(each[0].tolist() for each in self._found_candidates), strict=True)
        ranks = self._rank_BK[0].tolist()
        numbers: dict[tuple[int, int], int] = {}
        for index, (total, chance, parent, token) in enumerate(candidates):
            if total > NEVER and (parent, token) not in numbers:
                numbers[parent, token] = len(self.nodes)
                ended = index < len(ranks) and ranks[index] > NEVER
                fate: Fate = "finished" if ended else "dropped"
                score = ranks[index] if ended else None
                self.nodes.append(Node(self.step, self._ends[parent], token, chance, total, fate, score))
        kept = self.history_LBKF[self.step, 0][:, [BeamField.PARENT, BeamField.TOKEN]].long().tolist()
        is_open = (self.sums_BK[0] > NEVER).tolist()
        self._ends = []
        for (parent, token), goes_on in zip(kept, is_open, strict=True):
            self._ends.append(numbers[parent, token] if goes_on else None)
            if goes_on:
                self.nodes[numbers[parent, token]] = replace(self.nodes[numbers[parent, token]], fate="open")
        return rows_BK
