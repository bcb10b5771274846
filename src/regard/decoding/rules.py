"""Rules of decoding: sampling, and `RuleBook`, which applies the rules of a batch at each step.

B: inputs, N: rows (N / B for each input, next to each other), V: vocabulary, T: tokens so far. A history `[N, T]` is
aligned at its end, with −1 for missing tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from regard.decoding.settings import Ends, Job, Rules, Sampling, is_steady

if TYPE_CHECKING:
    from regard.decoding.model import SearchModel

NEVER = -torch.inf
"""The score of an impossible token."""


def shaped(scores_NV: Tensor, search: Sampling) -> Tensor:
    """The scores to draw from: divided by the temperature, −∞ for tokens that top-k, top-p or min-p excludes."""
    top_p, min_p = search.top_p if search.top_p < 1 else None, search.min_p or None
    return restricted(scores_NV, search.temperature, search.top_k, top_p, min_p)


def restricted(
    scores_NV: Tensor,
    temperature: Tensor | float,
    top_k: int | None,
    top_p: Tensor | float | None,
    min_p: Tensor | float | None,
    top_k_N1: Tensor | None = None,
) -> Tensor:
    """`shaped` by filters of all rows, or of each, `[N, 1]`; `top_k` is then the largest of them."""
    scores_NV = scores_NV / temperature
    if top_k is not None:  # ties with the last one stay
        best_NK = scores_NV.topk(min(top_k, scores_NV.shape[1]), dim=-1).values
        least_N1 = best_NK[:, -1:] if top_k_N1 is None else best_NK.gather(1, top_k_N1.clamp(max=best_NK.shape[1]) - 1)
        scores_NV = scores_NV.masked_fill(scores_NV < least_N1, NEVER)
    if top_p is not None:
        sorted_NV, order_NV = scores_NV.sort(dim=-1, descending=True, stable=True)
        chances_NV = sorted_NV.softmax(-1)
        drop_NV = chances_NV.cumsum(-1) - chances_NV >= top_p
        drop_NV[:, 0].fill_(False)
        scores_NV = scores_NV.masked_fill(torch.zeros_like(drop_NV).scatter(1, order_NV, drop_NV), NEVER)
    if min_p is not None:
        chances_NV = scores_NV.softmax(-1)
        scores_NV = scores_NV.masked_fill(chances_NV < min_p * chances_NV.amax(-1, keepdim=True), NEVER)
    return scores_NV


def draw(scores_NV: Tensor, uniform_N: Tensor) -> Tensor:
    """`[N]`: a token for each row by inverse transform sampling, from one number in [0, 1) for each row."""
    chances_NV = scores_NV.double().softmax(-1)
    bounds_NV = chances_NV.cumsum(-1)
    target_N1 = uniform_N[:, None].double() * bounds_NV[:, -1:]
    token_N = torch.searchsorted(bounds_NV, target_N1, right=True)[:, 0]
    last_N = (chances_NV > 0).cumsum(-1).argmax(-1)  # rounding never leads beyond the last possible token
    return torch.minimum(token_N, last_N)


def token_counts(history_NT: Tensor, vocabulary: int) -> Tensor:
    """`[N, V]`: how often each token occurs in the history."""
    counts_NV = history_NT.new_zeros(len(history_NT), vocabulary)
    return counts_NV.scatter_add_(1, history_NT.clamp(min=0), (history_NT >= 0).long())


def repeated(scores_NV: Tensor, known_NV: Tensor, penalty: Tensor | float) -> Tensor:
    """The scores with the penalty of known tokens (Keskar et al. 2019); a tensor has one for each row, `[N, 1]`."""
    changed_NV = torch.where(scores_NV < 0, scores_NV * penalty, scores_NV / penalty)
    return torch.where(known_NV, changed_NV, scores_NV)


def frequent(scores_NV: Tensor, counts_NV: Tensor, frequency: Tensor | float, presence: Tensor | float) -> Tensor:
    """The scores after the penalties of tokens that were written so often (as OpenAI does)."""
    counts_NV = counts_NV.to(scores_NV.dtype)
    return scores_NV - counts_NV * frequency - (counts_NV > 0).to(scores_NV.dtype) * presence


def completing(words: Sequence[Sequence[int]], tokens: Sequence[int]) -> list[int]:
    """The tokens that would complete a word after these tokens."""
    return [word[-1] for word in words if [*tokens[len(tokens) - len(word) + 1 :]] == [*word[:-1]]]


def without(scores_NV: Tensor, excluded: Sequence[tuple[int, int]]) -> Tensor:
    """The scores without some tokens, each given with its row."""
    if not excluded:
        return scores_NV
    rows_M, tokens_M = torch.tensor(excluded, device=scores_NV.device).T
    return scores_NV.index_put((rows_M, tokens_M), scores_NV.new_tensor(NEVER))


def by_history(scores_NV: Tensor, history_NT: Tensor, written_NT: Tensor, rules: Rules) -> Tensor:
    """The scores after the penalties of repetition, given all tokens and those that were written."""
    time, vocabulary = history_NT.shape[1], scores_NV.shape[-1]
    if rules.repetition != 1:
        scores_NV = repeated(scores_NV, token_counts(history_NT, vocabulary) > 0, rules.repetition)
    if rules.frequency or rules.presence:
        scores_NV = frequent(scores_NV, token_counts(written_NT, vocabulary), rules.frequency, rules.presence)
    if 0 < rules.ngram <= time:  # exclude each token that would complete an n-gram of the history
        grams_NWn, tail_N1m = history_NT.unfold(1, rules.ngram, 1), history_NT[:, None, time - rules.ngram + 1 :]
        match_NW = (grams_NWn[..., :-1] == tail_N1m).all(-1) & (grams_NWn >= 0).all(-1)
        rows_M, place_M = match_NW.nonzero(as_tuple=True)
        scores_NV = scores_NV.index_put((rows_M, grams_NWn[rows_M, place_M, -1]), scores_NV.new_tensor(NEVER))
    return scores_NV


def history(rows: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """`[N, T]`: tokens aligned at their end, with −1 for missing ones."""
    time = max(map(len, rows))
    return torch.tensor([[*[-1] * (time - len(row)), *row] for row in rows], dtype=torch.long, device=device)


class RuleBook:
    """Applies `Rules` and the wishes of a batch to its scores."""

    def __init__(self, rules: Rules, jobs: Sequence[Job], model: SearchModel, ends: Ends) -> None:
        self.rules, self.jobs, self.end = rules, [*jobs], ends.end
        start = [] if ends.start is None else [ends.start]
        self.before: list[Sequence[int]] = [start if model.reads_source else job.tokens for job in jobs]
        self.before_BT = history(self.before, model.device)
        self.longest_B = torch.tensor([job.longest for job in jobs], device=model.device)
        self.words = [[*rules.must_not, *job.wish.must_not] for job in jobs]
        self.phrases = any(len(word) > 1 for words in self.words for word in words)
        """Whether a word has several tokens."""
        self.steady = is_steady(rules, (job.wish for job in jobs))
        """Whether no score is ever changed."""
        self.looks_back = rules.looks_back or self.phrases
        """Whether any rule depends on the tokens written so far."""

    def select(self, inputs_B: Tensor) -> None:
        """Keeps the given inputs."""
        kept = inputs_B.tolist()
        self.jobs, self.before = [self.jobs[b] for b in kept], [self.before[b] for b in kept]
        self.words = [self.words[b] for b in kept]
        self.before_BT, self.longest_B = (each.index_select(0, inputs_B) for each in (self.before_BT, self.longest_B))

    def apply(self, scores_NV: Tensor, written_NT: Tensor, step: int) -> Tensor:
        """The scores of a step after all rules. `written_NT` is read only if `looks_back`."""
        if self.steady:
            return scores_NV
        rules, rows = self.rules, len(scores_NV) // len(self.jobs)
        if rules.looks_back:
            history_NT = torch.cat([self.before_BT.repeat_interleave(rows, 0), written_NT], dim=1)
            scores_NV = by_history(scores_NV, history_NT, written_NT, rules)
        written = written_NT.tolist() if self.phrases else [[]] * len(scores_NV)
        excluded = [
            (row, token)
            for row, tokens in enumerate(written)
            for token in completing(self.words[row // rows], [*self.before[row // rows], *tokens])
        ]
        if self.end is not None and step < rules.shortest:
            excluded += [(row, self.end) for row in range(len(scores_NV))]
        scores_NV = without(scores_NV, excluded)
        if rules.renormalize:
            scores_NV = scores_NV.log_softmax(-1)
        forced = {row: token for row in range(len(written)) if (token := self.forced(row // rows, step)) is not None}
        if forced:
            scores_NV = scores_NV.clone()
            scores_NV[[*forced]] = NEVER
            scores_NV[[*forced], [*forced.values()]] = 0.0
        return scores_NV

    def forced(self, index: int, step: int) -> int | None:
        """The token that an input must write at a step."""
        job = self.jobs[index]
        if self.rules.end_at_longest and job.longest == step + 1:
            return self.end
        return job.wish.prefix[step] if step < len(job.wish.prefix) else None
