"""Changes of scores, each a pure function: what makes a token likelier, less likely or impossible.

N: rows, V: vocabulary, T: tokens so far. A history `[N, T]` is aligned at its end, with −1 where there is nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

NEVER = -torch.inf

# --------------------------------------------------------------------------------------------------------- sampling


def temperature(scores_NV: Tensor, heat: float) -> Tensor:
    """softmax(z / T): towards 0 the argmax, towards infinity the uniform distribution."""
    return scores_NV / heat


def top_k(scores_NV: Tensor, count: int) -> Tensor:
    """Only the `count` highest scores, and what ties with the last of them."""
    least_N1 = scores_NV.topk(min(count, scores_NV.shape[-1]), dim=-1).values[:, -1:]
    return scores_NV.masked_fill(scores_NV < least_N1, NEVER)


def top_p(scores_NV: Tensor, mass: float) -> Tensor:
    """Only the likeliest tokens, as many as it takes to reach `mass`; always one."""
    sorted_NV, order_NV = scores_NV.sort(dim=-1, descending=True, stable=True)
    chances_NV = sorted_NV.softmax(-1)
    before_NV = chances_NV.cumsum(-1) - chances_NV
    drop_NV = before_NV >= mass
    drop_NV[:, 0] = False
    return scores_NV.masked_fill(torch.zeros_like(drop_NV).scatter(1, order_NV, drop_NV), NEVER)


def min_p(scores_NV: Tensor, share: float) -> Tensor:
    """Only tokens that are at least `share` times as likely as the likeliest."""
    chances_NV = scores_NV.softmax(-1)
    return scores_NV.masked_fill(chances_NV < share * chances_NV.amax(-1, keepdim=True), NEVER)


def draw(scores_NV: Tensor, uniform_N: Tensor) -> Tensor:
    """`[N]`: the token whose share of [0, 1) holds the row's number; one number a token, so rows stay independent."""
    chances_NV = scores_NV.double().softmax(-1)
    bounds_NV = chances_NV.cumsum(-1)
    target_N1 = uniform_N[:, None].double() * bounds_NV[:, -1:]
    token_N = torch.searchsorted(bounds_NV, target_N1, right=True)[:, 0]
    last_N = (chances_NV > 0).cumsum(-1).argmax(-1)  # rounding never leads beyond the last possible token
    return torch.minimum(token_N, last_N)


# --------------------------------------------------------------------------------------------------------- penalties


def penalise_repetition(scores_NV: Tensor, history_NT: Tensor, penalty: float) -> Tensor:
    """Keskar et al. (2019): scores of tokens in the history are divided by the penalty, or multiplied if negative."""
    changed_NV = torch.where(scores_NV < 0, scores_NV * penalty, scores_NV / penalty)
    return torch.where(_counts(history_NT, scores_NV.shape[-1]) > 0, changed_NV, scores_NV)


def penalise_counts(scores_NV: Tensor, written_NT: Tensor, frequency: float, presence: float) -> Tensor:
    """OpenAI's: score − count × frequency − (count > 0) × presence, over the written tokens."""
    counts_NV = _counts(written_NT, scores_NV.shape[-1]).to(scores_NV.dtype)
    return scores_NV - counts_NV * frequency - (counts_NV > 0).to(scores_NV.dtype) * presence


def _counts(history_NT: Tensor, vocabulary: int) -> Tensor:
    """`[N, V]`: how often each token stands in the history."""
    counts_NV = history_NT.new_zeros(len(history_NT), vocabulary)
    return counts_NV.scatter_add_(1, history_NT.clamp(min=0), (history_NT >= 0).long())


# -------------------------------------------------------------------------------------------------------- prohibitions


def block_ngrams(scores_NV: Tensor, history_NT: Tensor, size: int) -> Tensor:
    """Forbids each token that would complete an n-gram which the history already holds."""
    if history_NT.shape[1] < size:
        return scores_NV
    grams_NWn = history_NT.unfold(1, size, 1)
    tail_N1m = history_NT[:, None, history_NT.shape[1] - size + 1 :]
    match_NW = (grams_NWn[..., :-1] == tail_N1m).all(-1) & (grams_NWn >= 0).all(-1)
    return _forbid(scores_NV, grams_NWn[..., -1].clamp(min=0), match_NW)


ANY = -2
"""In a word's beginning: whatever stands there."""


def words_table(words: list[tuple[int, ...]], device: torch.device) -> Tensor:
    """`[M, L]`: words aligned at their end, `ANY` before them, for `block_words`."""
    longest = max(len(word) for word in words)
    return torch.tensor([(ANY,) * (longest - len(word)) + word for word in words], device=device)


def block_words(scores_NV: Tensor, history_NT: Tensor, words: Tensor) -> Tensor:
    """Forbids each token that would complete a word; words are `[M, L]`, or `[N, M, L]` where rows have their own."""
    words_NML = words if words.dim() == 3 else words[None]
    start = words_NML.shape[-1] - 1
    tail_NT = history_NT[:, max(history_NT.shape[1] - start, 0) :]
    tail_NT = torch.nn.functional.pad(tail_NT, (start - tail_NT.shape[1], 0), value=-1)
    begin_NMl = words_NML[..., :-1]
    match_NM = ((begin_NMl == tail_NT[:, None]) | (begin_NMl == ANY)).all(-1)
    last_NM = words_NML[..., -1].expand(match_NM.shape)
    return _forbid(scores_NV, last_NM.clamp(min=0), match_NM & (last_NM >= 0))


def force(scores_NV: Tensor, token_N: Tensor) -> Tensor:
    """Leaves one token, at no cost, in each row whose number is not negative."""
    forced_NV = torch.full_like(scores_NV, NEVER).scatter(1, token_N[:, None].clamp(min=0), 0.0)
    return torch.where((token_N >= 0)[:, None], forced_NV, scores_NV)


def _forbid(scores_NV: Tensor, tokens_NW: Tensor, where_NW: Tensor) -> Tensor:
    """The scores without some tokens; the same token may be named twice."""
    banned_NV = torch.zeros_like(scores_NV, dtype=torch.long).scatter_add_(1, tokens_NW, where_NW.long())
    return scores_NV.masked_fill(banned_NV > 0, NEVER)
