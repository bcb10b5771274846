"""What is taken out of a sentence is put back, where its words went and in its order."""

from __future__ import annotations

import pytest

from regard.text.placing import LEVELS, copied, lost_numbers, put_back, show
from regard.text.protect import find
from regard.text.tokenizer import word_spans

SENTENCES = [
    "The <b>dog</b> sees {name}.",
    "Visit <b>the <i>big</i></b> {name} at https://a.de/x <img src='1'/> now &amp; here.",
    "{a}{b} The dog {c} {d}",
    "({x}) [{y}] %d%% „{z}“, dog",
    "H<sub>2</sub>O and a<b>b</b>c",
    "<b>dog</b>",
]


@pytest.mark.parametrize("level", range(LEVELS))
@pytest.mark.parametrize("sentence", SENTENCES)
def test_a_model_that_copies_changes_nothing(sentence: str, level: int) -> None:
    shown = show(sentence, find(sentence), level, lambda word: True)
    words = word_spans(shown.text)
    assert "<" not in shown.text
    assert "{" not in shown.text
    assert put_back(shown, shown.text, words, words, [(i, i) for i in range(len(words))]) == sentence
    assert copied(shown, shown.text)


def test_stand_ins_are_new_words_that_can_be_written() -> None:
    sentence = "X1 {a} {b} %d"
    shown = show(sentence, find(sentence), 0, lambda word: True)
    assert shown.text == "X1 Y1 Z1 212"
    assert show(sentence, find(sentence), 0, lambda word: word.isdigit()).text == "X1 212"
    assert show(sentence, find(sentence), 1, lambda word: True).text == "X1 212 323 Y1"
    assert show(sentence, find(sentence), 2, lambda word: True).text == "X1"


@pytest.mark.parametrize("written", ["a", "X1 X1", "X12", "aX1", "X1s"])
def test_a_stand_in_must_stand_once_and_alone(written: str) -> None:
    assert not copied(show("{a}", find("{a}"), 0, lambda word: True), written)


def test_a_figure_that_stands_in_is_no_part_of_another() -> None:
    shown = show("%d", find("%d"), 0, lambda word: True)
    assert copied(shown, "a 212.")
    assert not copied(shown, "a 1,212")
    assert not copied(shown, "a 212.5")
    assert lost_numbers(shown, "a 212") == []


def test_tags_cover_what_their_words_became() -> None:
    """b covers two words that end up apart, with another one between."""
    shown = show("a <b>c d</b> e", find("a <b>c d</b> e"), 0, lambda word: True)
    written = "C A D E"
    assert put_back(shown, written, word_spans("a c d e"), word_spans(written), [(0, 1), (1, 0), (2, 2), (3, 3)]) == (
        "<b>C A D</b> E"
    )


def test_tags_stay_in_their_order_even_where_words_change_places() -> None:
    sentence = "<b>a</b> <i>c</i>"
    shown = show(sentence, find(sentence), 0, lambda word: True)
    found = put_back(shown, "C A", word_spans("a c"), word_spans("C A"), [(0, 1), (1, 0)])
    assert [found[found.index(tag)] for tag in ("<b>", "</b>", "<i>", "</i>")] == ["<"] * 4
    assert found.index("<b>") < found.index("</b>") < found.index("<i>") < found.index("</i>")


def test_without_an_alignment_nothing_is_lost() -> None:
    shown = show("a {x} b", find("a {x} b"), LEVELS, lambda word: True)
    assert put_back(shown, "c d").count("{x}") == 1
    assert put_back(shown, "") == "{x}"
