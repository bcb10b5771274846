"""Constructions of one clause: statements in all tenses, and commands."""

from __future__ import annotations

from tools.grammar.adjectives import TIMES
from tools.grammar.clauses import Clause, Tense, verbal, with_modal
from tools.grammar.draw import Draw
from tools.grammar.german import ACCUSATIVE, DATIVE, GENITIVE
from tools.grammar.nouns import nouns_of
from tools.grammar.parts import (
    STATES,
    acting,
    candidates,
    event,
    frequency,
    helping,
    lemma,
    someone,
    subject,
    time,
    transitive,
)
from tools.grammar.phrases import (
    CERTAIN,
    PRONOUNS,
    THE,
    Phrase,
    Token,
    beside,
    fitting,
    noun_phrase,
    prepositional,
    pronoun,
    some_noun,
    there,
    word,
)
from tools.grammar.sentence import Sentence
from tools.grammar.verbs import DATIVES, GIVERS, LAY, MODALS, MOVERS, PLACED_VERBS, TRANSITIVES

SPOTS = tuple(noun for noun in nouns_of(("place", "building")) if noun.there)
GOALS = nouns_of(("public", "far", "building"))
SURFACES = tuple(noun for noun in nouns_of(("furniture",)) if noun.there)
BESIDES = (
    *nouns_of(("building",)),
    *candidates(
        ("house", "castle", "church", "school", "barn", "hut", "tower", "bridge", "car", "bus", "truck", "gate")
    ),
)
RIVERS = candidates(("river", "stream", "canal", "lake", "pond"))
(RIVERBANK,) = nouns_of(("riverbank",))
MONEY, BANK = nouns_of(("money",))
PEOPLE = nouns_of(("person",))
WAITING = tuple(verb for verb in PLACED_VERBS if verb.english.base in ("sit", "stand", "wait", "sleep"))
CARRYING = tuple(verb for verb in (*GIVERS, *TRANSITIVES) if verb.english.base in ("bring", "carry"))
COMMON: tuple[Tense, ...] = ("present", "past", "perfect", "future")
TIMED: tuple[Tense, ...] = ("present", "past", "future")
OF_PEOPLE = tuple(verb for verb in TRANSITIVES if "person" in verb.objects)
UNWANTED = ({*STATES} - {"find", "forget"}) | {"steal", "break"}
COMMANDED = tuple(verb for verb in TRANSITIVES if verb.english.base not in UNWANTED and "person" in verb.subjects)
TOGETHER = ({0, 4}, {0}, {1}, {4})
"""Pronouns that would need a reflexive: I see me, we help me."""


def said(clause: Clause) -> Sentence:
    """A statement with the subject first."""
    return Sentence(clause.english(), clause.german())


def present(draw: Draw) -> Sentence:
    """The man reads the book. -> Der Mann liest das Buch."""
    clause = acting(draw, "present") if draw.sometimes(0.2) else transitive(draw, "present")
    if clause.time is None and not clause.verbal.adverb and draw.sometimes(0.3):
        clause.frequency = frequency(draw)
    return said(clause)


def past(draw: Draw) -> Sentence:
    """I ate an apple. -> Ich habe einen Apfel gegessen. The dog ate an apple. -> Der Hund aß einen Apfel."""
    return said(acting(draw, "past") if draw.sometimes(0.2) else transitive(draw, "past"))


def perfect(draw: Draw) -> Sentence:
    """The child has fallen asleep. -> Das Kind ist eingeschlafen."""
    return said(acting(draw, "perfect") if draw.sometimes(0.3) else transitive(draw, "perfect"))


def future(draw: Draw) -> Sentence:
    """She will buy the coat tomorrow. -> Sie wird morgen den Mantel kaufen."""
    return said(acting(draw, "future") if draw.sometimes(0.2) else transitive(draw, "future"))


def progressive(draw: Draw) -> Sentence:
    """The girl is reading a letter. -> Das Mädchen liest gerade einen Brief."""
    return said(transitive(draw, "progressive"))


