"""What word vectors know: neighbours, and analogies such as king − man + woman ≈ queen.

Beside an analogy's accuracy stands that of a guess that never looks at the offset: the nearest neighbour of the third
word. Where both are alike, the vectors know which words are related, not how (Linzen 2016).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from regard.errors import InputError
from regard.look.table import VectorTable

Method: TypeAlias = Literal["add", "multiply"]
"""3CosAdd: cos(x, b) − cos(x, a) + cos(x, c). 3CosMul: cos(x, b) · cos(x, c) / cos(x, a), each moved to 0 … 1 (Levy and
Goldberg 2014)."""
EPSILON = 1e-3
"""What keeps 3CosMul's divisor from being nothing, as in the paper."""


class Neighbour(NamedTuple):
    """A word, and how well it fits."""

    word: str
    score: float
    """The cosine or, of an analogy, the score of its method."""


class Quadruple(NamedTuple):
    """a is to b as c is to d: man is to king as woman is to queen."""

    a: str
    b: str
    c: str
    d: str


class Accuracy(NamedTuple):
    """How many analogies of a list are answered right."""

    right: int
    """Those whose fourth word has the highest score, alone."""
    by_neighbour: int
    """Those that the nearest neighbour of the third word answers, which is the baseline."""
    asked: int
    """Those whose words are all in the table; shares are of these."""
    unknown: tuple[Quadruple, ...]
    """Those left out, since the table lacks a word of theirs."""

    @property
    def share(self) -> float:
        return self.right / self.asked if self.asked else 0.0

    @property
    def baseline(self) -> float:
        return self.by_neighbour / self.asked if self.asked else 0.0


def similarity(table: VectorTable, first: str, second: str) -> float:
    """The cosine of two words."""
    return float((table.units[table.row(first)] * table.units[table.row(second)]).sum().clamp(-1, 1))


def similarities(table: VectorTable) -> Tensor:
    """`[N, N]`: the cosines of all words with each other."""
    return (table.units @ table.units.mT).clamp(-1, 1)


def nearest(table: VectorTable, word: str | Tensor, count: int = 10, without: Sequence[str] = ()) -> list[Neighbour]:
    """The words nearest to one of the table, itself left out, or to any vector; by cosine."""
    if isinstance(word, str):
        unit, left_out = table.units[table.row(word)], [word, *without]
    else:
        unit, left_out = _unit(table, word), list(without)
    return _best(table, (table.units @ unit).clamp(-1, 1), left_out, count)


def analogy(table: VectorTable, a: str, b: str, c: str, count: int = 10, method: Method = "add") -> list[Neighbour]:
    """a is to b as c is to …: `analogy(table, "man", "king", "woman")` is king − man + woman, the three left out."""
    rows = torch.tensor([[table.row(word) for word in (a, b, c)]])
    return _best(table, _scores(table, rows, method)[0], [a, b, c], count)


def accuracy(table: VectorTable, quadruples: Iterable[Sequence[str]], method: Method = "add") -> Accuracy:
    """How many are answered right: the fourth word must be the best of all but the three given ones, with no tie."""
    asked: list[Quadruple] = []
    unknown: list[Quadruple] = []
    for given in quadruples:
        if len(given) != 4 or isinstance(given, str):
            raise InputError(f"analogy ({given!r}) must be of four words; write (man, king, woman, queen)")
        quadruple = Quadruple(*given)
        (asked if all(word in table for word in quadruple) else unknown).append(quadruple)
    right = by_neighbour = 0
    for first in range(0, len(asked), 256):
        rows_Q4 = torch.tensor([[table.row(word) for word in each] for each in asked[first : first + 256]])
        near_QN = table.units[rows_Q4[:, 2]] @ table.units.mT
        right += _count_right(_scores(table, rows_Q4[:, :3], method), rows_Q4)
        by_neighbour += _count_right(near_QN, rows_Q4)
    return Accuracy(right, by_neighbour, len(asked), tuple(unknown))


def _scores(table: VectorTable, rows_Q3: Tensor, method: Method) -> Tensor:
    """`[Q, N]`: how well each word completes each analogy."""
    if method not in ("add", "multiply"):
        raise InputError(f"method ({method}) is not known; choose add or multiply")
    a_QD, b_QD, c_QD = (table.units[rows_Q3[:, place]] for place in range(3))
    if method == "add":
        return (b_QD - a_QD + c_QD) @ table.units.mT
    a_QN, b_QN, c_QN = (((given @ table.units.mT).clamp(-1, 1) + 1) / 2 for given in (a_QD, b_QD, c_QD))
    return b_QN * c_QN / (a_QN + EPSILON)


def _count_right(scores_QN: Tensor, rows_Q4: Tensor) -> int:
    scores_QN = scores_QN.scatter(1, rows_Q4[:, :3], -torch.inf)
    wanted_Q1 = scores_QN.gather(1, rows_Q4[:, 3:])
    others_QN = scores_QN.scatter(1, rows_Q4[:, 3:], -torch.inf)
    return int((wanted_Q1[:, 0] > others_QN.amax(1)).sum())


def _best(table: VectorTable, scores_N: Tensor, left_out: Sequence[str], count: int) -> list[Neighbour]:
    if count < 1:
        raise InputError(f"count ({count}) must be at least 1; give how many words are wanted")
    gone = {table.row(word) for word in left_out}
    order = scores_N.argsort(descending=True, stable=True).tolist()[: count + len(gone)]
    found = [Neighbour(table.words[row], float(scores_N[row])) for row in order if row not in gone]
    return found[:count]


def _unit(table: VectorTable, vector: Tensor) -> Tensor:
    if vector.shape != table.units.shape[1:]:
        raise InputError(
            f"a vector of shape {list(vector.shape)} does not fit the table; give {list(table.units.shape[1:])}"
        )
    return functional.normalize(vector.to(table.units), dim=0, eps=1e-30)
