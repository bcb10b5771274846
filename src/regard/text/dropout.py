"""BPE-dropout from a seed (Provilkov et al. 2020).

`tokenizers` has BPE-dropout, but draws from a generator of its own that nobody can seed, so a run could not be repeated
or resumed. Here the same algorithm runs in Python: at each step every possible merge is left out with probability
`rate`, and the first of the others is made, until none is left.

Most words come out as without dropout, and cost one random number: the undisturbed merges of a word are remembered, and
how many of them pass before the first is left out is a geometric variable. Only then are merges worked out one by one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import pairwise
from random import Random

_REMEMBERED = 200_000
"""Words whose merges are kept."""

_LONGEST = 128
"""Characters; a longer word is cut, since merging takes time quadratic in the length."""


class Merging:
    """The merges of a BPE vocabulary, made at random."""

    def __init__(self, vocabulary: Mapping[str, int], merges: Iterable[tuple[str, str]], unknown: int | None) -> None:
        self._vocabulary = vocabulary
        self._unknown = unknown
        self._rules = {
            (vocabulary[left], vocabulary[right]): (rank, vocabulary[left + right])
            for rank, (left, right) in enumerate(merges)
        }
        self._steps: dict[str, list[list[int]]] = {}

    def sample(self, word: str, rate: float, random: Random) -> list[int]:
        """The ids of a word. The same state of `random` gives the same ids."""
        if len(word) <= _LONGEST:
            return self._sample(word, rate, random)
        pieces = (word[start : start + _LONGEST] for start in range(0, len(word), _LONGEST))
        return [token for piece in pieces for token in self._sample(piece, rate, random)]

    def _sample(self, word: str, rate: float, random: Random) -> list[int]:
        steps = self._steps.get(word)
        if steps is None:
            steps = self._undisturbed(word)
            if len(self._steps) < _REMEMBERED:
                self._steps[word] = steps
        merges = len(steps) - 1
        if not merges or not rate:
            return steps[-1]
        passed = math.log(1.0 - random.random()) / math.log1p(-rate)
        if passed >= merges:
            return steps[-1]
        tokens, found = list(steps[int(passed)]), self._possible(steps[int(passed)])
        chosen = self._first_kept(found[1:], rate, random)
        while chosen is not None:
            self._merge(tokens, chosen)
            chosen = self._first_kept(self._possible(tokens), rate, random)
        return tokens

    def _undisturbed(self, word: str) -> list[list[int]]:
        """The tokens after 0, 1, 2 … merges, none left out."""
        ids = (self._vocabulary.get(character, self._unknown) for character in word)
        steps = [[number for number in ids if number is not None]]
        while found := self._possible(steps[-1]):
            tokens = list(steps[-1])
            self._merge(tokens, found[0])
            steps.append(tokens)
        return steps

    def _possible(self, tokens: list[int]) -> list[tuple[int, int]]:
        """(rank, place) of every merge that could be made now, in the order of BPE."""
        rules = self._rules
        pairs = enumerate(pairwise(tokens))
        return sorted((rules[pair][0], place) for place, pair in pairs if pair in rules)

    @staticmethod
    def _first_kept(found: list[tuple[int, int]], rate: float, random: Random) -> tuple[int, int] | None:
        return next((merge for merge in found if random.random() >= rate), None)

    def _merge(self, tokens: list[int], merge: tuple[int, int]) -> None:
        _, place = merge
        tokens[place : place + 2] = [self._rules[tokens[place], tokens[place + 1]][1]]
