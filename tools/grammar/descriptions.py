"""Constructions that describe things: adjectives, comparison, possession, the passive."""

from __future__ import annotations

from tools.grammar.adjectives import COMPARED, DEGREES, FITTING, Adjective
from tools.grammar.clauses import Clause, Tense, passive, verbal
from tools.grammar.draw import Draw
from tools.grammar.german import ACCUSATIVE, DATIVE, GENITIVE, NOMINATIVE, PLURAL, WEAK
from tools.grammar.nouns import Noun, nouns_of
from tools.grammar.parts import built, candidates, event, subject
from tools.grammar.phrases import (
    CERTAIN,
    CERTAIN_SEVERAL,
    HE,
    THE,
    THEY,
    Phrase,
    Token,
    constituent,
    fitting,
    like,
    noun_phrase,
    prepositional,
    some_noun,
    word,
)
from tools.grammar.sentence import Sentence
from tools.grammar.statements import said
from tools.grammar.verbs import BE, TRANSITIVES

DESCRIBED = nouns_of(
    ("person", "animal", "building", "thing", "clothes", "reading", "vehicle", "furniture", "drink", "food")
)
COMPARABLE = {
    kind: nouns_of((kind,)) for kind in ("person", "animal", "building", "vehicle", "thing", "clothes", "reading")
}
OWNED = nouns_of(("thing", "clothes", "animal", "vehicle"))
PEOPLE = nouns_of(("person",))
PARTS = nouns_of(("opening",))
WHOLES = (*candidates(("house", "castle", "church", "school", "barn", "hut", "stable")), *nouns_of(("building",)))
DONE = tuple(verb for verb in TRANSITIVES if verb.english.base not in ("have", "know", "need", "meet"))
"""Verbs that have a passive."""
NOW_OR_THEN: tuple[Tense, ...] = ("present", "past")


def quality(draw: Draw, adjective: Adjective, degree: float = 0.4) -> Phrase:
    """very old -> sehr alt: adjectives behind the verb have no endings."""
    link = draw.link()
    english: list[Token] = [(adjective.english, link, 0)]
    german: list[Token] = [(adjective.german, link, 0)]
    if adjective.german_more and draw.sometimes(degree):
        before = word(draw, *draw.pick(DEGREES))
        return Phrase([*before.english, *english], [*before.german, *german])
    return Phrase(english, german)


def known(draw: Draw, thing: Noun, case: int = NOMINATIVE, one: bool = False) -> Phrase:
    """A known thing without an adjective, which could repeat or contradict the statement about it."""
    several = not one and thing.several and draw.sometimes(0.3)
    return noun_phrase(draw, thing, case, draw.pick(CERTAIN_SEVERAL if several else CERTAIN), several)


def described(draw: Draw) -> tuple[Noun, Adjective]:
    while True:
        thing = draw.pick(DESCRIBED)
        adjective = draw.pick_admitted(FITTING[thing.kinds[0]], "adjectives", thing.english, "be")
        if adjective is not None:
            return thing, adjective


def description(draw: Draw) -> Sentence:
    """The house was very old. -> Das Haus war sehr alt."""
    thing, adjective = described(draw)
    negation = draw.link() if draw.sometimes(0.3) else 0
    doer = known(draw, thing)
    words = verbal(draw, BE, draw.pick(NOW_OR_THEN), doer.person, negation)
    how = quality(draw, adjective, 0 if negation else 0.5)
    return said(Clause(doer, words, place=how, negation=negation))


def _compared(draw: Draw) -> tuple[Noun, Adjective, Noun]:
    kind = draw.pick(tuple(COMPARABLE))
    while True:
        one, other = draw.pick(COMPARABLE[kind]), draw.pick(COMPARABLE[kind])
        adjective = draw.pick(COMPARED[kind])
        if one is not other and draw.admits(one.english, adjective.english, other.english):
            return one, adjective, other


def comparison(draw: Draw) -> Sentence:
    """The dog is bigger than the cat. -> Der Hund ist größer als die Katze."""
    one, adjective, other = _compared(draw)
    negation = draw.link() if draw.sometimes(0.2) else 0
    doer, second = known(draw, one), known(draw, other)
    words = verbal(draw, BE, draw.pick(NOW_OR_THEN), doer.person, negation)
    link = draw.link()
    if draw.sometimes(0.6):
        than = word(draw, "than", "als")
        english = [*((part, link, 0) for part in adjective.more), *than.english]
        german = [(adjective.german_more, link, 0), *than.german]
    else:
        first, then = word(draw, "as", "so"), word(draw, "as", "wie")
        english = [*first.english, (adjective.english, link, 0), *then.english]
        german = [*first.german, (adjective.german, link, 0), *then.german]
    how = Phrase([*english, *second.english], [*german, *second.german])
    return said(Clause(doer, words, place=how, negation=negation))


