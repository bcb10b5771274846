"""From tokens to words: weights by hand, and which words belong together."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from regard.decoding.word_links import balanced, word_alignment, word_weights, written_spans


def test_weights_of_words_by_hand() -> None:
    """ "ab cd" in three tokens and an end; "x yz" in three: y looks at both halves of cd, z at a."""
    tokens = np.array([[0.5, 0.1, 0.1, 0.3], [0.1, 0.4, 0.4, 0.1], [0.8, 0.1, 0.0, 0.1]], np.float32)
    source = [(0, 2), (3, 4), (4, 5), (0, 0)], [(0, 2), (3, 5)]
    target = [(0, 1), (2, 3), (3, 4)], [(0, 1), (2, 4)]
    found = word_weights(tokens, source, target)
    assert np.allclose(found, [[0.5, 0.2], [0.45, 0.45]])


def test_a_token_in_two_words_counts_for_both_in_half() -> None:
    found = word_weights(np.ones((1, 1), np.float32), ([(0, 3)], [(0, 1), (1, 3)]), ([(0, 1)], [(0, 1)]))
    assert np.allclose(found, [[0.5, 0.5]])


def test_where_written_tokens_stand() -> None:
    assert written_spans(["Der", "Der Hu", "Der Hund", "Der Hund."], "Der Hund.") == [(0, 3), (4, 6), (6, 8), (8, 9)]
    half = ["a\ufffd", "aä", "aä b"]  # a character of two bytes, in two tokens
    assert written_spans(half, "aä b") == [(0, 1), (1, 2), (3, 4)]
    assert written_spans([], "") == []


def table(*rows: list[float]) -> np.ndarray:
    return np.array(rows, np.float32)


def test_each_target_word_takes_what_it_looked_at_most() -> None:
    assert word_alignment(table([0.8, 0.1, 0.1], [0.1, 0.1, 0.8], [0.1, 0.8, 0.1])) == [(0, 0), (1, 2), (2, 1)]


def test_a_word_that_all_look_at_is_shared_out() -> None:
    """Both look at the last word most; the second one is nearly all that looks at the first."""
    assert word_alignment(table([0.1, 0.9], [0.45, 0.55])) == [(0, 1), (1, 0)]


def test_a_source_word_that_nobody_took_joins_where_it_was_looked_at() -> None:
    """As *to the* becomes *zur*."""
    assert word_alignment(table([0.5, 0.5, 0.0], [0.0, 0.0, 1.0])) == [(0, 0), (1, 0), (2, 1)]


def test_words_that_looked_at_nothing_have_no_link() -> None:
    assert word_alignment(table([0.5, 0.2], [0.1, 0.6], [0, 0])) == [(0, 0), (1, 1)]
    for shape in ((0, 3), (2, 0), (2, 3)):
        assert word_alignment(np.zeros(shape, np.float32)) == []


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 99))
def test_shares_are_shares_and_even_ones_stay(targets: int, sources: int, seed: int) -> None:
    weights = np.random.default_rng(seed).random((targets, sources)).astype(np.float32)
    assert np.allclose(balanced(weights).sum(1), 1, atol=1e-5)
    even = np.full((targets, sources), 1 / sources, np.float32)
    assert np.allclose(balanced(even), even, atol=1e-5)
