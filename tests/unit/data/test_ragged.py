"""Sequences of unequal length, held against plain lists."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from regard.data.ragged import Ragged, spread

sequences = st.lists(st.lists(st.integers(0, 2**32 - 1), max_size=7), max_size=9)


def lists(ragged: Ragged) -> list[list[int]]:
    assert len(ragged.tokens) == ragged.lengths.sum()
    return [part.tolist() for part in ragged.parts()]


@given(sequences)
def test_lists_come_back(given: list[list[int]]) -> None:
    assert lists(Ragged.of(given)) == given
    assert lists(Ragged.joined(np.array(each, np.uint32) for each in given)) == given


@given(sequences, st.integers(1, 5))
def test_cutting_and_splitting(given: list[list[int]], limit: int) -> None:
    assert lists(Ragged.of(given).cut(limit)) == [each[:limit] for each in given]
    pieces = [each[start : start + limit] for each in given for start in range(0, max(1, len(each)), limit)]
    assert lists(Ragged.of(given).split(limit)) == pieces


@given(sequences, st.integers(0, 2**9))
def test_only_some(given: list[list[int]], chosen: int) -> None:
    kept = np.array([bool(chosen >> number & 1) for number in range(len(given))], np.bool_)
    assert lists(Ragged.of(given).only(kept)) == [each for each, keep in zip(given, kept, strict=True) if keep]


@given(sequences, st.none() | st.just(11), st.none() | st.just(12))
def test_frames(given: list[list[int]], first: int | None, last: int | None) -> None:
    before, behind = [11] if first else [], [12] if last else []
    assert lists(Ragged.of(given).framed(first, last)) == [[*before, *each, *behind] for each in given]


@given(sequences, st.integers(0, 2**9))
def test_an_end_where_something_ends(given: list[list[int]], chosen: int) -> None:
    ended = [bool(chosen >> number & 1) for number in range(len(given))]
    found = Ragged.of(given).framed(None, 5, np.array(ended, np.bool_))
    assert lists(found) == [[*each, 5] if end else each for each, end in zip(given, ended, strict=True)]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5)), max_size=6))
def test_spread_by_brute_force(pairs: list[tuple[int, int]]) -> None:
    starts, lengths = (np.array([pair[i] for pair in pairs], dtype=np.int64) for i in (0, 1))
    assert spread(starts, lengths).tolist() == [start + i for start, length in pairs for i in range(length)]
