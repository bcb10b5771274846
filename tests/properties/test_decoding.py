"""Changes of scores against loops over plain lists, and properties that any search must have."""

from __future__ import annotations

import math
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from decoding_cases import ENDS, contains, inputs, translator
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from regard.decoding.constrained import met, needed, nexts
from regard.decoding.decode import batches, decode
from regard.decoding.rules import RuleBook, draw, shaped
from regard.decoding.settings import (
    LOOP_TIMES,
    LOOP_TOKENS,
    Absolute,
    Beam,
    Hypothesis,
    Job,
    Power,
    Rules,
    Sampling,
    Wish,
)

VOCABULARY = 5
# Multiples of a quarter: sums and comparisons are exact, and ties happen.
rows = st.lists(st.integers(-20, 20).map(lambda n: n / 4), min_size=VOCABULARY, max_size=VOCABULARY)
histories = st.lists(st.integers(0, VOCABULARY - 1), max_size=8)


def assert_changed(scores: list[float], expected: list[float], result: torch.Tensor) -> None:
    assert result.shape == (1, VOCABULARY)
    np.testing.assert_allclose(result[0].numpy(), expected, rtol=1e-12)


def tensor(scores: list[float]) -> torch.Tensor:
    return torch.tensor([scores], dtype=torch.float64)


def applied(scores: list[float], history: list[int], gap: int = 0, **rules: Any) -> torch.Tensor:
    """The scores of the first of two inputs; the second has a longer prompt and one more forbidden word."""
    jobs = [Job(0, []), Job(1, [0] * gap, Wish(must_not=((0,),)))]
    model: Any = SimpleNamespace(device=torch.device("cpu"), reads_source=False, vocabulary=VOCABULARY)
    book = RuleBook(Rules(**rules), jobs, model, ENDS)
    written = torch.tensor([history] * 2, dtype=torch.long)
    return book.apply(torch.cat([tensor(scores)] * 2), written, len(history))[:1]


def softmax(scores: list[float]) -> list[float]:
    weights = [math.exp(score - max(scores)) for score in scores]
    return [weight / sum(weights) for weight in weights]


@given(rows, st.integers(1, VOCABULARY + 2))
def test_top_k(scores: list[float], count: int) -> None:
    least = sorted(scores, reverse=True)[min(count, VOCABULARY) - 1]
    assert_changed(
        scores,
        [score if score >= least else -math.inf for score in scores],
        shaped(tensor(scores), Sampling(top_k=count)),
    )


@given(rows, st.floats(0.05, 0.99))
def test_top_p(scores: list[float], mass: float) -> None:
    order = sorted(range(VOCABULARY), key=lambda i: -scores[i])
    chances, kept, total = softmax(scores), set(), 0.0
    for index in order:
        if total < mass - 1e-9 or not kept:
            kept.add(index)
        elif abs(total - mass) <= 1e-9:
            assume(False)  # rounding decides
        total += chances[index]
    assert_changed(
        scores,
        [s if i in kept else -math.inf for i, s in enumerate(scores)],
        shaped(tensor(scores), Sampling(top_p=mass)),
    )


@given(rows, st.floats(0.01, 0.99))
def test_min_p(scores: list[float], share: float) -> None:
    kept = [math.exp(score - max(scores)) >= share for score in scores]
    expected = [score if keep else -math.inf for score, keep in zip(scores, kept, strict=True)]
    assert_changed(scores, expected, shaped(tensor(scores), Sampling(min_p=share)))


@given(rows, histories, st.floats(0.5, 3.0), st.integers(0, 2))
def test_repetition(scores: list[float], history: list[int], penalty: float, gap: int) -> None:
    expected = [(s * penalty if s < 0 else s / penalty) if i in history else s for i, s in enumerate(scores)]
    assert_changed(scores, expected, applied(scores, history, gap, repetition=penalty))


@given(rows, histories, st.floats(-2, 2), st.floats(-2, 2))
def test_frequency_and_presence(scores: list[float], history: list[int], frequency: float, presence: float) -> None:
    counts = Counter(history)
    expected = [s - counts[i] * frequency - (counts[i] > 0) * presence for i, s in enumerate(scores)]
    assert_changed(scores, expected, applied(scores, history, frequency=frequency, presence=presence))


