"""Block-wise top-k: the best continuations of each input with few passes over the vocabulary.

B: inputs, K: beams, V: vocabulary, C: continuations, M: blocks of the vocabulary, W: tokens of a block.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

BLOCK = 64
"""Tokens of a block; maxima of blocks are found first, since sorting is slow and a maximum is fast."""

ROWS = 40
"""Rows processed together, so that intermediate results stay in the processor's cache."""


class Continuations(NamedTuple):
    """The best continuations of each input, the best first."""

    sums_BC: Tensor
    """Log-probability of the whole sequence."""
    chances_BC: Tensor
    """Log-probability of the new token."""
    parents_BC: Tensor
    """The beam that is continued."""
    tokens_BC: Tensor


def best_continuations(scores_NV: Tensor, sums_BK: Tensor, count: int) -> Continuations:
    """The `count` best continuations of sequences with log-probabilities `sums_BK`, by logits.

    Equal to `(sums_BK[..., None] + scores_NV.log_softmax(-1).view(B, K, V)).flatten(1).topk(count)`.
    """
    inputs, rows = sums_BK.shape
    scores_BKV = scores_NV.view(inputs, rows, -1)
    step = max(ROWS // rows, 1) if scores_NV.device.type == "cpu" else inputs
    parts = [_of_inputs(scores_BKV[i : i + step], sums_BK[i : i + step], count) for i in range(0, inputs, step)]
    return Continuations(*(torch.cat(each) for each in zip(*parts, strict=True)))


def _of_inputs(scores_BKV: Tensor, sums_BK: Tensor, count: int) -> Continuations:
    # The difference between the logits of a row and its log-probabilities, from its highest logit. On a CPU softmax is
    # the fastest way to a sum of exponentials.
    excess_BK = scores_BKV.amax(-1) - scores_BKV.softmax(-1).amax(-1).log()
    parents_BF, tokens_BF, scores_BF = _eligible(scores_BKV, sums_BK - excess_BK, count)
    chances_BF = scores_BF - excess_BK.gather(1, parents_BF)
    best = (sums_BK.gather(1, parents_BF) + chances_BF).topk(count)
    chances_BC, parents_BC, tokens_BC = (each.gather(1, best.indices) for each in (chances_BF, parents_BF, tokens_BF))
    return Continuations(best.values, chances_BC, parents_BC, tokens_BC)


def _eligible(scores_BKV: Tensor, offset_BK: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Beams, tokens and scores, `[B, F]`, of some continuations of each input that include the `count` best."""
    inputs, rows, vocabulary = scores_BKV.shape
    blocks = vocabulary // BLOCK
    whole = blocks * BLOCK if rows * blocks > count else 0
    device = scores_BKV.device
    row_K1, token_1R = torch.arange(rows, device=device)[:, None], torch.arange(whole, vocabulary, device=device)
    rest = (row_K1.expand(rows, len(token_1R)), token_1R.expand(rows, -1), scores_BKV[..., whole:])
    row_BR, token_BR, score_BR = (each.expand(inputs, rows, -1).flatten(1) for each in rest)
    if not whole:
        return row_BR, token_BR, score_BR
    # The best continuations are in the blocks with the best maxima.
    blocks_BKMW = scores_BKV[..., :whole].view(inputs, rows, blocks, BLOCK)
    highest_BF = (blocks_BKMW.amax(-1) + offset_BK[..., None]).flatten(1)
    chosen_BC = highest_BF.topk(count, sorted=False).indices
    row_BC, block_BC = chosen_BC // blocks, chosen_BC % blocks
    score_BCW = blocks_BKMW[torch.arange(inputs, device=device)[:, None], row_BC, block_BC]
    row_BCW = row_BC[..., None].expand(-1, -1, BLOCK)
    token_BCW = block_BC[..., None] * BLOCK + torch.arange(BLOCK, device=device)
    pairs = ((row_BCW, row_BR), (token_BCW, token_BR), (score_BCW, score_BR))
    row_BF, token_BF, score_BF = (torch.cat([each.flatten(1), other], dim=1) for each, other in pairs)
    return row_BF, token_BF, score_BF
