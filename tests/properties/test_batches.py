"""Whatever the lengths, the budget, the processes and their memory: nothing is lost, and nothing doubled."""

from __future__ import annotations

import numpy as np
import pytest
from data_cases import listed
from hypothesis import given
from hypothesis import strategies as st

from regard.blocks.layout import Packed
from regard.data.batches import Group, Lengths, PackedPlan, PaddedPlan, Plan, Share
from regard.data.columns import lay_out
from regard.data.loader import Planner

LONGEST = 20

one_side = st.lists(st.tuples(st.integers(0, LONGEST)), min_size=1, max_size=60)
two_sides = st.lists(st.tuples(st.integers(0, LONGEST), st.integers(0, LONGEST)), min_size=1, max_size=60)
all_lengths = st.one_of(one_side, two_sides).map(lambda rows: np.array(rows, dtype=np.int64))
limits = st.one_of(st.none(), st.integers(1, 12))
padded_plans = st.builds(PaddedPlan, st.integers(LONGEST, 100), limits, st.sampled_from([1, 8]), st.integers(1, 5))
packed_plans = st.builds(
    PackedPlan,
    rows=st.integers(1, 4),
    widths=st.tuples(st.integers(LONGEST, 45), st.integers(LONGEST, 30)),
    most=st.integers(1, 6),
    longest=st.one_of(st.none(), st.integers(LONGEST, 25)),
    examples=limits,
    pool=st.integers(1, 5),
)
shares = st.builds(Share, world=st.integers(1, 5), micro=st.one_of(st.none(), st.integers(1, 120)))
seeds = st.one_of(st.none(), st.integers(0, 1000))


def fitted(plan: Plan, lengths: np.ndarray) -> Plan:
    """The plan with as many sides as the examples have."""
    if isinstance(plan, PackedPlan) and lengths.shape[1] == 1:
        return PackedPlan(plan.rows, plan.widths[1:], plan.most, plan.longest, plan.examples, plan.pool)
    return plan


def steps_of(plan: Plan, lengths: np.ndarray, seed: int | None) -> list[Group]:
    planner = Planner(plan, listed(lengths), seed)
    return [step for pool in range(planner.pools) for step in planner.steps(0, pool)]


@given(lengths=all_lengths, plan=padded_plans, seed=seeds)
def test_padded_steps_hold_every_example_once_within_the_budget(
    lengths: np.ndarray, plan: PaddedPlan, seed: int | None
) -> None:
    steps = steps_of(plan, lengths, seed)
    assert sorted(i for step in steps for i in step.examples) == list(range(len(lengths)))
    for step in steps:
        assert (lengths[step.examples] == step.lengths).all()
        assert 0 < len(step.examples) <= (plan.examples or len(lengths))
        # One example whose length is rounded up may exceed the budget; it can be in no other step.
        assert len(step.examples) == 1 or all(
            len(step.examples) * plan.time(side) <= plan.tokens for side in step.lengths.T
        )


@given(lengths=all_lengths, plan=packed_plans, seed=seeds)
def test_packed_steps_hold_every_example_once_and_fit_on_every_side(
    lengths: np.ndarray, plan: PackedPlan, seed: int | None
) -> None:
    plan = fitted(plan, lengths)
    steps = steps_of(plan, lengths, seed)
    assert sorted(i for step in steps for i in step.examples) == list(range(len(lengths)))
    for step in steps:
        assert (lengths[step.examples] == step.lengths).all()
        assert len(step.examples) <= (plan.examples or len(lengths))
        assert step.bounds is not None
        assert 0 < len(step.bounds) - 1 <= plan.rows
        assert step.bounds[-1] == len(step.examples)
        for start, end in zip(step.bounds[:-1], step.bounds[1:], strict=True):
            assert 0 < end - start <= plan.most
            assert (step.lengths[start:end].sum(axis=0) <= plan.widths).all()


@given(lengths=all_lengths, plan=st.one_of(padded_plans, packed_plans), share=shares)
def test_the_parts_of_a_step_are_the_step(lengths: np.ndarray, plan: Plan, share: Share) -> None:
    plan = fitted(plan, lengths)
    for step in steps_of(plan, lengths, 0):
        parts = plan.split(step, share)
        assert len(parts) % share.world == 0
        taken = [parts[rank :: share.world] for rank in range(share.world)]
        assert sorted(i for mine in taken for part in mine for i in part.examples) == sorted(step.examples)
        for part in parts:
            assert (lengths[part.examples] == part.lengths).all()
            if isinstance(plan, PackedPlan):
                assert part.bounds is not None
                rows = len(part.bounds) - 1
                assert rows == plan.rows_at_once(share)
                assert rows == 1 or rows * plan.widths[-1] <= (share.micro or rows * plan.widths[-1])
            elif share.micro is not None and len(part.examples) > 1:
                assert plan.cells(part) <= share.micro
        # No process does more than it must: a share less for each would not hold the step.
        if share.micro is None and isinstance(plan, PaddedPlan):
            assert len(parts) == share.world


@given(lengths=all_lengths, plan=st.one_of(padded_plans, packed_plans), share=shares)
def test_every_cell_is_of_one_example_or_of_none(lengths: np.ndarray, plan: Plan, share: Share) -> None:
    """Layouts check themselves that sequences follow on each other and cross no row."""
    plan = fitted(plan, lengths)
    shapes = set()
    for step in steps_of(plan, lengths, 0):
        for part in plan.split(step, share):
            grids = lay_out(part, plan)
            assert len(grids) == lengths.shape[1]
            assert int(np.prod(grids[-1].layout.shape)) == plan.cells(part)
            assert len({tuple(grid.sequences) for grid in grids}) == 1
            for side, grid in enumerate(grids):
                assert len(set(grid.cells)) == len(grid.cells) == part.lengths[:, side].sum()
                assert grid.layout.count > grid.sequences.max(initial=-1)
                if isinstance(grid.layout, Packed):
                    offsets = grid.layout.offsets_S1.numpy()
                    assert (offsets[grid.sequences] == grid.starts).all()
                    assert (np.diff(offsets)[grid.sequences] == part.lengths[:, side]).all()
                    shapes.add((side, grid.layout.shape, grid.layout.count, grid.layout.longest, grid.layout.width))
                else:
                    assert grid.layout.lengths_B is not None
                    assert grid.layout.lengths_B.tolist() == (part.lengths[:, side].tolist() or [1])
    if isinstance(plan, PackedPlan):
        assert len(shapes) == lengths.shape[1], "the shape of packed batches never changes"


@pytest.mark.parametrize("count", [1, 2, 7, 1000])
def test_an_epoch_is_a_random_order(count: int) -> None:
    lengths = Lengths(count, ((None, 1),))
    planner = Planner(PackedPlan.alike(4, 1), lengths, seed=5)
    orders = [
        [int(i) for pool in range(planner.pools) for step in planner.steps(epoch, pool) for i in step.examples]
        for epoch in (0, 1)
    ]
    assert [sorted(order) for order in orders] == [list(range(count))] * 2
    assert count < 7 or orders[0] != orders[1] != list(range(count))
