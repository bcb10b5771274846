"""The lectures' sentence: The animal didn't cross the street because it was too tired. Or too wide.

English *it* is the animal or the street, and only the adjective says which. German must know, since its pronoun takes
the gender of the noun: weil *es* zu müde war (das Tier), weil *sie* zu breit war (die Straße).

Nothing else gives it away. The referent is the animal or the place equally often, each of the three genders is equally
frequent, and the two nouns seldom have the same. So the nearer noun, the first noun or the commonest gender is right
in little more than half of all sentences at the most.
"""

from __future__ import annotations

from typing import NamedTuple

from tools.grammar.adjectives import ADJECTIVES, LIVING_ADJECTIVES, PLACED_ADJECTIVES, Adjective
from tools.grammar.clauses import Clause, Tense, Verbal, passive, verbal, with_modal
from tools.grammar.draw import Draw
from tools.grammar.german import ACCUSATIVE, DATIVE, NOMINATIVE
from tools.grammar.nouns import Noun, nouns_of
from tools.grammar.phrases import (
    CERTAIN,
    HE,
    PLACES,
    Phrase,
    Token,
    constituent,
    fitting,
    noun_phrase,
    prepositional,
    word,
)
from tools.grammar.sentence import Resolved, Sentence
from tools.grammar.verbs import BE, CROSSERS, Verb

SAME_GENDER = 0.1
"""How often both nouns have one gender, so that the pronoun does not depend on the referent after all."""
GENDERS = (0, 1, 2)
IT = ("er", "sie", "es")

LIVING_FITS = {
    "tired": "cross reach explore",
    "hungry": "leave explore",
    "thirsty": "leave explore",
    "sleepy": "cross reach explore",
    "lazy": "cross reach explore",
    "sick": "cross reach explore",
    "nervous": "cross enter leave avoid",
    "frightened": "cross enter leave avoid",
    "shy": "enter avoid",
    "impatient": "leave explore",
    "exhausted": "cross reach explore",
    "timid": "cross enter explore avoid",
}
"""An animal that is too tired does not cross, reach or explore; one that is too shy avoids."""

PLACED_FITS = {
    "wide": ("broad", "cross avoid"),
    "narrow": ("way", "cross enter avoid"),
    "steep": ("slope", "cross avoid"),
    "deep": ("water", "cross avoid"),
    "slippery": ("way", "cross enter avoid"),
    "icy": ("way", "cross enter avoid"),
    "bumpy": ("way", "cross avoid"),
    "muddy": ("soft", "cross enter avoid"),
    "swampy": ("soft", "cross enter explore avoid"),
    "rocky": ("stony", "cross explore avoid"),
    "dark": ("room", "enter leave explore avoid"),
    "crowded": ("public", "enter leave avoid"),
    "remote": ("far", "reach explore"),
    "windy": ("land", "cross leave explore avoid"),
    "sunny": ("land", "cross leave avoid"),
    "stuffy": ("room", "enter leave avoid"),
    "smoky": ("room", "enter leave avoid"),
}
"""The kinds of place that an adjective fits, and the verbs that an animal then does not do (or does: leave, avoid)."""

REACHABLE = {
    "cross": ("way", "broad", "slope", "water", "soft"),
    "enter": ("room", "public", "soft"),
    "leave": ("room", "public", "land"),
    "reach": ("far", "room", "way", "water"),
    "avoid": ("way", "broad", "slope", "water", "soft", "room", "public", "land"),
    "explore": ("room", "soft", "far", "land"),
}
AWAY = ("leave", "avoid")
"""An animal does these because of the defect, and the others in spite of it."""


def _by_gender(kinds: tuple[str, ...]) -> tuple[tuple[Noun, ...], ...]:
    return tuple(tuple(noun for noun in nouns_of(kinds) if noun.gender == gender) for gender in GENDERS)


ANIMALS = _by_gender(("animal",))
PLACES_OF_VERB = {verb: _by_gender(kinds) for verb, kinds in REACHABLE.items()}
PLACES_OF_KIND = {kind: _by_gender((kind,)) for kind, _ in PLACED_FITS.values()}
PLACE_ADJECTIVES = tuple(adjective for adjective in ADJECTIVES if adjective.english in ("old", "beautiful"))


