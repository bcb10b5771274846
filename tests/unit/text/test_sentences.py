"""Sentences: where a text is cut and, above all, where it is not."""

from __future__ import annotations

import time

import pytest

from regard.text.sentences import cut, join, spans, split

TWO = [
    "Er kam.|Sie ging.",
    "Kommt er?|Ja!|Gut.",
    "Er sagte: „Komm!“|Dann ging er.",
    '"It works."|He smiled.',
    "Das war 2010.|Dann kam er.",
    "Wait...|What?",
    "Er ging…|Und sie blieb.",
    "(Er ging.)|Sie blieb.",
    "Das ist so.|Er mag mich.|Komm mit mir.|Nein.",
    "He said no.|Then he left.",
    "Siehe www.example.com.|Dort steht es.",
    "¿Qué?|¡Nada!",
    "Komm!|– Nein.",
    "これは犬です。|猫も「好き」です！|本当？",
    "यह कुत्ता है।|वह बिल्ली है।",
    "هل هذا كلب؟|نعم.",
    "Eins.|2 sind mehr.",
]
ONE = [
    "Das ist z. B. ein Hund.",
    "Das ist z.B. Unsinn.",
    "Er kommt, d. h. Peter kommt.",
    "Dr. Meier und Prof. Schmidt kamen.",
    "Mr. Smith met Mrs. Jones.",
    "Some animals, e.g. Dogs, bark.",
    "J. R. R. Tolkien wrote it.",
    "Am 3. Mai kam er.",
    "Im 19. Jahrhundert war das so.",
    "Wilhelm II. Kaiser von Preußen.",
    "1. Erstens",
    "Siehe Nr. 5 und S. 12.",
    "See no. 5 and fig. 2.",
    "Es kostet 3.50 Euro.",
    "Auf https://example.com/a.B?c=1 steht es.",
    "Das ist ... Unsinn.",
    "Er kam! und ging.",
    "„Komm!“, sagte er.",
    '"Stop!" he said.',
    "The U.S. Army came.",
    "Version 2.0 ist da",
]


@pytest.mark.parametrize("text", TWO)
def test_cut(text: str) -> None:
    wanted = text.split("|")
    between = "" if "。" in text else " "
    assert split(between.join(wanted))[0] == wanted


@pytest.mark.parametrize("text", ONE)
def test_not_cut(text: str) -> None:
    assert split(text)[0] == [text]


def test_white_space_is_given_back() -> None:
    sentences, between = split("\t Null. \u00a0 Eins.\n\n  Zwei. Drei\u2028vier\r\n")
    assert sentences == ["Null.", "Eins.", "Zwei.", "Drei", "vier"]
    assert between == ["\t ", " \u00a0 ", "\n\n  ", " ", "\u2028", "\r\n"]
    assert join(sentences, between) == "\t Null. \u00a0 Eins.\n\n  Zwei. Drei\u2028vier\r\n"
    assert split("a\nb\x85c\u2028d\re")[0] == ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize("text", ["", " ", "\n\n"])
def test_nothing(text: str) -> None:
    assert split(text) == ([], [text])


def test_what_is_whole_is_not_cut() -> None:
    text = "Eins. Zwei. Drei."
    assert [text[a:b] for a, b in spans(text, [(3, 8)])] == ["Eins. Zwei.", "Drei."]


def test_long_sentences_are_cut_near_the_middle() -> None:
    def parts(text: str, most: int, whole: tuple[tuple[int, int], ...] = ()) -> list[str]:
        return [text[a:b] for a, b in cut(text, lambda part: len(part) <= most, whole)]

    assert parts("one two three", 20) == ["one two three"]
    assert parts("one two, three four; five six", 20) == ["one two, three four;", "five six"]
    assert parts("one two, three four five six", 20) == ["one two,", "three four five six"]
    assert parts("one two three four five six", 15) == ["one two three", "four five six"]
    assert parts("abcdefgh", 4) == ["abcd", "efgh"]
    assert parts("ab cdefgh ij", 4, ((3, 9),)) == ["ab", "cdefgh", "ij"]


@pytest.mark.parametrize(
    "text",
    [
        "." * 100_000,
        "a." * 50_000,
        ". " * 50_000,
        '."' * 50_000,
        "。" * 50_000,
        "A. B" * 9999,
        "no. " * 25_000,
        "a" + " " * 100_000 + "b",
        "\n" * 100_000,
        "a\u0301" * 50_000,
        "😀" * 100_000,
        "שלום " * 20_000,
    ],
)
def test_hostile_texts_take_no_time(text: str) -> None:
    began = time.perf_counter()
    spans(text, [(place, place + 2) for place in range(0, len(text), 3)])
    cut(text, lambda part: len(part) < 1_000, [(place, place + 2) for place in range(0, len(text), 3)])
    assert time.perf_counter() - began < 20  # a square of it would take minutes
