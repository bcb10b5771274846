"""Which combinations of layout, visibility, position and attention backend work, asked from the code itself.

`docs/generate.py` writes docs/support.md from this table, and the tests check every cell of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from regard.blocks.kernels import BACKENDS, AttentionCall, Backend, refusal
from regard.blocks.settings import ImagePosition, NoPosition, TextPosition
from regard.settings import variants

LAYOUTS = {
    "full": "padded, every row full",
    "ragged": "padded, rows of different lengths",
    "packed": "packed, rows or none",
    "cached": "padded, in several calls with a cache",
}


@dataclass(frozen=True)
class Rule:
    """A kind of visibility."""

    causal: bool = False
    window: bool = False
    cross: bool = False


RULES = {
    "everything": Rule(),
    "window": Rule(window=True),
    "causal": Rule(causal=True),
    "causal + window": Rule(causal=True, window=True),
    "cross": Rule(cross=True),
}
"""Lengths and packing are layouts, and combine with each of these."""

TEXT_POSITIONS = variants(TextPosition)
IMAGE_POSITIONS = {kind: position for kind, position in variants(ImagePosition).items() if position is not NoPosition}
POSITIONS = TEXT_POSITIONS | IMAGE_POSITIONS
_SCORED = ("relative", "transformer-xl", "alibi")
"""Positions that add to the scores."""


@dataclass(frozen=True)
class Cell:
    """One combination of the table."""

    layout: str
    rule: str
    position: str
    backend: Backend


def reason(cell: Cell) -> str | None:
    """Why a combination does not work or has no meaning; None where it works."""
    rule = RULES[cell.rule]
    if cell.position in IMAGE_POSITIONS and (cell.layout, cell.rule) != ("full", "everything"):
        return "patches lie on a grid and all see each other"
    if rule.cross and cell.position != "none":
        return "positions of one sequence say nothing about another"
    if cell.layout == "cached" and not (rule.causal or rule.cross):
        return "a token that sees later ones cannot be computed before them"
    on_gpu = cell.backend in ("flex", "varlen")
    request = AttentionCall(
        device="cuda" if on_gpu else "cpu",
        dtype=torch.bfloat16 if on_gpu else torch.float32,
        packed=cell.layout == "packed",
        bias=cell.position in _SCORED,
        soft_cap=False,
        dropout=False,
        head_size=64,
        value_size=64,
    )
    return refusal(cell.backend, request)


def cells() -> list[Cell]:
    """Every combination that works."""
    every = [
        Cell(layout, rule, position, backend)
        for layout in LAYOUTS
        for rule in RULES
        for position in POSITIONS
        for backend in BACKENDS
    ]
    return [cell for cell in every if reason(cell) is None]
