"""Which language a text is in."""

from __future__ import annotations

import pytest

from regard.serving.detect import Detected, detect

ALL = ("en", "de", "fr", "es", "it", "nl")


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Das ist nicht das, was wir gesagt haben.", "de"),
        ("This is not what they told us.", "en"),
        ("Ce n'est pas ce que nous avons dit.", "fr"),
        ("Esto no es lo que hemos dicho.", "es"),
        ("Questo non è quello che abbiamo detto.", "it"),
        ("Dit is niet wat wij hebben gezegd.", "nl"),
        ("Straßenbahnhaltestellenhäuschen", "de"),
        ("¿Mañana?", "es"),
    ],
)
def test_a_plain_sentence_is_known(text: str, language: str) -> None:
    found = detect([text], ALL)
    assert found[0].language == language
    assert 30 < found[0].confidence <= 100
    assert found == sorted(found, key=lambda each: -each.confidence)


def test_more_text_is_surer_and_several_are_taken_together() -> None:
    one = detect(["der Hund"], ("de", "en"))[0]
    more = detect(["der Hund", "und die Katze", "sind nicht da"], ("de", "en"))[0]
    assert 0 < one.confidence < more.confidence < 100


def test_a_language_that_the_model_does_not_know_is_doubt() -> None:
    french = detect(["Ce n'est pas ce que nous avons dit, et vous ne le savez pas."], ("de", "en"))
    assert all(each.confidence < 15 for each in french)


def test_nothing_known_is_the_first_one_without_confidence() -> None:
    for text in ("", "42", "Xylophon", "漢字"):
        assert detect([text], ("de", "en")) == [Detected("de", 0.0)]
    assert detect([""], ()) == []