def modal(draw: Draw) -> Sentence:
    """He can't find the key. -> Er kann den Schlüssel nicht finden."""
    who, verb, what = event(draw, TRANSITIVES)
    name = draw.pick(tuple(MODALS))
    before = name in ("can", "want") and draw.sometimes(0.4)
    negative = name in ("can", "want", "should") and draw.sometimes(0.3)
    doer = subject(draw, who, certain=negative)
    negation = draw.link() if negative else 0
    words = with_modal(draw, verb, name, doer.person, before, negation)
    goal = some_noun(draw, what, ACCUSATIVE, certain=negative)
    return said(Clause(doer, words, [goal], negation=negation))


def negation(draw: Draw) -> Sentence:
    """The dog doesn't see the cat. -> Der Hund sieht die Katze nicht. I don't have a car. -> Ich habe kein Auto."""
    tense = draw.pick(COMMON)
    if draw.sometimes(0.2):
        return said(acting(draw, tense, negative=True))
    return said(transitive(draw, tense, negative=True))


def dative(draw: Draw) -> Sentence:
    """The man helps the child. -> Der Mann hilft dem Kind."""
    return said(helping(draw, draw.pick(COMMON)))


def personal(draw: Draw) -> Sentence:
    """She loves him. -> Sie liebt ihn. I help her. -> Ich helfe ihr."""
    helping_verb = draw.sometimes(0.3)
    while True:
        verb = draw.pick(DATIVES if helping_verb else OF_PEOPLE)
        who, whom = someone(draw, ("person",)), int(draw.chance() * len(PRONOUNS))
        clash = isinstance(who, int) and {who, whom} in TOGETHER
        if not clash and draw.admits(lemma(who), verb.english.base, PRONOUNS[whom][1]):
            break
    doer = subject(draw, who, certain=True)
    tense = draw.pick(COMMON)
    negation = draw.link() if draw.sometimes(0.2) else 0
    words = verbal(draw, verb, tense, doer.person, negation)
    goal = pronoun(draw, whom, DATIVE if helping_verb else ACCUSATIVE)
    return said(Clause(doer, words, [goal], negation=negation, time=None if negation else time(draw, tense)))


def giving(draw: Draw) -> Sentence:
    """He gives the woman a flower. -> Er gibt der Frau eine Blume."""
    who, verb, what = event(draw, GIVERS)
    whom = draw.pick(PEOPLE)
    tense = draw.pick(COMMON)
    doer = subject(draw, who)
    words = verbal(draw, verb, tense, doer.person)
    if draw.sometimes(0.3) and not isinstance(who, int):
        receiver = pronoun(draw, int(draw.chance() * len(PRONOUNS)), DATIVE)
    else:
        receiver = some_noun(draw, whom, DATIVE, certain=True)
    return said(Clause(doer, words, [receiver, some_noun(draw, what, ACCUSATIVE)], time=time(draw, tense)))


def location(draw: Draw) -> Sentence:
    """The dog sleeps in the garden. -> Der Hund schläft im Garten."""
    near = draw.sometimes(0.25)
    spot = None
    while spot is None:
        verb = draw.pick(PLACED_VERBS)
        who = someone(draw, verb.subjects)
        spots, group = (BESIDES, "besides") if near else (SPOTS, "spots")
        spot = draw.pick_admitted(spots, group, lemma(who), verb.english.base)
    negation = 0 if near or draw.sometimes(0.8) else draw.link()
    tense = draw.pick(COMMON[:3])
    doer = subject(draw, who, certain=negation > 0)
    where = beside(draw, spot) if near else there(draw, spot)
    words = verbal(draw, verb, tense, doer.person, negation)
    return said(Clause(doer, words, place=where, negation=negation, time=None if negation else time(draw, tense)))


def direction(draw: Draw) -> Sentence:
    """We drove to the station. -> Wir sind zum Bahnhof gefahren."""
    while True:
        verb = draw.pick(MOVERS)
        who = someone(draw, verb.subjects)
        goal = draw.pick_admitted(GOALS, "goals", lemma(who), verb.english.base)
        if goal is not None:
            break
    tense = draw.pick(COMMON)
    doer = subject(draw, who)
    words = verbal(draw, verb, tense, doer.person)
    where = prepositional(draw, "to", "zu", noun_phrase(draw, goal, DATIVE, THE, False, fitting(draw, goal, 0.15)))
    return said(Clause(doer, words, place=where, time=time(draw, tense)))


