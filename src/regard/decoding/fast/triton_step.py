"""Triton kernels of a decoding step: everything between its matrix products.

A step has few rows and many small operations, so a GPU spends most of its time between kernels. Each kernel here
replaces three to ten of PyTorch. Import this module only where it runs: not every machine has Triton.

B: inputs, K: rows of each, N = B × K, C: columns of each, D: width, H and G: heads of queries and of keys, E: size of a
head, V: of its values.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from regard.blocks.layers import Attention, RmsNorm

LEAST_QUERIES, MOST_QUERIES = 16, 64
"""Queries of one program: `tl.dot` needs the minimum; beyond the maximum, registers do not hold the sums."""
COLUMNS, BYTES = 64, 32 * 1024
"""Columns that a program processes at a time; fewer if their keys and values exceed the bytes."""
WARPS, STAGES = 4, 2
"""Of attention: threads of a program in units of 32, and loop iterations that are loaded at once."""
CELLS = 1024
"""Cells of a mask that a program moves."""


@triton.jit
def _attend(
    new,  # [N, STRIDE]: queries, followed by new keys and values if OWN
    keys,  # [B, C, G, E]
    values,  # [B, C, G, V]
    seen,  # [N, C], if OWN
    limits,  # [1]: earlier steps, if OWN; otherwise [B]: columns of each input
    out,  # [N, H, V]
    columns,
    scale,
    ROWS: tl.constexpr,
    GROUP: tl.constexpr,
    G: tl.constexpr,
    E: tl.constexpr,
    V: tl.constexpr,
    STRIDE: tl.constexpr,
    OWN: tl.constexpr,
    QUERIES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Processes queries of one input that share a head of keys."""
    b, g = tl.program_id(0).to(tl.int64), tl.program_id(1)
    query = tl.program_id(2) * QUERIES + tl.arange(0, QUERIES)
    row, head = query // GROUP, g * GROUP + query % GROUP
    real, n = row < ROWS, b * ROWS + row
    e, v = tl.arange(0, E), tl.arange(0, V)
    q = tl.load(new + n[:, None] * STRIDE + head[:, None] * E + e[None, :], mask=real[:, None], other=0.0)
    if OWN:
        count = tl.minimum(tl.load(limits).to(tl.int32) * ROWS, columns)
        key = n * STRIDE + (GROUP * G + g) * E
        value = n * STRIDE + (GROUP + 1) * G * E + g * V
        own_key = tl.load(new + key[:, None] + e[None, :], mask=real[:, None], other=0.0)
        own_value = tl.load(new + value[:, None] + v[None, :], mask=real[:, None], other=0.0)
        # Each row sees itself through the loaded values, so no program waits for the stores of another.
        highest = tl.sum(q.to(tl.float32) * own_key.to(tl.float32), axis=1) * scale
        total = tl.full([QUERIES], 1.0, tl.float32)
        mixed = own_value.to(tl.float32)
        column = count + row
        keeps = real & (query % GROUP == 0) & (column < columns)
        own_cell = (b * columns + column) * G + g
        tl.store(keys + own_cell[:, None] * E + e[None, :], own_key, mask=keeps[:, None])
        tl.store(values + own_cell[:, None] * V + v[None, :], own_value, mask=keeps[:, None])
        tl.store(seen + n * columns + column, tl.full([QUERIES], 1, tl.uint8), mask=keeps & (head < GROUP))
    else:
        count = tl.minimum(tl.load(limits + b).to(tl.int32), columns)
        highest = tl.full([QUERIES], float("-inf"), tl.float32)
        total = tl.zeros([QUERIES], tl.float32)
        mixed = tl.zeros([QUERIES, V], tl.float32)
    for start in range(0, count, BLOCK):
        c = start + tl.arange(0, BLOCK)
        inside = c < count
        cell = (b * columns + c) * G + g
        k = tl.load(keys + cell[None, :] * E + e[:, None], mask=inside[None, :], other=0.0)
        scores = tl.dot(q, k, input_precision="ieee") * scale
        if OWN:
            flag = n[:, None] * columns + c[None, :]
            visible = tl.load(seen + flag, mask=real[:, None] & inside[None, :], other=0) != 0
            scores = tl.where(visible, scores, float("-inf"))
        else:
            scores = tl.where(inside[None, :], scores, float("-inf"))
        top = tl.maximum(highest, tl.max(scores, axis=1))
        weights, shrink = tl.exp(scores - top[:, None]), tl.exp(highest - top)
        total = total * shrink + tl.sum(weights, axis=1)
        x = tl.load(values + cell[:, None] * V + v[None, :], mask=inside[:, None], other=0.0)
        mixed = mixed * shrink[:, None] + tl.dot(weights.to(x.dtype), x, input_precision="ieee")
        highest = top
    mixed = mixed / tl.where(total > 0, total, 1.0)[:, None]
    to = (n * GROUP * G + head) * V
    tl.store(out + to[:, None] + v[None, :], mixed.to(out.dtype.element_ty), mask=real[:, None])


