"""Rows of a vocabulary's tensors, matched from one tokenizer to another; and how the rows of new tokens begin."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from regard.errors import InputError
from regard.text.tokenizer import Tokenizer

NOISE = 0.02
"""Deviation of new rows around the mean, as a share of that of the old ones: enough to tell them apart."""


@dataclass(frozen=True)
class Rows:
    """Which old row each new row takes."""

    index: Tensor
    """`[V]`, −1 for a new row that takes none."""
    known: int
    """Old rows that may stand for a token; those behind fill up the matrix."""
    lost: int
    """Old tokens that no new row takes."""

    @property
    def taken(self) -> int:
        return int((self.index >= 0).sum())

    @property
    def new(self) -> int:
        return len(self.index) - self.taken

    def as_they_are(self, size: int) -> bool:
        """Whether each of `size` old rows stays where it is, and none comes in addition."""
        return len(self.index) == size and torch.equal(self.index, torch.arange(size))

    def text(self) -> str:
        parts = [f"{self.taken:,} tokens taken"]
        if self.new:
            parts.append(f"{self.new:,} new, near the mean of the old")
        if self.lost:
            parts.append(f"{self.lost:,} left behind")
        return ", ".join(parts)


def same_rows(old_size: int, new_size: int) -> Rows:
    """The first rows, as far as both reach."""
    index = torch.arange(new_size)
    index[old_size:] = -1
    return Rows(index, old_size, max(old_size - new_size, 0))


def matched_rows(old: Tokenizer, old_size: int, new: Tokenizer, new_size: int) -> Rows:
    """A row for each token of the same name; a special token that has none takes that of the same role.

    Sizes are those of the models, which may be larger than the tokenizers': rows without a token keep their place.
    """
    index = [_old_row(old, new, number) for number in range(new_size)]
    index = [number if number < old_size else -1 for number in index]
    known = min(old.size, old_size)
    lost = set(range(known)).difference(index)
    return Rows(torch.tensor(index), known, sum(_token(old, number) is not None for number in lost))


def _old_row(old: Tokenizer, new: Tokenizer, number: int) -> int:
    token = _token(new, number)
    if token is None:
        return number if _token(old, number) is None else -1
    found = old.id(token)
    return _old_role(old, new, number) if found is None else found


def _old_role(old: Tokenizer, new: Tokenizer, number: int) -> int:
    for role, own in new.roles.items():
        if own == number:
            try:
                return old.role(role)
            except InputError:
                continue
    return -1


def _token(tokenizer: Tokenizer, number: int) -> str | None:
    """None beyond the last token, and where an id has none."""
    if number >= tokenizer.size:
        return None
    try:
        return tokenizer.token(number)
    except InputError:
        return None


def move_rows(old: Tensor, rows: Rows, generator: torch.Generator) -> Tensor:
    """`[V, D]` or `[V]` (biases): old rows where they belong now, new ones near their mean.

    At the mean of the old rows, a new token's score is the mean of theirs, so that it takes at most an average token's
    share of the probability, whatever the hidden state; a row of fresh noise often takes nearly all of it (Hewitt
    2021: Initializing New Word Embeddings for Pretrained Language Models).
    """
    taken = rows.index >= 0
    result = old[rows.index.clamp(min=0)]
    if rows.new:
        seen = old[: rows.known].to(torch.promote_types(old.dtype, torch.float32))
        mean = seen.mean(0).expand(rows.new, *old.shape[1:])
        if old.dim() > 1:
            noise = torch.randn(mean.shape, generator=generator, dtype=seen.dtype)
            mean = mean + NOISE * seen.std(0, correction=0) * noise.to(old.device)
        result[~taken] = mean.to(old.dtype)
    return result
