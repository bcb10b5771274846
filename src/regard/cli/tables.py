"""Results for people: plain tables on stdout."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

PIPED_WIDTH = 200
"""Columns where no terminal says how many there are, so that `grep` finds whole lines."""


def console() -> Console:
    """The console for results, made when it is used: stdout may have been replaced since this file was read."""
    found = Console(highlight=False, markup=False)
    if not found.is_terminal:
        found.width = PIPED_WIDTH
    return found


def grid(*columns: str, text: str | None = None) -> Table:
    """A table without lines: names on the left, figures right-aligned, and a last column of `text` that may wrap."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left", no_wrap=True)
    if text is not None:
        table.add_column(text)
    return table
