"""Sentences on their way through a model that is a function, so that everything it reads and writes is known."""

from __future__ import annotations

import re
import time

import pytest
from scripted_translator import ScriptedTranslator, scripted, word_by_word

from regard.errors import InputError
from regard.text.settings import Words


def test_sentences_go_alone_and_come_back_with_their_white_space() -> None:
    model = scripted()
    text = "  The dog sees.  The cat!\n\n\tThe big dog?\r\nThe cat "
    assert model.translate(text) == "  Der Hund sieht.  Der Katze!\n\n\tDer große Hund?\r\nDer Katze "
    assert model.asked == ["The dog sees.", "The cat!", "The big dog?", "The cat"]


@pytest.mark.parametrize("text", ["", " ", "\n", " \t\u2028 ", "1234", "--- !?", "3,5 %", "😀", "{name}", "<br/>"])
def test_what_has_no_words_is_never_asked(text: str) -> None:
    model = scripted(lambda text: "nonsense")
    assert model.translate(text) == text
    assert model.asked == []


def test_scripts_without_spaces_get_none_and_others_one() -> None:
    model = scripted(lambda text: {"犬。": "Dog.", "猫。": "Cat."}.get(text, "犬。"))
    assert model.translate("犬。猫。") == "Dog. Cat."
    assert model.translate("The dog。The cat。") == "犬。犬。"


def test_without_splitting_lines_still_go_alone() -> None:
    model = scripted()
    assert model.translate("The dog. The cat.\nThe dog.", split=False) == "Der Hund. Der Katze.\nDer Hund."
    assert model.asked == ["The dog. The cat.", "The dog."]


def test_a_sentence_beyond_the_reach_is_cut_at_commas_then_at_spaces() -> None:
    model = scripted()
    model.reach = 20
    text = "the dog the cat, the big dog the big cat the dog"
    assert model.translate(text) == word_by_word(text)
    assert model.asked[0] == "the dog the cat,"
    assert all(len(each) < 20 for each in model.asked)
    assert " ".join(model.asked) == text


def test_words_that_must_occur_need_a_text_in_one_piece() -> None:
    model = ScriptedTranslator(lambda text, wish: [f"{text} {len(wish.must)}"])
    assert model.translate("The dog. The cat.", must=["Hund"], keep=False) == "The dog. The cat. 1"
    model.reach = 10
    with pytest.raises(InputError, match=r"must needs a text in one piece, and one \('The dog sees.*shorten it"):
        model.translate("The dog sees the cat.", must=["Hund"])


# ---------------------------------------------------------------------------------------------------------- keeping


def test_placeholders_and_addresses_go_as_words_that_are_copied() -> None:
    model = scripted()
    text = "The dog sees {name} at https://a.org/x?y=1, today."
    assert model.translate(text) == "Der Hund sieht {name} at https://a.org/x?y=1, heute."
    assert model.asked == ["The dog sees X1 at Y1, today."]


def test_a_stand_in_that_is_lost_is_followed_by_another_and_at_last_by_none() -> None:
    """X1 is never copied, 212 is; then nothing is."""
    first = scripted(lambda text: re.sub(r"X1", "X2", word_by_word(text)))
    assert first.translate("The dog sees {name} today.") == "Der Hund sieht {name} heute."
    assert first.asked == ["The dog sees X1 today.", "The dog sees 212 today."]
    neither = scripted(lambda text: re.sub(r" (X1|212)", "", word_by_word(text)))
    assert neither.translate("The dog sees {name} today.") == "Der Hund sieht {name} heute."
    assert neither.asked[-1] == "The dog sees today."
    twice = scripted(lambda text: re.sub(r"(X1|212)", r"\1 \1", word_by_word(text)))
    assert twice.translate("The dog sees {name} today.").count("{name}") == 1


def test_the_first_hypothesis_that_keeps_everything_is_taken() -> None:
    model = ScriptedTranslator(lambda text, wish: ["kein Hund", "Hund X1", "7 Hund X1 X1", "7 Hund X1"])
    found = model.translate("7 dog {name}", details=True)
    assert (found.text, found.kept) == ("7 Hund {name}", True)
    assert len(model.asked) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The <b>dog</b> sees.", "Der <b>Hund</b> sieht."),
        ("<i>The <b>big dog</b></i> sees <br/>the cat.", "<i>Der <b>große Hund</b></i> sieht <br/>der Katze."),
        ("<p>The dog.</p><p>The cat.</p>", "<p>Der Hund.</p><p>Der Katze.</p>"),
        ("<b>The dog sees. The cat</b> today.", "<b>Der Hund sieht. Der Katze</b> heute."),
        ("The dog &amp; cat &lt; &eacute;", "Der Hund &amp; Katze &lt; é"),
        ("The <x id='1'/> dog", "Der <x id='1'/> Hund"),
        ("The dog <code>the cat</code>", "Der Hund <code>the cat</code>"),
        ("<!-- the dog --> The dog<script>the('dog')</script>", "<!-- the dog --> Der Hund<script>the('dog')</script>"),
    ],
)
def test_tags_stay_with_their_words(text: str, expected: str) -> None:
    assert scripted().translate(text) == expected


def test_tags_follow_words_that_move() -> None:
    def first_word_last(text: str) -> str:
        first, *rest = word_by_word(text).removesuffix(".").split()
        return f"{' '.join(rest)} {first}."

    assert scripted(first_word_last).translate("<b>Today</b> sees the dog.") == "sieht der Hund <b>Heute</b>."


