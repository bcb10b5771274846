"""Triton kernels that choose the next beams of each input, and the next token of each slot of a running batch.

`scan` reads all scores once and stores, for each row, the logarithm of the sum of their exponentials and the highest
score of each block of the vocabulary. The choice then needs only the best blocks. `choose_beams` computes
`BeamSearch.choose` for each input. `write_tokens` applies top-k, top-p and min-p without sorting: it finds thresholds
by bisection, draws, and moves the slot on. Import this module only where it runs: not every machine has Triton.

B: inputs, R: rows of each before the selection, K: after it, N = B × R, V: vocabulary, M: blocks of it, L: the longest
sequence, S: slots, T: steps of a turn.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.decoding.beam import STEPS, BeamField
from regard.decoding.settings import Beam

if TYPE_CHECKING:
    from regard.decoding.fast.slots import SlotMemory, TokenChoice

BLOCK = 64
"""Smallest number of tokens of a block."""
MOST_BLOCKS = 4096
"""Largest number of blocks of all rows of an input, unless blocks have their largest size."""
LARGEST = 1024
"""Tokens of the largest block."""
TOGETHER, WARPS = 4096, 8
"""Scores that a program reads at a time, and its threads in units of 32."""
MOST_TOP_K = 64
"""The largest top-k."""
SHIFTS = {torch.float32: 0, torch.float16: 13, torch.bfloat16: 16}
"""Bits of float32 that are zero in a score."""

# Globals of a kernel must be compile-time constants.
_TOKEN, _CHANCE, _PARENT, _RANK, _LENGTH = (tl.constexpr(int(field)) for field in list(BeamField)[:5])
_STEPS, _FIELDS = tl.constexpr(STEPS), tl.constexpr(len(BeamField))
_FIRST, _BEST, _ALL = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
_STOPS = {"first": 0, "best": 1, "all": 2}


@triton.jit
def _scan(scores, excess, tops, vocabulary, blocks, BLOCK: tl.constexpr, LANES: tl.constexpr):
    """Processes one row of scores `[N, V]`; writes to excess `[N]` and tops `[N, M]`."""
    n, lane, w = tl.program_id(0).to(tl.int64), tl.arange(0, LANES), tl.arange(0, BLOCK)
    highest = tl.full([LANES], float("-inf"), tl.float32)
    total = tl.zeros([LANES], tl.float32)
    for start in range(0, blocks, LANES):
        m = start + lane
        token = m[:, None] * BLOCK + w[None, :]
        x = tl.load(scores + n * vocabulary + token, mask=token < vocabulary, other=float("-inf")).to(tl.float32)
        top = tl.max(x, axis=1)
        tl.store(tops + n * blocks + m, top, mask=m < blocks)
        above = tl.maximum(highest, top)
        level = tl.where(above == float("-inf"), 0.0, above)  # −∞ − −∞ is NaN
        total = total * tl.exp(highest - level) + tl.sum(tl.exp(x - level[:, None]), axis=1)
        highest = above
    top = tl.max(highest, axis=0)
    total = tl.sum(total * tl.exp(highest - top), axis=0)
    tl.store(excess + n, top + tl.log(total))


@triton.jit
def _best_blocks(
    tops, excess, sums, first, blocks, ROWS: tl.constexpr, COUNT: tl.constexpr, LANES: tl.constexpr, SLOTS: tl.constexpr
):
    """`[LANES]`: the blocks that contain the best continuations, numbered over all rows of an input; −1: none."""
    slot, lane = tl.arange(0, SLOTS), tl.arange(0, LANES)
    row = slot // blocks
    inside = row < ROWS
    top = tl.load(tops + first * blocks + slot, mask=inside, other=float("-inf"))
    # Rounded as the sums of tokens are, so that the maximum of a block equals the sum of its best token.
    value = tl.load(sums + first + row, mask=inside, other=0.0) + (
        top - tl.load(excess + first + row, mask=inside, other=0.0)
    )
    chosen = tl.full([LANES], -1, tl.int32)
    for i in range(COUNT):
        best = tl.max(value, axis=0)
        where = tl.min(tl.where(value == best, slot, SLOTS), axis=0)
        chosen = tl.where(lane == i, tl.where(best > float("-inf"), where, -1), chosen)
        value = tl.where(slot == where, float("-inf"), value)
    return chosen


@triton.jit
def _best(
    scores, excess, sums, first, chosen, words, blocks, COUNT: tl.constexpr, LANES: tl.constexpr, BLOCK: tl.constexpr
):
    """`[LANES]`: the best continuations of an input, row × V + token, the best first; −1: none."""
    lane = tl.arange(0, LANES)
    row = tl.maximum(chosen, 0) // blocks
    token = (chosen % blocks)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = (chosen >= 0)[:, None] & (token < words)
    x = tl.load(scores + (first + row)[:, None] * words + token, mask=inside, other=float("-inf")).to(tl.float32)
    value = tl.load(sums + first + row)[:, None] + (x - tl.load(excess + first + row)[:, None])
    value = tl.where(inside, value, float("-inf"))
    number = row[:, None] * words + token
    best = tl.full([LANES], -1, tl.int32)
    for i in range(COUNT):
        top = tl.max(tl.max(value, axis=1), axis=0)
        which = tl.min(tl.min(tl.where(value == top, number, 2147483647), axis=1), axis=0)
        best = tl.where(lane == i, tl.where(top > float("-inf"), which, -1), best)
        value = tl.where(number == which, float("-inf"), value)
    return best


@triton.jit(do_not_specialize=["inputs", "steps"])
def _choose(
    scores,  # [N, V]
    excess,  # [N]
    tops,  # [N, M]
    sums,  # [B, R]
    new_sums,  # [B, K]
    tokens,  # [B, K]
    rows,  # [B, K]
    history,  # [L, B, K, fields of a step]
    pool,  # [B, K, fields]
    live,  # [B]
    step,  # [1]
    longest,  # [B]
    divisors,  # [L + 1]
    farthest,  # [B]
    inputs,
    vocabulary,
    blocks,
    steps,
    ROWS: tl.constexpr,
    SIZE: tl.constexpr,
    NBEST: tl.constexpr,
    END: tl.constexpr,
    STOP: tl.constexpr,
    FAR: tl.constexpr,
    LANES: tl.constexpr,
    SLOTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Processes one input."""
    b = tl.program_id(0).to(tl.int64)
    first, lane, f = b * ROWS, tl.arange(0, LANES), tl.arange(0, 8)[None, :]
    chosen = _best_blocks(tops, excess, sums, first, blocks, ROWS, 2 * SIZE, LANES, SLOTS)
    best = _best(scores, excess, sums, first, chosen, vocabulary, blocks, 2 * SIZE, LANES, BLOCK)
    found, best = best >= 0, tl.maximum(best, 0)
    parent, token = best // vocabulary, best % vocabulary
    score = tl.load(scores + (first + parent) * vocabulary + token).to(tl.float32)
    chance = score - tl.load(excess + first + parent)
    total = tl.where(found, tl.load(sums + first + parent) + chance, float("-inf"))

    # Candidates that end here, and the rank of each of them and of each pool entry among both, the best first.
    now, kept = tl.load(step).to(tl.int32), lane < SIZE
    divisor, is_live = tl.load(divisors + tl.minimum(now, steps)), tl.load(live + b) != 0
    hit = (token == END) | (tl.load(longest + b) <= now)
    rank = tl.where(kept & hit & is_live, total / divisor, float("-inf"))
    pooled = pool + b * SIZE * _FIELDS
    old = tl.load(pooled + lane[:, None] * _FIELDS + f, mask=kept[:, None] & (f < _FIELDS), other=0.0)
    old_rank = tl.load(pooled + lane * _FIELDS + _RANK, mask=kept, other=float("-inf")).to(tl.float32)
    earlier, both = lane[None, :] < lane[:, None], kept[None, :] & kept[:, None]
    above = (rank[None, :] > rank[:, None]) | ((rank[None, :] == rank[:, None]) & earlier)
    old_slot = lane + tl.sum((both & (rank[None, :] > old_rank[:, None])).to(tl.int32), axis=1)
    slot = tl.sum((both & above).to(tl.int32), axis=1)
    slot += tl.sum((both & (old_rank[None, :] >= rank[:, None])).to(tl.int32), axis=1)

    # Candidates that stay open: the first that do not end; those that end fill the remaining rows.
    candidate = lane < 2 * SIZE
    goes, stops = candidate & (hit == 0), candidate & hit
    onward = tl.sum((goes[None, :] & earlier).to(tl.int32), axis=1)
    behind = tl.sum(goes.to(tl.int32), axis=0) + tl.sum((stops[None, :] & earlier).to(tl.int32), axis=1)
    onward = tl.where(goes, onward, behind)
    open_total = tl.where(goes, total, float("-inf"))

    # Whether the search continues: see `BeamSearch._may_improve`.
    top = tl.max(open_total, axis=0)
    last = NBEST - 1 if STOP == _ALL else SIZE - 1
    bar = tl.max(tl.where(kept & (old_slot == last), old_rank, float("-inf")), axis=0)
    bar = tl.maximum(bar, tl.max(tl.where(kept & (slot == last), rank, float("-inf")), axis=0))
    if STOP == _FIRST:
        improves = bar == float("-inf")
    else:
        reach = divisor
        if FAR:
            reach = tl.load(farthest + b)
        improves = top / reach > bar
    stays_live = is_live & (top > float("-inf")) & improves

    new = tl.where(f == _CHANCE, chance.to(tl.float64)[:, None], (token == END).to(tl.float64)[:, None])
    new = tl.where(f == _TOKEN, token.to(tl.float64)[:, None], new)
    new = tl.where(f == _PARENT, parent.to(tl.float64)[:, None], new)
    new = tl.where(f == _RANK, rank.to(tl.float64)[:, None], new)
    new = tl.where(f == _LENGTH, now.to(tl.float64), new)
    tl.debug_barrier()  # all values are read before any is overwritten
    tl.store(live + b, stays_live.to(tl.uint8))
    old_stays, comes = (kept & (old_slot < SIZE))[:, None], (kept & (slot < SIZE))[:, None]
    tl.store(pooled + old_slot[:, None] * _FIELDS + f, old, mask=old_stays & (f < _FIELDS))
    tl.store(pooled + slot[:, None] * _FIELDS + f, new, mask=comes & (f < _FIELDS))
    taken, to = candidate & (onward < SIZE), b * SIZE + onward
    tl.store(new_sums + to, open_total, mask=taken)
    tl.store(tokens + to, token.to(tl.int64), mask=taken)
    tl.store(rows + to, first + parent, mask=taken)
    written = history + ((now - 1) * inputs * SIZE + to)[:, None] * _STEPS + f
    tl.store(written, new, mask=taken[:, None] & (f < tl.where(now <= steps, _STEPS, 0)))


