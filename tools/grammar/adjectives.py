"""The adjectives and adverbs.

A row is `english German [comparative superlative] : kinds`. Forms that are left out follow the rules; the kinds are
those of the nouns that the adjective may describe.
"""

from __future__ import annotations

from typing import NamedTuple

from tools.grammar import german
from tools.grammar.english import comparison

DESCRIBING = """
old alt älter ältest : person animal place building thing clothes reading vehicle furniture opening
young jung jünger jüngst : person animal
tall groß größer größt : person
big groß größer größt : animal place building food thing vehicle furniture opening
small klein : animal place building food thing vehicle furniture opening
new neu : building thing clothes reading vehicle furniture opening
beautiful schön : animal place building thing clothes furniture
ugly hässlich : animal building thing clothes furniture
friendly freundlich : person
famous berühmt : person
rich reich : person
poor arm ärmer ärmst : person
strong stark stärker stärkst : person animal
clever klug klüger klügst : person animal
happy glücklich : person
sad traurig : person
polite höflich : person
brave mutig : person animal
wild wild : animal
brown braun - - : animal thing clothes furniture
white weiß - - : animal thing clothes vehicle furniture
black schwarz - - : animal thing clothes vehicle furniture
red rot - - : thing clothes vehicle
green grün - - : thing clothes vehicle opening
blue blau - - : thing clothes vehicle opening
expensive teuer teurer teuerst : thing clothes vehicle furniture
cheap billig : thing clothes vehicle furniture
heavy schwer : thing furniture
quiet ruhig : place building
fresh frisch : food staple
delicious lecker : food staple
cold kalt kälter kältest : drink
hot heiß : drink
warm warm wärmer wärmst : clothes
elegant elegant : clothes
long lang länger längst : reading
short kurz kürzer kürzest : reading
interesting interessant : reading
boring langweilig : reading
fast schnell : vehicle animal
modern modern : vehicle building
"""

LIVING = """
tired müde
hungry hungrig
thirsty durstig
sleepy schläfrig
lazy faul
sick krank kränker kränkst
nervous nervös
frightened verängstigt
shy scheu
impatient ungeduldig
exhausted erschöpft
timid ängstlich
"""
"""Adjectives for living beings only; together with `PLACED` they decide what *it* refers to."""

PLACED = """
wide breit
narrow schmal
steep steil
deep tief
slippery rutschig
icy vereist
bumpy holprig
muddy schlammig
swampy sumpfig
rocky steinig
dark dunkel
crowded überfüllt
remote abgelegen
windy windig
sunny sonnig
stuffy stickig
smoky verraucht
"""


class Adjective(NamedTuple):
    """An adjective in both languages; comparatives and superlatives are words in English and stems in German."""

    english: str
    german: str
    stem: str
    more: tuple[str, ...]
    most: tuple[str, ...]
    german_more: str
    german_most: str
    kinds: tuple[str, ...]


def _adjective(row: str) -> Adjective:
    words, _, kinds = row.partition(" : ")
    english, german_word, *compared = words.split()
    more, most = comparison(english)
    given = compared or [german.comparative(german_word), german.superlative(german_word)]
    german_more, german_most = ("", "") if given[0] == "-" else given
    stem = german.attributive_stem(german_word)
    return Adjective(english, german_word, stem, more, most, german_more, german_most, tuple(kinds.split()))


def _adjectives(rows: str) -> tuple[Adjective, ...]:
    return tuple(_adjective(row) for row in rows.strip().splitlines())


ADJECTIVES = _adjectives(DESCRIBING)
LIVING_ADJECTIVES = _adjectives(LIVING)
PLACED_ADJECTIVES = _adjectives(PLACED)
FITTING: dict[str, tuple[Adjective, ...]] = {
    kind: tuple(adjective for adjective in ADJECTIVES if kind in adjective.kinds)
    for kind in {kind for adjective in ADJECTIVES for kind in adjective.kinds}
}
"""Which adjectives describe a noun of a kind."""
COMPARED: dict[str, tuple[Adjective, ...]] = {
    kind: tuple(adjective for adjective in adjectives if adjective.german_more) for kind, adjectives in FITTING.items()
}

TIMES = {
    "past": (("yesterday", "gestern"), ("recently", "neulich")),
    "present": (("today", "heute"), ("now", "jetzt")),
    "future": (("tomorrow", "morgen"), ("soon", "bald"), ("later", "später")),
}
"""When something happens; English puts it last or first, German after the verb or first."""
FREQUENCIES = (
    ("often", "oft"),
    ("always", "immer"),
    ("sometimes", "manchmal"),
    ("rarely", "selten"),
    ("never", "nie"),
)
DEGREES = (("very", "sehr"), ("too", "zu"), ("so", "so"), ("really", "wirklich"), ("quite", "ziemlich"))
