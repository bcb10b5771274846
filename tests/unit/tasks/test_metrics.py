"""Metrics against the reference implementations, on random predictions."""

from __future__ import annotations

import random
import re
import string
from collections import Counter

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as reference

from regard.tasks import metrics

RNG = random.Random(0)


def test_classes_equal_scikit_learn() -> None:
    for classes in (2, 3, 5):
        for _ in range(50):
            size = RNG.randrange(8, 60)
            gold, predicted = ([RNG.choice("abcde"[:classes]) for _ in range(size)] for _ in range(2))
            ours = metrics.matthews(gold, predicted)
            assert ours == pytest.approx(reference.matthews_corrcoef(gold, predicted), abs=1e-12)
            expected = reference.f1_score(gold, predicted, labels=["b"], average="macro", zero_division=0)
            assert metrics.f1(gold, predicted, "b") == pytest.approx(expected)


def test_correlations_equal_scipy() -> None:
    for _ in range(50):
        size = RNG.randrange(3, 60)
        gold = [RNG.choice([0.0, 1.5, 2.0, 5.0]) for _ in range(size - 1)] + [7.0]  # many ties
        predicted = [RNG.gauss(value, 2) for value in gold]
        assert metrics.pearson(gold, predicted) == pytest.approx(stats.pearsonr(gold, predicted).statistic)
        assert metrics.spearman(gold, predicted) == pytest.approx(stats.spearmanr(gold, predicted).statistic)
    for constant in ([1.0] * 3, [0.1] * 3):  # the mean of the second one is rounded
        assert np.isnan(metrics.pearson(constant, [1.0, 2.0, 4.0]))
        assert np.isnan(metrics.spearman([1.0, 2.0, 4.0], constant))


def test_spans_equal_seqeval() -> None:
    seqeval = pytest.importorskip("seqeval.metrics")
    tags = ["O", "O", *(f"{mark}-{kind}" for mark in "BIES" for kind in ("PER", "LOC"))]
    for _ in range(200):
        sizes = [RNG.randrange(1, 12) for _ in range(5)]
        gold, predicted = ([[RNG.choice(tags) for _ in range(size)] for size in sizes] for _ in range(2))
        expected = seqeval.f1_score(gold, predicted, zero_division=0)
        assert metrics.span_f1(gold, predicted) == pytest.approx(float(expected))


@pytest.mark.parametrize(
    ("tags", "found"),
    [
        ("B-A I-A O B-A", {("A", 0, 2), ("A", 3, 4)}),
        ("I-A I-A B-A I-B", {("A", 0, 2), ("A", 2, 3), ("B", 3, 4)}),  # IOB1
        ("B-A I-A E-A S-B S-B", {("A", 0, 3), ("B", 3, 4), ("B", 4, 5)}),
        ("O O", set()),
        ("B-A-X I-A-X", {("A-X", 0, 2)}),
    ],
)
def test_entities_of_every_scheme(tags: str, found: set[metrics.Span]) -> None:
    assert metrics.entities(tags.split()) == found


def squad_normalized(text: str) -> str:
    """The rules of the published script: lower case, no punctuation, no articles, single spaces."""
    lower = "".join(character for character in text.lower() if character not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", lower).split())


def squad_f1(predicted: str, gold: str) -> float:
    one, other = squad_normalized(predicted).split(), squad_normalized(gold).split()
    same = sum((Counter(one) & Counter(other)).values())
    if not same:
        return 0.0
    precision, recall = same / len(one), same / len(other)
    return 2 * precision * recall / (precision + recall)


def test_answers_follow_the_rules_of_squad() -> None:
    words = ["The", "a", "Denver", "Broncos", "broncos,", "(won)", "10th", "an", "U.S.", "—"]
    for _ in range(300):
        predicted, *golds = (" ".join(RNG.choices(words, k=RNG.randrange(1, 6))) for _ in range(4))
        if not all(map(squad_normalized, [predicted, *golds])):
            continue
        exact, f1 = metrics.answer_scores(predicted, golds)
        assert exact == max(squad_normalized(predicted) == squad_normalized(gold) for gold in golds)
        assert f1 == pytest.approx(max(squad_f1(predicted, gold) for gold in golds))
    assert metrics.answer_scores("", []) == (1.0, 1.0)
    assert metrics.answer_scores("x", []) == (0.0, 0.0)


def test_brackets_by_hand() -> None:
    """Gold: S 0–5, NP 0–2, VP 2–5, NP 3–5. Found: three of them, and PP 3–5 and NP 4–5."""
    gold = "(TOP (S (NP XX XX) (VP XX (NP XX XX))))"
    found = "(TOP (S (NP XX XX) (VP XX (PP XX (NP XX)))))"
    assert metrics.brackets(gold) == {("S", 0, 5): 1, ("NP", 0, 2): 1, ("VP", 2, 5): 1, ("NP", 3, 5): 1}
    assert metrics.bracket_f1([gold], [found]) == pytest.approx(2 * (3 / 5) * (3 / 4) / (3 / 5 + 3 / 4))
    assert metrics.bracket_f1([gold], [gold]) == 1.0
    assert metrics.bracket_f1([gold], [""]) == 0.0
    assert metrics.brackets("( S ( NP XX") == {("S", 0, 1): 1, ("NP", 0, 1): 1}
    assert metrics.brackets("XX ) ) ( NP XX )") == {("NP", 1, 2): 1}
    assert metrics.brackets("(NP (NP XX))") == {("NP", 0, 1): 2}  # equal ones count as often as they occur


def test_brackets_of_random_trees() -> None:
    """Against spans that are collected while trees are drawn, and the formula of PARSEVAL."""
    draw = random.Random(3)

    def grow(start: int, depth: int, found: list[tuple[str, int, int]]) -> tuple[str, int]:
        if depth == 0 or draw.random() < 0.3:
            return "XX", start + 1
        label, end, parts = draw.choice(("S", "NP", "VP")), start, []
        for _ in range(draw.randint(1, 3)):
            text, end = grow(end, depth - 1, found)
            parts.append(text)
        found.append((label, start, end))
        return f"({label} {' '.join(parts)})", end

    golds, guesses, right = [], [], 0
    for _ in range(40):
        sides: list[list[tuple[str, int, int]]] = [[], []]
        for spans, texts in zip(sides, (golds, guesses), strict=True):
            texts.append((f"(TOP {grow(0, 4, spans)[0]})", spans))
        rest = list(sides[1])
        for span in sides[0]:
            if span in rest:
                rest.remove(span)
                right += 1
    precision, recall = (right / sum(len(spans) for _, spans in side) for side in (guesses, golds))
    expected = 2 * precision * recall / (precision + recall)
    assert metrics.bracket_f1([text for text, _ in golds], [text for text, _ in guesses]) == pytest.approx(expected)
