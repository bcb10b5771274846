"""Inflection and word order of the grammar, against the tables of grammar books and sentences written by hand."""

from __future__ import annotations

from tools.grammar.adjectives import ADJECTIVES
from tools.grammar.clauses import Clause, Tense, passive, verbal, with_modal
from tools.grammar.draw import Draw
from tools.grammar.german import ACCUSATIVE, DATIVE, NOMINATIVE
from tools.grammar.nouns import NOUNS, Noun
from tools.grammar.parts import subject
from tools.grammar.phrases import (
    BARE,
    EVERY,
    MANY,
    NO,
    POSSESSIVES,
    THE,
    A,
    Determiner,
    Phrase,
    Token,
    noun_phrase,
    prepositional,
    pronoun,
)
from tools.grammar.sentence import Sentence, pair
from tools.grammar.verbs import (
    CROSSERS,
    DATIVES,
    GIVERS,
    INTRANSITIVES,
    MOVERS,
    PLACED_VERBS,
    SAYING_VERBS,
    TRANSITIVES,
    Verb,
)

TABLES = (TRANSITIVES, DATIVES, GIVERS, INTRANSITIVES, PLACED_VERBS, MOVERS, SAYING_VERBS, CROSSERS.values())
GERMAN_VERBS = {verb.german.infinitive: verb.german for table in TABLES for verb in table}


def noun(word: str) -> Noun:
    return next(entry for entry in NOUNS if entry.english == word)


def verb(base: str) -> Verb:
    return next(entry for entry in (*TRANSITIVES, *INTRANSITIVES) if entry.english.base == base)


def phrase(draw: Draw, word: str, case: int, determiner: Determiner = THE) -> Phrase:
    return noun_phrase(draw, noun(word), case, determiner)


def words(tokens: list[Token]) -> str:
    return " ".join(word for word, _, _ in tokens)


def cases(determiner: Determiner, word: str, plural: bool = False, adjective: str = "small") -> str:
    """The noun phrase in the four cases."""
    found = next(entry for entry in ADJECTIVES if entry.english == adjective)
    made = [noun_phrase(Draw("train"), noun(word), case, determiner, plural, found) for case in range(4)]
    return ", ".join(words(each.german) for each in made)


def test_declension() -> None:
    my, _, _, her, our, _ = POSSESSIVES
    for found, expected in [
        (cases(THE, "dog"), "der kleine Hund, den kleinen Hund, dem kleinen Hund, des kleinen Hundes"),
        (cases(THE, "cat"), "die kleine Katze, die kleine Katze, der kleinen Katze, der kleinen Katze"),
        (cases(THE, "dog", True), "die kleinen Hunde, die kleinen Hunde, den kleinen Hunden, der kleinen Hunde"),
        (cases(A, "child"), "ein kleines Kind, ein kleines Kind, einem kleinen Kind, eines kleinen Kindes"),
        (cases(A, "lion"), "ein kleiner Löwe, einen kleinen Löwen, einem kleinen Löwen, eines kleinen Löwen"),
        (cases(NO, "cow", True), "keine kleinen Kühe, keine kleinen Kühe, keinen kleinen Kühen, keiner kleinen Kühe"),
        (cases(BARE, "coffee", adjective="cold"), "kalter Kaffee, kalten Kaffee, kaltem Kaffee, kalten Kaffees"),
        (cases(MANY, "cow", True), "viele kleine Kühe, viele kleine Kühe, vielen kleinen Kühen, vieler kleiner Kühe"),
        (cases(EVERY, "horse"), "jedes kleine Pferd, jedes kleine Pferd, jedem kleinen Pferd, jedes kleinen Pferdes"),
        (cases(my, "hat", adjective="new").split(", ")[1], "meinen neuen Hut"),
        (cases(her, "hat", adjective="new").split(", ")[0], "ihr neuer Hut"),
        (cases(our, "dress", adjective="new").split(", ")[2], "unserem neuen Kleid"),
        (cases(THE, "lamp", adjective="expensive").split(", ")[0], "die teure Lampe"),
    ]:
        assert found == expected


def test_tenses() -> None:
    table: list[tuple[Tense, int, bool, str, str]] = [
        ("present", 2, False, "He eats the apple.", "Er isst den Apfel."),
        ("present", 1, True, "You don't eat the apple.", "Du isst den Apfel nicht."),
        ("past", 0, False, "I ate the apple.", "Ich habe den Apfel gegessen."),
        ("past", 3, False, "She ate the apple.", "Sie aß den Apfel."),
        ("past", 5, True, "They didn't eat the apple.", "Sie aßen den Apfel nicht."),
        ("perfect", 4, False, "We have eaten the apple.", "Wir haben den Apfel gegessen."),
        ("perfect", 2, True, "He hasn't eaten the apple.", "Er hat den Apfel nicht gegessen."),
        ("future", 0, True, "I won't eat the apple.", "Ich werde den Apfel nicht essen."),
        ("progressive", 3, False, "She is eating the apple.", "Sie isst gerade den Apfel."),
    ]
    for tense, person, negative, source, target in table:
        draw = Draw("train")
        negation = draw.link() if negative else 0
        doer = pronoun(draw, person, NOMINATIVE)
        verbs = verbal(draw, verb("eat"), tense, doer.person, negation)
        clause = Clause(doer, verbs, [phrase(draw, "apple", ACCUSATIVE)], negation=negation)
        made = pair(Sentence(clause.english(), clause.german()), "")
        assert (made.source, made.target) == (source, target)


def test_word_order() -> None:
    draw = Draw("train")
    doer, door = phrase(draw, "woman", NOMINATIVE), phrase(draw, "door", ACCUSATIVE)
    clause = Clause(doer, verbal(draw, verb("open"), "past", doer.person), [door])
    assert words(clause.german()) == "die Frau machte die Tür auf"
    assert words(clause.german_after()) == "machte die Frau die Tür auf"
    assert words(clause.german_last()) == "die Frau die Tür aufmachte"
    wanted = Clause(doer, with_modal(draw, verb("open"), "want", doer.person, past=True), [door])
    assert words(wanted.english()) == "the woman wanted to open the door"
    assert words(wanted.german_last()) == "die Frau die Tür aufmachen wollte"
    doer = phrase(draw, "man", NOMINATIVE)
    asked = Clause(doer, verbal(draw, verb("see"), "past", doer.person, asked=True), [phrase(draw, "dog", ACCUSATIVE)])
    assert words(asked.english(asked=True)) == "did the man see the dog"
    assert words(asked.german_after()) == "hat der Mann den Hund gesehen"
    by = prepositional(draw, "by", "von", phrase(draw, "student", DATIVE))
    book = phrase(draw, "book", NOMINATIVE)
    read = Clause(book, passive(draw, verb("read"), True, book.person), [by])
    assert words(read.german()) == "das Buch wurde vom Studenten gelesen"


def test_alignment_of_a_verb_at_the_end() -> None:
    draw = Draw("train")
    doer = subject(draw, 0)
    clause = Clause(doer, verbal(draw, verb("eat"), "past", doer.person), [phrase(draw, "apple", ACCUSATIVE, A)])
    made = pair(Sentence(clause.english(), clause.german()), "past")
    assert (made.source, made.target) == ("I ate an apple.", "Ich habe einen Apfel gegessen.")
    assert made.alignment == ((0, 0), (1, 4), (2, 2), (3, 3), (4, 5))
    assert made.possible == ((1, 1),)
