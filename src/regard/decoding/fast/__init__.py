"""Measured fast paths of decoding, each tested against the plain one, and `select`, which chooses among them.

| path | where | file |
|---|---|---|
| packed linear layers | CPU, float32 | `models/cpu.py` |
| fixed memory, replayed as CUDA graphs | GPU | `graphs.py` |
| Triton kernels for a step of a plain encoder-decoder | GPU | `triton_model.py`, `triton_step.py` |
| Triton kernels for the choice of a beam search | GPU | `triton_choice.py` |
| block-wise top-k | all devices, if no rule changes scores | `topk.py` |
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn

from regard.decoding.settings import Beam, Greedy, Rules, Search, Wish, is_steady
from regard.models.cpu import can_pack, is_watched
from regard.models.families import EncoderDecoder

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
    triton_step: bool = False
    triton_choice: bool = False


def select(
    model: nn.Module | Sequence[nn.Module],
    search: Search | None = None,
    rules: Rules | None = None,
    wishes: Sequence[Wish] = (),
    fixed: bool | None = None,
) -> FastPaths:
    """The fast paths for a search of a model or an ensemble; without a search, for single steps.

    A recorded model takes none, so that its modules are called as they are. `fixed` overrides the choice of memory.
    """
    models = [model] if isinstance(model, nn.Module) else model
    if not models:
        return FastPaths()
    first = models[0]
    weight = next(first.parameters())
    on_gpu, watched = weight.is_cuda, is_watched(first)
    packed = isinstance(first, EncoderDecoder) and not watched and can_pack(first)
    if search is None:
        return FastPaths(packed)
    beam = search if isinstance(search, Beam) else None
    plain_search = isinstance(search, Greedy) if beam is None else not beam.coverage
    plain = plain_search and is_steady(rules or Rules(), wishes)
    if fixed is None:
        fixed = on_gpu and not watched
    fixed = fixed and plain and len(models) == 1
    # Autocast frees the weights that it has converted, so a graph would read freed memory.
    replay = fixed and on_gpu and not watched and not torch.is_autocast_enabled("cuda")
    # A replayed greedy search is a beam search of size 1.
    narrow = replay if beam is None else beam.size <= WIDEST
    choice = on_gpu and plain and narrow and not watched and weight.dtype != torch.float64 and triton_works("cuda")
    step = choice and fixed and isinstance(first, EncoderDecoder) and _has_triton_step(first)
    return FastPaths(packed, fixed, replay, step, choice)


def _has_triton_step(model: EncoderDecoder) -> bool:
    from regard.decoding.fast.triton_model import serves

    return serves(model)


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
