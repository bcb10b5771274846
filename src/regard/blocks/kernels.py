"""`attend(q, k, v, visibility)`: attention by the fastest backend that is exact for the call.

| backend | implementation | used for |
|---|---|---|
| reference | the formula, step by step | oracle of the others; soft caps on a CPU |
| sdpa | `scaled_dot_product_attention` | the default |
| bmm | batched matrix products | beams on a CPU: with few queries, three times as fast as sdpa |
| flex | FlexAttention, compiled | GPU; score biases and soft caps |
| varlen | flash attention over packed sequences | GPU, 16-bit; packed batches |
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import torch
from torch import Tensor
from torch.nn import functional

from regard.blocks.layout import Packed
from regard.blocks.visibility import Visibility
from regard.errors import InputError

Backend: TypeAlias = Literal["reference", "sdpa", "bmm", "flex", "varlen"]
BACKENDS: tuple[Backend, ...] = get_args(Backend)

FEW_QUERIES = 32
"""Most queries of a row for `bmm`, which holds all scores in memory."""

_forced: ContextVar[Backend | None] = ContextVar("regard_attention_backend", default=None)


@dataclass(frozen=True)
class ScoreBias:
    """A bias that is added to the scores, by head and distance: `table[..., zero + d]` is for a key d before its query.

    The tables of T5 and ALiBi are `[H, distances]`. Transformer-XL's also depends on the query: `[R, H, Q, distances]`.
    Tables by distance serve padded, packed and cached attention alike.
    """

    table: Tensor
    zero: int
    memo: dict[str, Tensor] = field(default_factory=dict, compare=False, repr=False)

    def column(self, distance: Tensor) -> Tensor:
        """The column of a distance; distances outside the table, which are never visible, take its edge."""
        return (distance + self.zero).clamp(0, self.table.shape[-1] - 1)

    def dense(self, visibility: Visibility) -> Tensor:
        """`[R or 1, H, Q, K]`: the bias of every query and key."""
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
        """The same with −∞ where a key is hidden."""
        if "masked" not in self.memo:
            dense = self.dense(visibility).to(dtype)
            fused = visibility.fused(dense.device)
            mask = fused.mask
            if fused.causal:
                mask = torch.ones(dense.shape[-2:], dtype=torch.bool, device=dense.device).tril()[None]
            self.memo["masked"] = dense if mask is None else dense.masked_fill(~mask[:, None], -torch.inf)
        return self.memo["masked"]


class Scoring(NamedTuple):
    """How scores are computed: q·k × scale, bounded by the soft cap, plus the bias; then dropout of the weights."""

    scale: float
    bias: ScoreBias | None = None
    soft_cap: float | None = None
    dropout: float = 0.0
    sinks: Tensor | None = None
    """`[H]`: a score of each head for no key at all. With it, weights sum to less than one."""


def distance_span(visibility: Visibility) -> tuple[int, int]:
    """The smallest and the largest visible distance (position of the query − position of the key)."""
    longest = max(visibility.queries.longest, visibility.keys.longest)
    reach = longest if visibility.reach is None else visibility.reach
    ahead = 0 if visibility.causal else reach - 1
    # At least two distances: FlexAttention cannot compile the gradient of a table with one column.
    return -ahead, max(reach - 1, 1)


def attention_scores(q: Tensor, k: Tensor, visibility: Visibility, scoring: Scoring) -> Tensor:
    """`[R, H, Q, K]`: scores of all pairs, visible or not.

    q is `[B, Q, H, E]` or `[N, H, E]`; k has G heads, each shared by H / G query heads.
    """
    scale, bias, soft_cap = scoring[:3]
    q_RQHE, k_RKHE = visibility.grid(q), visibility.grid(k)
    k_RKHE = k_RKHE.repeat_interleave(q_RQHE.shape[-2] // k_RKHE.shape[-2], dim=-2)
    scores_RHQK = torch.einsum("rqhe,rkhe->rhqk", q_RQHE, k_RKHE) * scale
    if soft_cap is not None:
        scores_RHQK = soft_cap * torch.tanh(scores_RHQK / soft_cap)
    if bias is not None:
        scores_RHQK = scores_RHQK + bias.dense(visibility).to(scores_RHQK.dtype)
    return scores_RHQK


def masked_softmax(scores: Tensor, visible: Tensor, sinks: Tensor | None = None) -> Tensor:
    """Softmax over the visible part of the last dimension; exactly zero elsewhere, and in rows without any.

    Sinks `[H]` take their share of scores `[R, H, Q, K]`.
    """
    if scores.shape[-1] == 0:  # no keys, as when every packed sequence is empty
        return scores
    scores = scores.masked_fill(~visible, -torch.inf)
    largest = scores.amax(-1, keepdim=True).detach().clamp(min=torch.finfo(scores.dtype).min)
    if sinks is None:
        weights = (scores - largest).exp()
        return weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).tiny)
    sinks_H11 = sinks.to(scores.dtype)[:, None, None]
    largest = largest.maximum(sinks_H11.detach())
    weights = (scores - largest).exp()
    return weights / (weights.sum(-1, keepdim=True) + (sinks_H11 - largest).exp())


def mix(weights_RHQK: Tensor, v: Tensor, visibility: Visibility) -> Tensor:
    """`[B, Q, H, V]` or `[N, H, V]`: weights · values."""
    v_RKHV = visibility.grid(v)
    v_RKHV = v_RKHV.repeat_interleave(weights_RHQK.shape[1] // v_RKHV.shape[-2], dim=-2)
    return visibility.ungrid(torch.einsum("rhqk,rkhv->rqhv", weights_RHQK, v_RKHV))


def reference(q: Tensor, k: Tensor, v: Tensor, visibility: Visibility, scoring: Scoring) -> Tensor:
    """softmax(Q Kᵀ · scale) V as in the paper: the oracle of the other backends."""
    scores_RHQK = attention_scores(q, k, visibility, scoring)
    weights_RHQK = masked_softmax(scores_RHQK, visibility.visible(q.device)[:, None], scoring.sinks)
    weights_RHQK = functional.dropout(weights_RHQK, scoring.dropout, training=scoring.dropout > 0)
    return mix(weights_RHQK, v, visibility)


def sdpa(q: Tensor, k: Tensor, v: Tensor, visibility: Visibility, scoring: Scoring) -> Tensor:
    """PyTorch's scaled_dot_product_attention, with a flag, a mask or a bias, whichever is the cheapest exact form."""
    fused = visibility.fused(q.device)
    mask = None if fused.mask is None else fused.mask[:, None]
    if scoring.bias is not None:
        mask = scoring.bias.masked(visibility, q.dtype)
    q_RHQE, k_RGKE, v_RGKV = (visibility.grid(x).transpose(1, 2) for x in (q, k, v))
    causal = fused.causal and scoring.bias is None
    if scoring.sinks is not None:
        # One more key and value, of zeros, whose score is the sink.
        shape = (q_RHQE.shape[0], q_RHQE.shape[1], q_RHQE.shape[2], k_RGKE.shape[2])
        scores = q.new_zeros(shape[-2:])
        if causal:
            scores.fill_(-torch.inf).triu_(1)
        elif mask is not None:
            scores = mask if mask.is_floating_point() else scores.masked_fill(~mask, -torch.inf)
        sinks = scoring.sinks.to(q.dtype)[:, None, None].expand(*shape[:3], 1)
        mask, causal = torch.cat([scores.expand(shape), sinks], dim=-1), False
        k_RGKE, v_RGKV = (functional.pad(x, (0, 0, 0, 1)) for x in (k_RGKE, v_RGKV))
    out_RHQV = functional.scaled_dot_product_attention(
        q_RHQE,
        k_RGKE,
        v_RGKV,
        attn_mask=mask,
        dropout_p=scoring.dropout,
        is_causal=causal,
        scale=scoring.scale,
        enable_gqa=q_RHQE.shape[1] != k_RGKE.shape[1],
    )
    out_RQHV = out_RHQV.transpose(1, 2)
    if fused.blind is not None:
        out_RQHV = out_RQHV.masked_fill(fused.blind[..., None, None], 0.0)
    return visibility.ungrid(out_RQHV)


