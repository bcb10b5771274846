"""Metrics of predictions: F1, Matthews correlation, correlations, F1 of spans and of brackets, scores of answers.

They follow the usual reference implementations, which the tests compare them with: scikit-learn, SciPy, seqeval and the
published script of SQuAD 1.1.
"""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Span: TypeAlias = tuple[str, int, int]
"""The type of an entity, its first word, and the word after its last one."""
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def f1(gold: Sequence[object], predicted: Sequence[object], positive: object) -> float:
    """The harmonic mean of precision and recall of one class; 0 without any true positive."""
    right = sum(pair == (positive, positive) for pair in zip(gold, predicted, strict=True))
    return _f1(right, list(gold).count(positive), list(predicted).count(positive))


def _f1(right: int, gold: int, predicted: int) -> float:
    return 2 * right / (gold + predicted) if right else 0.0


def matthews(gold: Sequence[object], predicted: Sequence[object]) -> float:
    """The correlation of classes (Matthews 1975; Gorodkin 2004 for more than two); 0 if one side has one class only."""
    right = sum(one == other for one, other in zip(gold, predicted, strict=True))
    golds, guesses, total = Counter(gold), Counter(predicted), len(gold)
    shared = sum(golds[name] * guesses[name] for name in golds)
    spread = [total**2 - sum(count**2 for count in each.values()) for each in (golds, guesses)]
    return (right * total - shared) / math.sqrt(spread[0] * spread[1]) if all(spread) else 0.0


def pearson(gold: Sequence[float], predicted: Sequence[float]) -> float:
    """The linear correlation; NaN if one side is constant."""
    one, other = (np.asarray(each, np.float64) - np.mean(each, dtype=np.float64) for each in (gold, predicted))
    scale = math.sqrt(float(one @ one) * float(other @ other))
    varied = len({*gold}) > 1 and len({*predicted}) > 1  # the mean of equal numbers is rounded
    return float(one @ other) / scale if scale and varied else math.nan


def spearman(gold: Sequence[float], predicted: Sequence[float]) -> float:
    """The linear correlation of the ranks."""
    return pearson(_ranks(gold), _ranks(predicted))


def _ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 1; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(np.asarray(values, np.float64), return_inverse=True, return_counts=True)
    ends: NDArray[np.int64] = np.cumsum(counts)
    ranks: list[float] = (ends - (counts - 1) / 2)[inverse].tolist()
    return ranks


def entities(tags: Sequence[str]) -> set[Span]:
    """The entities of a sentence in IOB1, IOB2 or BIOES (IOBES), read as conlleval reads them."""
    found: set[Span] = set()
    start, before, name = 0, "O", ""
    for place, tag in enumerate([*tags, "O"]):
        mark, _, kind = tag.partition("-")
        if before != "O" and (mark in "OBS" or before in "ES" or kind != name):
            found.add((name, start, place))
            before = "O"
        if mark != "O" and before == "O":
            start = place
        before, name = mark, kind
    return found


def span_f1(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> float:
    """F1 of entities over all sentences; an entity counts if its type and both its ends are right."""
    return _common([Counter(entities(tags)) for tags in gold], [Counter(entities(tags)) for tags in predicted])


def _common(gold: Sequence[Counter[Span]], predicted: Sequence[Counter[Span]]) -> float:
    counts = [((one & other).total(), one.total(), other.total()) for one, other in zip(gold, predicted, strict=True)]
    return _f1(*map(sum, zip(*counts, strict=True)))


_BRACKETS = re.compile(r"\(\s*([^\s()]*)|(\))|[^\s()]+")


def brackets(tree: str) -> Counter[Span]:
    """The labelled constituents of a tree in brackets: label, first word, and the word after the last one.

    As EVALB counts them: the root (TOP) does not count, equal ones count as often as they occur. A tree that ends too
    early is completed, and brackets that close nothing are ignored.
    """
    found: Counter[Span] = Counter()
    open_: list[tuple[str, int]] = []
    words = 0
    for match in _BRACKETS.finditer(tree + ")" * tree.count("(")):
        label, closing = match.groups()
        if label is not None:
            open_.append((label, words))
        elif closing is None:
            words += 1
        elif open_:
            name, start = open_.pop()
            if name not in ("", "TOP") and words > start:
                found[name, start, words] += 1
    return found


def bracket_f1(gold: Sequence[str], predicted: Sequence[str]) -> float:
    """F1 of labelled constituents over all sentences (Black et al. 1991: PARSEVAL)."""
    return _common([brackets(tree) for tree in gold], [brackets(tree) for tree in predicted])


def normalized_answer(text: str) -> str:
    """Lower case, without punctuation and articles, as SQuAD's script compares answers."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def answer_scores(predicted: str, golds: Sequence[str]) -> tuple[float, float]:
    """Exact match and F1 of words of an answer: the best over the given ones; without any, it must be empty."""
    guess = normalized_answer(predicted)
    exact = f1_best = 0.0
    for gold in map(normalized_answer, golds or [""]):
        shared = sum((Counter(guess.split()) & Counter(gold.split())).values())
        equal = float(guess == gold)
        exact = max(exact, equal)
        f1_best = max(f1_best, _f1(shared, len(gold.split()), len(guess.split())) if gold and guess else equal)
    return exact, f1_best
