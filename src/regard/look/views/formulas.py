"""Formulas as trees: one definition for the formula that a step shows, for its numbers, and for the test of both.

A tree is the symbol of an operand, or a tuple of an operation and its arguments: `("add", ("matmul", "x", "W"), "b")`
is x W + b. Symbols are the keys of a step's operands. `web/look/formulas.js` writes trees as text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from regard.blocks.layers import ACTIVATIONS
from regard.blocks.positions import Rotation, rotate, sinusoidal

Tree: TypeAlias = Any
"""A symbol, or a tuple whose first item is the name of an operation."""


class Operand(NamedTuple):
    """A value in a formula: the output of an earlier step, a parameter (both by their names), or a constant."""

    name: str
    value: Tensor


def distances(queries: int, keys: int) -> Tensor:
    """`[Q, K]`: position of the query − position of the key."""
    return torch.arange(queries)[:, None] - torch.arange(keys)


def _distance(table: Tensor) -> Tensor:
    """`[T, T]` from a table by distance, `[2 T − 1]` or `[T, 2 T − 1]`, whose middle is distance 0."""
    count = (table.shape[-1] + 1) // 2
    column_TT = distances(count, count) + count - 1
    return table[column_TT] if table.dim() == 1 else table.gather(1, column_TT)


def _mask(scores_TK: Tensor, causal: Tensor, window: Tensor) -> Tensor:
    apart_TK = distances(*scores_TK.shape)
    hidden_TK = ((apart_TK < 0) & bool(causal)) | (bool(window) & (apart_TK.abs() >= window))
    return scores_TK.masked_fill(hidden_TK, -torch.inf)


def _rotate(order: Any) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    def turned(x_TE: Tensor, angles_TJ: Tensor, factor: Tensor) -> Tensor:
        cos, sin = (factor * wave[:, None] for wave in (angles_TJ.cos(), angles_TJ.sin()))
        return rotate(x_TE[:, None], Rotation(cos, sin, order))[:, 0]

    return turned


def _waves(order: Any) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    return lambda places, base, width: sinusoidal(places, int(width), float(base), order, torch.float32)


OPERATIONS: dict[str, Callable[..., Tensor]] = {
    **{str(name): each for name, each in ACTIVATIONS.items()},
    "tanh": torch.tanh,
    "add": lambda a, b: a + b,
    "times": lambda a, b: a * b,
    "over": lambda a, b: a / b,
    "matmul": lambda a, b: a @ b,
    "dot": lambda a, b: a @ b.mT,
    "lookup": lambda a, b: a[b.long()],
    "prepend": lambda a, b: torch.cat([a if a.dim() == 2 else a.expand(1, b.shape[1]), b]),
    "columns": lambda a, first, end: a[:, int(first) : int(end)],
    "join": lambda a, b: torch.cat([a, b], -1),
    "concat": lambda *heads: torch.cat(heads, -1),
    "softmax": lambda a: a.softmax(-1),
    "sink": lambda a, s: torch.cat([a, s.expand(len(a), 1)], -1).softmax(-1)[:, :-1],
    "layer-norm": lambda a, g, e: functional.layer_norm(a, g.shape, g, None, float(e)),
    "rms-norm": lambda a, g, e: functional.rms_norm(a, g.shape, g, float(e)),
    "cap": lambda a, c: c * torch.tanh(a / c),
    "alibi": lambda a, m: a - m * distances(*a.shape).abs(),
    "distance": _distance,
    "mask": _mask,
    "rotate-halves": _rotate("halves"),
    "rotate-interleaved": _rotate("interleaved"),
    "waves-halves": _waves("halves"),
    "waves-interleaved": _waves("interleaved"),
    "class": lambda a: a[:1],
    "last": lambda a: a[-1:],
    "mean": lambda a: a.mean(0, keepdim=True),
    "max": lambda a: a.amax(0, keepdim=True),
}
"""The operations of trees. The tests have functions of their own for them, in NumPy."""


def formula_value(tree: Tree, operands: Mapping[str, Operand]) -> Tensor:
    """The value of a tree."""
    if isinstance(tree, str):
        return operands[tree].value
    operation, *arguments = tree
    return OPERATIONS[operation](*(formula_value(each, operands) for each in arguments))
