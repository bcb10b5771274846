"""Constructions of several clauses: subordinate, relative and coordinated ones, and purposes."""

from __future__ import annotations

from functools import cache

from tools.grammar.clauses import Clause, Tense, verbal
from tools.grammar.descriptions import described, quality
from tools.grammar.draw import Draw
from tools.grammar.german import ACCUSATIVE, DATIVE, NOMINATIVE, PLURAL, RELATIVE
from tools.grammar.nouns import Noun
from tools.grammar.parts import (
    Who,
    acting,
    candidates,
    event,
    lemma,
    someone,
    subject,
    time,
    transitive,
)
from tools.grammar.phrases import (
    THE,
    THEY,
    Phrase,
    Token,
    constituent,
    noun_phrase,
    prepositional,
    some_noun,
    word,
)
from tools.grammar.sentence import Sentence
from tools.grammar.statements import COMMON, GOALS, said
from tools.grammar.verbs import BE, DATIVES, MOVERS, SAYING_VERBS, TRANSITIVES, Verb

CONJUNCTIONS = (("because", "weil"), ("although", "obwohl"), ("while", "während"))
NOW_OR_THEN: tuple[Tense, ...] = ("present", "past")
PURPOSES = tuple(
    verb
    for verb in TRANSITIVES
    if verb.english.base in ("meet", "visit", "look", "buy", "greet", "feed", "wash", "repair", "call")
)


def _simple(draw: Draw, tense: Tense) -> Clause:
    clause = acting(draw, tense) if draw.sometimes(0.4) else transitive(draw, tense)
    clause.time = None
    return clause


def subordinate(draw: Draw) -> Sentence:
    """The man laughed because the dog slept. -> Der Mann lachte, weil der Hund schlief."""
    tense = draw.pick(NOW_OR_THEN)
    main, other = _simple(draw, tense), _simple(draw, tense)
    if tense == "present" and draw.sometimes(0.3):
        conjunction = word(draw, "when", "wenn")
    else:
        conjunction = word(draw, *draw.pick(CONJUNCTIONS))
    link = conjunction.english[0][1]
    if draw.sometimes(0.3):
        comma: Token = (",", draw.link(), 0)
        english = [*constituent("SBAR", [*conjunction.english, *other.english()]), comma, *main.english()]
        return Sentence(english, [*conjunction.german, *other.german_last(), comma, *main.german_after()])
    english = [*main.english(), *constituent("SBAR", [*conjunction.english, *other.english()])]
    return Sentence(english, [*main.german(), (",", 0, link), *conjunction.german, *other.german_last()])


def that(draw: Draw) -> Sentence:
    """She believes that the boy has found the key. -> Sie glaubt, dass der Junge den Schlüssel gefunden hat."""
    verb = draw.pick(SAYING_VERBS)
    doer = subject(draw, someone(draw, ("person",)), certain=True)
    tense = draw.pick(NOW_OR_THEN)
    main = Clause(doer, verbal(draw, verb, tense, doer.person))
    other = _simple(draw, draw.pick(COMMON) if tense == "present" else "past")
    conjunction = word(draw, "that", "dass")
    comma: Token = (",", 0, conjunction.english[0][1])
    english = [*main.english(), *constituent("SBAR", [*conjunction.english, *other.english()])]
    return Sentence(english, [*main.german(), comma, *conjunction.german, *other.german_last()])


def _relative_clause(draw: Draw, head: Phrase, noun: Noun, case: int, several: bool, clause: Clause) -> Phrase:
    """The head with its relative clause: its pronoun agrees with the head, its case is its own clause's."""
    link = draw.link()
    person = "person" in noun.kinds
    english = ("who" if case == NOMINATIVE else "whom") if person else "that"
    pronoun = RELATIVE[case][PLURAL if several else noun.gender]
    german: list[Token] = [(",", 0, link), (pronoun, link, 0)]
    return head._replace(
        english=constituent("NP", [*head.english, *constituent("SBAR", [(english, link, 0), *clause.english()])]),
        german=[*head.german, *german, *clause.german_last(), (",", 0, link)],
    )


@cache
def verbs_of(noun: Noun, case: int) -> tuple[Verb, ...]:
    """The verbs whose subject, direct object or dative object the noun may be."""
    if case == NOMINATIVE:
        return tuple(verb for verb in TRANSITIVES if noun in candidates(verb.subjects))
    return tuple(verb for verb in (DATIVES if case == DATIVE else TRANSITIVES) if noun in candidates(verb.objects))


@cache
def cases_of(noun: Noun) -> tuple[int, ...]:
    """The cases that a relative pronoun for the noun may have."""
    return tuple(case for case in (NOMINATIVE, ACCUSATIVE, DATIVE) if verbs_of(noun, case))