def scan(scores_NV: Tensor, rows: int) -> tuple[Tensor, Tensor, int]:
    """Logsumexp of each row, the highest score of each block, and the size of a block."""
    count, vocabulary = scores_NV.shape
    block = BLOCK
    while block < LARGEST and rows * triton.cdiv(vocabulary, block) > MOST_BLOCKS:
        block *= 2
    blocks = triton.cdiv(vocabulary, block)
    excess_N = torch.empty(count, dtype=torch.float32, device=scores_NV.device)
    tops_NM = excess_N.new_empty(count, blocks)
    lanes = min(triton.next_power_of_2(blocks), TOGETHER // block)
    _scan[(count,)](scores_NV, excess_N, tops_NM, vocabulary, blocks, BLOCK=block, LANES=lanes, num_warps=WARPS)
    return excess_N, tops_NM, block


def choose_beams(
    scores_NV: Tensor, sums_BR: Tensor, board: Sequence[Tensor], steps: int, beam: Beam, end: int | None
) -> None:
    """`BeamSearch.choose` in place, if no rule changes scores; ties are ordered by index.

    `board` is the tensors of `_choose` from `new_sums` to `farthest`: `new_sums` is `sums_BR`, unless the number of
    rows changes. `steps` is the length of the history.
    """
    inputs, rows = sums_BR.shape
    scores_NV = scores_NV.contiguous()
    excess_N, tops_NM, block = scan(scores_NV, rows)
    blocks = tops_NM.shape[1]
    slots = triton.next_power_of_2(rows * blocks)
    _choose[(inputs,)](
        *(scores_NV, excess_N, tops_NM, sums_BR, *board),
        *(inputs, scores_NV.shape[1], blocks, steps),
        ROWS=rows,
        SIZE=beam.size,
        NBEST=beam.nbest,
        END=-1 if end is None else end,
        STOP=_STOPS[beam.stop],
        FAR=beam.stop == "all" and beam.length.alpha > 0,
        LANES=triton.next_power_of_2(2 * beam.size),
        SLOTS=slots,
        BLOCK=block,
        num_warps=WARPS if slots > 2048 else WARPS // 2,
    )


def chooses(choice: TokenChoice, dtype: torch.dtype) -> bool:
    """Whether the kernel chooses so from scores of a dtype."""
    return dtype in SHIFTS and 0 < choice.most <= MOST_TOP_K


@triton.jit
def _key(x, SHIFT: tl.constexpr):
    """An integer for each float32, in the same order, without the bits that are zero in all of them."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits) >> SHIFT


@triton.jit
def _least(keys, amounts, wanted, least, most):
    """The largest key in [least, most] such that the keys that are at least as large have the wanted amount."""
    low, high = least.to(tl.int64), most.to(tl.int64)
    while low < high:
        middle = (low + high + 1) >> 1
        enough = tl.sum(tl.where(keys >= middle.to(tl.int32), amounts, 0.0), axis=0) >= wanted
        low, high = tl.where(enough, middle, low), tl.where(enough, high, middle - 1)
    return low.to(tl.int32)


@triton.jit
def _drawn(weights, lane, uniform):
    """The lane that a number in [0, 1) chooses by inverse transform sampling."""
    bounds = tl.cumsum(weights.to(tl.float64), axis=0)
    target = uniform * tl.sum(weights.to(tl.float64), axis=0)
    found = tl.min(tl.where((bounds > target) & (weights > 0), lane, 1 << 30), axis=0)
    last = tl.max(tl.where(weights > 0, lane, 0), axis=0)  # rounding never leads beyond it
    return tl.minimum(found, last)


@triton.jit
def _write(
    scores,  # [S, V]
    values,  # [S, 6]
    excess,  # [S]
    tops,  # [S, M]
    chosen,  # [S, SLOTS]: memory for the numbers of blocks
    top_k,  # [S]
    uniform,  # [S, C]
    ends,  # [S, ENDS]
    token,  # [S]
    places,
    left,
    live,
    step,  # [1]
    out,  # [2, STEPS, S]
    vocabulary,
    blocks,
    columns,
    slots,
    steps,
    BLOCK: tl.constexpr,
    LANES: tl.constexpr,
    SLOTS: tl.constexpr,
    ENDS: tl.constexpr,
    SHIFT: tl.constexpr,
):
    """Chooses the token of one slot, writes it out, and moves the slot on."""
    s, m = tl.program_id(0).to(tl.int64), tl.arange(0, LANES)
    place, most = tl.load(places + s), tl.load(top_k + s)
    temperature, top_p, min_p = tl.load(values + s * 6), tl.load(values + s * 6 + 1), tl.load(values + s * 6 + 2)
    number = tl.load(uniform + s * columns + place)
    inside = m < blocks
    top = tl.load(tops + s * blocks + m, mask=inside, other=float("-inf"))
    highest = tl.max(top, axis=0)
    # Each of the k best tokens is in a block whose maximum is at least the k-th largest maximum.
    keys, key = _key(top, SHIFT), _key(highest, SHIFT)
    lowest = tl.min(tl.where(inside, keys, key), axis=0)
    bound = _least(keys, tl.where(inside, 1.0, 0.0), tl.minimum(most, blocks).to(tl.float32), lowest, key)
    taken = (keys >= bound) & inside
    rank = tl.cumsum(taken.to(tl.int32), axis=0) - 1
    tl.store(chosen + s * SLOTS + rank, m, mask=taken & (rank < SLOTS))
    tl.debug_barrier()  # all numbers are stored before any is read
    found = tl.sum(taken.to(tl.int32), axis=0)
    lane = tl.arange(0, SLOTS * BLOCK)
    there = lane // BLOCK < found
    word = tl.load(chosen + s * SLOTS + lane // BLOCK, mask=there, other=0) * BLOCK + lane % BLOCK
    there = there & (word < vocabulary)
    x = tl.load(scores + s * vocabulary + word, mask=there, other=float("-inf")).to(tl.float32)
    keys = _key(x, SHIFT)
    count = tl.sum(there.to(tl.int32), axis=0).to(tl.int64)
    lowest = tl.min(tl.where(there, keys, key), axis=0)
    low = _least(keys, tl.where(there, 1.0, 0.0), tl.minimum(most, count).to(tl.float32), lowest, key)
    weights = tl.where(there & (keys >= low), tl.exp((x - highest) / temperature), 0.0)
    if top_p < 1.0:
        wanted = top_p * tl.sum(weights, axis=0)
        low = _least(keys, weights, wanted, low, key)
        # Among equal tokens the first ones, as many as are needed.
        above = tl.sum(tl.where(keys > low, weights, 0.0), axis=0)
        equal = (keys == low) & (weights > 0)
        earlier = (tl.cumsum(equal.to(tl.int32), axis=0) - 1).to(tl.float32)
        weights = tl.where((keys > low) | (equal & (above + earlier * weights < wanted)), weights, 0.0)
    weights = tl.where(weights < min_p, 0.0, weights)
    chosen_lane = _drawn(weights, lane, number)
    best = tl.sum(tl.where(lane == chosen_lane, word, 0), axis=0).to(tl.int64)
    score = tl.load(scores + s * vocabulary + best).to(tl.float32)
    writes = tl.load(live + s) != 0
    now = tl.load(step)
    tl.store(out + now * slots + s, tl.where(writes, best, -1).to(tl.float64))
    tl.store(out + (steps + now) * slots + s, (score - tl.load(excess + s)).to(tl.float64))
    rest = tl.load(left + s) - writes.to(tl.int64)
    end = tl.load(ends + s * ENDS + tl.arange(0, ENDS))
    goes = writes & (rest > 0) & (tl.sum((end == best).to(tl.int32), axis=0) == 0)
    tl.store(left + s, rest)
    tl.store(token + s, best, mask=goes)
    tl.store(places + s, place + 1, mask=goes)
    tl.store(live + s, goes.to(tl.uint8))


def write_tokens(memory: SlotMemory, scores_SV: Tensor, choice: TokenChoice) -> None:
    """Chooses and writes the next token of every slot; the plain way is `SlotMemory.write`."""
    slots, vocabulary = scores_SV.shape
    excess_S, tops_SM, block = scan(scores_SV, 1)
    blocks = tops_SM.shape[1]
    # Blocks whose maxima equal the bound are taken too, up to this number.
    room = 2 * triton.next_power_of_2(max(choice.most, 4))
    chosen = torch.empty(slots, room, dtype=torch.int32, device=scores_SV.device)
    _write[(slots,)](
        *(scores_SV, memory.values_S6, excess_S, tops_SM, chosen, memory.top_k_S, memory.uniform_SC, memory.ends_SE),
        *(memory.token_S, memory.cache.place_B1, memory.left_S, memory.live_S.view(torch.uint8), memory.step_1),
        *(memory.out_2TS, vocabulary, blocks, memory.uniform_SC.shape[1], slots, memory.out_2TS.shape[1]),
        BLOCK=block,
        LANES=triton.next_power_of_2(blocks),
        SLOTS=room,
        ENDS=memory.ends_SE.shape[1],
        SHIFT=SHIFTS[scores_SV.dtype],
        num_warps=8,
    )
    memory.step_1 += 1
