"""Questions: yes or no, and those that ask for somebody, something, a place, a time, a reason or a degree."""

from __future__ import annotations

from tools.grammar.clauses import Clause, Tense, verbal
from tools.grammar.descriptions import described, known
from tools.grammar.draw import Draw
from tools.grammar.german import ACCUSATIVE
from tools.grammar.parts import (
    acting,
    alone,
    candidates,
    event,
    helping,
    lemma,
    someone,
    subject,
    transitive,
)
from tools.grammar.phrases import HE, WHICH, Phrase, noun_phrase, some_noun, word
from tools.grammar.sentence import Sentence
from tools.grammar.verbs import BE, DATIVES, PLACED_VERBS, TRANSITIVES

ASKED: tuple[Tense, ...] = ("present", "past", "perfect", "future")
OF_PEOPLE = tuple(verb for verb in TRANSITIVES if "person" in verb.objects)


def asked(clause: Clause, first: Phrase | None = None) -> Sentence:
    """A question, with its question word first if it has one."""
    english, german = clause.english(asked=True), clause.german_after()
    if first is not None:
        english, german = [*first.english, *english], [*first.german, *german]
    return Sentence(english, german, "?")


def yes_or_no(draw: Draw) -> Sentence:
    """Did the man see the dog? -> Hat der Mann den Hund gesehen?"""
    tense = draw.pick(ASKED)
    chance = draw.chance()
    if chance < 0.2:
        return asked(acting(draw, tense, asked=True))
    if chance < 0.3:
        return asked(helping(draw, tense, asked=True))
    return asked(transitive(draw, tense, asked=True))


def is_it_so(draw: Draw) -> Sentence:
    """Is the house old? -> Ist das Haus alt? How old is the house? -> Wie alt ist das Haus?"""
    thing, adjective = described(draw)
    doer = known(draw, thing)
    words = verbal(draw, BE, draw.pick(ASKED[:2]), doer.person)
    how = word(draw, adjective.english, adjective.german)
    if not adjective.german_more or draw.sometimes(0.5):
        return asked(Clause(doer, words, place=how))
    first = word(draw, "how", "wie")
    return asked(Clause(doer, words), Phrase([*first.english, *how.english], [*first.german, *how.german]))


def who(draw: Draw) -> Sentence:
    """Who ate the apple? -> Wer hat den Apfel gegessen?"""
    tense = draw.pick(ASKED)
    while True:
        verb = draw.pick(TRANSITIVES)
        what = draw.pick(candidates(verb.objects))
        if "person" in verb.subjects and draw.admits("who", verb.english.base, what.english):
            break
    doer = word(draw, "who", "wer")
    words = verbal(draw, verb, tense, HE, spoken=True)
    clause = Clause(doer, words, [some_noun(draw, what, ACCUSATIVE, certain=True)])
    return Sentence(clause.english(), clause.german(), "?")


def whom(draw: Draw) -> Sentence:
    """Who did the girl invite? -> Wen hat das Mädchen eingeladen? Who does he help? -> Wem hilft er?"""
    helped = draw.sometimes(0.3)
    while True:
        verb = draw.pick(DATIVES if helped else OF_PEOPLE)
        doer = someone(draw, ("person",))
        if draw.admits(lemma(doer), verb.english.base, "whom"):
            break
    phrase = subject(draw, doer, certain=True)
    words = verbal(draw, verb, draw.pick(ASKED), phrase.person, asked=True)
    return asked(Clause(phrase, words), word(draw, "who", "wem" if helped else "wen"))


def what(draw: Draw) -> Sentence:
    """What does the boy eat? -> Was isst der Junge? Which book does she read? -> Welches Buch liest sie?"""
    doer, verb, thing = event(draw, TRANSITIVES)
    which = "person" in verb.objects or "animal" in verb.objects or draw.sometimes(0.5)
    while not which and not draw.admits(lemma(doer), verb.english.base, "what"):
        verb = draw.pick(TRANSITIVES)
        doer = someone(draw, verb.subjects)
    phrase = subject(draw, doer, certain=True)
    clause = Clause(phrase, verbal(draw, verb, draw.pick(ASKED), phrase.person, asked=True))
    if which:
        several = thing.several and draw.sometimes(0.3)
        return asked(clause, noun_phrase(draw, thing, ACCUSATIVE, WHICH, several))
    return asked(clause, word(draw, "what", "was"))


def where(draw: Draw) -> Sentence:
    """Where does the dog sleep? -> Wo schläft der Hund?"""
    while True:
        verb = draw.pick(PLACED_VERBS)
        doer = someone(draw, verb.subjects)
        if alone(draw, doer, verb):
            break
    phrase = subject(draw, doer, certain=True)
    words = verbal(draw, verb, draw.pick(ASKED), phrase.person, asked=True)
    return asked(Clause(phrase, words), word(draw, "where", "wo"))


def why_or_when(draw: Draw) -> Sentence:
    """Why did he laugh? -> Warum hat er gelacht? When will she buy the car? -> Wann wird sie das Auto kaufen?"""
    tense = draw.pick(ASKED)
    clause = acting(draw, tense, asked=True) if draw.sometimes(0.4) else transitive(draw, tense, asked=True)
    clause.time = None
    first = word(draw, "why", "warum") if tense == "perfect" or draw.sometimes(0.5) else word(draw, "when", "wann")
    return asked(clause, first)