class Scene(NamedTuple):
    """An animal, a place, an action and its reason."""

    animal: Noun
    place: Noun
    verb: Verb
    adjective: Adjective
    living: bool
    """Whether *it* is the animal."""


def scene(draw: Draw) -> Scene:
    """Draw genders first, so that they stay balanced whatever the split admits."""
    living = draw.sometimes(0.5)
    gender = draw.pick(GENDERS)
    other = gender if draw.sometimes(SAME_GENDER) else (gender + (1 if draw.sometimes(0.5) else 2)) % 3
    adjective = draw.pick(LIVING_ADJECTIVES if living else PLACED_ADJECTIVES)
    while True:
        verb = draw.pick(VERBS[adjective.english])
        if living:
            animal = draw.pick(ANIMALS[gender])
            places, name = PLACES_OF_VERB[verb][other], f"{verb} {other}"
        else:
            kind, _ = PLACED_FITS[adjective.english]
            animal = draw.pick(ANIMALS[other])
            places, name = PLACES_OF_KIND[kind][gender], f"{kind} {gender}"
        place = draw.pick_admitted(places, name, animal.english, adjective.english)
        if place is not None:
            return Scene(animal, place, CROSSERS[verb], adjective, living)


VERBS = {
    **{adjective: tuple(verbs.split()) for adjective, verbs in LIVING_FITS.items()},
    **{adjective: tuple(verbs.split()) for adjective, (_, verbs) in PLACED_FITS.items()},
}


def _nouns(draw: Draw, drawn: Scene, cases: tuple[int, int]) -> tuple[Phrase, Phrase]:
    animal = noun_phrase(draw, drawn.animal, cases[0], draw.pick(CERTAIN), False, fitting(draw, drawn.animal, 0.15))
    described = draw.pick(PLACE_ADJECTIVES) if draw.sometimes(0.1) else None
    return animal, noun_phrase(draw, drawn.place, cases[1], draw.pick(PLACES), False, described)


def _resolved(drawn: Scene, animal: Phrase, place: Phrase, pronoun: int) -> Resolved:
    nouns = [(animal.head, drawn.animal.gender), (place.head, drawn.place.gender)]
    (noun, gender), (other, other_gender) = nouns if drawn.living else nouns[::-1]
    return Resolved(pronoun, noun, other, gender, other_gender)


def _reason(draw: Draw, drawn: Scene, degree: tuple[str, str], tense: Tense) -> tuple[Clause, int]:
    """it was too tired, with the pronoun that German needs."""
    link, last = draw.link(), draw.link()
    gender = drawn.animal.gender if drawn.living else drawn.place.gender
    it = Phrase([("it", link, 0)], [(IT[gender], link, 0)], HE, link, pronoun=True)
    before = word(draw, *degree)
    how = Phrase(
        [*before.english, (drawn.adjective.english, last, 0)], [*before.german, (drawn.adjective.german, last, 0)]
    )
    return Clause(it, verbal(draw, BE, tense, HE), place=how), link


TOO = (("too", "zu"), ("too", "zu"), ("too", "zu"), ("so", "so"))
VERY = (("very", "sehr"), ("quite", "ziemlich"), ("really", "wirklich"))
Narration = tuple[Verbal, int, Tense]
"""The verb of the main clause, the link of its nicht, and the tense of the reason."""


def _narration(draw: Draw, drawn: Scene, negative: bool) -> Narration:
    """didn't cross, hasn't crossed, couldn't cross, didn't want to cross."""
    negation = draw.link() if negative else 0
    verb = drawn.verb
    chance = draw.chance()
    if chance < 0.6:
        return verbal(draw, verb, "past", HE, negation), negation, "past"
    if chance < 0.75:
        return verbal(draw, verb, "perfect", HE, negation), negation, "present"
    if chance < 0.85 and negative and verb.english.base not in AWAY:
        return with_modal(draw, verb, "can", HE, True, negation), negation, "past"
    return with_modal(draw, verb, "want", HE, True, negation), negation, "past"


