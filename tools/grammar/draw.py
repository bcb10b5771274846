"""Random choices, and the split that a sentence belongs to.

A *combination* decides the split: the lemmas of a clause (subject, verb, object), or, where *it* must be resolved, the
two nouns and the adjective. A hash of the combination, the same for every seed, assigns it to one split, and a sentence
contains only combinations of its own split. So no combination of the test split occurs in training.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal, Protocol, TypeVar
from zlib import crc32

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = ("train", "valid", "test")

SHARES = 10
"""Of this many equal shares of all combinations, valid and test get one each, and train the others."""
PATIENCE = 300
"""After this many refused combinations another sentence is drawn."""

T = TypeVar("T")


class Named(Protocol):
    """A word with an English lemma."""

    @property
    def english(self) -> str: ...


N = TypeVar("N", bound=Named)


SCATTER = 0x9E3779B1
"""An odd multiplier (Knuth's) that spreads sums over all 32 bits."""
TRAIN: Split = "train"
BY_SHARE: tuple[Split, ...] = ("test", "valid", *[TRAIN] * (SHARES - 2))


@cache
def _number(lemma: str) -> int:
    return crc32(lemma.encode())


def split_of(*lemmas: str) -> Split:
    """The split that a combination of English lemmas belongs to, whatever their order."""
    return BY_SHARE[sum([_number(lemma) for lemma in lemmas]) * SCATTER % 2**32 * SHARES >> 32]


class NoneAdmittedError(Exception):
    """The words drawn so far have too few combinations in this split; another sentence must be drawn."""


class Draw:
    """The random choices of one sentence, and the numbers of its links, counted from 1."""

    def __init__(self, split: Split) -> None:
        self.split = split
        self.generator = random.Random()
        self.chance = self.generator.random
        self.last = 0
        self.refused = 0
        self._admitted: dict[tuple[str, ...], tuple[Any, ...]] = {}

    def restart(self, seed: int, index: int) -> None:
        """The state depends on nothing but the seed, the split and the index: any sentence can be made alone."""
        self.generator.seed(f"{seed}/{self.split}/{index}")
        self.last = 0
        self.refused = 0

    def link(self) -> int:
        self.last += 1
        return self.last

    def pick(self, items: Sequence[T]) -> T:
        return items[int(self.chance() * len(items))]

    def sometimes(self, probability: float) -> bool:
        return self.chance() < probability

    def pick_admitted(self, items: Sequence[N], name: str, *lemmas: str) -> N | None:
        """One of the items whose combination with the lemmas is of this split, if there is any.

        Much faster than to draw until one is admitted. `name` is the name of the items, which must not change.
        """
        admitted = self._admitted.get((name, *lemmas))
        if admitted is None:
            admitted = tuple(item for item in items if split_of(*lemmas, item.english) == self.split)
            self._admitted[(name, *lemmas)] = admitted
        return admitted[int(self.chance() * len(admitted))] if admitted else None

    def admits(self, *lemmas: str) -> bool:
        """Whether this split may use the combination."""
        if split_of(*lemmas) == self.split:
            return True
        self.refused += 1
        if self.refused > PATIENCE:
            self.refused = 0
            raise NoneAdmittedError
        return False
