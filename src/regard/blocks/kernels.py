"""Attention: `attend(q, k, v, visibility)` and its backends."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import torch
from torch import Tensor
from torch.nn import functional

from regard.blocks.layout import Packed
from regard.blocks.visibility import Cells, Visibility
from regard.errors import InputError


@dataclass(frozen=True)
class ScoreBias:
    """`table[..., zero + d]` is the score of a key that lies d places before its query."""

    table: Tensor
    zero: int
    memo: dict[str, Tensor] = field(default_factory=dict, compare=False, repr=False)

    def column(self, distance: Tensor) -> Tensor:
        """The column of a distance; distances beyond the table (always invisible ones) take its edge."""
        return (distance + self.zero).clamp(0, self.table.shape[-1] - 1)

    def dense(self, visibility: Visibility) -> Tensor:
        """`[R or 1, H, Q, K]`: the score of every query and key."""
        if "dense" not in self.memo:
            places_q, places_k = visibility.grid_places(self.table.device)
            columns = self.column(places_q[:, :, None] - places_k[:, None, :])
            if self.table.dim() == 2:
                self.memo["dense"] = self.table[:, columns].movedim(0, 1)
            else:
                rows, heads = self.table.shape[:2]
                index = columns[:, None].expand(rows, heads, *columns.shape[1:])
                self.memo["dense"] = self.table.gather(-1, index)
        return self.memo["dense"]

    def masked(self, visibility: Visibility, dtype: torch.dtype) -> Tensor:
        """The same with −∞ where a fused kernel must not look."""
        if "masked" not in self.memo:
            dense = self.dense(visibility).to(dtype)
            fused = visibility.fused(dense.device)
            mask = fused.mask
            if fused.causal:
                mask = torch.ones(dense.shape[-2:], dtype=torch.bool, device=dense.device).tril()[None]
            self.memo["masked"] = dense if mask is None else dense.masked_fill(~mask[:, None], -torch.inf)
        return self.memo["masked"]


class Scoring(NamedTuple):
    """How scores are made of queries and keys: q·k × scale, bounded by the soft cap, plus the bias; then dropout."""

    scale: float
    bias: ScoreBias | None = None
    soft_cap: float | None = None
    dropout: float = 0.0


def distance_span(visibility: Visibility) -> tuple[int, int]:
    """The smallest and the largest distance (query's place − key's place) that can be visible."""
    longest = max(visibility.queries.longest, visibility.keys.longest)
    reach = longest if visibility.reach is None else visibility.reach
    ahead = 0 if visibility.causal and visibility.prefix is None else reach - 1
    # At least two distances: FlexAttention cannot compile the gradient of a table with one column.
    return -ahead, max(reach - 1, 1)


def attention_weights(
    q: Tensor,
    k: Tensor,
    visibility: Visibility,
    scale: float | None = None,
    bias: ScoreBias | None = None,
    soft_cap: float | None = None,
) -> Tensor:
    """`[R, H, Q, K]`: how much each query takes from each key. A row sums to one, or to zero where it sees nothing.

    q is `[B, Q, H, E]` or `[N, H, E]`; k has G heads, each shared by H / G query heads.
    """
    scores_RHQK = attention_scores(q, k, visibility, scale, bias, soft_cap)
    return masked_softmax(scores_RHQK, visibility.visible(q.device)[:, None])


def attention_scores(
    q: Tensor,
    k: Tensor,
    visibility: Visibility,
    scale: float | None = None,
    bias: ScoreBias | None = None,
    soft_cap: float | None = None,
) -> Tensor:
    """`[R, H, Q, K]`: how well each key answers each query, whether it may be seen or not."""
    q_RQHE, k_RKHE = visibility.grid(q), visibility.grid(k)
    k_RKHE = k_RKHE.repeat_interleave(q_RQHE.shape[-2] // k_RKHE.shape[-2], dim=-2)
    scores_RHQK = torch.einsum("rqhe,rkhe->rhqk", q_RQHE, k_RKHE) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if soft_cap is not None:
        scores_RHQK = soft_cap * torch.tanh(scores_RHQK / soft_cap)
    if bias is not None:
        scores_RHQK = scores_RHQK + bias.dense(visibility).to(scores_RHQK.dtype)
    return scores_RHQK


def masked_softmax(scores: Tensor, visible: Tensor) -> Tensor:
    """Softmax over the last dimension among what is visible; exactly zero elsewhere, and in a row that sees nothing."""
    if scores.shape[-1] == 0:  # nothing to look at, as when every packed sequence is empty
        return scores
    scores = scores.masked_fill(~visible, -torch.inf)
    largest = scores.amax(-1, keepdim=True).detach().clamp(min=torch.finfo(scores.dtype).min)
    weights = (scores - largest).exp()
    return weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).tiny)


def reference(q: Tensor, k: Tensor, v: Tensor, visibility: Visibility, scoring: Scoring) -> Tensor:
    """`[B, Q, H, V]` or `[N, H, V]`: the values that each query takes."""
    weights_RHQK = attention_weights(q, k, visibility, scoring.scale, scoring.bias, scoring.soft_cap)
    weights_RHQK = functional.dropout(weights_RHQK, scoring.dropout, training=scoring.dropout > 0)
    return mix(weights_RHQK, v, visibility)


def mix(weights_RHQK: Tensor, v: Tensor, visibility: Visibility) -> Tensor:
    """`[B, Q, H, V]` or `[N, H, V]`: the values, each as far as it has weight."""
    v_RKHV = visibility.grid(v)
    v_RKHV = v_RKHV.repeat_interleave(weights_RHQK.shape[1] // v_RKHV.shape[-2], dim=-2)
    return visibility.ungrid(torch.einsum("rhqk,rkhv->rqhv", weights_RHQK, v_RKHV))


def sdpa(q: Tensor, k: Tensor, v: Tensor, visibility: Visibility, scoring: Scoring) -> Tensor:
    """PyTorch's scaled_dot_product_attention, with a flag, a mask or a bias, whichever is the cheapest exact form."""
    fused = visibility.fused(q.device)
    mask = None if fused.mask is None else fused.mask[:, None]
    if scoring.bias is not None:
        mask = scoring.bias.masked(visibility, q.dtype)
    q_RHQE, k_RGKE, v_RGKV = (visibility.grid(x).transpose(1, 2) for x in (q, k, v))
    out_RHQV = functional.scaled_dot_product_attention(
        q_RHQE,
        k_RGKE,
        v_RGKV,
        attn_mask=mask,
        dropout_p=scoring.dropout,
        is_causal=fused.causal and scoring.bias is None,
        scale=scoring.scale,
        enable_gqa=q_RHQE.shape[1] != k_RGKE.shape[1],
    )
    out_RQHV = out_RHQV.transpose(1, 2)
    if fused.blind is not None:
        out_RQHV = out_RQHV.masked_fill(fused.blind[..., None, None], 0.0)
    return visibility.ungrid(out_RQHV)


