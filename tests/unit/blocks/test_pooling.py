"""Pooling: one vector for each sequence, padded and packed, against NumPy over each sequence by itself."""

from __future__ import annotations

from typing import get_args

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from packing_cases import pack

from regard.blocks.embedding import PoolingKind, pool
from regard.blocks.layout import Layout, Padded

WIDTH = 3
KINDS: tuple[PoolingKind, ...] = get_args(PoolingKind)
lengths_of = st.lists(st.integers(0, 5), min_size=1, max_size=5)


def wanted(sequence: np.ndarray, kind: PoolingKind) -> np.ndarray:
    if not len(sequence):
        return np.zeros(WIDTH)
    return {"class": sequence[0], "last": sequence[-1], "mean": sequence.mean(0), "max": sequence.max(0)}[kind]


def random_sequences(lengths: list[int]) -> list[torch.Tensor]:
    torch.manual_seed(sum(lengths))
    # Below zero, so that the maximum is not a zero of the padding.
    return [torch.randn(n, WIDTH, dtype=torch.float64) - 9 for n in lengths]


def check(x: torch.Tensor, layout: Layout, chosen: list[int], sequences: list[torch.Tensor]) -> None:
    for kind in KINDS:
        out = pool(x, layout, kind)
        assert out.shape == (layout.count, WIDTH)
        np.testing.assert_allclose(out[chosen].numpy(), [wanted(s.numpy(), kind) for s in sequences], rtol=1e-12)


@given(lengths=lengths_of, room=st.integers(0, 2))
def test_padded(lengths: list[int], room: int) -> None:
    sequences, time = random_sequences(lengths), max(*lengths, 1) + room
    x = torch.full((len(lengths), time, WIDTH), 1e4, dtype=torch.float64)
    for row, sequence in zip(x, sequences, strict=True):
        row[: len(sequence)] = sequence
    check(x, Padded.of(torch.tensor(lengths), time), list(range(len(lengths))), sequences)


@given(lengths=lengths_of, width=st.none() | st.integers(5, 8))
def test_packed(lengths: list[int], width: int | None) -> None:
    sequences, packing = random_sequences(lengths), pack([[n] for n in lengths], [width])
    layout = packing.layouts[0]
    x = torch.full((layout.tokens, WIDTH), 1e4, dtype=torch.float64)
    for s, sequence in zip(packing.sequences, sequences, strict=True):
        start = int(layout.offsets_S1[s])
        x[start : start + len(sequence)] = sequence
    check(x, layout, packing.sequences, sequences)


def test_full_rows_and_no_token_at_all() -> None:
    x = torch.randn(3, 4, WIDTH, dtype=torch.float64)
    check(x, Padded(3, 4), [0, 1, 2], list(x))
    for layout in (Padded.of(torch.tensor([0, 0])), pack([[0], [0]], [None]).layouts[0]):
        check(torch.randn(*layout.shape, WIDTH), layout, [0, 1], [torch.zeros(0, WIDTH)] * 2)
