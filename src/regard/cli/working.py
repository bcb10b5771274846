"""A line on a terminal's stderr while something takes its time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from regard.errors import RunError

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


def require_packages(verb: str) -> None:
    """Raises at once if the packages of the extra "serve" are missing."""
    from importlib.util import find_spec

    for name in ("fastapi", "uvicorn", "prometheus_client", "python_multipart"):
        if find_spec(name) is None:
            raise RunError(f"regard {verb} needs the package {name}; run pip install 'regard[serve]'")