def attend_own(
    attention: Attention, new_NX: Tensor, cells: tuple[Tensor, Tensor], seen_NC: Tensor, time_1: Tensor
) -> Tensor:
    """`[N, H × V]`: self-attention of rows with queries, keys and values concatenated in `new_NX`.

    Rows attend to the columns that they have seen and to themselves. Their own keys and values become the next columns,
    which they see from now on.
    """
    return _attended(attention, new_NX, cells, seen_NC.view(torch.uint8), time_1, own=True)


def attend_memory(attention: Attention, q_NX: Tensor, memory: tuple[Tensor, Tensor], lengths_B: Tensor) -> Tensor:
    """`[N, H × V]`: cross-attention of rows to the real tokens of their source."""
    return _attended(attention, q_NX, memory, q_NX, lengths_B, own=False)


def _attended(
    attention: Attention, new_NX: Tensor, cells: tuple[Tensor, Tensor], seen: Tensor, limits: Tensor, own: bool
) -> Tensor:
    keys, values = cells
    inputs, columns = keys.shape[:2]
    rows, group = len(new_NX) // inputs, attention.heads // attention.kv_heads
    queries = min(max(triton.next_power_of_2(rows * group), LEAST_QUERIES), MOST_QUERIES)
    each, block = (attention.head_size + attention.value_size) * keys.element_size(), COLUMNS
    while block > 16 and block * each > BYTES:
        block //= 2
    out_NX = new_NX.new_empty(len(new_NX), attention.heads * attention.value_size)
    _attend[(inputs, attention.kv_heads, triton.cdiv(rows * group, queries))](
        *(new_NX, keys, values, seen, limits, out_NX, columns, attention.scale),
        ROWS=rows,
        GROUP=group,
        G=attention.kv_heads,
        E=attention.head_size,
        V=attention.value_size,
        STRIDE=new_NX.shape[1],
        OWN=own,
        QUERIES=queries,
        BLOCK=block,
        num_warps=WARPS,
        num_stages=STAGES,
    )
    return out_NX


@triton.jit
def _inherit(seen, rows, columns, ROWS: tl.constexpr, LANES: tl.constexpr, BLOCK: tl.constexpr):
    """Reorders the rows of one input in seen `[N, C]` by rows `[N]`, for some columns."""
    b = tl.program_id(0).to(tl.int64)
    row, c = tl.arange(0, LANES), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    n = b * ROWS + row
    parent = tl.load(rows + n, mask=row < ROWS, other=0)
    cells = (row < ROWS)[:, None] & (c < columns)[None, :]
    theirs = tl.load(seen + parent[:, None] * columns + c[None, :], mask=cells, other=0)
    tl.debug_barrier()  # all values are read before any is overwritten
    tl.store(seen + n[:, None] * columns + c[None, :], theirs, mask=cells)


