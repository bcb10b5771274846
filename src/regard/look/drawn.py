"""The views of a model as pictures, by their names. A view joins with a line in `PICTURES`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import TypeAlias

from regard.errors import InputError
from regard.look.drawing import require_ending
from regard.look.drawn_heads import heads_picture
from regard.look.drawn_tree import decode_picture
from regard.look.drawn_walk import walk_picture
from regard.look.study import Run, Study
from regard.settings import did_you_mean

Draw: TypeAlias = Callable[[Study, Run, Path, str, str], None]
"""Of a study and a run, into a file, at an address (empty: the usual one), below a title (empty: one of its own)."""
PICTURES: dict[str, Draw] = {"heads": heads_picture, "walk": walk_picture, "decode": decode_picture}


def draw(study: Study, run: Run, path: Path, view: str = "heads", at: str = "", title: str = "") -> None:
    """One view of a run as a picture: PNG, SVG or PDF, by the file's ending."""
    require_ending(path)
    require_view(view, drawn_views(study))
    PICTURES[view](study, run, path, at, title)


def drawn_views(study: Study) -> list[str]:
    """The views of a model that can be drawn."""
    return [name for name in study.views if name in PICTURES]


def require_view(name: str, known: Collection[str]) -> None:
    """Refuses a view that this model does not have."""
    if name not in known:
        near = did_you_mean(name, known)
        raise InputError(f"view ({name[:40]}) is not among those of this model: {', '.join(known)}{near}; choose one")
