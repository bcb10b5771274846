"""Layouts: where each token of each sequence lies, held against loops over plain lists."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from packing_cases import pack

from regard.blocks.layout import Packed, Padded, layout_of
from regard.errors import InputError

CPU = torch.device("cpu")
META = torch.device("meta")


@given(lengths=st.lists(st.integers(0, 7), min_size=1, max_size=5), room=st.none() | st.integers(0, 3))
def test_padded_rows_by_brute_force(lengths: list[int], room: int | None) -> None:
    longest = max(lengths)
    time = longest if room is None else longest + room
    layout = Padded.of(torch.tensor(lengths), None if room is None else time)
    assert layout.shape == (len(lengths), time)
    assert layout.count == layout.rows == len(lengths)
    assert layout.real(CPU).tolist() == [[t < n for t in range(time)] for n in lengths]
    assert layout.places(CPU).tolist() == [[t if t < n else -1 for t in range(time)] for n in lengths]
    assert layout.sequences(CPU).tolist() == [[b] * time for b in range(len(lengths))]
    assert layout.longest >= longest


def test_full_rows_and_cells_out_of_order() -> None:
    layout = Padded(2, 3)
    assert (layout.real(CPU), layout.places(CPU).tolist(), layout.longest) == (None, [[0, 1, 2]], 3)
    places = torch.tensor([[3, 4, 2], [-1, 0, -1]])
    layout = Padded(2, 3, places_BT=places, bound=9)
    assert layout.real(CPU).tolist() == [[True, True, True], [False, True, False]]
    assert torch.equal(layout.places(CPU), places)
    assert layout.longest == 9
    assert Padded.of(torch.tensor([], dtype=torch.long)).shape == (0, 0)


def test_layouts_move_to_a_device_with_all_their_tensors() -> None:
    lengths, places = torch.tensor([1, 2]), torch.zeros(2, 2, dtype=torch.long)
    moved = Padded(2, 2, lengths, places).to(META)
    assert moved.lengths_B.device == moved.places_BT.device == META
    packed = pack([[2], [1]], [4]).layouts[0]
    assert packed.to(META).offsets_S1.device == META
    assert packed.to("cpu") == packed  # nothing else changes
    assert Padded(2, 2).to(META) == Padded(2, 2)


@st.composite
def packings(draw: st.DrawFn) -> tuple[list[list[int]], list[int | None]]:
    sides = draw(st.integers(1, 2))
    examples = draw(st.lists(st.lists(st.integers(0, 6), min_size=sides, max_size=sides), max_size=8))
    longest = [max((example[side] for example in examples), default=1) for side in range(sides)]
    widths = [draw(st.none() | st.integers(max(n, 1), n + 5)) for n in longest]
    return examples, widths


@given(packings())
def test_packing_by_brute_force(case: tuple[list[list[int]], list[int | None]]) -> None:
    examples, widths = case
    packing = pack(examples, widths)
    for side, layout in enumerate(packing.layouts):
        offsets = layout.offsets_S1.tolist()
        spans = [range(left, right) for left, right in itertools.pairwise(offsets)]
        assert offsets[0] == 0
        assert offsets[-1] == layout.tokens
        assert [len(spans[s]) for s in packing.sequences] == [example[side] for example in examples]
        assert layout.sequences(CPU).tolist() == [s for s, span in enumerate(spans) for _ in span]
        assert layout.places(CPU).tolist() == [i for span in spans for i in range(len(span))]
        assert layout.longest >= max([len(span) for span in spans], default=0)


def test_layout_of() -> None:
    padded, packed = Padded(2, 3), pack([[2], [1]], [None]).layouts[0]
    assert layout_of(torch.zeros(2, 3), None) == padded
    assert layout_of(torch.zeros(2, 3), padded) is padded
    assert layout_of(torch.zeros(3), packed) is packed
    with pytest.raises(InputError, match=r"layout has shape \[3\]"):
        layout_of(torch.zeros(2, 3), packed)
    with pytest.raises(InputError, match=r"layout \(Tensor\) must be Padded or Packed"):
        layout_of(torch.ones(2, 5), torch.ones(2, 5))  # type: ignore[arg-type]


def test_lengths_and_offsets_that_do_not_fit() -> None:
    for lengths, message in (
        ([9, 3], "lengths ([9, 3]) must be between 0 and time (5)"),
        ([-1, 3], "lengths ([-1, 3]) must be between 0 and time (5)"),
        ([5.0, 3.0], "lengths have shape [2] and dtype torch.float32, expected [2] integers"),
        ([[5], [3]], "lengths have shape [2, 1] and dtype torch.int64, expected [2] integers"),
    ):
        with pytest.raises(InputError) as caught:
            Padded.of(torch.tensor(lengths), 5)
        assert str(caught.value).startswith(message)
    for offsets, longest, width, message in (
        ([0, 4, 8], 8, None, "offsets ([0, 4, 8]) must rise from 0 to tokens (10)"),
        ([2, 6, 10], 8, None, "offsets ([2, 6, 10]) must rise from 0 to tokens (10)"),
        ([0, 8, 4, 10], 8, None, "offsets ([0, 8, 4, 10]) must rise from 0 to tokens (10)"),
        ([0, 6, 10], 2, None, "a sequence of 6 tokens is longer than longest (2)"),
        ([0, 6, 10], 6, 5, "offsets ([0, 6, 10]) make a sequence cross a row of width 5"),
    ):
        with pytest.raises(InputError) as caught:
            Packed(10, torch.tensor(offsets, dtype=torch.int32), longest, width)
        assert str(caught.value).startswith(message)