def inherit(seen_NC: Tensor, rows_N: Tensor, inputs: int) -> None:
    """Replaces row n of a mask by row `rows_N[n]` of the same input, in place."""
    rows, columns = len(rows_N) // inputs, seen_NC.shape[1]
    lanes = triton.next_power_of_2(rows)
    block = min(triton.next_power_of_2(columns), max(CELLS // lanes, 16))
    grid = (inputs, triton.cdiv(columns, block))
    _inherit[grid](seen_NC.view(torch.uint8), rows_N, columns, ROWS=rows, LANES=lanes, BLOCK=block)


@triton.jit(do_not_specialize=["bound"])
def _embed(
    tokens, table, positions, places, out, width, bound, scale, STEP: tl.constexpr, D: tl.constexpr, GIVEN: tl.constexpr
):
    """One row."""
    n, d = tl.program_id(0).to(tl.int64), tl.arange(0, D)
    token = tl.load(tokens + n).to(tl.int64)
    x = tl.load(table + token * width + d, mask=d < width, other=0.0).to(tl.float32) * scale
    if GIVEN:
        position = tl.minimum(tl.load(places + n * STEP), bound - 1)
        x += tl.load(positions + position * width + d, mask=d < width, other=0.0).to(tl.float32)
    tl.store(out + n * width + d, x.to(out.dtype.element_ty), mask=d < width)


def embed(tokens_N: Tensor, table_VD: Tensor, scale: float, positions_TD: Tensor | None, places_N: Tensor) -> Tensor:
    """`[N, D]`: scaled token embeddings plus the encodings of their positions, one for all or one for each."""
    width = table_VD.shape[1]
    out_ND = table_VD.new_empty(len(tokens_N), width)
    given, bound = (table_VD, 1) if positions_TD is None else (positions_TD, len(positions_TD))
    _embed[(len(tokens_N),)](
        *(tokens_N, table_VD, given, places_N, out_ND, width, bound, scale),
        STEP=int(len(places_N) > 1),
        D=triton.next_power_of_2(width),
        GIVEN=positions_TD is not None,
    )
    return out_ND


@triton.jit
def _add_norm(
    x,
    added,
    weight,
    bias,
    total,
    out,
    width,
    eps,
    D: tl.constexpr,
    ADDS: tl.constexpr,
    CENTRED: tl.constexpr,
    BIASED: tl.constexpr,
    OFFSET: tl.constexpr,
):
    """Processes one row; sums are in float32."""
    d = tl.arange(0, D)
    inside, cell = d < width, tl.program_id(0).to(tl.int64) * width + d
    y = tl.load(x + cell, mask=inside, other=0.0).to(tl.float32)
    if ADDS:
        y += tl.load(added + cell, mask=inside, other=0.0).to(tl.float32)
        tl.store(total + cell, y.to(total.dtype.element_ty), mask=inside)
    if CENTRED:
        y = tl.where(inside, y - tl.sum(y, axis=0) / width, 0.0)
    y = y / tl.sqrt(tl.sum(y * y, axis=0) / width + eps)
    y = y * (tl.load(weight + d, mask=inside, other=0.0).to(tl.float32) + OFFSET)
    if BIASED:
        y += tl.load(bias + d, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + cell, y.to(out.dtype.element_ty), mask=inside)


def add_norm(x_ND: Tensor, added_ND: Tensor | None, norm: nn.LayerNorm | RmsNorm) -> tuple[Tensor, Tensor]:
    """x + added (or x), and its norm."""
    width, out_ND = x_ND.shape[1], torch.empty_like(x_ND)
    total_ND = x_ND if added_ND is None else torch.empty_like(x_ND)
    bias = norm.bias if isinstance(norm, nn.LayerNorm) else None
    weights = (norm.weight, norm.weight if bias is None else bias)
    _add_norm[(len(x_ND),)](
        *(x_ND, x_ND if added_ND is None else added_ND, *weights, total_ND, out_ND, width, norm.eps),
        D=triton.next_power_of_2(width),
        ADDS=added_ND is not None,
        CENTRED=isinstance(norm, nn.LayerNorm),
        BIASED=bias is not None,
        OFFSET=1.0 if isinstance(norm, RmsNorm) and norm.unit_offset else 0.0,
    )
    return total_ND, out_ND
