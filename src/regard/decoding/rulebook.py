"""The rules and wishes of one batch, as tensors that are applied to scores at each step.

B: inputs, N: rows (N / B for each input, side by side), V: vocabulary, T: tokens so far.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from regard.decoding import choose
from regard.decoding.request import Ends, Job, Wish
from regard.decoding.settings import Rules
from regard.decoding.source import Source


def is_steady(rules: Rules, wishes: Iterable[Wish]) -> bool:
    """Whether rules and wishes leave every score as it is."""
    plain = not _looks_back(rules) and not rules.end_at_longest and not rules.shortest
    return plain and not any(wish.prefix or wish.must_not for wish in wishes)


def _looks_back(rules: Rules) -> bool:
    penalties = rules.repetition != 1 or rules.frequency != 0 or rules.presence != 0
    return penalties or rules.ngram > 0 or bool(rules.must_not)


class Rulebook:
    """Changes scores as `Rules` and each input's `Wish` say."""

    def __init__(self, rules: Rules, jobs: Sequence[Job], source: Source, ends: Ends) -> None:
        device = source.device
        self.rules, self.end = rules, ends.end
        before: list[Sequence[int]] = [job.tokens for job in jobs]
        if source.reads:
            before = [[] if ends.start is None else [ends.start]] * len(jobs)
        self.before_BT = _aligned(before, device)
        self.longest_B = torch.tensor([job.longest for job in jobs], device=device)
        prefix = max(len(job.wish.prefix) for job in jobs)
        forced = [[*job.wish.prefix, *[-1] * (prefix - len(job.wish.prefix))] for job in jobs]
        self.forced_BT = torch.tensor(forced, dtype=torch.long, device=device)
        self.is_end_V = torch.arange(source.vocabulary, device=device) == (-1 if ends.end is None else ends.end)
        self.words: Tensor | None = None
        if rules.must_not:
            self.words = choose.words_table(list(rules.must_not), device)
        self.own_words_BML = _own_words(jobs, device)
        self.steady = is_steady(rules, (job.wish for job in jobs))
        """Whether no score is ever changed."""

    @property
    def looks_back(self) -> bool:
        """Whether any rule asks what was written before."""
        return _looks_back(self.rules) or self.own_words_BML is not None

    def select(self, inputs_B: Tensor) -> None:
        """Keeps the given inputs."""
        self.before_BT, self.longest_B, self.forced_BT = (
            each.index_select(0, inputs_B) for each in (self.before_BT, self.longest_B, self.forced_BT)
        )
        if self.own_words_BML is not None:
            self.own_words_BML = self.own_words_BML.index_select(0, inputs_B)

    def apply(self, scores_NV: Tensor, written_NT: Tensor, step: int) -> Tensor:
        """The scores of the token of a step, after what was written, which is read only if a rule looks back."""
        rules, rows = self.rules, len(scores_NV) // len(self.longest_B)
        if self.looks_back:
            history_NT = torch.cat([self.before_BT.repeat_interleave(rows, 0), written_NT], dim=1)
            scores_NV = self._by_history(scores_NV, history_NT, rows)
        if self.end is not None and step < rules.shortest:
            scores_NV = scores_NV.masked_fill(self.is_end_V, choose.NEVER)
        forced_B = self.forced(step)
        return scores_NV if forced_B is None else choose.force(scores_NV, forced_B.repeat_interleave(rows))

    def _by_history(self, scores_NV: Tensor, history_NT: Tensor, rows: int) -> Tensor:
        rules = self.rules
        if rules.repetition != 1:
            scores_NV = choose.penalise_repetition(scores_NV, history_NT, rules.repetition)
        if rules.frequency or rules.presence:
            written_NT = history_NT[:, self.before_BT.shape[1] :]
            scores_NV = choose.penalise_counts(scores_NV, written_NT, rules.frequency, rules.presence)
        if rules.ngram:
            scores_NV = choose.block_ngrams(scores_NV, history_NT, rules.ngram)
        if self.words is not None:
            scores_NV = choose.block_words(scores_NV, history_NT, self.words)
        if self.own_words_BML is not None:
            own_NML = self.own_words_BML.repeat_interleave(rows, 0)
            scores_NV = choose.block_words(scores_NV, history_NT, own_NML)
        return scores_NV

    def forced(self, step: int) -> Tensor | None:
        """`[B]`: the token that each input must write now, −1 where it is free; None where all are."""
        forced_B = self.forced_BT[:, step] if step < self.forced_BT.shape[1] else None
        if self.rules.end_at_longest and self.end is not None:
            free_B = torch.full_like(self.longest_B, -1) if forced_B is None else forced_B
            forced_B = torch.where(self.longest_B == step + 1, self.end, free_B)
        return forced_B


def _aligned(rows: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Rows of tokens `[B, T]`, aligned at their end, −1 before them."""
    time = max(len(row) for row in rows)
    return torch.tensor([[-1] * (time - len(row)) + list(row) for row in rows], dtype=torch.long, device=device)


def _own_words(jobs: Sequence[Job], device: torch.device) -> Tensor | None:
    """`[B, M, L]`: the words that each input forbids for itself; −1 at the end of a line that forbids nothing."""
    most = max(len(job.wish.must_not) for job in jobs)
    if not most:
        return None
    longest = max(len(word) for job in jobs for word in job.wish.must_not)
    table = []
    for job in jobs:
        words = [[choose.ANY] * (longest - len(word)) + list(word) for word in job.wish.must_not]
        table.append(words + [[-1] * longest] * (most - len(words)))
    return torch.tensor(table, device=device)