def test_nothing_is_looked_for_without_keep() -> None:
    model = scripted()
    assert model.translate("The {dog} <b>cat</b> 1", keep=False) == "Der {Hund} <b>Katze</b> 1"
    assert model.asked == ["The {dog} <b>cat</b> 1"]


@pytest.mark.parametrize(
    "text",
    [
        "<b>" * 5_000 + "the dog" + "</b>" * 5_000,
        "{a} " * 2_000,
        "<p>the dog</p>" * 500,
        "{x}" * 5_000 + " the",
        "the <wbr>, " * 300,
        "the<b> </b>" * 200,
        "the <b>dog</b> " * 100,
    ],
)
def test_hostile_texts_take_little_time(text: str) -> None:
    began = time.perf_counter()
    found = scripted().translate(text)
    assert time.perf_counter() - began < 20
    assert re.findall("<[^<>]*>", found) == re.findall("<[^<>]*>", text)
    assert re.findall(r"\w+", re.sub("<[^<>]*>", " ", found)) == re.findall(
        r"\w+", word_by_word(re.sub("<.*?>", " ", text))
    )


# ---------------------------------------------------------------------------------------------------------- numbers


def test_a_number_that_is_lost_is_shown_as_a_small_one() -> None:
    model = scripted(lambda text: re.sub(r"\d\d+", "viele", word_by_word(text)))
    found = model.translate("The dog sees 17 cat at 15:30 and {name} 8.", details=True)
    assert (found.text, found.kept) == ("Der Hund sieht 17 Katze at 15:30 and {name} 8.", True)
    assert model.asked == ["The dog sees 17 cat at 15:30 and X1 8.", "The dog sees 4 cat at 6 and X1 8."]


def test_numbers_that_are_never_written_are_put_back() -> None:
    model = scripted(lambda text: word_by_word(re.sub(r"\d+ ?", "", text)))
    found = model.translate("The dog sees 17 big cat today at 15:30.", details=True)
    assert (found.text, found.kept) == ("Der Hund sieht 17 große Katze heute at 15:30.", True)
    assert model.asked[-1] == "The dog sees big cat today at."
    assert len(model.asked) == 3


def test_a_number_comes_back_as_often_as_it_was_there_and_with_its_spaces() -> None:
    model = scripted(lambda text: word_by_word(re.sub(r"\d+ ?", "", text)))
    assert model.translate("5 dog, 5 cat 1 000 000 today") == "5 Hund, 5 Katze 1 000 000 heute"


@pytest.mark.parametrize(
    "text", ["12 dog 13 {a} www.a.de", "x1 " * 50, "{a} dog 7 " * 20, "<b>7</b> {a} 8 dog", "H2O {b} 5 cat %d 6,5"]
)
@pytest.mark.parametrize("written", ["Hund", "Hund 3 3 X1 X1", "4 Hund 99", ""])
def test_a_sentence_is_written_three_times_at_most(text: str, written: str) -> None:
    """Whatever the model does with it; with much to keep, twice."""
    model = scripted(lambda text: written)
    found = model.translate(text, details=True)
    assert len(model.asked) <= (2 if len(text) > 100 else 3)
    assert found.kept
    for item in re.findall(r"\{\w\}|www\.a\.de|%d|</?b>|\d+", text):
        assert found.text.count(item) >= text.count(item)


def test_numbers_may_be_written_as_the_language_does() -> None:
    model = scripted(lambda text: text.replace("3,5", "3.5").replace("1.000.000", "1,000,000"))
    assert model.translate("dog 3,5 cat 1.000.000", details=True).text == "dog 3.5 cat 1,000,000"
    assert len(model.asked) == 1


def test_with_a_vocabulary_that_knows_no_stand_in_all_is_taken_out_and_put_back() -> None:
    texts = ["the dog sees the cat today", "der Hund sieht der Katze heute"]
    model = ScriptedTranslator(lambda text, wish: [word_by_word(text)], Words(), texts)
    found = model.translate("the dog sees {name} at www.a.de and 17 cat today", details=True)
    assert sorted(re.findall(r"\{name\}|www\.a\.de|17", found.text)) == ["17", "www.a.de", "{name}"]
    assert found.kept


# ------------------------------------------------------------------------------------------------------- what is told


def test_alignments_of_sentences_are_joined_with_what_was_kept() -> None:
    found = scripted().translate("The dog.\n<b>The</b> cat {name}!", align=True)
    alignment = found.alignment
    assert alignment.source == ["The", "dog", ".", "The", "cat", "{name}", "!"]
    assert alignment.target == ["Der", "Hund", ".", "Der", "Katze", "{name}", "!"]
    assert alignment.pairs == [(place, place) for place in range(7)]
    assert str(alignment) == "0-0 1-1 2-2 3-3 4-4 5-5 6-6"
    assert alignment.weights.shape == (7, 7)
    assert alignment.weights[:3, 3:].max() == 0


def test_the_nth_translation_of_a_text_is_made_of_the_nth_of_its_sentences() -> None:
    model = ScriptedTranslator(lambda text, wish: ["A", "B", "C"] if "dog" in text else ["X"])
    found = model.translate("The dog. The cat.", nbest=3)
    assert [(each.text, each.score) for each in found] == [("A X", -2.0), ("B X", -3.0), ("C X", -4.0)]
