"""Filters: each removes what it says and counts it, and is off until it is set."""

from __future__ import annotations

from typing import Any

import pytest

from regard.data.examples import Example, Labelled, Pair, Placed, Text, excerpt
from regard.data.filter_settings import Filters, PairFilters, TextFilters
from regard.data.filters import checks_of, filtered, fingerprint
from regard.data.languages import another_language, evidence
from regard.data.problems import Tally
from regard.data.scripts import script_of, script_share


def removed(settings: Filters, *examples: Example) -> dict[int, str]:
    """The number of each removed example, and why."""
    tally = Tally()
    placed = [Placed(example, "a", number) for number, example in enumerate(examples, 1)]
    kept = {found.number for found in filtered(iter(placed), settings, tally)}
    reasons = {
        int(first.split(", line ")[1].split()[0]): name for name, why in tally.reasons.items() for first in why.first
    }
    assert kept.isdisjoint(reasons)
    assert len(kept) + tally.total == len(examples)
    return reasons


def test_nothing_is_removed_by_default() -> None:
    assert checks_of(PairFilters()) == []
    assert checks_of(TextFilters()) == []


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (PairFilters(min_words=2), {1: "has fewer than 2 words", 4: "has fewer than 2 words"}),
        (PairFilters(max_words=4), {3: "has more than 4 words"}),
        (PairFilters(min_characters=3), {4: "has fewer than 3 characters"}),
        (PairFilters(max_characters=8), {3: "has more than 8 characters"}),
        (PairFilters(ratio=3.0), {4: "has a side over 3 times as long"}),
        (PairFilters(ratio=4.0), {}),
    ],
)
def test_lengths_hold_for_both_sides(settings: PairFilters, expected: dict[int, str]) -> None:
    pairs = [Pair("one", "eins"), Pair("to be", "zu sein"), Pair("a b c d", "a b c d e"), Pair("a", "w x y z")]
    assert removed(settings, *pairs) == expected


def test_duplicates() -> None:
    pairs = [Pair("a", "A"), Pair("a", "B"), Pair("b", "A"), Pair("a", "A"), Pair("aA", "")]
    assert removed(PairFilters(duplicates="pair"), *pairs) == {4: "is a duplicate"}
    assert removed(PairFilters(duplicates="source"), *pairs) == dict.fromkeys([2, 4], "is a duplicate by its source")
    assert removed(PairFilters(duplicates="target"), *pairs) == dict.fromkeys([3, 4], "is a duplicate by its target")
    texts = [Text("a"), Text("b"), Text("a"), Labelled("a", "b", "x"), Labelled("a", "b", "y")]
    assert removed(TextFilters(duplicates=True), *texts) == dict.fromkeys([3, 5], "is a duplicate")


def test_copies() -> None:
    pairs = [Pair("Berlin", "berlin "), Pair("New  York", "New York"), Pair("a b", "ab"), Pair("one", "eins")]
    assert removed(PairFilters(copies=True), *pairs) == dict.fromkeys([1, 2], "copies its source")


def test_the_first_examples_are_shown() -> None:
    tally = Tally()
    long = Pair("word " * 40, "x\ny")
    placed = [Placed(long, "a.tsv", number) for number in range(1, 6)]
    assert list(filtered(iter(placed), PairFilters(max_words=5), tally)) == []
    shown = "word " * 11 + "word… | x y"
    assert excerpt(long) == shown
    assert tally.text() == (
        f"5 × has more than 5 words: a.tsv, line 1 ({shown}); a.tsv, line 2 ({shown}); a.tsv, line 3 ({shown}); …"
    )


def test_fingerprints_tell_where_a_side_ends() -> None:
    assert fingerprint("ab", "c") != fingerprint("a", "bc") != fingerprint("abc")
    assert fingerprint("ä") == fingerprint("ä".encode())
    assert 0 <= fingerprint("x") < 1 << 64


# ------------------------------------------------------------------------------------------------------------- scripts


