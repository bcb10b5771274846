"""Aligned phrases: noun phrases, pronouns, prepositional phrases and predicates in both languages at once.

A token is (text, link, hint). Tokens of the two languages with the same link translate each other (a sure link). A hint
names the link of a word that a token helps to express, as *did* helps *cross*: neither right nor wrong to align (a
possible link). 0 is no link.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count, takewhile
from typing import NamedTuple

from tools.grammar.adjectives import FITTING, Adjective
from tools.grammar.draw import Draw
from tools.grammar.english import a_or_an
from tools.grammar.german import (
    ACCUSATIVE,
    AFTER_DIES,
    AFTER_EIN,
    DATIVE,
    DEFINITE,
    MIXED,
    PLURAL,
    STRONG,
    WEAK,
    Table,
    declined,
)
from tools.grammar.nouns import Noun

Token = tuple[str, int, int]
HE, THEY = 2, 5
"""Persons of noun phrases: the index of their verb forms."""


class Word(str):
    """A word that knows the constituents around it, the outermost first; each has a label and a number of its own."""

    path: tuple[tuple[str, int], ...] = ()


_numbers = count()


def constituent(label: str, tokens: list[Token]) -> list[Token]:
    """The tokens, all inside one more constituent."""
    mark, marked = (label, next(_numbers)), []
    for text, link, hint in tokens:
        word = Word(text)
        word.path = (mark, *getattr(text, "path", ()))
        marked.append((word, link, hint))
    return marked


def like(text: str, other: str) -> Word:
    """The text, inside the constituents of another word."""
    word = Word(text)
    word.path = getattr(other, "path", ())
    return word


def tree(words: Iterable[str]) -> str:
    """The constituents of a sentence, with XX for each word, as in Vinyals et al. (2015)."""
    parts, open_ = ["(TOP"], ()
    for word in words:
        path = getattr(word, "path", ())
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(open_, path, strict=False)))
        parts += [")"] * (len(open_) - same) + [f"({label}" for label, _ in path[same:]] + ["XX"]
        open_ = path
    return " ".join([*parts, *[")"] * (len(open_) + 1)]).replace(" )", ")")


class Phrase(NamedTuple):
    """The same phrase in both languages."""

    english: list[Token]
    german: list[Token]
    person: int = HE
    head: int = 0
    """The link of its noun."""
    pronoun: bool = False


class Determiner(NamedTuple):
    """The word before a noun: `german[case][column]`, and the endings of adjectives after it."""

    english: str
    german: Table | None
    endings: Table


def _plain(word: str) -> Table:
    return ((word,) * 4,) * 4


THE = Determiner("the", DEFINITE, WEAK)
A = Determiner("a", declined("ein", AFTER_EIN), MIXED)
NO = Determiner("no", declined("kein", AFTER_EIN), MIXED)
BARE = Determiner("", None, STRONG)
THIS = Determiner("this", declined("dies", AFTER_DIES), WEAK)
THESE = THIS._replace(english="these")
EVERY = Determiner("every", declined("jed", AFTER_DIES), WEAK)
ALL = Determiner("all", declined("all", AFTER_DIES), WEAK)
SOME = Determiner("some", declined("einig", AFTER_DIES), STRONG)
MANY = Determiner("many", declined("viel", AFTER_DIES), STRONG)
WHICH = Determiner("which", declined("welch", AFTER_DIES), WEAK)
POSSESSIVES = tuple(
    Determiner(english, declined(german, AFTER_EIN), MIXED)
    for english, german in {
        "my": "mein",
        "your": "dein",
        "his": "sein",
        "her": "ihr",
        "our": "unser",
        "their": "ihr",
    }.items()
)
NUMBERS = tuple(
    Determiner(english, _plain(german), STRONG)
    for english, german in {
        "two": "zwei",
        "three": "drei",
        "four": "vier",
        "five": "fünf",
        "six": "sechs",
        "seven": "sieben",
        "eight": "acht",
        "nine": "neun",
        "ten": "zehn",
    }.items()
)
SINGULAR = (*[THE] * 12, *[A] * 6, THIS, THIS, *POSSESSIVES, EVERY)
SEVERAL = (*[THE] * 8, THESE, *POSSESSIVES, ALL, SOME, MANY, *NUMBERS[:3])
UNCOUNTED = (*[THE] * 4, *[BARE] * 4, *POSSESSIVES[:3])
CERTAIN = (*[THE] * 8, THIS, *POSSESSIVES)
CERTAIN_SEVERAL = (*[THE] * 8, THESE, *POSSESSIVES)
"""Determiners that stay as they are under negation."""
PLACES = (THE, THE, THE, THIS)
"""Places seldom belong to anyone."""

# (English subject, English object, German in the four cases)
PRONOUNS = (
    ("I", "me", "ich", "mich", "mir"),
    ("you", "you", "du", "dich", "dir"),
    ("he", "him", "er", "ihn", "ihm"),
    ("she", "her", "sie", "sie", "ihr"),
    ("we", "us", "wir", "uns", "uns"),
    ("they", "them", "sie", "sie", "ihnen"),
)
PERSONS = (0, 1, HE, HE, 3, THEY)


def noun_phrase(
    draw: Draw, noun: Noun, case: int, determiner: Determiner, plural: bool = False, adjective: Adjective | None = None
) -> Phrase:
    """the small dog -> den kleinen Hund."""
    column = PLURAL if plural else noun.gender
    english: list[Token] = []
    german: list[Token] = []
    if determiner.german is not None:
        link = draw.link()
        word = determiner.english
        if determiner is A:
            word = a_or_an(adjective.english if adjective else noun.english)
        english.append((word, link, 0))
        german.append((determiner.german[case][column], link, 0))
    if adjective is not None:
        link = draw.link()
        english.append((adjective.english, link, 0))
        german.append((adjective.stem + determiner.endings[case][column], link, 0))
    head = draw.link()
    english.append((noun.plural if plural else noun.english, head, 0))
    german.append((noun.forms[case][plural], head, 0))
    return Phrase(constituent("NP", english), german, THEY if plural else HE, head)


def negated_object(draw: Draw, noun: Noun, plural: bool, adjective: Adjective | None, negation: int) -> Phrase:
    """(doesn't see) a dog -> keinen Hund; kein belongs to the *not* as much as to the article."""
    plain = noun_phrase(draw, noun, ACCUSATIVE, NO, plural, adjective)
    _, *rest = plain.english
    if not plural and noun.counted:
        rest = [(like(a_or_an(rest[0][0]), rest[0][0]), negation, 0), *rest]
    (word, _, _), *german = plain.german
    return plain._replace(english=rest, german=[(word, negation, 0), *german])


def pronoun(draw: Draw, index: int, case: int) -> Phrase:
    subject, other, *german = PRONOUNS[index]
    link = draw.link()
    english = other if case else subject
    return Phrase(
        constituent("NP", [(english, link, 0)]), [(german[case], link, 0)], PERSONS[index], link, pronoun=True
    )


def name(draw: Draw, text: str) -> Phrase:
    link = draw.link()
    return Phrase(constituent("NP", [(text, link, 0)]), [(text, link, 0)], HE, link)


def word(draw: Draw, english: str, german: str) -> Phrase:
    """A single word that does not change: an adverb, a conjunction. English may have several (next to)."""
    link = draw.link()
    return Phrase([(part, link, 0) for part in english.split()], [(german, link, 0)])


def fitting(draw: Draw, noun: Noun, probability: float = 0.25) -> Adjective | None:
    """Now and then an adjective that suits the noun."""
    if draw.chance() < probability and (adjectives := FITTING.get(noun.kinds[0])):
        return draw.pick(adjectives)
    return None


def some_noun(draw: Draw, noun: Noun, case: int, certain: bool = False, one: bool = False) -> Phrase:
    """A noun phrase with a determiner and a number of chance; `certain` ones mean what is known, `one` is singular."""
    adjective = fitting(draw, noun)
    if not noun.counted:
        return noun_phrase(draw, noun, case, draw.pick(CERTAIN if certain else UNCOUNTED), False, adjective)
    several = noun.several and not one and draw.chance() < 0.25
    if noun.kinds[0] == "place":
        determiners: tuple[Determiner, ...] = PLACES
    elif several:
        determiners = CERTAIN_SEVERAL if certain else SEVERAL
    else:
        determiners = CERTAIN if certain else SINGULAR
    return noun_phrase(draw, noun, case, draw.pick(determiners), several, adjective)


# ---------------------------------------------------------------------------------------------- prepositional phrases

CONTRACTIONS = {
    "in dem": "im",
    "an dem": "am",
    "zu dem": "zum",
    "zu der": "zur",
    "von dem": "vom",
    "bei dem": "beim",
    "in das": "ins",
    "an das": "ans",
}


def prepositional(draw: Draw, english: str, german: str, phrase: Phrase) -> Phrase:
    """in the garden -> im Garten. The phrase already has its case; a contraction is linked to both English words."""
    link = draw.link()
    (article, article_link, hint), *rest = phrase.german
    contracted = CONTRACTIONS.get(f"{german} {article}")
    if contracted:
        before = [(part, article_link, 0) for part in english.split()]
        english_words = constituent("PP", [*before, *phrase.english])
        return phrase._replace(english=english_words, german=[(contracted, article_link, hint), *rest])
    before = [(part, link, 0) for part in english.split()]
    return phrase._replace(
        english=constituent("PP", [*before, *phrase.english]), german=[(german, link, 0), *phrase.german]
    )


BESIDE = (("behind", "hinter"), ("in front of", "vor"), ("next to", "neben"))


def there(draw: Draw, place: Noun, case: int = DATIVE) -> Phrase:
    """Where something is: in the garden, on the bridge, with the preposition that the place asks for."""
    assert place.there
    english, german = place.there
    return prepositional(draw, english, german, noun_phrase(draw, place, case, THE, False, fitting(draw, place, 0.15)))


def beside(draw: Draw, place: Noun, case: int = DATIVE) -> Phrase:
    """Where something is: behind the house, next to the table."""
    english, german = draw.pick(BESIDE)
    return prepositional(draw, english, german, noun_phrase(draw, place, case, THE))
