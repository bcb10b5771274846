"""The best continuations are those that sorting everything finds."""

from __future__ import annotations

import pytest
import torch

from regard.decoding.fast import BLOCK, ROWS, best_continuations


@pytest.mark.parametrize("vocabulary", [7, BLOCK, 3 * BLOCK + 5, 11 * BLOCK, 40 * BLOCK + 1])
@pytest.mark.parametrize(("inputs", "rows"), [(1, 1), (3, 5), (ROWS, 4), (2, ROWS + 1)])
def test_the_best_of_all(vocabulary: int, inputs: int, rows: int) -> None:
    generator = torch.Generator().manual_seed(vocabulary)
    scores = 4 * torch.randn(inputs * rows, vocabulary, generator=generator, dtype=torch.float64) + 30
    sums = -20 * torch.rand(inputs, rows, generator=generator, dtype=torch.float64)
    count = min(2 * rows, rows * vocabulary)
    chances = scores.log_softmax(-1).view(inputs, -1)
    best = (sums.repeat_interleave(vocabulary, 1) + chances).topk(count)
    found = best_continuations(scores, sums, count)
    assert torch.equal(found.parents_BC * vocabulary + found.tokens_BC, best.indices)
    assert torch.allclose(found.sums_BC, best.values, atol=1e-12)
    assert torch.allclose(found.chances_BC, chances.gather(1, best.indices), atol=1e-12)


def test_rows_without_a_chance_come_last() -> None:
    """A beam that is not full has sums of −∞."""
    scores = torch.randn(2, 5 * BLOCK)
    found = best_continuations(scores, torch.tensor([[-torch.inf, -1.0]]), 4)
    assert found.parents_BC.tolist() == [[1] * 4]
    assert torch.equal(found.tokens_BC[0], scores[1].topk(4).indices)


def test_all_best_in_one_block() -> None:
    scores = torch.zeros(1, 9 * BLOCK)
    scores[0, BLOCK : BLOCK + 6] = torch.arange(6, 0, -1).float()
    assert best_continuations(scores, torch.zeros(1, 1), 6).tokens_BC.tolist() == [list(range(BLOCK, BLOCK + 6))]