def varlen(q: Tensor, k: Tensor, v: Tensor, visibility: Visibility, scoring: Scoring) -> Tensor:
    """Flash attention over packed sequences: no padding, no mask, only offsets."""
    # Not imported at the top: the module does not exist in every build of PyTorch.
    from torch.nn.attention.varlen import varlen_attn

    queries, keys = visibility.queries, visibility.keys
    assert isinstance(queries, Packed) and isinstance(keys, Packed)  # refusal() has seen to it
    reach = -1 if visibility.reach is None else visibility.reach - 1
    window = (reach, 0 if visibility.causal else reach)
    if q.shape[1] != k.shape[1]:
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    offsets_q, offsets_k = queries.offsets_S1, keys.offsets_S1
    out = varlen_attn(
        q, k, v, offsets_q, offsets_k, queries.longest, keys.longest, scale=scoring.scale, window_size=window
    )
    assert isinstance(out, Tensor)  # a tuple only where auxiliary results are asked for
    return out


def flex(q: Tensor, k: Tensor, v: Tensor, visibility: Visibility, scoring: Scoring) -> Tensor:
    """FlexAttention: rules and score changes compiled into the kernel, so no `[R, H, Q, K]` tensor is ever made."""
    from torch.nn.attention.flex_attention import flex_attention

    rows = visibility.rows
    # In memory of their own for every row, since the kernel indexes them by row.
    queries, keys = (
        cells.map(lambda value: value.expand(rows, -1).contiguous()) for cells in visibility.cells(q.device)
    )

    # A tensor, since a number from outside would be a symbol to the compiler, which FlexAttention cannot take.
    cap = None if scoring.soft_cap is None else torch.full((), scoring.soft_cap, device=q.device)
    bias = scoring.bias

    def score_mod(score: Tensor, row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        if cap is not None:
            score = cap * torch.tanh(score / cap)
        if bias is not None:
            column = bias.column(queries.place[row, query] - keys.place[row, key])
            by_query = bias.table.dim() == 4
            score = score + (bias.table[row, head, query, column] if by_query else bias.table[head, column])
        return score

    q_RHQE, k_RGKE, v_RGKV = (visibility.grid(x).transpose(1, 2).contiguous() for x in (q, k, v))
    attention: Any = flex_attention if torch.compiler.is_compiling() else _flex_alone()
    out_RHQV: Tensor = attention(
        q_RHQE,
        k_RGKE,
        v_RGKV,
        score_mod=None if cap is None and bias is None else score_mod,
        block_mask=_block_mask(visibility, queries, keys),
        scale=scoring.scale,
        enable_gqa=q_RHQE.shape[1] != k_RGKE.shape[1],
    )
    return visibility.ungrid(out_RHQV.transpose(1, 2))


def _block_mask(visibility: Visibility, queries: Cells, keys: Cells) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    def mask_mod(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return visibility.allows(queries.at(row, query), keys.at(row, key))

    rows, time = queries.place.shape
    return create_block_mask(mask_mod, rows, None, time, keys.place.shape[1], device=queries.place.device)


def _flex_alone() -> Callable[..., Any]:
    """FlexAttention outside a compiled model. What is recorded runs uncompiled, but the kernel is none of it."""
    from regard.blocks.recording import current_recorder  # which imports this module

    flex = _compiled_flex()
    if current_recorder() is None:
        return flex
    own: Callable[..., Any] = torch.compiler.set_stance("default")(flex)
    return own


@functools.cache
def _compiled_flex() -> Callable[..., Any]:
    """Outside a compiled model FlexAttention would fall back to an unfused, slow path; so it is compiled by itself."""
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=True)


Backend: TypeAlias = Literal["reference", "sdpa", "flex", "varlen"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)

_KERNELS: dict[Backend, Callable[[Tensor, Tensor, Tensor, Visibility, Scoring], Tensor]] = {
    "reference": reference,
    "sdpa": sdpa,
    "flex": flex,
    "varlen": varlen,
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