def laying(draw: Draw) -> Sentence:
    """She lays the book on the table. -> Sie legt das Buch auf den Tisch."""
    who, verb, what = event(draw, (LAY,))
    spot = draw.pick(SURFACES)
    tense = draw.pick(COMMON)
    doer = subject(draw, who)
    words = verbal(draw, verb, tense, doer.person)
    goal = some_noun(draw, what, ACCUSATIVE)
    where = beside(draw, spot, ACCUSATIVE) if draw.sometimes(0.3) else there(draw, spot, ACCUSATIVE)
    return said(Clause(doer, words, [goal], place=where, time=time(draw, tense)))


def fronting(draw: Draw) -> Sentence:
    """Yesterday the man ate an apple. -> Gestern aß der Mann einen Apfel."""
    tense = draw.pick(TIMED)
    clause = acting(draw, tense) if draw.sometimes(0.3) else transitive(draw, tense)
    first = word(draw, *draw.pick(TIMES[tense]))
    clause.time = None
    return Sentence([*first.english, *clause.english()], [*first.german, *clause.german_after()])


def command(draw: Draw) -> Sentence:
    """Open the door! -> Mach die Tür auf! Please don't forget the key! -> Bitte vergiss den Schlüssel nicht!"""
    what = None
    while what is None:
        verb = draw.pick(COMMANDED)
        what = draw.pick_admitted(candidates(verb.objects), verb.goals, "you", verb.english.base)
    negation = draw.link() if draw.sometimes(0.3) else 0
    link = draw.link()
    particle: list[Token] = [(part, link, 0) for part in verb.english.particle]
    english: list[Token] = [("don't", negation, 0)] if negation else []
    english += [(verb.english.base, link, 0), *particle]
    german: list[Token] = [(verb.german.command, link, 0)]
    goal = some_noun(draw, what, ACCUSATIVE, certain=True)
    english += goal.english
    german += goal.german
    if negation:
        german.append(("nicht", negation, 0))
    if verb.german.prefix:
        german.append((verb.german.prefix, link, 0))
    if draw.sometimes(0.3):
        please = word(draw, "please", "bitte")
        english, german = [*please.english, *english], [*please.german, *german]
    return Sentence(english, german, "!")


def banks(draw: Draw) -> Sentence:
    """He sat on the bank of the river. -> Er saß am Ufer des Flusses. He sat in the bank. -> Er saß in der Bank."""
    watery = draw.sometimes(0.5)
    while True:
        verb = draw.pick(WAITING)
        who, water = someone(draw, ("person",)), draw.pick(RIVERS)
        if draw.admits(lemma(who), verb.english.base, "bank", water.english if watery else "money"):
            break
    tense = draw.pick(COMMON[:3])
    doer = subject(draw, who)
    words = verbal(draw, verb, tense, doer.person)
    if not watery:
        where = prepositional(draw, "in", "in", noun_phrase(draw, BANK, DATIVE, THE))
        return said(Clause(doer, words, place=where, time=time(draw, tense)))
    shore = prepositional(draw, "on", "an", noun_phrase(draw, RIVERBANK, DATIVE, THE))
    owner = noun_phrase(draw, water, GENITIVE, THE)
    article = owner.german[0][1]
    where = Phrase([*shore.english, ("of", article, 0), *owner.english], [*shore.german, *owner.german])
    return said(Clause(doer, words, place=where, time=time(draw, tense)))


def paying(draw: Draw) -> Sentence:
    """She brings the money to the bank. -> Sie bringt das Geld zur Bank."""
    while True:
        who, verb = someone(draw, ("person",)), draw.pick(CARRYING)
        if draw.admits(lemma(who), verb.english.base, "money", "bank"):
            break
    tense = draw.pick(COMMON)
    doer = subject(draw, who)
    words = verbal(draw, verb, tense, doer.person)
    goal = noun_phrase(draw, MONEY, ACCUSATIVE, draw.pick(CERTAIN))
    where = prepositional(draw, "to", "zu", noun_phrase(draw, BANK, DATIVE, THE))
    return said(Clause(doer, words, [goal], place=where, time=time(draw, tense)))
