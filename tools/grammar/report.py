"""How well a translator knows the grammar: the share of exact translations, and of pronouns with the right gender.

```python
report = grammar_report(translate, seed=7, split="test", count=2_000)
report.exact, report.pronoun_accuracy, report.nearest_noun, report.majority
```

The splits share no combination of words, so the sentences of `test` are new to a model that was trained on `train`,
whatever the two seeds are. Only pronouns that depend on their referent count: the two nouns have different genders. Two
baselines need no understanding: the gender of the nearer noun, and the most frequent gender.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count as numbers
from typing import NamedTuple

from tools.grammar.adjectives import LIVING_ADJECTIVES, PLACED_ADJECTIVES
from tools.grammar.corpus import dependent, pairs
from tools.grammar.draw import Draw, Split, split_of
from tools.grammar.nouns import Noun, nouns_of
from tools.grammar.referents import Scene, because_of
from tools.grammar.sentence import Pair, Referent, pair
from tools.grammar.verbs import CROSSERS

from regard.data.embedded import grammar_tokens

Translate = Callable[[list[str]], list[str]]
"""Gives the translation of each text, in the same order."""

PRONOUNS = {"m": "er", "f": "sie", "n": "es"}
ARTICLES = {"m": "der", "f": "die", "n": "das"}
EXAMPLES = (
    ("animal", "street", "timid"),
    ("animal", "street", "narrow"),
    ("wolf", "street", "tired"),
    ("wolf", "street", "icy"),
)
"""Animal, place, and the adjective of one of them: combinations of the test split, which never occur in training."""
SHOWN = 5
"""Wrong translations that a report keeps."""


class Wrong(NamedTuple):
    """A translation that is not exactly the right one."""

    construction: str
    source: str
    right: str
    written: str


@dataclass(frozen=True)
class GrammarReport:
    """Shares are of 1."""

    split: Split
    seed: int
    sentences: int
    exact: float
    """Share of the sentences whose translation is the right one, letter by letter."""
    pronouns: int
    """Further sentences, each with a pronoun that depends on its referent."""
    pronoun_accuracy: float
    nearest_noun: float
    """Share of pronouns with the gender of the noun that is nearer to *it*."""
    majority: float
    """Share of pronouns with the gender that most of them have: the best that a constant can do."""
    wrong_by_construction: dict[str, int]
    """Only constructions with something wrong, the worst first."""
    wrong: tuple[Wrong, ...]
    """The first few."""


def grammar_report(translate: Translate, seed: int, split: Split = "test", count: int = 2_000) -> GrammarReport:
    """Translates `count` sentences of all constructions, and `count` more whose pronoun depends on its referent.

    The sentences are those of the seed.
    """
    made = list(pairs(split, seed, count))
    resolved = list(dependent(split, seed, count))
    sources = [each.source for each in (*made, *(each for each, _ in resolved))]
    written = translate(sources)
    assert len(written) == len(sources)
    wrong = [
        Wrong(each.construction, each.source, each.target, text)
        for each, text in zip(made, written[:count], strict=True)
        if text != each.target
    ]
    referents = [referent for _, referent in resolved]
    right = sum(
        pronoun_of(text) == PRONOUNS[referent.gender] for text, referent in zip(written[count:], referents, strict=True)
    )
    return GrammarReport(
        split=split,
        seed=seed,
        sentences=count,
        exact=1 - len(wrong) / count,
        pronouns=count,
        pronoun_accuracy=right / count,
        nearest_noun=sum(map(_is_nearer, referents)) / count,
        majority=max(Counter(referent.gender for referent in referents).values()) / count,
        wrong_by_construction=dict(Counter(each.construction for each in wrong).most_common()),
        wrong=tuple(wrong[:SHOWN]),
    )


def pronoun_of(german: str) -> str:
    """The only er, sie or es of a text; empty if it has none or several.

    A sentence with a referent has no other pronoun.
    """
    found = [word for word in (token.lower() for token in grammar_tokens(german)) if word in PRONOUNS.values()]
    return found[0] if len(found) == 1 else ""


def _is_nearer(referent: Referent) -> bool:
    """Whether the referent is the noun that is nearer to *it* in the source."""
    place, _ = referent.pronoun
    return abs(place - referent.noun[0]) < abs(place - referent.distractor[0])


# ------------------------------------------------------------------------------------------------- one sentence to show


class Resolution(NamedTuple):
    """A sentence whose *it* must be resolved, and its translation."""

    source: str
    translation: str
    pronoun: str
    """er, sie or es, as the translation has it; nothing where it has none or several."""
    referent: str
    """The noun that the pronoun's gender points to, with its article: das Tier; nothing where it points to none."""
    right: str
    """The right translation."""


def resolve(translate: Translate, combinations: Sequence[tuple[str, str, str]] = EXAMPLES) -> list[Resolution]:
    """*The animal didn't cross the street because it was too …*: which noun does the translator take *it* for?

    A combination is an animal, a place and an adjective, by their English words. The two nouns must differ in gender.
    """
    made = [because(*combination) for combination in combinations]
    written = translate([each.source for each in made])
    return [_resolution(each, text) for each, text in zip(made, written, strict=True)]


def because(animal: str, place: str, adjective: str) -> Pair:
    """*The ANIMAL didn't cross the PLACE because it was too ADJECTIVE.*, with its translation and its referent."""
    living = {each.english: each for each in LIVING_ADJECTIVES}
    placed = {each.english: each for each in PLACED_ADJECTIVES}
    if adjective not in {**living, **placed}:
        raise ValueError(f"adjective ({adjective}) is not one; choose from {', '.join((*living, *placed))}")
    drawn = Scene(
        _noun("animal", animal),
        _noun("place", place),
        CROSSERS["cross"],
        {**living, **placed}[adjective],
        adjective in living,
    )
    wanted = f"The {animal} didn't cross the {place} because it was too {adjective}."
    draw = Draw(split_of(animal, place, adjective))
    # Articles, tense and conjunction are drawn; after a few draws they are the plain ones.
    return next(made for made in map(partial(_drawn, draw, drawn), numbers()) if made.source == wanted)


def _drawn(draw: Draw, scene: Scene, index: int) -> Pair:
    draw.restart(0, index)
    return pair(because_of(draw, scene), "because-it")


def _noun(kind: str, english: str) -> Noun:
    known = {noun.english: noun for noun in nouns_of((kind,))}
    if english not in known:
        raise ValueError(f"{kind} ({english}) is not in the grammar; choose from {', '.join(known)}")
    return known[english]


def _resolution(made: Pair, text: str) -> Resolution:
    referent = made.referent
    assert referent is not None
    nouns = {
        PRONOUNS[gender]: f"{ARTICLES[gender]} {made.target_tokens[place]}"
        for gender, (_, place) in (
            (referent.distractor_gender, referent.distractor),
            (referent.gender, referent.noun),
        )
    }
    pronoun = pronoun_of(text)
    return Resolution(made.source, text, pronoun, nouns.get(pronoun, ""), made.target)
