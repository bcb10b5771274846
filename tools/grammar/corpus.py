"""The corpus: any number of pairs of a split, in an order that a seed decides; each can be made by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count as numbers

from tools.grammar import compounds, descriptions, questions, referents, statements
from tools.grammar.draw import SPLITS, Draw, NoneAdmittedError, Split
from tools.grammar.sentence import Pair, Referent, Sentence, pair

Construction = Callable[[Draw], Sentence]

CONSTRUCTIONS: dict[str, tuple[Construction, int]] = {
    "present": (statements.present, 4),
    "past": (statements.past, 4),
    "perfect": (statements.perfect, 3),
    "future": (statements.future, 3),
    "progressive": (statements.progressive, 2),
    "modal": (statements.modal, 4),
    "negation": (statements.negation, 4),
    "dative": (statements.dative, 2),
    "pronoun-object": (statements.personal, 3),
    "giving": (statements.giving, 3),
    "location": (statements.location, 4),
    "direction": (statements.direction, 3),
    "laying": (statements.laying, 2),
    "time-first": (statements.fronting, 3),
    "command": (statements.command, 3),
    "bank": (statements.banks, 1),
    "bank-money": (statements.paying, 1),
    "description": (descriptions.description, 3),
    "comparison": (descriptions.comparison, 3),
    "superlative": (descriptions.superlative, 2),
    "possession": (descriptions.possession, 3),
    "passive": (descriptions.passives, 3),
    "yes-no-question": (questions.yes_or_no, 3),
    "quality-question": (questions.is_it_so, 2),
    "who-question": (questions.who, 1),
    "whom-question": (questions.whom, 1),
    "what-question": (questions.what, 2),
    "where-question": (questions.where, 1),
    "why-question": (questions.why_or_when, 2),
    "subordinate": (compounds.subordinate, 3),
    "that-clause": (compounds.that, 3),
    "relative-subject": (compounds.relative_subject, 2),
    "relative-object": (compounds.relative_object, 2),
    "coordination": (compounds.contrast, 3),
    "two-subjects": (compounds.together, 2),
    "purpose": (compounds.purpose, 2),
    "because-it": (referents.because, 14),
    "because-it-first": (referents.because_first, 4),
    "although-it": (referents.although, 6),
    "if-it": (referents.if_or_when, 4),
    "passive-it": (referents.avoided, 4),
}
"""Every construction with its relative frequency."""

REFERENT_CONSTRUCTIONS = tuple(
    name for name, (make, _) in CONSTRUCTIONS.items() if make.__module__ == referents.__name__
)


class Corpus:
    """The endless pairs of one split for one seed: `corpus[i]` is always the same pair, at once.

    `constructions` narrows it to some of them; all of them by default.
    """

    def __init__(self, split: Split, seed: int, constructions: tuple[str, ...] = ()) -> None:
        unknown = [name for name in constructions if name not in CONSTRUCTIONS]
        if unknown:
            raise ValueError(f"unknown construction {unknown[0]!r}; choose from {', '.join(CONSTRUCTIONS)}")
        if split not in SPLITS:
            raise ValueError(f"unknown split {split!r}; choose one of {', '.join(SPLITS)}")
        chosen = constructions or tuple(CONSTRUCTIONS)
        self._wheel = tuple((name, CONSTRUCTIONS[name][0]) for name in chosen for _ in range(CONSTRUCTIONS[name][1]))
        self._draw = Draw(split)
        self.split = split
        self.seed = seed

    def __getitem__(self, index: int) -> Pair:
        draw = self._draw
        draw.restart(self.seed, index)
        while True:
            name, construction = draw.pick(self._wheel)
            try:
                return pair(construction(draw), name)
            except NoneAdmittedError:
                continue


def pairs(split: Split, seed: int, count: int, start: int = 0, constructions: tuple[str, ...] = ()) -> Iterator[Pair]:
    """`count` pairs of a split, from index `start` on."""
    corpus = Corpus(split, seed, constructions)
    return (corpus[index] for index in range(start, start + count))


def dependent(split: Split, seed: int, count: int) -> Iterator[tuple[Pair, Referent]]:
    """Sentences whose pronoun depends on its referent: the two nouns have different genders."""
    corpus = Corpus(split, seed, REFERENT_CONSTRUCTIONS)
    found = 0
    for index in numbers():
        if found == count:
            return
        made = corpus[index]
        if made.referent is not None and made.referent.gender != made.referent.distractor_gender:
            found += 1
            yield made, made.referent