def _joined(main: Clause, conjunction: Phrase, reason: Clause) -> tuple[list[Token], list[Token]]:
    comma: Token = (",", 0, conjunction.english[0][1])
    english = [*main.english(), *constituent("SBAR", [*conjunction.english, *reason.english()])]
    return english, [*main.german(), comma, *conjunction.german, *reason.german_last()]


def because(draw: Draw) -> Sentence:
    """The animal didn't cross the street because it was too tired."""
    return because_of(draw, scene(draw))


def because_of(draw: Draw, drawn: Scene) -> Sentence:
    animal, place = _nouns(draw, drawn, (NOMINATIVE, ACCUSATIVE))
    words, negation, tense = _narration(draw, drawn, drawn.verb.english.base not in AWAY)
    reason, link = _reason(draw, drawn, draw.pick(TOO), tense)
    conjunction = word(draw, "since", "da") if draw.sometimes(0.2) else word(draw, "because", "weil")
    english, german = _joined(Clause(animal, words, [place], negation=negation), conjunction, reason)
    return Sentence(english, german, resolved=_resolved(drawn, animal, place, link))


def because_first(draw: Draw) -> Sentence:
    """Because it was too tired, the animal didn't cross the street."""
    drawn = scene(draw)
    animal, place = _nouns(draw, drawn, (NOMINATIVE, ACCUSATIVE))
    words, negation, tense = _narration(draw, drawn, drawn.verb.english.base not in AWAY)
    reason, link = _reason(draw, drawn, draw.pick(TOO), tense)
    conjunction, comma = word(draw, "because", "weil"), (",", draw.link(), 0)
    main = Clause(animal, words, [place], negation=negation)
    english = [*constituent("SBAR", [*conjunction.english, *reason.english()]), comma, *main.english()]
    german = [*conjunction.german, *reason.german_last(), comma, *main.german_after()]
    return Sentence(english, german, resolved=_resolved(drawn, animal, place, link))


def although(draw: Draw) -> Sentence:
    """The animal crossed the street although it was very tired."""
    drawn = scene(draw)
    animal, place = _nouns(draw, drawn, (NOMINATIVE, ACCUSATIVE))
    words, negation, tense = _narration(draw, drawn, drawn.verb.english.base in AWAY)
    reason, link = _reason(draw, drawn, draw.pick(VERY), tense)
    main = Clause(animal, words, [place], negation=negation)
    english, german = _joined(main, word(draw, "although", "obwohl"), reason)
    return Sentence(english, german, resolved=_resolved(drawn, animal, place, link))


def if_or_when(draw: Draw) -> Sentence:
    """The animal won't cross the street if it is too tired."""
    drawn = scene(draw)
    animal, place = _nouns(draw, drawn, (NOMINATIVE, ACCUSATIVE))
    negation = 0 if drawn.verb.english.base in AWAY else draw.link()
    later = draw.sometimes(0.5)
    words = verbal(draw, drawn.verb, "future" if later else "present", HE, negation)
    reason, link = _reason(draw, drawn, TOO[0], "present")
    main = Clause(animal, words, [place], negation=negation)
    english, german = _joined(main, word(draw, "if" if later else "when", "wenn"), reason)
    return Sentence(english, german, resolved=_resolved(drawn, animal, place, link))


def avoided(draw: Draw) -> Sentence:
    """The street wasn't crossed by the animal because it was too tired."""
    drawn = scene(draw)
    animal, place = _nouns(draw, drawn, (DATIVE, NOMINATIVE))
    negation = 0 if drawn.verb.english.base in AWAY else draw.link()
    words = passive(draw, drawn.verb, True, HE, negation)
    by = prepositional(draw, "by", "von", animal)
    reason, link = _reason(draw, drawn, TOO[0], "past")
    main = Clause(place, words, [by], negation=negation)
    english, german = _joined(main, word(draw, "because", "weil"), reason)
    return Sentence(english, german, resolved=_resolved(drawn, animal, place, link))
