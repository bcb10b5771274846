"""Plans of batches: every example once, within the budget, the same for the same seed and epoch, with little waste."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.batches import PackedPlan, PaddedPlan
from regard.errors import DataError

some_lengths = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=60).map(
    lambda rows: np.array(rows, dtype=np.int64).reshape(-1, 2)
)
seeds = st.integers(0, 1000)


@given(lengths=some_lengths, tokens=st.integers(20, 100), pool=st.integers(1, 5), seed=seeds)
def test_padded_batches_hold_every_example_once_within_the_budget(
    lengths: np.ndarray, tokens: int, pool: int, seed: int
) -> None:
    batches = PaddedPlan(tokens, pool).batches(lengths, seed, epoch=0)
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch)
        assert len(batch) * lengths[batch].max() <= tokens


@given(lengths=some_lengths, rows=st.integers(1, 4), extra=st.integers(0, 20), most=st.integers(1, 5), seed=seeds)
def test_packed_rows_hold_every_example_once_and_fit_on_both_sides(
    lengths: np.ndarray, rows: int, extra: int, most: int, seed: int
) -> None:
    plan = PackedPlan(rows, (20 + extra, 25), most)
    batches = plan.batches(lengths, seed, epoch=0)
    assert sorted(i for batch in batches for row in batch for i in row) == list(range(len(lengths)))
    assert all(len(batch) == rows for batch in batches[:-1])
    for row in (row for batch in batches for row in batch):
        assert 0 < len(row) <= most
        assert (lengths[row].sum(axis=0) <= plan.widths).all()


@pytest.mark.parametrize("plan", [PaddedPlan(200), PackedPlan(4, (64, 64))], ids=["padded", "packed"])
def test_a_seed_and_an_epoch_decide_everything(plan: PaddedPlan | PackedPlan) -> None:
    lengths = np.random.default_rng(0).integers(1, 40, size=(500, 2))

    def order(seed: int, epoch: int) -> list[int]:
        batches = plan.batches(lengths, seed, epoch)
        rows = batches if isinstance(plan, PaddedPlan) else [row for batch in batches for row in batch]
        return [int(i) for row in rows for i in row]

    assert order(1, 0) == order(1, 0)
    assert order(1, 0) != order(1, 1)
    assert order(1, 0) != order(2, 0)


def test_little_is_wasted() -> None:
    """On lengths like those of sentences, sorted buckets and packed rows are nearly full."""
    lengths = np.clip(np.random.default_rng(0).lognormal(3.1, 0.6, size=(20_000, 1)), 1, 128).astype(np.int64)
    batches = PaddedPlan(4096).batches(lengths, 0, 0)
    cells = sum(len(batch) * int(lengths[batch].max()) for batch in batches)
    assert lengths.sum() / cells > 0.95
    rows = [row for batch in PackedPlan(32, (128,)).batches(lengths, 0, 0) for row in batch]
    assert lengths.sum() / (128 * len(rows)) > 0.98


def test_batches_are_not_in_the_order_of_their_lengths() -> None:
    lengths = np.random.default_rng(0).integers(1, 100, size=(2000, 1))
    means = [float(lengths[batch].mean()) for batch in PaddedPlan(400).batches(lengths, 0, 0)]
    assert abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.3


@pytest.mark.parametrize("plan", [PaddedPlan(10), PackedPlan(1, (10,))], ids=["padded", "packed"])
def test_what_fits_no_batch_is_refused(plan: PaddedPlan | PackedPlan) -> None:
    with pytest.raises(DataError, match=r"2 examples are longer than (tokens|widths) \(10\), the longest has 30"):
        plan.batches(np.array([[5], [11], [30]]), 0, 0)


@pytest.mark.parametrize("plan", [PaddedPlan(10), PackedPlan(1, (10,))], ids=["padded", "packed"])
def test_nothing_gives_nothing(plan: PaddedPlan | PackedPlan) -> None:
    assert plan.batches(np.zeros((0, 1), dtype=np.int64), 0, 0) == []
