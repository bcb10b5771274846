"""Measured fast paths of decoding, each tested against the plain one, and `select`, which chooses among them.

| path | where | file |
|---|---|---|
| packed linear layers | CPU, float32 | `models/cpu.py` |
| beam search in fixed memory, replayed as CUDA graphs | GPU | `graphs.py` |
| running batches of a decoder, replayed as CUDA graphs | GPU | `slots.py` |
| Triton kernels for a step of a plain decoder | GPU | `triton_decoder.py` |
| Triton kernels for a step of a plain encoder-decoder | GPU | `triton_model.py`, `triton_step.py` |
| Triton kernels for the choice of a beam search, and of a running batch | GPU | `triton_choice.py` |
| block-wise top-k | all devices, if no rule changes scores | `best_continuations` |
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from regard.blocks.settings import Body
from regard.decoding.settings import Beam, Greedy, Rules, Search, Wish, is_steady
from regard.models.cpu import can_pack, is_watched
from regard.models.families import Decoder, EncoderDecoder

WIDEST = 32
"""The widest beam whose candidates one Triton program sorts."""

_log = logging.getLogger("regard.decoding")


class FastPaths(NamedTuple):
    """The fast paths of one call."""

    packed: bool = False
    """Packed linear layers."""
    fixed: bool = False
    """Memory that stays in place."""
    replay: bool = False
    """Steps are replayed as a CUDA graph; needs fixed memory."""
    slots: bool = False
    """Running batches of a decoder are written in fixed memory; see `slots.py`."""
    triton_step: bool = False
    triton_choice: bool = False


def select(
    model: nn.Module,
    search: Search | None = None,
    rules: Rules | None = None,
    wishes: Sequence[Wish] = (),
    fixed: bool | None = None,
) -> FastPaths:
    """The fast paths for a search of a model; without a search, for single steps.

    A recorded model takes none, so that its modules are called as they are; nor does one that is not a Transformer.
    `fixed` overrides the choice of memory.
    """
    if isinstance(model, EncoderDecoder) and not isinstance(model.settings, Body):
        return FastPaths()
    weight = next(model.parameters())
    on_gpu, watched = weight.is_cuda, is_watched(model)
    packed = isinstance(model, EncoderDecoder | Decoder) and not watched and can_pack(model)
    # Autocast frees the weights that it has converted, so a graph would read freed memory.
    graphs = on_gpu and not watched and not torch.is_autocast_enabled("cuda")
    steady = is_steady(rules or Rules(), wishes)
    if isinstance(model, Decoder) and not isinstance(search, Beam):
        return FastPaths(packed, slots=graphs and fixed is not False)
    if search is None:
        return FastPaths(packed)
    beam = search if isinstance(search, Beam) else None
    plain = (isinstance(search, Greedy) if beam is None else not beam.coverage) and steady
    if fixed is None:
        fixed = on_gpu and not watched
    fixed = fixed and plain
    replay = fixed and graphs
    # A replayed greedy search is a beam search of size 1.
    narrow = replay if beam is None else beam.size <= WIDEST
    choice = on_gpu and plain and narrow and not watched and weight.dtype != torch.float64 and triton_works("cuda")
    step = False
    if choice and fixed and isinstance(model, EncoderDecoder):
        from regard.decoding.fast.triton_model import serves

        step = serves(model)
    return FastPaths(packed, fixed, replay, triton_step=step, triton_choice=choice)


@functools.cache
def triton_works(device: str) -> bool:
    """Whether Triton compiles and runs kernels on a kind of device."""
    if device != "cuda":
        return False
    try:
        from regard.decoding.fast import triton_step

        x_ND = torch.ones(1, 16, device=device)
        triton_step.add_norm(x_ND, x_ND, nn.LayerNorm(16, device=device))
    except Exception as error:  # no Triton, no compiler for it, or an unknown GPU
        _log.info("Triton kernels are not used, since Triton does not work here: %s", error)
        return False
    return True


BLOCK = 64
"""Tokens of a block; maxima of blocks are found first, since sorting is slow and a maximum is fast."""

ROWS = 40
"""Rows processed together, so that intermediate results stay in the processor's cache."""


class Continuations(NamedTuple):
    """The best continuations of each input, the best first.

    B: inputs, K: beams, V: vocabulary, C: continuations, M: blocks of the vocabulary, W: tokens of a block.
    """

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
