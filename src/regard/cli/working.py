"""A line on a terminal's stderr while something takes its time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

Say: TypeAlias = Callable[[str], None]


@contextmanager
def working(what: str, quiet: bool = False) -> Iterator[Say]:
    """Shows what is done, and gives what renews it; nothing is shown where nobody looks, or where it is to be quiet."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    if quiet or not console.is_terminal:
        yield lambda told: None
        return
    with console.status(what) as status:
        yield status.update
