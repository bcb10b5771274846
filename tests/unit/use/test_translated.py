"""A text's alignment is that of its sentences, side by side."""

from __future__ import annotations

import numpy as np

from regard.use.translation import Alignment, Block, Translation, together


def sentence(words: int) -> Translation:
    names = [f"w{place}" for place in range(words)]
    pairs = [(place, place) for place in range(words)]
    weights = np.full((words, words), words, np.float32)
    return Translation("", 0.0, [], [], True, False, True, Alignment(names, names, pairs, (Block(0, 0, weights),)))


def test_weights_stand_beside_each_other_and_are_zero_across() -> None:
    alignment = together("", [sentence(2), sentence(1), sentence(3)], True).alignment
    assert alignment is not None
    assert alignment.pairs == [(place, place) for place in range(6)]
    expected = np.zeros((6, 6))
    expected[:2, :2], expected[2, 2], expected[3:, 3:] = 2, 1, 3
    assert np.array_equal(alignment.weights, expected)


def test_a_long_text_holds_the_weights_of_its_sentences_alone() -> None:
    """A table of all its words would be 40 GB."""
    alignment = together("", [sentence(10)] * 10_000, True).alignment
    assert alignment is not None
    assert len(alignment.source) == 100_000
    assert sum(block.weights.size for block in alignment.blocks) == 1_000_000
