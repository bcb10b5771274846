"""Reports of translations: by length, the worst, and whether two systems differ."""

from __future__ import annotations

import json
import random

import pytest

from regard.errors import DataError
from regard.use.evaluation import Counting, by_length, compare, evaluate_texts, scores
from regard.use.evaluation import Test as Chance

WORDS = ("red", "green", "blue", "small", "large", "old", "new", "fast", "house", "tree", "river", "stone", "bird")


def corpus(count: int, seed: int = 0) -> list[str]:
    drawn = random.Random(seed)
    return [" ".join(drawn.choices(WORDS, k=drawn.randint(5, 12))) for _ in range(count)]


def spoilt(texts: list[str], share: float, seed: int) -> list[str]:
    """Some words replaced."""
    drawn = random.Random(seed)
    return [" ".join("wrong" if drawn.random() < share else word for word in text.split()) for text in texts]


def test_a_perfect_translation() -> None:
    texts = corpus(20)
    report = evaluate_texts(texts, texts)
    assert {name: round(figure.score, 6) for name, figure in report.figures.items()} == {
        "bleu": 100,
        "chrf": 100,
        "ter": 0,
    }
    assert report.exact == 1
    assert report.sentences == 20


def test_exact_matches_are_to_the_letter() -> None:
    found = scores(["A b c d", "a b c d", "a b c d."], ["a b c d"] * 3)
    assert found["exact"] == pytest.approx(1 / 3)
    assert set(found) == {"bleu", "chrf", "ter", "exact"}


def test_the_tokenised_figure_stands_beside_the_other() -> None:
    report = evaluate_texts(["a b c d ."], ["A B C D ."], tokenized=True)
    assert report.figures["bleu"].score < 50
    assert report.figures["bleu-tokenized"].score == pytest.approx(100)
    assert "|case:lc|eff:no|tok:none|" in report.figures["bleu-tokenized"].signature
    assert "bleu-tokenized" not in evaluate_texts(["a"], ["a"]).figures


def test_lengths_are_those_of_the_sources() -> None:
    sources = ["w " * 3, "w " * 10, "w " * 11, "w " * 51]
    hypotheses = ["a b c d", "a b c d", "x x x x", "a b c d e f g h"]
    rows = by_length(hypotheses, ["a b c d"] * 4, sources, Counting())
    assert [(row.first, row.last, row.sentences) for row in rows] == [(0, 10, 2), (11, 20, 1), (51, None, 1)]
    assert [round(row.bleu, 3) for row in rows[:2]] == [100, 0]
    assert [row.ratio for row in rows] == [1, 1, 2]


def test_without_sources_lengths_are_the_references() -> None:
    report = evaluate_texts(["a"], ["w " * 25])
    assert [(row.first, row.last) for row in report.lengths] == [(21, 30)]


def test_the_worst_come_first() -> None:
    references = ["the house is red", "a small bird sings", "rivers run fast"]
    hypotheses = ["the house is red", "zzz", "rivers run slow"]
    sources = ["eins", "zwei", "drei"]
    worst = evaluate_texts(hypotheses, references, sources, worst=2).worst
    assert [sentence.place for sentence in worst] == [2, 3]
    assert (worst[0].source, worst[0].hypothesis, worst[0].reference) == ("zwei", "zzz", "a small bird sings")
    assert evaluate_texts(hypotheses, references, worst=0).worst == []


def test_a_report_is_json() -> None:
    report = evaluate_texts(["a b"], ["a c"], ["x"], tokenized=True)
    told = json.loads(json.dumps(report.as_table()))
    assert told["figures"]["bleu"]["signature"].startswith("nrefs:1|case:mixed|")
    assert told["worst"][0]["source"] == "x"
    assert told["lengths"][0]["sentences"] == 1


@pytest.mark.parametrize("test", ["bootstrap", "randomization"])
def test_a_better_system_is_told_from_a_worse_one(test: Chance) -> None:
    references = corpus(100)
    better = compare(spoilt(references, 0.2, 1), spoilt(references, 0.4, 2), references, test=test, samples=200)
    assert set(better) == {"bleu", "chrf", "ter"}
    assert all(each.p < 0.02 for each in better.values())
    assert better["bleu"].score > better["bleu"].against
    assert better["ter"].score < better["ter"].against
    assert f"|{'bs' if test == 'bootstrap' else 'ar'}:200|" in better["bleu"].signature


@pytest.mark.parametrize("test", ["bootstrap", "randomization"])
def test_equal_systems_are_rarely_told_apart(test: Chance) -> None:
    """Of twelve pairs that differ by chance alone, p < 0.05 is expected in 0.6; more than 3 come once in 450 times."""
    references = corpus(60)
    found = [
        compare(spoilt(references, 0.2, seed), spoilt(references, 0.2, 100 + seed), references, test=test, samples=60)
        for seed in range(12)
    ]
    assert sum(each["bleu"].p < 0.05 for each in found) <= 3


def test_the_same_translations_do_not_differ() -> None:
    references = corpus(20)
    ours = spoilt(references, 0.3, 1)
    assert {each.p for each in compare(ours, ours, references, samples=50).values()} == {1.0}


def test_comparisons_repeat() -> None:
    references = corpus(20)
    ours, others = spoilt(references, 0.3, 1), spoilt(references, 0.3, 2)
    assert compare(ours, others, references, samples=50) == compare(ours, others, references, samples=50)


def test_unequal_numbers() -> None:
    with pytest.raises(DataError, match="there are 1 sources and 2 references; give as many of both"):
        evaluate_texts(["a", "b"], ["a", "b"], ["x"])
    with pytest.raises(DataError, match="there are 1 translations and 2 references"):
        compare(["a", "b"], ["a"], ["a", "b"])
