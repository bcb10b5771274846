"""The views of the page, one module each. A new view is its module here, one line in `VIEWS`, and one in main.js."""

from __future__ import annotations

from pathlib import Path

from regard.errors import InputError
from regard.look.pictures import require_format, save
from regard.look.study import Study, StudyRun
from regard.look.views.architecture import ARCHITECTURE
from regard.look.views.attribution import ATTRIBUTION
from regard.look.views.compare import COMPARE
from regard.look.views.decode import DECODE
from regard.look.views.heads import HEADS, WORDS
from regard.look.views.image import IMAGE
from regard.look.views.lens import LENS
from regard.look.views.positions import POSITIONS
from regard.look.views.task import TASK
from regard.look.views.training import TRAINING
from regard.look.views.vectors import VECTORS
from regard.look.views.view import PageView
from regard.look.views.walk import WALK
from regard.settings import did_you_mean

VIEWS: tuple[PageView, ...] = (
    *(ARCHITECTURE, IMAGE, HEADS, WORDS, WALK, DECODE, TRAINING, TASK, LENS),
    *(ATTRIBUTION, VECTORS, POSITIONS, COMPARE),
)


def views_of(study: Study) -> dict[str, PageView]:
    """The views that can show this model, by name."""
    return {view.name: view for view in VIEWS if view.fits(study)}


def view_named(study: Study, name: str) -> PageView:
    known = views_of(study)
    if name not in known:
        near = did_you_mean(name, known)
        raise InputError(f"view ({name[:40]}) must be one of {', '.join(known)}{near}")
    return known[name]


def draw_view(study: Study, run: StudyRun, path: Path, view: str = "heads", at: str = "", title: str = "") -> None:
    """Draws a view of a run with matplotlib: PNG, SVG or PDF, by the file's suffix."""
    require_format(path)
    chosen = view_named(study, view)
    if chosen.draw is None:
        drawn = " and ".join(each.name for each in VIEWS if each.draw is not None)
        raise InputError(
            f"view ({view}) cannot be drawn here, only {drawn} can; open it in the browser and use "
            "Save as SVG or Save as PNG"
        )
    save(chosen.draw(study, run, at), path, title)
