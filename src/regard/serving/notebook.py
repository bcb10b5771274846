"""The page in a notebook: each call of `show` makes a frame that contains the page and its data.

```python
regard.show("de-en", "Ein Hund läuft durch den Schnee.", "heads", at="decoder.1.cross.0")
```
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Literal, TypeAlias

from regard.errors import InputError
from regard.look.input import Input
from regard.look.study import Study
from regard.serving.page_file import PageFile, page_file
from regard.use.model import Loaded, load

Theme: TypeAlias = Literal["system", "light", "dark"]
HEIGHTS = (100, 10_000)
ROOM = 16 * 2**20
"""Most bytes of data in a frame, since a notebook stores all frames."""


@dataclass(frozen=True, repr=False)
class Shown(PageFile):
    """Views of a model, as a notebook shows them."""

    title: str
    height: int

    def _repr_html_(self) -> str:
        """A sandboxed frame: it cannot reach other frames, the notebook or its cookies."""
        style = f"width: 100%; height: {self.height}px; border: 1px solid #8884; border-radius: 6px;"
        return (
            f'<iframe title="{escape(self.title)}" sandbox="allow-scripts" style="{style}" '
            f'srcdoc="{escape(self.html)}"></iframe>'
        )

    def __repr__(self) -> str:
        return f"<{self.title}: {len(self.html) / 2**20:.1f} MiB>"


def show(
    model: str | Path | Loaded | Study,
    given: str | Input,
    view: str | Sequence[str] = "heads",
    *,
    at: str = "",
    height: int = 720,
    theme: Theme = "system",
) -> Shown:
    """Shows one or several views of an input in a notebook; the first view is open.

    `model` is a name, a directory, or a model that is loaded already: the result of `regard.load`, or a `Study`. `at`
    selects a head, such as `decoder.1.cross.0`. `height` is in pixels.
    """
    if theme not in ("system", "light", "dark"):
        raise InputError(f"theme ({theme}) must be system, light or dark")
    if not HEIGHTS[0] <= height <= HEIGHTS[1]:
        raise InputError(f"height ({height}) must be from {HEIGHTS[0]} to {HEIGHTS[1]:,} pixels")
    study = model if isinstance(model, Study) else Study(model if isinstance(model, Loaded) else load(model))
    run = study.run(Input(given) if isinstance(given, str) else given)
    views = [view] if isinstance(view, str) else list(view)
    page = page_file(study, run, views, at, None if theme == "system" else theme, ROOM)
    title = f"{Path(study.loaded.name).name}, {', '.join(page.views)}"
    return Shown(page.html, page.views, page.left, title, height)
