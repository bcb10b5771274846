"""Visibility: what fused kernels are told is the same as the definition, which is spelled out here cell by cell."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from packing_cases import pack
from torch import Tensor

from regard.blocks.kernels import distance_span
from regard.blocks.layout import Layout, Padded
from regard.blocks.visibility import Fused, Visibility
from regard.errors import InputError

CPU = torch.device("cpu")


class Side(NamedTuple):
    """A layout, and, in plain lists, the sequence and the place of each cell of each row; None for padding."""

    layout: Layout
    rows: list[list[tuple[int, int] | None]]


def full(batch: int, time: int) -> Side:
    return Side(Padded(batch, time), [[(b, t) for t in range(time)] for b in range(batch)])


def after(batch: int, time: int, start: int) -> Side:
    """Cells from position `start` on, as the new tokens of a cache."""
    return scattered([list(range(start, start + time))] * batch)


def ragged(lengths: list[int], time: int) -> Side:
    rows = [[(b, t) if t < n else None for t in range(time)] for b, n in enumerate(lengths)]
    return Side(Padded.of(torch.tensor(lengths), time), rows)


def scattered(places: list[list[int]]) -> Side:
    """Cells out of order, as a cache of a ring of columns gives them."""
    rows = [[(b, p) if p >= 0 else None for p in row] for b, row in enumerate(places)]
    bound = max((p + 1 for row in places for p in row), default=0)
    return Side(Padded(len(places), len(places[0]), places_BT=torch.tensor(places), bound=bound), rows)


def packed(lengths: list[list[int]], widths: list[int | None]) -> list[Side]:
    """Fillers are sequences like others: nothing else tells them apart."""
    layouts = pack(lengths, widths).layouts
    # Rows are told apart only where both sides have as many.
    rows = layouts[0].rows if len({layout.rows for layout in layouts}) == 1 else 1
    sides = []
    for layout in layouts:
        spans = layout.offsets_S1.diff().tolist()
        cells = [(s, place) for s, n in enumerate(spans) for place in range(n)]
        width = len(cells) // rows
        sides.append(Side(layout, [list(cells[r * width : (r + 1) * width]) for r in range(rows)]))
    return sides


class Rules(NamedTuple):
    causal: bool = False
    window: int | None = None


def expected(queries: Side, keys: Side, rules: Rules) -> Tensor:
    """`[R, Q, K]` from the three sentences at the top of visibility.py."""

    def sees(query: tuple[int, int] | None, key: tuple[int, int] | None) -> bool:
        if query is None or key is None or query[0] != key[0]:
            return False
        if rules.causal and key[1] > query[1]:
            return False
        return rules.window is None or abs(query[1] - key[1]) < rules.window

    pairs = zip(queries.rows, keys.rows, strict=True)
    return torch.tensor([[[sees(q, k) for k in row_k] for q in row_q] for row_q, row_k in pairs])


def visibility_of(queries: Side, keys: Side, rules: Rules) -> Visibility:
    return Visibility(queries.layout, keys.layout, rules.causal, rules.window)


def told(fused: Fused, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """What a kernel looks at, and what is left of it once the blind rows are zeroed."""
    looked = torch.ones(shape, dtype=torch.bool)
    if fused.causal:
        looked = looked.tril()
    if fused.mask is not None:
        looked = looked & fused.mask
    kept = looked if fused.blind is None else looked & ~fused.blind[..., None]
    return looked, kept


def check(queries: Side, keys: Side, rules: Rules) -> Fused:
    wanted = expected(queries, keys, rules)
    visibility = visibility_of(queries, keys, rules)
    assert torch.equal(visibility.visible(CPU).expand(wanted.shape), wanted)
    fused = visibility_of(queries, keys, rules).fused(CPU)  # a new one: nothing is kept from `visible`
    looked, kept = told(fused, wanted.shape)
    assert torch.equal(kept, wanted)
    assert looked.any(-1).all(), "a kernel would have to take a softmax over nothing"
    return fused


any_rules = st.builds(Rules, st.booleans(), st.none() | st.integers(1, 9))
lengths_of = st.lists(st.integers(0, 6), min_size=1, max_size=4)
many = hypothesis_settings(max_examples=150)


@given(data=st.data(), lengths=lengths_of, room=st.integers(0, 2))
@many
def test_ragged_rows(data: st.DataObject, lengths: list[int], room: int) -> None:
    side = ragged(lengths, max(*lengths, 1) + room)
    check(side, side, data.draw(any_rules))


@given(
    data=st.data(), batch=st.integers(1, 3), queries=st.integers(1, 4), start=st.integers(0, 5), later=st.integers(0, 2)
)
@many
def test_queries_behind_a_cache_of_full_rows(
    data: st.DataObject, batch: int, queries: int, start: int, later: int
) -> None:
    """The keys may even reach beyond the queries."""
    check(after(batch, queries, start), full(batch, start + queries + later), data.draw(any_rules))


@given(data=st.data(), batch=st.integers(1, 3))
@many
def test_cells_out_of_order(data: st.DataObject, batch: int) -> None:
    def places() -> list[list[int]]:
        time = data.draw(st.integers(1, 5))
        return [data.draw(st.permutations([-1, -1, 0, 1, 2, 3, 4]))[:time] for _ in range(batch)]

    check(scattered(places()), scattered(places()), data.draw(any_rules))


@given(data=st.data(), lengths=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=4))
@many
def test_ragged_queries_and_keys_of_other_rows(data: st.DataObject, lengths: list[tuple[int, int]]) -> None:
    queries, keys = (ragged([pair[side] for pair in lengths], 5) for side in (0, 1))
    queries = data.draw(st.sampled_from([queries, full(len(lengths), 4)]))
    keys = data.draw(st.sampled_from([keys, full(len(lengths), 4)]))
    check(queries, keys, data.draw(any_rules))


@given(data=st.data(), lengths=lengths_of, width=st.none() | st.integers(6, 9))
@many
def test_packed_rows(data: st.DataObject, lengths: list[int], width: int | None) -> None:
    side = packed([[n] for n in lengths], [width])[0]
    if side.layout.shape != (0,):
        check(side, side, data.draw(any_rules))


@given(
    lengths=st.lists(st.lists(st.integers(0, 5), min_size=2, max_size=2), min_size=1, max_size=5),
    widths=st.tuples(st.none() | st.integers(5, 8), st.none() | st.integers(5, 8)),
)
@many
def test_two_packed_sides(lengths: list[list[int]], widths: tuple[int | None, int | None]) -> None:
    queries, keys = packed(lengths, list(widths))
    if queries.layout.shape != (0,) and keys.layout.shape != (0,):
        check(queries, keys, Rules())


def test_the_cheapest_exact_form() -> None:
    nothing, rows, uneven = Fused(False, None, None), full(2, 5), ragged([2, 0, 5], 5)
    assert check(rows, rows, Rules(causal=True)) == Fused(True, None, None)
    assert check(rows, rows, Rules()) == check(full(2, 3), rows, Rules()) == nothing
    assert check(uneven, uneven, Rules(causal=True))[:2] == (True, None)
    fused = check(uneven, uneven, Rules())
    assert (fused.causal, fused.mask.shape) == (False, (3, 1, 5))
    # New tokens of a cache.
    assert check(after(2, 1, start=4), full(2, 7), Rules(causal=True)).mask is not None
    assert check(after(2, 2, start=5), full(2, 7), Rules(causal=True)).mask is not None
    # A window that hides nothing costs nothing.
    assert check(rows, rows, Rules(causal=True, window=5)) == Fused(True, None, None)
    assert check(rows, rows, Rules(causal=True, window=4)).mask is not None


@given(data=st.data(), lengths=lengths_of, width=st.none() | st.integers(6, 9))
@many
def test_every_visible_distance_is_in_the_span(data: st.DataObject, lengths: list[int], width: int | None) -> None:
    """Tables of scores by distance are as long as the span."""
    sides = [ragged(lengths, 6), *packed([[n] for n in lengths], [width])]
    for side in sides:
        rules = data.draw(any_rules)
        least, most = distance_span(visibility_of(side, side, rules))
        for row, seen in zip(side.rows, expected(side, side, rules), strict=True):
            for q, k in seen.nonzero().tolist():
                assert least <= row[q][1] - row[k][1] <= most


def test_sides_that_do_not_fit() -> None:
    three, two = pack([[3], [2], [1]], [None]).layouts[0], pack([[3], [2]], [None]).layouts[0]
    for queries, keys in ((Padded(2, 3), two), (two, Padded(2, 3))):
        with pytest.raises(InputError, match="both be padded or both be packed"):
            Visibility(queries, keys)
    with pytest.raises(InputError, match="queries have 3 sequences and keys 2"):
        Visibility(three, two)