def bmm(q_BQHE: Tensor, k_BKGE: Tensor, v_BKGV: Tensor, visibility: Visibility, scoring: Scoring) -> Tensor:
    """Matrix products over all heads at once. Query heads that share keys are further queries to them."""
    batch, rows, heads, _ = q_BQHE.shape
    columns, groups, size = k_BKGE.shape[1], k_BKGE.shape[2], v_BKGV.shape[3]
    mask, blind = visibility.additive(q_BQHE.device, q_BQHE.dtype)
    q = q_BQHE.transpose(1, 2).reshape(batch * groups, -1, q_BQHE.shape[3])
    k = k_BKGE.transpose(1, 2).reshape(batch * groups, columns, -1)
    v = v_BKGV.transpose(1, 2).reshape(batch * groups, columns, size)
    scores = torch.bmm(q.mul(scoring.scale), k.transpose(1, 2)).view(batch, heads, rows, columns)
    if mask is not None:
        scores += mask[:, None]
    if scoring.sinks is not None:
        sinks = scoring.sinks.to(scores.dtype)[:, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, sinks], dim=-1)
    weights = scores.softmax(-1)[..., :columns].reshape(batch * groups, heads // groups * rows, columns)
    out_BQHV = torch.bmm(weights, v).view(batch, heads, rows, size).transpose(1, 2)
    return out_BQHV if blind is None else out_BQHV.masked_fill(blind[..., None, None], 0.0)


def varlen(q: Tensor, k: Tensor, v: Tensor, visibility: Visibility, scoring: Scoring) -> Tensor:
    """Flash attention over packed sequences: no padding and no mask, only offsets."""
    # Not imported at the top: not every build of PyTorch has this module.
    from torch.nn.attention.varlen import varlen_attn

    queries, keys = visibility.queries, visibility.keys
    assert isinstance(queries, Packed) and isinstance(keys, Packed)
    reach = -1 if visibility.reach is None else visibility.reach - 1
    window = (reach, 0 if visibility.causal else reach)
    if q.shape[1] != k.shape[1]:
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    offsets_q, offsets_k = queries.offsets_S1, keys.offsets_S1
    out = varlen_attn(
        q, k, v, offsets_q, offsets_k, queries.longest, keys.longest, scale=scoring.scale, window_size=window
    )
    assert isinstance(out, Tensor)  # a tuple only if auxiliary results are requested
    return out


def flex(q: Tensor, k: Tensor, v: Tensor, visibility: Visibility, scoring: Scoring) -> Tensor:
    """FlexAttention: rules and biases are compiled into the kernel, without a `[R, H, Q, K]` tensor."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    rows = visibility.rows
    # In memory of their own for every row, since the kernel indexes them by row.
    queries, keys = (
        cells.map(lambda value: value.expand(rows, -1).contiguous()) for cells in visibility.cells(q.device)
    )

    # A tensor: FlexAttention cannot compile a number from outside, which is a symbol to the compiler.
    cap = None if scoring.soft_cap is None else torch.full((), scoring.soft_cap, device=q.device)
    bias, mask = scoring.bias, visibility.mask

    def score_mod(score: Tensor, row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        if cap is not None:
            score = cap * torch.tanh(score / cap)
        if bias is not None:
            column = bias.column(queries.place[row, query] - keys.place[row, key])
            by_query = bias.table.dim() == 4
            score = score + (bias.table[row, head, query, column] if by_query else bias.table[head, column])
        return score

    def mask_mod(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        allowed = visibility.allows(queries.at(row, query), keys.at(row, key))
        return allowed if mask is None else allowed & mask[row, query, key]

    q_RHQE, k_RGKE, v_RGKV = (visibility.grid(x).transpose(1, 2).contiguous() for x in (q, k, v))
    attention: Any = flex_attention if torch.compiler.is_compiling() else _flex_alone()
    out_RHQV: Tensor = attention(
        q_RHQE,
        k_RGKE,
        v_RGKV,
        score_mod=None if cap is None and bias is None else score_mod,
        block_mask=create_block_mask(
            mask_mod, rows, None, queries.place.shape[1], keys.place.shape[1], device=queries.place.device
        ),
        scale=scoring.scale,
        enable_gqa=q_RHQE.shape[1] != k_RGKE.shape[1],
    )
    return visibility.ungrid(out_RHQV.transpose(1, 2))


def _flex_alone() -> Callable[..., Any]:
    """FlexAttention outside a compiled model. A recorded model runs uncompiled, but this kernel does not."""
    from regard.blocks.recording import current_recorders  # which imports this module

    flex = _compiled_flex()
    own: Callable[..., Any] = torch.compiler.set_stance("default")(flex) if current_recorders() else flex
    return own


@functools.cache
def _compiled_flex() -> Callable[..., Any]:
    """FlexAttention compiled by itself: uncompiled, it would use a slow, unfused path."""
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=True)


class AttentionCall(NamedTuple):
    """The properties of a call on which the choice of a backend depends."""

    device: str
    dtype: torch.dtype
    packed: bool
    bias: bool
    soft_cap: bool
    dropout: bool
    head_size: int
    value_size: int
    single: bool = False
    """Whether each row has one query, as in a decoding step."""
    beams: bool = False
    """Whether queries are beams of one input, or few further tokens."""
    sinks: bool = False


_KERNELS: dict[Backend, Callable[[Tensor, Tensor, Tensor, Visibility, Scoring], Tensor]] = {
    "reference": reference,
    "sdpa": sdpa,
    "bmm": bmm,
    "flex": flex,
    "varlen": varlen,
}


def attend(q: Tensor, k: Tensor, v: Tensor, visibility: Visibility, scoring: Scoring) -> Tensor:
    """`[B, Q, H, V]` (or `[N, H, V]`): the output of each head. A query that sees nothing gets zero.

    q is `[B, Q, H, E]` or packed `[N, H, E]`; k and v have G heads, each shared by H / G query heads.
    """
    call = AttentionCall(
        device=q.device.type,
        dtype=q.dtype,
        packed=isinstance(visibility.queries, Packed),
        bias=scoring.bias is not None,
        soft_cap=scoring.soft_cap is not None,
        dropout=scoring.dropout > 0,
        head_size=q.shape[-1],
        value_size=v.shape[-1],
        single=q.dim() == 4 and (q.shape[1] == 1 or visibility.beams),
        beams=visibility.beams and q.shape[1] <= FEW_QUERIES,
        sinks=scoring.sinks is not None,
    )
    return _KERNELS[choose(call)](q, k, v, visibility, scoring)


def choose(call: AttentionCall) -> Backend:
    """The fastest backend that is exact for the call, or the forced one."""
    forced: Backend | None = _forced_backend()
    if forced is not None:
        reason = refusal(forced, call)
        if reason is not None:
            raise InputError(f"attention backend {forced} cannot serve this call: {reason}; choose another backend")
        return forced
    order: tuple[Backend, ...] = ("bmm", "sdpa", "reference")
    if call.device == "cuda":
        # FlexAttention compiles for seconds; a decoding step is not worth it.
        changed_scores = (call.bias or call.soft_cap) and not call.single
        order = ("flex", "sdpa", "reference") if changed_scores else ("varlen", "sdpa", "reference")
    return next(backend for backend in order if refusal(backend, call) is None)


def refusal(backend: Backend, call: AttentionCall) -> str | None:
    """Why a backend cannot serve a call; None if it can. docs/support.md is generated from this."""
    if backend == "reference":
        return None
    if backend == "sdpa":
        return "it has no soft cap" if call.soft_cap else None
    if backend == "bmm":
        served = call.beams and call.device == "cpu" and not (call.bias or call.soft_cap or call.dropout)
        return None if served else "it serves beams on a CPU without changed scores"
    if call.device != "cuda":
        return "it needs a CUDA GPU"
    if call.dropout:
        return "it has no attention dropout"
    if call.sinks:
        return "it has no sinks"
    sixteen_bit = call.dtype in (torch.float16, torch.bfloat16)
    if backend == "flex":
        if not sixteen_bit and call.dtype != torch.float32:
            return "it computes in float32 or 16 bits"
        if min(call.head_size, call.value_size) < 16:
            return "it needs heads of at least 16 channels"
        return None
    if not call.packed:
        return "it needs a packed layout"
    if not sixteen_bit:
        return "it computes in 16 bits only"
    if call.bias or call.soft_cap:
        return "it cannot change scores"
    if call.head_size != call.value_size or call.head_size % 8 or call.head_size > 256:
        return "it needs keys and values of one size, a multiple of 8 up to 256"
    return None


@contextmanager
def use_backend(backend: Backend) -> Iterator[None]:
    """Forces a backend within the block, for tests and measurements. A compiled model keeps its choice."""
    if backend not in BACKENDS:
        raise InputError(f"attention backend ({backend}) is not known; choose one of {', '.join(BACKENDS)}")
    token = _forced.set(backend)
    try:
        yield
    finally:
        _forced.reset(token)


def _forced_backend() -> Backend | None:
    return _forced.get()


# The compiler cannot trace a context variable, which is constant while a model is being compiled. This is what
# torch.compiler.assume_constant_result does, which imports the compiler: two seconds in every process.
vars(_forced_backend)["_dynamo_marked_constant"] = True
