"""Speculative decoding: guesses of the next tokens, which the model reads in one call (Leviathan et al. 2023).

`Continuation.choose` accepts or replaces them, so that texts have the distribution of the model.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from regard.decoding.continuation import Drafter, Prefixes, Reader, TextRow, filtered
from regard.decoding.model import SearchModel
from regard.decoding.rules import draw
from regard.decoding.settings import Ends, Greedy
from regard.models.families import Decoder

GUESSES = 4
"""Tokens that a smaller model guesses for one call."""
COPIED = 8
"""Tokens that are copied from an earlier place."""
LONGEST_MATCH = 4
"""Tokens of the end of a text that are looked up; fewer if they do not occur before."""


class LookupDrafter(Drafter):
    """Copies what followed the last occurrence of the last tokens (prompt look-up)."""

    def guess(self, rows: Sequence[TextRow], most: Sequence[int]) -> tuple[list[list[int]], None]:
        return [_copied(row.tokens)[: max(room, 0)] for row, room in zip(rows, most, strict=True)], None


def _copied(tokens: Sequence[int]) -> list[int]:
    text = torch.tensor(tokens)
    for size in range(min(LONGEST_MATCH, len(tokens) - 1), 1, -1):
        same = (text[:-1].unfold(0, size, 1) == text[-size:]).all(1).nonzero()[:, 0]
        if len(same):
            start = int(same[-1]) + size
            return list(tokens[start : start + COPIED])
    return []


class ModelDrafter(Drafter):
    """A smaller model with the same vocabulary writes the guesses, with the same rules and filters."""

    def __init__(self, model: Decoder, limit: int | None = None) -> None:
        self.reader, self.limit = Reader(SearchModel(model, Ends()), Prefixes()), limit

    def guess(self, rows: Sequence[TextRow], most: Sequence[int]) -> tuple[list[list[int]], list[list[Tensor]]]:
        guesses: list[list[int]] = [[] for _ in rows]
        chances: list[list[Tensor]] = [[] for _ in rows]
        limits = [each for each in (self.limit, self.reader.model.longest) if each is not None]
        room = [
            min(GUESSES, left, *(limit - len(row.tokens) + row.start for limit in limits))
            for row, left in zip(rows, most, strict=True)
        ]
        if min(room) < 0:  # a context that is longer than that of this model
            return guesses, chances
        self.reader.seat(rows)
        place = {id(row): number for number, row in enumerate(rows)}
        order = [place[id(row)] for row in self.reader.rows]
        for step in range(max(room)):
            ahead = [guesses[number] for number in order]
            scores_NV = filtered(self.reader.read(ahead, last=True)[:, 0], self.reader.rows, ahead)
            shares_NV = scores_NV.double().softmax(-1)
            uniform_N = torch.tensor([row.random.random() for row in self.reader.rows], dtype=torch.float64)
            drawn_N = draw(scores_NV, uniform_N.to(scores_NV.device)).tolist()
            best_N = scores_NV.argmax(-1).tolist()
            for number, row, drawn, best, shares_V in zip(
                order, self.reader.rows, drawn_N, best_N, shares_NV, strict=True
            ):
                if step < room[number]:
                    guesses[number].append(best if isinstance(row.prompt.search, Greedy) else drawn)
                    chances[number].append(shares_V)
        return guesses, chances
