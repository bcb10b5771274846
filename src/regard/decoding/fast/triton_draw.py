"""A Triton kernel that chooses the next token of each slot, by top-k, top-p and min-p, without sorting.

After `scan`, it needs only the blocks of the vocabulary that can contain one of the k best tokens. It finds thresholds
by bisection, draws, and moves the slot on. Import this module only where it runs: not every machine has Triton.

S: slots, V: vocabulary, M: blocks of it, T: steps of a turn.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from regard.decoding.fast.triton_choice import scan

if TYPE_CHECKING:
    from regard.decoding.fast.slots import SlotMemory, TokenChoice

MOST = 64
"""The largest top-k."""
SHIFTS = {torch.float32: 0, torch.float16: 13, torch.bfloat16: 16}
"""Bits of float32 that are zero in a score."""


def chooses(choice: TokenChoice, dtype: torch.dtype) -> bool:
    """Whether the kernel chooses so from scores of a dtype."""
    return dtype in SHIFTS and 0 < choice.most <= MOST


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
