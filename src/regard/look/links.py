"""Word alignments as sets of links: both directions joined, gold ones read, and how far one is from gold.

A link is the number of a source word and that of a target word, from 0. No torch in here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from regard.data.files import open_bytes
from regard.errors import DataError

Link: TypeAlias = tuple[int, int]
Links: TypeAlias = frozenset[Link]

_WRITTEN = re.compile(r"(\d+)([-p?])(\d+)")
_AROUND = [(row, column) for row in (-1, 0, 1) for column in (-1, 0, 1) if row or column]


class Gold(NamedTuple):
    """What people said of one pair."""

    sure: Links
    possible: Links
    """The sure ones, and those that may be there."""

    def turned(self) -> Gold:
        """The same seen from the other language."""
        return Gold(turned(self.sure), turned(self.possible))


class Score(NamedTuple):
    """How alignments compare with gold (Och and Ney 2003)."""

    error: float
    """The alignment error rate: 1 − (sure found + possible found) / (found + sure)."""
    precision: float
    """Which share of what was found is possible."""
    recall: float
    """Which share of what is sure was found."""


def score(found: Sequence[Iterable[Link]], gold: Sequence[Gold]) -> Score:
    """Over all pairs together."""
    each = [(frozenset(links), sure, possible) for links, (sure, possible) in zip(found, gold, strict=True)]
    links, sure = (sum(len(row[place]) for row in each) for place in (0, 1))
    right, allowed = (sum(len(row[0] & row[place]) for row in each) for place in (1, 2))
    return Score(
        1 - (right + allowed) / max(links + sure, 1),
        allowed / links if links else 1.0,
        right / sure if sure else 1.0,
    )


def turned(links: Iterable[Link]) -> Links:
    """The same links seen from the other language."""
    return frozenset((target, source) for source, target in links)


def grow_diagonal(one: Links, other: Links) -> Links:
    """Both directions joined (Koehn, Och and Marcu 2003): what both say, grown by neighbours that one of them says.

    A neighbour, also at a corner, comes in where its source word or its target word has no link yet.
    """
    kept, offered = set(one & other), one | other
    sources, targets = {source for source, _ in kept}, {target for _, target in kept}
    grows = True
    while grows:
        grows = False
        for source, target in sorted(offered - kept):
            beside = any((source + row, target + column) in kept for row, column in _AROUND)
            if beside and (source not in sources or target not in targets):
                kept.add((source, target))
                sources.add(source)
                targets.add(target)
                grows = True
    return frozenset(kept)


def written(links: Iterable[Link]) -> str:
    """As alignment tools write it: 0-0 1-2."""
    return " ".join(f"{source}-{target}" for source, target in sorted(links))


# ----------------------------------------------------------------------------------------------------------------- gold


def read_gold(path: Path, lengths: Sequence[tuple[int, int]], swapped: bool = False) -> list[Gold]:
    """Gold alignments, a line for each pair: `3-4` is sure, `3p4` or `3?4` possible.

    Words are counted from 1 where no line has a 0, as is usual in gold files; from 0 otherwise. `lengths` are the
    numbers of words of each pair, by which a file that does not fit is found. `swapped`: target words come first.
    """
    with open_bytes(str(path)) as file:
        lines = file.read().decode("utf-8").splitlines()
    if len(lines) != len(lengths):
        raise DataError(f"{path} has {len(lines)} lines, and there are {len(lengths)} pairs; give the gold of these")
    rows = [[_link(path, number, word) for word in line.split()] for number, line in enumerate(lines, 1)]
    first = 0 if any(0 in link for row in rows for link, _ in row) else 1
    gold = []
    for number, (row, (source, target)) in enumerate(zip(rows, lengths, strict=True), 1):
        links = [((a - first, b - first) if not swapped else (b - first, a - first), sure) for (a, b), sure in row]
        outside = [link for link, _ in links if not (link[0] < source and link[1] < target)]
        if outside:
            raise DataError(
                f"{path}, line {number}: link {outside[0]} lies outside of {source} source and {target} target words; "
                "give the texts in the order of the gold's links, or say that they are swapped"
            )
        possible = frozenset(link for link, _ in links)
        gold.append(Gold(frozenset(link for link, sure in links if sure), possible))
    return gold


def _link(path: Path, number: int, word: str) -> tuple[Link, bool]:
    found = _WRITTEN.fullmatch(word)
    if found is None:
        raise DataError(f"{path}, line {number}: {word!r} is no link; write 3-4 for a sure one and 3p4 for another")
    return (int(found[1]), int(found[3])), found[2] == "-"
