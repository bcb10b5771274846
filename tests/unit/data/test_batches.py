"""Plans of batches: the same for the same seed and epoch, with little waste, balanced over processes."""

from __future__ import annotations

import numpy as np
import pytest
from data_cases import listed, sentence_lengths

from regard.data.batches import Group, Lengths, PackedPlan, PaddedPlan, Plan, Share
from regard.data.loader import Planner
from regard.errors import DataError, SettingsError


def epoch(planner: Planner, number: int = 0) -> list[Group]:
    return [step for pool in range(planner.pools) for step in planner.steps(number, pool)]


PLANS: tuple[Plan, ...] = (PaddedPlan(200, pool=3), PackedPlan(4, (64, 64), pool=3))


def test_seed_and_epoch_decide_everything_and_a_pool_is_planned_alone() -> None:
    lengths = listed(np.random.default_rng(0).integers(1, 40, size=(500, 2)))
    for plan in PLANS:

        def order(seed: int, number: int, plan: Plan = plan) -> list[int]:
            return [int(i) for step in epoch(Planner(plan, lengths, seed), number) for i in step.examples]

        assert order(1, 0) == order(1, 0)
        assert order(1, 0) != order(1, 1)
        assert order(1, 0) != order(2, 0)
        through = Planner(plan, lengths, seed=1)
        before = [through.steps(number, pool) for number in (0, 1) for pool in range(through.pools)]
        assert through.pools > 5
        alone = Planner(plan, lengths, seed=1).steps(1, 4)
        expected = before[through.pools + 4]
        assert [step.examples.tolist() for step in alone] == [step.examples.tolist() for step in expected]


def test_little_is_wasted() -> None:
    """On lengths like those of sentences, sorted buckets and packed rows are nearly full."""
    lengths = sentence_lengths(20_000, 1)
    steps = epoch(Planner(PaddedPlan(4096), listed(lengths), 0))
    assert lengths.sum() / sum(len(step.examples) * int(step.lengths.max()) for step in steps) > 0.95
    steps = epoch(Planner(PackedPlan(32, (128,)), listed(lengths), 0))
    assert lengths.sum() / (128 * 32 * len(steps)) > 0.97
    two = listed(sentence_lengths(20_000, 2))
    plan = PackedPlan.for_lengths(two, 16_384)
    rows = sum(len(step.bounds) - 1 for step in epoch(Planner(plan, two, 0)) if step.bounds is not None)
    for mean, width in zip(two.means, plan.widths, strict=True):
        assert mean * 20_000 / (rows * width) > 0.95


def test_examples_that_fit_no_step_are_refused() -> None:
    for plan, rows, message in (
        (PaddedPlan(10), ([5], [11], [30]), r"2 examples are longer than train\.tokens \(10\), the longest has 30"),
        (PackedPlan(1, (10,)), ([5], [11], [30]), r"2 examples are longer than widths \(10\)"),
        (PackedPlan(1, (10, 20), longest=8), ([5, 5], [3, 9]), r"1 examples are longer than longest \(8\)"),
    ):
        with pytest.raises(DataError, match=message):
            Planner(plan, listed(np.array(rows)), 0)
    for plan in PLANS:
        with pytest.raises(DataError, match="no examples"):
            Planner(plan, listed(np.zeros((0, 2), dtype=np.int64)), 0)


def test_rows_follow_from_the_lengths() -> None:
    lengths = listed(np.array([[20, 40], [40, 60]]))  # means 30 and 50
    plan = PackedPlan.for_lengths(lengths, 1000)
    assert plan.widths == (160, 256)  # 256 · 30 / 50 = 153.6, up to the next multiple of 8
    assert plan.rows == 3
    assert plan.most == 11  # twice 256 / 50
    assert plan.longest == 60
    assert plan.fillers == 5  # 256 = 4 · 60 + 16
    plan = PackedPlan.for_lengths(listed(np.array([[500, 10], [1, 300]])), 1000)
    assert plan.widths == (504, 304)
    assert PackedPlan.for_lengths(listed(np.array([[3], [90]])), 100).widths == (100,)
    assert PackedPlan.for_lengths(listed(np.array([[3], [9]])), 100, row=10).widths == (10,)
    with pytest.raises(SettingsError, match=r"train\.row \(200\)"):
        PackedPlan.for_lengths(listed(np.array([[3]])), 100, row=200)
    with pytest.raises(DataError, match=r"1 examples are longer than train.row \(8\), the longest has 9 tokens"):
        PackedPlan.for_lengths(listed(np.array([[3], [9]])), 100, row=8)
    with pytest.raises(DataError, match=r"1 examples are longer than train.tokens \(100\), the longest has 101 tokens"):
        PackedPlan.for_lengths(listed(np.array([[3], [101]])), 100)


def test_examples_of_one_length_make_full_steps_but_for_the_last() -> None:
    plan = PackedPlan.alike(tokens=1000, length=100)
    planner = Planner(plan, Lengths(4321, ((None, 100),)), seed=0)
    sizes = [len(step.examples) for step in epoch(planner)]
    assert planner.pools > 3
    assert sorted(sizes) == [1, *[10] * 432]
    assert PackedPlan.alike(1000, 100, examples=4).rows == 4
    with pytest.raises(SettingsError, match=r"train\.tokens \(99\)"):
        PackedPlan.alike(99, 100)


def test_a_padded_step_is_split_evenly() -> None:
    """Ten examples over four processes: none has more than three, and none waits for a second batch."""
    step = Group(np.arange(10), np.full((10, 1), 5))
    parts = PaddedPlan(50).split(step, Share(world=4))
    assert [len(part.examples) for part in parts] == [3, 3, 3, 1]
    step = Group(np.arange(6), np.array([[10], [9], [4], [4], [3], [2]]))
    parts = PaddedPlan(60).split(step, Share(micro=20))
    assert [part.examples.tolist() for part in parts] == [[0, 1], [2, 3, 4, 5]]
    alone = PaddedPlan(60).split(step, Share(micro=1))
    assert [part.examples.tolist() for part in alone] == [[i] for i in range(6)]
    # Padding to a multiple counts against the budget.
    lengths = listed(np.full((12, 1), 9))
    steps = epoch(Planner(PaddedPlan(64, multiple=8), lengths, 0))
    assert [len(step.examples) for step in steps] == [4, 4, 4]
    assert [PaddedPlan(64, multiple=8).cells(step) for step in steps] == [64, 64, 64]