def related(draw: Draw, noun: Noun, outside: int) -> Phrase:
    """A noun (in the case that it has outside) with a relative clause, whose pronoun has a case of its own."""
    case = draw.pick(cases_of(noun))
    while True:
        verb = draw.pick(verbs_of(noun, case))
        other: Who | None
        if case == NOMINATIVE:
            other = draw.pick_admitted(candidates(verb.objects), verb.goals, noun.english, verb.english.base)
        else:
            other = someone(draw, verb.subjects)
            if not draw.admits(noun.english, verb.english.base, lemma(other)):
                continue
        if other is not None and other is not noun:
            break
    tense = draw.pick(NOW_OR_THEN)
    several = noun.several and draw.sometimes(0.25)
    head = noun_phrase(draw, noun, outside, THE, several)
    if isinstance(other, Noun) and case == NOMINATIVE:
        nobody = Phrase([], [], head.person)
        clause = Clause(nobody, verbal(draw, verb, tense, head.person), [some_noun(draw, other, ACCUSATIVE)])
    else:
        doer = subject(draw, other, certain=True)
        clause = Clause(doer, verbal(draw, verb, tense, doer.person))
    return _relative_clause(draw, head, noun, case, several, clause)


def relative_subject(draw: Draw) -> Sentence:
    """The man who reads the book is happy. -> Der Mann, der das Buch liest, ist glücklich."""
    noun, adjective = described(draw)
    head = related(draw, noun, NOMINATIVE)
    words = verbal(draw, BE, draw.pick(NOW_OR_THEN), head.person)
    return said(Clause(head, words, place=quality(draw, adjective, 0.3)))


def relative_object(draw: Draw) -> Sentence:
    """I know the woman whom he helps. -> Ich kenne die Frau, der er hilft."""
    who, verb, noun = event(draw, TRANSITIVES)
    head = related(draw, noun, ACCUSATIVE)
    doer = subject(draw, who, certain=True)
    return said(Clause(doer, verbal(draw, verb, draw.pick(NOW_OR_THEN), doer.person), [head]))


def contrast(draw: Draw) -> Sentence:
    """The man sings, but the child sleeps. -> Der Mann singt, aber das Kind schläft."""
    tense = draw.pick(NOW_OR_THEN)
    first, second = _simple(draw, tense), _simple(draw, tense)
    if draw.sometimes(0.5):
        comma: Token = (",", draw.link(), 0)
        conjunction = word(draw, "but", "aber")
        middle, german = [comma, *conjunction.english], [comma, *conjunction.german]
    else:
        conjunction = word(draw, "and", "und")
        middle, german = conjunction.english, conjunction.german
    return Sentence([*first.english(), *middle, *second.english()], [*first.german(), *german, *second.german()])


def together(draw: Draw) -> Sentence:
    """The cat and the dog see a mouse. -> Die Katze und der Hund sehen eine Maus."""
    while True:
        who, verb, what = event(draw, TRANSITIVES)
        other = draw.pick(candidates(verb.subjects))
        if not isinstance(who, Noun) or other in (who, what):
            continue
        if draw.admits(other.english, verb.english.base, what.english):
            break
    first, second = some_noun(draw, who, NOMINATIVE, certain=True), some_noun(draw, other, NOMINATIVE, certain=True)
    conjunction = word(draw, "and", "und")
    both = Phrase(
        constituent("NP", [*first.english, *conjunction.english, *second.english]),
        [*first.german, *conjunction.german, *second.german],
        THEY,
    )
    tense = draw.pick(NOW_OR_THEN)
    words = verbal(draw, verb, tense, THEY)
    return said(Clause(both, words, [some_noun(draw, what, ACCUSATIVE)], time=time(draw, tense)))


def purpose(draw: Draw) -> Sentence:
    """He goes to the station to meet a friend. -> Er geht zum Bahnhof, um einen Freund zu treffen."""
    who, verb, what = event(draw, PURPOSES, ("person",))
    while True:
        mover, goal = draw.pick(MOVERS), draw.pick(GOALS)
        if draw.admits(lemma(who), mover.english.base, goal.english):
            break
    doer = subject(draw, who)
    where = prepositional(draw, "to", "zu", noun_phrase(draw, goal, DATIVE, THE))
    main = Clause(doer, verbal(draw, mover, draw.pick(NOW_OR_THEN), doer.person), place=where)
    aim = some_noun(draw, what, ACCUSATIVE)
    to, link = draw.link(), draw.link()
    english: list[Token] = [("to", to, 0), (verb.english.base, link, 0)]
    english += [(part, link, 0) for part in verb.english.particle]
    end: list[Token] = [(verb.german.with_zu, link, to)]
    if not verb.german.prefix:
        end = [("zu", to, 0), (verb.german.infinitive, link, 0)]
    german = [*main.german(), (",", 0, to), ("um", to, 0), *aim.german, *end]
    return Sentence([*main.english(), *constituent("S", [*english, *aim.english])], german)