def superlative(draw: Draw) -> Sentence:
    """She bought the most expensive coat. -> Sie kaufte den teuersten Mantel."""
    while True:
        who, verb, what = event(draw, TRANSITIVES)
        if what.counted and (adjectives := COMPARED.get(what.kinds[0])):
            break
    adjective = draw.pick(adjectives)
    clause = built(draw, who, verb, what, draw.pick(NOW_OR_THEN))
    several = what.several and draw.sometimes(0.3)
    plain = noun_phrase(draw, what, ACCUSATIVE, THE, several)
    link = draw.link()
    column = PLURAL if several else what.gender
    most: list[Token] = [(like(part, plain.english[0][0]), link, 0) for part in adjective.most]
    german = (adjective.german_most + WEAK[ACCUSATIVE][column], link, 0)
    clause.objects = [Phrase([plain.english[0], *most, plain.english[1]], [plain.german[0], german, plain.german[1]])]
    return said(clause)


def owned(draw: Draw, owner: Noun, thing: Noun, case: int) -> Phrase:
    """the man's dog -> der Hund des Mannes: German needs an article that English leaves out."""
    several = thing.several and draw.sometimes(0.2)
    possessor = noun_phrase(draw, owner, GENITIVE, draw.pick(CERTAIN), False)
    possession = noun_phrase(draw, thing, case, THE, several, fitting(draw, thing, 0.15))
    (article, _link, _), *words = possession.german
    *before, (last, last_link, _) = possessor.english
    english = constituent("NP", [*before, (like(f"{last}'s", last), last_link, 0), *possession.english[1:]])
    german = [(article, 0, possession.head), *words, *possessor.german]
    return Phrase(english, german, THEY if several else HE, possession.head)


def part(draw: Draw, whole: Noun, thing: Noun, case: int) -> Phrase:
    """the door of the house -> die Tür des Hauses."""
    several = thing.several and draw.sometimes(0.2)
    owner = noun_phrase(draw, whole, GENITIVE, THE, False, fitting(draw, whole, 0.15))
    first = noun_phrase(draw, thing, case, THE, several)
    of = ("of", owner.german[0][1], 0)
    return Phrase(
        constituent("NP", [*first.english, *constituent("PP", [of, *owner.english])]),
        [*first.german, *owner.german],
        first.person,
        first.head,
    )


def possession(draw: Draw) -> Sentence:
    """The man's dog is old. -> Der Hund des Mannes ist alt."""
    build, owners, things, verbs = draw.pick(POSSESSIONS)
    tense = draw.pick(NOW_OR_THEN)
    if draw.sometimes(0.5):
        while True:
            owner, thing = draw.pick(owners), draw.pick(things)
            adjective = draw.pick(FITTING[thing.kinds[0]])
            if draw.admits(owner.english, thing.english, adjective.english):
                break
        doer = build(draw, owner, thing, NOMINATIVE)
        return said(Clause(doer, verbal(draw, BE, tense, doer.person), place=quality(draw, adjective)))
    while True:
        who, verb, thing = event(draw, verbs, ("person",))
        owner = draw.pick(owners)
        if thing in things and who is not owner:
            break
    clause = built(draw, who, verb, thing, tense)
    clause.objects = [build(draw, owner, thing, ACCUSATIVE)]
    return said(clause)


OPENERS = tuple(verb for verb in TRANSITIVES if "opening" in verb.objects)
HANDLERS = tuple(
    verb for verb in TRANSITIVES if {"thing", "clothes", "vehicle"} & {*verb.objects} and verb.english.base != "have"
)
POSSESSIONS = ((owned, PEOPLE, OWNED, HANDLERS), (owned, PEOPLE, OWNED, HANDLERS), (part, WHOLES, PARTS, OPENERS))
"""The form of the phrase, kinds of owners, kinds of possessions, and verbs that fit the possession."""


def passives(draw: Draw) -> Sentence:
    """The book was read by the student. -> Das Buch wurde vom Studenten gelesen."""
    while True:
        who, verb, what = event(draw, DONE)
        if isinstance(who, Noun):
            break
    negation = draw.link() if draw.sometimes(0.2) else 0
    thing = subject(draw, what, certain=True)
    words = passive(draw, verb, draw.sometimes(0.6), thing.person, negation)
    by = prepositional(draw, "by", "von", some_noun(draw, who, DATIVE, certain=True))
    return said(Clause(thing, words, [by], negation=negation))
