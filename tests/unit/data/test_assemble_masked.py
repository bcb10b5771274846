"""Masked texts: which tokens are hidden, what stands in their place, and that nothing but the example decides it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from data_cases import END, MASK, PAD, START, framed_texts, prepared

from regard.data.assemble import Draw
from regard.data.assemble_grid import lay
from regard.data.assemble_masked import GOLDEN, MaskedDocuments, MaskedWindows, Masking, chances, mixed
from regard.data.batch import IGNORED, TextBatch
from regard.data.batches import Group, PackedPlan, PaddedPlan, Plan, Share
from regard.data.loader import Planner

SPECIAL = (PAD, START, END)
BERT = Masking(mask=MASK, vocabulary=1000, special=SPECIAL)


def test_random_bits_are_those_of_splitmix64() -> None:
    """The first numbers of SplitMix64 from the seed 1234567, as published on Rosetta Code."""
    states = np.uint64(1234567) + np.arange(1, 6, dtype=np.uint64) * GOLDEN
    assert mixed(states).tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_each_token_of_each_example_and_epoch_has_its_own_chance() -> None:
    lengths = np.array([3, 0, 500, 40])
    bits = chances(Draw(1, 0), np.array([7, 8, 9, 10]), lengths)
    assert len(set(bits.tolist())) == 543
    again = chances(Draw(1, 0), np.array([10, 9]), np.array([40, 500]))
    assert again.tolist() == [*bits[-40:].tolist(), *bits[3:503].tolist()]
    for other in (Draw(2, 0), Draw(1, 1)):
        assert not set(chances(other, np.array([7, 8, 9, 10]), lengths).tolist()) & set(bits.tolist())


def test_chances_are_even_over_examples_and_places() -> None:
    bits = chances(Draw(0, 0), np.arange(2000), np.full(2000, 64)).reshape(2000, 64)
    share = bits / 2.0**64
    # The mean of 128,000 even numbers strays by 0.0008, that of 2,000 by 0.0065, that of 64 by 0.036.
    assert abs(share.mean() - 0.5) < 0.004
    assert abs(share.mean(axis=0) - 0.5).max() < 0.032
    assert abs(share.mean(axis=1) - 0.5).max() < 0.18
    neighbours = [
        np.corrcoef(share[:-1].ravel(), share[1:].ravel()),
        np.corrcoef(share[:, :-1].ravel(), share[:, 1:].ravel()),
    ]
    assert all(abs(found[0, 1]) < 0.02 for found in neighbours)


def test_shares_are_those_of_the_paper() -> None:
    """15 % are predicted; of these 80 % are hidden, 10 % random, 10 % as they were (Devlin et al. 2019, A.1)."""
    tokens = np.random.default_rng(0).integers(0, 1000, 400_000)
    read, chosen = BERT.apply(tokens, chances(Draw(0, 0), np.arange(400), np.full(400, 1000)), len(tokens))
    maskable = ~np.isin(tokens, [*SPECIAL, MASK])
    assert maskable[chosen].all()
    assert len(chosen) / maskable.sum() == pytest.approx(0.15, abs=0.003)
    now, before = read[chosen], tokens[chosen]
    assert (now == MASK).mean() == pytest.approx(0.8, abs=0.01)
    assert (now == before).mean() == pytest.approx(0.1, abs=0.01)
    drawn = now[(now != MASK) & (now != before)]
    assert len(drawn) / len(chosen) == pytest.approx(0.1, abs=0.01)
    assert not np.isin(drawn, SPECIAL).any()
    # Each of the 996 ordinary tokens is drawn about six times.
    assert len(np.unique(drawn)) > 960
    untouched = np.ones(len(tokens), bool)
    untouched[chosen] = False
    assert (read[untouched] == tokens[untouched]).all()


@pytest.mark.parametrize(("hidden", "random", "wanted"), [(1.0, 0.0, {MASK}), (0.0, 0.0, {5}), (0.0, 1.0, {4, 5, 6})])
def test_shares_may_be_others(hidden: float, random: float, wanted: set[int]) -> None:
    masking = Masking(MASK, 7, SPECIAL, rate=1.0, hidden=hidden, random=random)
    read, chosen = masking.apply(np.full(200, 5), chances(Draw(0, 0), np.array([0]), np.array([200])), 200)
    assert len(chosen) == 200
    assert set(read.tolist()) == wanted


def test_what_exceeds_the_capacity_is_not_hidden() -> None:
    masking = Masking(MASK, 13, SPECIAL, rate=1.0, hidden=1.0, random=0.0)
    read, chosen = masking.apply(np.full(9, 5), chances(Draw(0, 0), np.array([0]), np.array([9])), most=4)
    assert chosen.tolist() == [0, 1, 2, 3]
    assert read.tolist() == [MASK] * 4 + [5] * 5


def test_the_capacity_is_hardly_ever_reached() -> None:
    """Six standard deviations of a binomial: 1,000 cells at 15 % give 150 ± 11.3."""
    assert BERT.capacity(1000) == 218
    assert BERT.capacity(3) == 3
    chance = np.random.default_rng(0)
    for cells in (16, 64, 256, 4096):
        assert chance.binomial(cells, 0.15, 100_000).max() <= BERT.capacity(cells)


def test_masked_documents_by_hand(tmp_path: Path) -> None:
    data = prepared(tmp_path / "a", {"text": [[START, 5, 6, END], [START, 7, END]]})
    masking = Masking(MASK, 13, SPECIAL, rate=1.0, hidden=1.0, random=0.0)
    masked = MaskedDocuments(data, PAD, masking)
    numbers = np.array([0, 1])
    lengths = masked.lengths.of(numbers)
    assert lengths.tolist() == [[4], [3]]
    batch = masked.assemble(numbers, lay(Group(numbers, lengths), PaddedPlan(100)), Draw(0, 0))
    assert batch.text.tokens.tolist() == [[START, MASK, MASK, END], [START, MASK, END, PAD]]
    assert batch.chosen is not None
    assert batch.chosen.tolist() == [1, 2, 5, 0, 0, 0, 0, 0]
    assert batch.labels.tolist() == [5, 6, 7, *[IGNORED] * 5]


def test_masked_windows_by_hand(tmp_path: Path) -> None:
    data = prepared(tmp_path / "a", {"text": [[5, 6, END], [7, 8, 9, END]]})
    masked = MaskedWindows(data, PAD, Masking(MASK, 13, SPECIAL, rate=1.0, hidden=1.0, random=0.0), context=3)
    assert len(masked.lengths) == 2
    group = Group(np.array([1, 0]), masked.lengths.of(np.array([1, 0])), np.array([0, 1, 1, 2]))
    plan = PackedPlan.alike(9, 3)
    batch = masked.assemble(group.examples, lay(group, plan), Draw(0, 0))
    assert batch.text.tokens.tolist() == [[MASK] * 3, [PAD] * 3, [MASK, MASK, END]]
    assert batch.chosen is not None
    assert batch.chosen.tolist() == [0, 1, 2, 6, 7, 0, 0, 0, 0]
    assert batch.labels.tolist() == [7, 8, 9, 5, 6, *[IGNORED] * 4]
    assert batch.text.layout.lengths_B is None  # type: ignore[union-attr]


def hidden_in(
    assembler: MaskedDocuments | MaskedWindows, plan: Plan, share: Share, epoch: int
) -> list[tuple[int, ...]]:
    """What is read in the place of what, with its neighbour before it: over an epoch, in no order."""
    planner = Planner(plan, assembler.lengths, seed=1)
    found = []
    for step in (step for pool in range(planner.pools) for step in planner.steps(epoch, pool)):
        for part in plan.split(step, share):
            batch = assembler.assemble(part.examples, lay(part, plan), Draw(1, epoch))
            assert isinstance(batch, TextBatch)
            assert batch.chosen is not None
            flat = batch.text.tokens.flatten()
            real = batch.labels != IGNORED
            before = flat[(batch.chosen[real] - 1).clamp(min=0)]
            found += list(
                zip(before.tolist(), flat[batch.chosen[real]].tolist(), batch.labels[real].tolist(), strict=True)
            )
    return sorted(found)


@pytest.mark.parametrize("windows", [False, True], ids=["documents", "windows"])
def test_the_same_tokens_are_hidden_however_a_step_is_split(tmp_path: Path, windows: bool) -> None:
    data = framed_texts(tmp_path / "texts", 200)
    masking = Masking(MASK, 13, SPECIAL)
    assembler = MaskedWindows(data, PAD, masking, 8) if windows else MaskedDocuments(data, PAD, masking)
    packed = PackedPlan.alike(64, 8) if windows else PackedPlan.for_lengths(assembler.lengths, 64, 16)
    once = hidden_in(assembler, PaddedPlan(128), Share(), 0)
    assert len(once) > 50
    for plan, share in (
        (PaddedPlan(128), Share(world=3, micro=20)),
        (packed, Share()),
        (packed, Share(world=2, micro=16)),
    ):
        if windows:  # a window's first token has no neighbour of its own
            assert [row[1:] for row in sorted(hidden_in(assembler, plan, share, 0), key=lambda row: row[1:])] == [
                row[1:] for row in sorted(once, key=lambda row: row[1:])
            ]
        else:
            assert hidden_in(assembler, plan, share, 0) == once
    assert hidden_in(assembler, PaddedPlan(128), Share(), 1) != once


@pytest.mark.parametrize("plan", [PaddedPlan(64), PackedPlan(4, (16,))], ids=["padded", "packed"])
def test_the_number_of_predictions_follows_from_the_shape(tmp_path: Path, plan: Plan) -> None:
    masked = MaskedDocuments(framed_texts(tmp_path / "texts", 100), PAD, Masking(MASK, 13, SPECIAL))
    planner = Planner(plan, masked.lengths, seed=0)
    seen: dict[int, set[int]] = {}
    for step in planner.steps(0, 0):
        batch = masked.assemble(step.examples, lay(step, plan), Draw(0, 0))
        assert batch.chosen is not None
        assert batch.labels.shape == batch.chosen.shape
        seen.setdefault(batch.text.tokens.numel(), set()).add(len(batch.chosen))
    assert all(len(counts) == 1 for counts in seen.values())