@pytest.mark.parametrize(
    ("letters", "script"),
    [
        ("aßéŁỹA", "latin"),
        ("жЯћ", "cyrillic"),
        ("αΩώ", "greek"),
        ("漢々", "han"),
        ("ひ", "hiragana"),
        ("カーｶ", "katakana"),
        ("한", "hangul"),
        ("شع", "arabic"),
        ("א", "hebrew"),
        ("क", "devanagari"),
        ("ก", "thai"),
        ("ᚠ", "other"),
    ],
)
def test_the_script_of_a_letter(letters: str, script: str) -> None:
    """As in Unicode's Scripts.txt; the prolonged sound mark, which two scripts share, counts as katakana."""
    assert {script_of(letter) for letter in letters} == {script}


def test_the_share_counts_letters_alone() -> None:
    assert script_share("Hi, 123 мир!", ["latin"]) == 2 / 5
    assert script_share("Hi, 123 мир!", ["latin", "cyrillic"]) == 1
    assert script_share("123 !?", ["greek"]) == 1
    assert script_share("– 123 –", ["greek"]) == 1
    assert script_share("plain", ["greek"]) == 0
    assert script_share("plain", ["latin"]) == 1


def test_wrong_scripts() -> None:
    pairs = [Pair("good day", "добрый день"), Pair("good day", "good day"), Pair("добрый", "день"), Pair("1", "2")]
    settings = PairFilters(source_scripts=("latin",), target_scripts=("cyrillic",))
    assert removed(settings, *pairs) == {
        2: "has a target that is not cyrillic",
        3: "has a source that is not latin",
    }
    mixed = [Text("half половин")]
    assert removed(TextFilters(scripts=("cyrillic",)), *mixed) == {}
    assert removed(TextFilters(scripts=("cyrillic",), script_share=0.7), *mixed) != {}
    japanese = TextFilters(scripts=("han", "hiragana", "katakana"))
    assert removed(japanese, Text("カタカナと漢字です"), Text("한국어")) == {
        2: "has a text that is not han or hiragana or katakana"
    }


# ----------------------------------------------------------------------------------------------------------- languages

SENTENCES: dict[Any, str] = {
    "de": "Der alte Mann hat den Brief, den er gestern bekam, noch nicht gelesen.",
    "en": "The old man has not yet read the letter that he got yesterday.",
    "fr": "Le vieil homme n'a pas encore lu la lettre qu'il a reçue hier.",
    "es": "El hombre viejo todavía no ha leído la carta que los vecinos le dieron ayer en el mercado.",
    "it": "Il vecchio non ha ancora letto la lettera che gli hanno dato ieri.",
    "nl": "De oude man heeft de brief die hij gisteren kreeg nog niet gelezen.",
}


@pytest.mark.parametrize("language", SENTENCES)
def test_a_plain_sentence_is_known(language: Any) -> None:
    text = SENTENCES[language]
    found = evidence(text)
    assert max(found, key=lambda name: found[name]) == language
    for wanted in SENTENCES:
        assert another_language(text, wanted) == (None if wanted == language else language)


@pytest.mark.parametrize("text", ["Berlin", "Ok, Tom!", "", "12 % – 3", "Zwei Hunde", "Die Hard", "Yes, of course."])
def test_too_little_to_tell_is_kept(text: str) -> None:
    assert another_language(text, "de") is None


def test_apostrophes_of_either_kind() -> None:
    assert evidence("don't") == evidence("don’t") == {"en": 1}
    assert evidence("l'homme")["fr"] > 0


def test_wrong_languages() -> None:
    pairs = [Pair(SENTENCES["en"], SENTENCES["de"]), Pair(SENTENCES["de"], SENTENCES["en"])]
    assert removed(PairFilters(source_language="en"), *pairs) == {2: "has a source in de, not en"}
    assert removed(PairFilters(target_language="de"), *pairs) == {2: "has a target in en, not de"}
    assert removed(TextFilters(language="en"), Text(SENTENCES["nl"])) == {1: "has a text in nl, not en"}
