"""Speculative decoding: guesses of the next tokens, which the model reads in one call (Leviathan et al. 2023).

`Continuation.choose` accepts or replaces them, so that texts have the distribution of the model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import torch

from regard.decoding.continuation import Guess, Prefixes, Reader, TextRow, filtered
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

    def guess(self, rows: Sequence[TextRow], most: Sequence[int]) -> list[list[Guess]]:
        """At most so many tokens for each row."""
        return [[Guess(token) for token in _copied(row.tokens)[:room]] for row, room in zip(rows, most, strict=True)]


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
        self.limit: float = smallest(limit, self.reader.model.longest) or math.inf

    def guess(self, rows: Sequence[TextRow], most: Sequence[int]) -> list[list[Guess]]:
        guesses: dict[TextRow, list[Guess]] = {row: [] for row in rows}
        room = {row: int(min(GUESSES, left, self.limit - row.size)) for row, left in zip(rows, most, strict=True)}
        if min(room.values()) >= 0:  # otherwise a context is longer than that of this model
            self.reader.seat(rows)
            mine = self.reader.rows
            for step in range(max(room.values())):
                scores_NV = filtered(self.reader.read([()] * len(mine))[:, 0], mine)
                uniform_N = torch.tensor([row.random.random() for row in mine], dtype=torch.float64)
                drawn_N = draw(scores_NV, uniform_N.to(scores_NV.device)).tolist()
                columns = (drawn_N, scores_NV.argmax(-1).tolist(), scores_NV.double().softmax(-1))
                for row, drawn, best, shares_V in zip(mine, *columns, strict=True):
                    if step < room[row]:
                        guesses[row].append(Guess(best if isinstance(row.prompt.search, Greedy) else drawn, shares_V))
                        row.tokens.append(guesses[row][-1].token)
            for row, found in guesses.items():
                del row.tokens[len(row.tokens) - len(found) :]
        return list(guesses.values())


Drafter: TypeAlias = LookupDrafter | ModelDrafter
"""Guesses the next tokens of rows."""
