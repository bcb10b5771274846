"""attend(q, k, v, visibility): the one way to attention. It picks its backend in the call and says once which it took.

| backend | what it is | where |
|---|---|---|
| reference | the formula, spelled out | everywhere; the oracle, and the only one for a soft cap on a CPU |
| sdpa | `scaled_dot_product_attention` | everywhere; the default |
| flex | FlexAttention, compiled | GPU; score biases and soft caps |
| varlen | flash attention over packed sequences | GPU, 16-bit; packed batches |
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from regard.blocks import kernels
from regard.blocks.layout import Packed
from regard.blocks.reference import reference
from regard.blocks.score_bias import ScoreBias, Scoring
from regard.blocks.visibility import Visibility
from regard.errors import InputError

Backend: TypeAlias = Literal["reference", "sdpa", "flex", "varlen"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)

_KERNELS: dict[Backend, Callable[[Tensor, Tensor, Tensor, Visibility, Scoring], Tensor]] = {
    "reference": reference,
    "sdpa": kernels.sdpa,
    "flex": kernels.flex,
    "varlen": kernels.varlen,
}
_forced: ContextVar[Backend | None] = ContextVar("regard_attention_backend", default=None)
_announced: set[tuple[Backend, str]] = set()
_log = logging.getLogger("regard.attention")


@dataclass(frozen=True)
class Request:
    """What a call of attention asks for, as far as it matters to the choice of a backend."""

    device: str
    dtype: torch.dtype
    packed: bool
    prefix: bool
    bias: bool
    soft_cap: bool
    dropout: bool
    head_size: int
    value_size: int
    single: bool = False
    """Whether each row has one query, as in a step of decoding."""


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    visibility: Visibility,
    scale: float | None = None,
    bias: ScoreBias | None = None,
    soft_cap: float | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """`[B, Q, H, V]` (or `[N, H, V]`): what each query takes from the values it sees.

    q is `[B, Q, H, E]` or packed `[N, H, E]`; k and v have G heads, each shared by H / G query heads. The scores are
    q·k × scale (1 / √E unless given), bounded by the soft cap, plus the bias. A query that sees nothing gets zero.
    """
    request = Request(
        device=q.device.type,
        dtype=q.dtype,
        packed=isinstance(visibility.queries, Packed),
        prefix=visibility.prefix is not None,
        bias=bias is not None,
        soft_cap=soft_cap is not None,
        dropout=dropout > 0,
        head_size=q.shape[-1],
        value_size=v.shape[-1],
        single=q.dim() == 4 and q.shape[1] == 1,
    )
    backend = choose(request)
    _announce(backend, request.device)
    scoring = Scoring(q.shape[-1] ** -0.5 if scale is None else scale, bias, soft_cap, dropout)
    return _KERNELS[backend](q, k, v, visibility, scoring)


def choose(request: Request) -> Backend:
    """The fastest backend that is exact for the request, or the forced one."""
    forced: Backend | None = _forced_backend()
    if forced is not None:
        reason = refusal(forced, request)
        if reason is not None:
            raise InputError(f"attention backend {forced} cannot serve this call: {reason}; choose another backend")
        return forced
    order: tuple[Backend, ...] = ("sdpa", "reference")
    if request.device == "cuda":
        # FlexAttention compiles for seconds; a single query is not worth it.
        changed_scores = (request.bias or request.soft_cap) and not request.single
        order = ("flex", "sdpa", "reference") if changed_scores else ("varlen", "sdpa", "reference")
    return next(backend for backend in order if refusal(backend, request) is None)


def refusal(backend: Backend, request: Request) -> str | None:
    """Why a backend cannot serve a request, or None when it can. The support table is generated from this."""
    if backend == "reference":
        return None
    if backend == "sdpa":
        return "it has no soft cap" if request.soft_cap else None
    if request.device != "cuda":
        return "it needs a CUDA GPU"
    if request.dropout:
        return "it has no attention dropout"
    sixteen_bit = request.dtype in (torch.float16, torch.bfloat16)
    if backend == "flex":
        if not sixteen_bit and request.dtype != torch.float32:
            return "it computes in float32 or 16 bits"
        if min(request.head_size, request.value_size) < 16:
            return "it needs heads of at least 16 channels"
        return None
    if not request.packed:
        return "it needs a packed layout"
    if not sixteen_bit:
        return "it computes in 16 bits only"
    if request.bias or request.soft_cap:
        return "it cannot change scores"
    if request.prefix:
        return "it has no prefix"
    if request.head_size != request.value_size or request.head_size % 8 or request.head_size > 256:
        return "it needs keys and values of one size, a multiple of 8 up to 256"
    return None


@contextmanager
def use_backend(backend: Backend) -> Iterator[None]:
    """Forces a backend within the block: for tests and measurements. A model already compiled keeps what it chose."""
    if backend not in BACKENDS:
        raise InputError(f"attention backend ({backend}) is not known; choose one of {', '.join(BACKENDS)}")
    token = _forced.set(backend)
    try:
        yield
    finally:
        _forced.reset(token)


# The compiler cannot trace a context variable or a logger; both are constant while a model is being compiled.


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _forced_backend() -> Backend | None:
    return _forced.get()


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _announce(backend: Backend, device: str) -> bool:
    if (backend, device) in _announced:
        return False
    _announced.add((backend, device))
    _log.info("attention on %s runs on %s", device, backend)
    return True
