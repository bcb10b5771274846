"""sacreBLEU's figures, held against numbers worked out by hand."""

from __future__ import annotations

import pytest

from regard.errors import DataError, SettingsError
from regard.use.evaluation import Counting, figures

REFERENCE = ["a b c d f"]
HYPOTHESIS = ["a b c d e"]


def corpus_bleu(hypotheses: list[str], references: list[str], tokenize: str = "13a") -> float:
    return figures(hypotheses, references, ("bleu",), counting=Counting(tokenize=tokenize))["bleu"].score


def test_bleu_by_hand() -> None:
    """4 of 5 words, 3 of 4 pairs, 2 of 3 threes, 1 of 2 fours; the lengths are equal."""
    expected = 100 * (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** (1 / 4)
    assert corpus_bleu(HYPOTHESIS, REFERENCE) == pytest.approx(expected)
    assert corpus_bleu(HYPOTHESIS, REFERENCE, tokenize="none") == pytest.approx(expected)


def test_ter_by_hand() -> None:
    """One word of five is to be replaced."""
    assert figures(HYPOTHESIS, REFERENCE, ("ter",))["ter"].score == pytest.approx(20)


def test_chrf_of_all_and_of_nothing() -> None:
    assert figures(["abc def"], ["abc def"], ("chrf",))["chrf"].score == pytest.approx(100)
    assert figures(["xyz uvw"], ["abc def"], ("chrf",))["chrf"].score == 0


def test_case_counts_unless_asked() -> None:
    upper = ["A B C D F"]
    assert figures(upper, REFERENCE)["bleu"].score == 0
    lower = figures(upper, REFERENCE, counting=Counting(lowercase=True))
    assert lower["bleu"].score == pytest.approx(100)
    assert lower["chrf"].score == pytest.approx(100)
    assert lower["ter"].score == 0
    assert figures(upper, REFERENCE)["ter"].score == pytest.approx(100)
    assert "|case:lc|" in lower["bleu"].signature


def test_words_are_cut_or_not() -> None:
    """13a cuts punctuation off; without that, `f.` is another word than `f`."""
    assert corpus_bleu(["a b c d f."], ["a b c d f ."]) == pytest.approx(100)
    assert corpus_bleu(["a b c d f."], ["a b c d f ."], tokenize="none") < 80
    assert "|tok:none|" in figures(HYPOTHESIS, REFERENCE, counting=Counting(tokenize="none"))["bleu"].signature


def test_a_corpus_is_no_mean_of_sentences() -> None:
    hypotheses, references = ["a b c d", "x x x x"], ["a b c d", "a b c d"]
    assert corpus_bleu(hypotheses, references) == pytest.approx(50)


def test_nothing_and_unequal_numbers() -> None:
    with pytest.raises(DataError, match="there are 2 translations and 1 references; give one reference for each"):
        corpus_bleu(["a", "b"], ["a"])
    with pytest.raises(DataError, match="there is nothing to score: no references"):
        corpus_bleu([], [])


def test_an_unknown_tokenizer() -> None:
    with pytest.raises(SettingsError, match=r"tokenize \(13b\) is not known \(did you mean 13a\?\); choose 13a, none"):
        corpus_bleu(["a"], ["a"], tokenize="13b")
