"""Speculative decoding: guesses of the next tokens, which the model reads in one call (Leviathan et al. 2023).

`Continuation.choose` accepts or replaces them, so that texts have the distribution of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from regard.decoding.continuation import Prefixes, Reader, TextRow, filtered
from regard.decoding.model import SearchModel, smallest
from regard.decoding.rules import draw
from regard.decoding.settings import Ends, Greedy
from regard.models.families import Decoder

GUESSES = 4
"""Tokens that a smaller model guesses for one call."""
COPIED = 8
"""Tokens that are copied from an earlier place."""
LONGEST_MATCH = 4
"""Tokens of the end of a text that are looked up; fewer if they do not occur before."""


class LookupDrafter:
    """Copies what followed the last occurrence of the last tokens (prompt look-up)."""

    def guess(self, rows: Sequence[TextRow], most: Sequence[int]) -> tuple[list[list[int]], None]:
        """At most so many tokens for each row, and the probabilities they were drawn from; None: they are certain."""
        return [_copied(row.tokens)[: max(room, 0)] for row, room in zip(rows, most, strict=True)], None


def _copied(tokens: Sequence[int]) -> list[int]:
    text = torch.tensor(tokens)
    for size in range(min(LONGEST_MATCH, len(tokens) - 1), 1, -1):
        same = (text[:-1].unfold(0, size, 1) == text[-size:]).all(1).nonzero()[:, 0]
        if len(same):
            start = int(same[-1]) + size
            return list(tokens[start : start + COPIED])
    return []


class ModelDrafter:
    """A smaller model with the same vocabulary writes the guesses, with the same rules and filters."""

    def __init__(self, model: Decoder, limit: int | None = None) -> None:
        self.reader = Reader(SearchModel(model, Ends()), Prefixes())
        self.limit = smallest(limit, self.reader.model.longest)

    def guess(self, rows: Sequence[TextRow], most: Sequence[int]) -> tuple[list[list[int]], list[list[Tensor]]]:
        guesses: dict[TextRow, list[int]] = {row: [] for row in rows}
        chances: dict[TextRow, list[Tensor]] = {row: [] for row in rows}
        room = {row: min(GUESSES, left) for row, left in zip(rows, most, strict=True)}
        if self.limit is not None:
            room = {row: min(left, self.limit - len(row.tokens) + row.start) for row, left in room.items()}
        if min(room.values()) >= 0:  # otherwise a context is longer than that of this model
            self.reader.seat(rows)
            for step in range(max(room.values())):
                mine = self.reader.rows
                ahead = [guesses[row] for row in mine]
                scores_NV = filtered(self.reader.read(ahead, last=True)[:, 0], mine, ahead)
                uniform_N = torch.tensor([row.random.random() for row in mine], dtype=torch.float64)
                drawn_N = draw(scores_NV, uniform_N.to(scores_NV.device)).tolist()
                columns = (drawn_N, scores_NV.argmax(-1).tolist(), scores_NV.double().softmax(-1))
                for row, drawn, best, shares_V in zip(mine, *columns, strict=True):
                    if step < room[row]:
                        guesses[row].append(best if isinstance(row.prompt.search, Greedy) else drawn)
                        chances[row].append(shares_V)
        return list(guesses.values()), list(chances.values())


Drafter: TypeAlias = LookupDrafter | ModelDrafter
"""Guesses the next tokens of rows."""
