"""Language detection."""

from __future__ import annotations

from regard.serving.translation import Detected, detect_language

ALL = ("en", "de", "fr", "es", "it", "nl")
SENTENCES = {
    "Das ist nicht das, was wir gesagt haben.": "de",
    "This is not what they told us.": "en",
    "Ce n'est pas ce que nous avons dit.": "fr",
    "Esto no es lo que hemos dicho.": "es",
    "Questo non è quello che abbiamo detto.": "it",
    "Dit is niet wat wij hebben gezegd.": "nl",
    "Straßenbahnhaltestellenhäuschen": "de",
    "¿Mañana?": "es",
}


def test_sentences_of_six_languages() -> None:
    for text, language in SENTENCES.items():
        found = detect_language([text], ALL)
        assert found[0].language == language, text
        assert 30 < found[0].confidence <= 100
        assert found == sorted(found, key=lambda each: -each.confidence)


def test_confidence() -> None:
    one = detect_language(["der Hund"], ("de", "en"))[0]
    more = detect_language(["der Hund", "und die Katze", "sind nicht da"], ("de", "en"))[0]
    assert 0 < one.confidence < more.confidence < 100
    french = detect_language(["Ce n'est pas ce que nous avons dit, et vous ne le savez pas."], ("de", "en"))
    assert all(each.confidence < 15 for each in french)


def test_without_evidence_the_first_language_has_no_confidence() -> None:
    for text in ("", "42", "Xylophon", "漢字"):
        assert detect_language([text], ("de", "en")) == [Detected("de", 0.0)]
    assert detect_language([""], ()) == []