@given(rows, histories, st.integers(1, 4), st.integers(0, 2))
def test_ngrams(scores: list[float], history: list[int], size: int, gap: int) -> None:
    """A token is forbidden when, written, it would make some n-gram occur twice."""
    expected = list(scores)
    for token in range(VOCABULARY):
        after = [*history, token]
        grams = [tuple(after[i : i + size]) for i in range(len(after) - size + 1)]
        if grams and grams[-1] in grams[:-1]:
            expected[token] = -math.inf
    assert_changed(scores, expected, applied(scores, history, gap, ngram=size))


words = st.lists(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=3).map(tuple), min_size=1, max_size=4)


@given(rows, histories, words)
def test_words(scores: list[float], history: list[int], banned: list[tuple[int, ...]]) -> None:
    after = [[*history, token] for token in range(VOCABULARY)]
    bad = [any(tuple(tokens[-len(word) :]) == word for word in banned) for tokens in after]
    expected = [-math.inf if wrong else score for score, wrong in zip(scores, bad, strict=True)]
    assert_changed(scores, expected, applied(scores, history, must_not=tuple(banned)))


@given(rows, st.integers(0, VOCABULARY - 1), st.floats(0, 1, exclude_max=True))
def test_a_draw_falls_into_its_share(scores: list[float], dead: int, number: float) -> None:
    scores = [-math.inf if i == dead else score for i, score in enumerate(scores)]
    token = int(draw(tensor(scores), torch.tensor([number], dtype=torch.float64)))
    bounds = np.cumsum(softmax(scores))
    assert token != dead
    assert number <= bounds[token] + 1e-9
    assert token == 0 or number >= bounds[token - 1] - 1e-9


@given(histories, histories, st.integers(0, 6))
def test_loops(start: list[int], run: list[int], times: int) -> None:
    tokens = [*start, *run * times]
    expected = any(
        tokens[-size * LOOP_TIMES :] == tokens[-size:] * LOOP_TIMES and len(tokens) >= size * LOOP_TIMES
        for size in range(1, LOOP_TOKENS + 1)
    )
    assert Hypothesis.of(tokens, 0.0, [], False).looped is expected


@given(histories.map(tuple), words)
def test_progress_in_words(tokens: tuple[int, ...], must: list[tuple[int, ...]]) -> None:
    """All is met exactly when each word occurs, and some token always leads on until then."""
    must = needed(must)
    whole = sum(map(len, must))
    assert (met(tokens, must) == whole) is all(contains(word, list(tokens)) for word in must)
    if met(tokens, must) < whole:
        assert any(met((*tokens, token), must) > met(tokens, must) for token in nexts(tokens, must))


@given(st.lists(st.integers(1, 9), max_size=20), st.integers(1, 60), st.integers(1, 5))
def test_batches_hold_everything_once(lengths: list[int], tokens: int, beams: int) -> None:
    jobs = [
        Job(place, [0] * length, Wish(must=[[1]] if length % 4 == 0 else []), 5) for place, length in enumerate(lengths)
    ]
    made = list(batches(jobs, tokens, beams))
    assert sorted(job.index for batch in made for job in batch) == list(range(len(jobs)))
    for batch in made:
        assert len(batch) == 1 or len(batch) * max(len(job.tokens) for job in batch) * beams <= tokens
        assert len({bool(job.wish.must) for job in batch}) == 1


MODEL = translator()


@settings(max_examples=25)
@given(
    place=st.integers(0, 5),
    must=st.lists(st.lists(st.integers(2, 5), min_size=1, max_size=2).map(tuple), min_size=1, max_size=2),
    size=st.integers(1, 5),
    slack=st.integers(0, 4),
)
def test_words_that_must_occur(place: int, must: list[tuple[int, ...]], size: int, slack: int) -> None:
    """Whatever the beam and however short the sequence may be."""
    longest = sum(map(len, needed(must))) + slack
    source = inputs(6)[place]
    rules = Rules(longest=Absolute(tokens=longest))
    beam = Beam(size=size, nbest=size, length=Power(alpha=0.0))
    (found,) = decode(MODEL, [source], ENDS, beam, rules, [Wish(must=must)])
    assert all(contains(word, each.tokens) for each in found for word in must)
    assert found[0].score == sum(found[0].token_scores)
    assert len(found[0].token_scores) <= longest
