"""English inflection, and the order of words in both languages, against sentences written by hand."""

from __future__ import annotations

import pytest
from tools.grammar import english
from tools.grammar.clauses import Clause, Tense, passive, verbal, with_modal
from tools.grammar.draw import Draw
from tools.grammar.german import ACCUSATIVE, DATIVE, NOMINATIVE
from tools.grammar.nouns import NOUNS
from tools.grammar.parts import subject
from tools.grammar.phrases import THE, A, Phrase, noun_phrase, prepositional, pronoun
from tools.grammar.sentence import Sentence, pair
from tools.grammar.verbs import INTRANSITIVES, TRANSITIVES, Verb


def verb(base: str) -> Verb:
    return next(entry for entry in (*TRANSITIVES, *INTRANSITIVES) if entry.english.base == base)


def phrase(draw: Draw, word: str, case: int, determiner: object = THE) -> Phrase:
    assert determiner in (THE, A)
    noun = next(entry for entry in NOUNS if entry.english == word)
    return noun_phrase(draw, noun, case, A if determiner is A else THE)


@pytest.mark.parametrize(
    ("entry", "forms"),
    [
        ("cross", "cross crosses crossed crossed crossing"),
        ("carry", "carry carries carried carried carrying"),
        ("hug", "hug hugs hugged hugged hugging"),
        ("invite", "invite invites invited invited inviting"),
        ("open", "open opens opened opened opening"),
        ("see saw seen", "see sees saw seen seeing"),
        ("go went gone", "go goes went gone going"),
        ("have had had", "have has had had having"),
        ("forget forgot forgotten", "forget forgets forgot forgotten forgetting"),
        ("lie lay lain", "lie lies lay lain lying"),
        ("play", "play plays played played playing"),
    ],
)
def test_verb_forms(entry: str, forms: str) -> None:
    assert " ".join(english.verb_forms(entry)[:5]) == forms


def test_plurals_comparison_and_articles() -> None:
    plurals = {entry.english: entry.plural for entry in NOUNS}
    expected = {"box": "boxes", "baby": "babies", "mouse": "mice", "hero": "heroes", "knife": "knives", "key": "keys"}
    assert {word: plurals[word] for word in expected} == expected
    assert english.comparison("big") == (("bigger",), ("biggest",))
    assert english.comparison("ugly") == (("uglier",), ("ugliest",))
    assert english.comparison("famous") == (("more", "famous"), ("most", "famous"))
    assert [english.a_or_an(word) for word in ("apple", "dog", "old")] == ["an", "a", "an"]


def told(tense: Tense, person: int, negative: bool) -> tuple[str, str]:
    """Somebody eats the apple."""
    draw = Draw("train")
    negation = draw.link() if negative else 0
    doer = pronoun(draw, person, NOMINATIVE)
    words = verbal(draw, verb("eat"), tense, doer.person, negation)
    clause = Clause(doer, words, [phrase(draw, "apple", ACCUSATIVE)], negation=negation)
    made = pair(Sentence(clause.english(), clause.german()), "")
    return made.source, made.target


@pytest.mark.parametrize(
    ("tense", "person", "negative", "expected"),
    [
        ("present", 2, False, ("He eats the apple.", "Er isst den Apfel.")),
        ("present", 1, True, ("You don't eat the apple.", "Du isst den Apfel nicht.")),
        ("past", 0, False, ("I ate the apple.", "Ich habe den Apfel gegessen.")),
        ("past", 3, False, ("She ate the apple.", "Sie aß den Apfel.")),
        ("past", 5, True, ("They didn't eat the apple.", "Sie aßen den Apfel nicht.")),
        ("perfect", 4, False, ("We have eaten the apple.", "Wir haben den Apfel gegessen.")),
        ("perfect", 2, True, ("He hasn't eaten the apple.", "Er hat den Apfel nicht gegessen.")),
        ("future", 0, True, ("I won't eat the apple.", "Ich werde den Apfel nicht essen.")),
        ("progressive", 3, False, ("She is eating the apple.", "Sie isst gerade den Apfel.")),
    ],
)
def test_tenses(tense: Tense, person: int, negative: bool, expected: tuple[str, str]) -> None:
    assert told(tense, person, negative) == expected


def test_separable_prefixes_and_modal_verbs() -> None:
    draw = Draw("train")
    doer = phrase(draw, "woman", NOMINATIVE)
    door = phrase(draw, "door", ACCUSATIVE)
    clause = Clause(doer, verbal(draw, verb("open"), "past", doer.person), [door])
    assert [word for word, _, _ in clause.german()] == ["die", "Frau", "machte", "die", "Tür", "auf"]
    assert [word for word, _, _ in clause.german_after()] == ["machte", "die", "Frau", "die", "Tür", "auf"]
    assert [word for word, _, _ in clause.german_last()] == ["die", "Frau", "die", "Tür", "aufmachte"]
    wanted = Clause(doer, with_modal(draw, verb("open"), "want", doer.person, past=True), [door])
    assert [word for word, _, _ in wanted.english()] == ["the", "woman", "wanted", "to", "open", "the", "door"]
    assert [word for word, _, _ in wanted.german_last()] == ["die", "Frau", "die", "Tür", "aufmachen", "wollte"]


def test_questions_and_the_passive() -> None:
    draw = Draw("train")
    doer = phrase(draw, "man", NOMINATIVE)
    clause = Clause(doer, verbal(draw, verb("see"), "past", doer.person, asked=True), [phrase(draw, "dog", ACCUSATIVE)])
    assert [word for word, _, _ in clause.english(asked=True)] == ["did", "the", "man", "see", "the", "dog"]
    assert [word for word, _, _ in clause.german_after()] == ["hat", "der", "Mann", "den", "Hund", "gesehen"]
    by = prepositional(draw, "by", "von", phrase(draw, "student", DATIVE))
    book = phrase(draw, "book", NOMINATIVE)
    read = Clause(book, passive(draw, verb("read"), True, book.person), [by])
    assert [word for word, _, _ in read.german()] == ["das", "Buch", "wurde", "vom", "Studenten", "gelesen"]


def test_the_lecture_moves_its_verb_to_the_end() -> None:
    draw = Draw("train")
    doer = subject(draw, 0)
    clause = Clause(doer, verbal(draw, verb("eat"), "past", doer.person), [phrase(draw, "apple", ACCUSATIVE, A)])
    made = pair(Sentence(clause.english(), clause.german()), "past")
    assert (made.source, made.target) == ("I ate an apple.", "Ich habe einen Apfel gegessen.")
    assert made.alignment == ((0, 0), (1, 4), (2, 2), (3, 3), (4, 5))
    assert made.possible == ((1, 1),)
