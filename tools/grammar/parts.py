"""Parts that many constructions share: subjects, verbs and objects that make sense together and fit the split."""

from __future__ import annotations

from functools import cache

from tools.grammar.adjectives import FREQUENCIES, TIMES
from tools.grammar.clauses import Clause, Tense, verbal
from tools.grammar.draw import Draw
from tools.grammar.german import ACCUSATIVE, DATIVE, NOMINATIVE
from tools.grammar.nouns import NAMES, NOUNS, Noun, nouns_of
from tools.grammar.phrases import (
    PRONOUNS,
    Phrase,
    fitting,
    name,
    negated_object,
    pronoun,
    some_noun,
    word,
)
from tools.grammar.verbs import DATIVES, INTRANSITIVES, TRANSITIVES, Verb

Who = Noun | int | str
"""A subject: a noun, the index of a pronoun, or a name."""
PRONOUN_SHARE, NAME_SHARE = 0.3, 0.08


@cache
def candidates(kinds: tuple[str, ...]) -> tuple[Noun, ...]:
    """Nouns of the kinds, and those called by their own English names."""
    return (*nouns_of(kinds), *(noun for noun in NOUNS if noun.english in kinds))


def lemma(who: Who) -> str:
    if isinstance(who, Noun):
        return who.english
    return PRONOUNS[who][0] if isinstance(who, int) else who


def someone(draw: Draw, kinds: tuple[str, ...]) -> Who:
    """A subject of one of the kinds; a person may also be a pronoun or have a name."""
    chance = draw.chance()
    if "person" in kinds and chance < PRONOUN_SHARE + NAME_SHARE:
        return int(chance / PRONOUN_SHARE * len(PRONOUNS)) if chance < PRONOUN_SHARE else draw.pick(NAMES)
    return draw.pick(candidates(kinds))


def subject(draw: Draw, who: Who, certain: bool = False, one: bool = False) -> Phrase:
    if isinstance(who, Noun):
        return some_noun(draw, who, NOMINATIVE, certain, one)
    return pronoun(draw, who, NOMINATIVE) if isinstance(who, int) else name(draw, who)


def event(draw: Draw, verbs: tuple[Verb, ...], kinds: tuple[str, ...] | None = None) -> tuple[Who, Verb, Noun]:
    """A subject, a verb and an object that belong to this split."""
    while True:
        verb = draw.pick(verbs)
        who = someone(draw, kinds or verb.subjects)
        what = draw.pick_admitted(candidates(verb.objects), verb.goals, lemma(who), verb.english.base)
        if what is not None and who is not what:
            return who, verb, what


def alone(draw: Draw, who: Who, verb: Verb) -> bool:
    """Whether this split may use the verb without an object. Pronouns occur only in training: *du singst* has its own
    verb form, which training would lack if the combination belonged to the test split."""
    return draw.split == "train" if isinstance(who, int) else draw.admits(lemma(who), verb.english.base)


def action(draw: Draw, kinds: tuple[str, ...] | None = None) -> tuple[Who, Verb]:
    """A subject and a verb that belong to this split."""
    while True:
        verb = draw.pick(INTRANSITIVES)
        who = someone(draw, kinds or verb.subjects)
        if alone(draw, who, verb):
            return who, verb


def time(draw: Draw, tense: Tense) -> Phrase | None:
    """Sometimes adds a time that suits the tense."""
    times = TIMES.get(tense)
    return word(draw, *draw.pick(times)) if times and draw.chance() < 0.3 else None


def frequency(draw: Draw) -> Phrase:
    return word(draw, *draw.pick(FREQUENCIES))


def transitive(draw: Draw, tense: Tense, negative: bool = False, asked: bool = False) -> Clause:
    """Somebody does something to somebody or something, in any tense, with or without not."""
    who, verb, what = event(draw, TRANSITIVES)
    return built(draw, who, verb, what, tense, negative, asked)


def built(
    draw: Draw, who: Who, verb: Verb, what: Noun, tense: Tense, negative: bool = False, asked: bool = False
) -> Clause:
    """A transitive clause of given words."""
    if tense == "progressive" and verb.english.base in STATES:
        tense = "present"
    doer = subject(draw, who, certain=negative or asked)
    if not negative:
        goal = some_noun(draw, what, ACCUSATIVE)
        when = None if verb.english.base in STATES else time(draw, tense)
        return Clause(doer, verbal(draw, verb, tense, doer.person, asked=asked), [goal], time=when)
    negation = draw.link()
    kein, kein_for_a = draw.chance() < 0.4, False
    if kein:
        several = what.several and draw.chance() < 0.4
        goal = negated_object(draw, what, several, fitting(draw, what), negation)
        kein_for_a = what.counted and not several
    else:
        goal = some_noun(draw, what, ACCUSATIVE, certain=True)
    words = verbal(draw, verb, tense, doer.person, negation, asked, kein_for_a)
    return Clause(doer, words, [goal], negation=0 if kein else negation)


STATES = ("have", "love", "know", "need", "trust", "see", "hear", "understand", "find", "lose", "forget")
"""Verbs that have no progressive, or a strange one."""


def helping(draw: Draw, tense: Tense, asked: bool = False) -> Clause:
    """Verbs whose object is a dative: Der Mann hilft dem Kind."""
    who, verb, whom = event(draw, DATIVES)
    doer = subject(draw, who, certain=asked)
    words = verbal(draw, verb, tense, doer.person, asked=asked)
    return Clause(doer, words, [some_noun(draw, whom, DATIVE, certain=True)], time=time(draw, tense))


def acting(draw: Draw, tense: Tense, negative: bool = False, asked: bool = False) -> Clause:
    """A verb without objects: The dog woke up."""
    who, verb = action(draw)
    doer = subject(draw, who, certain=negative or asked)
    negation = draw.link() if negative else 0
    words = verbal(draw, verb, tense, doer.person, negation, asked)
    return Clause(doer, words, negation=negation, time=None if negative else time(draw, tense))
