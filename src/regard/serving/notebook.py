"""The page in a notebook: a frame of its own for each look, which holds all it shows and can reach nothing else.

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
from regard.files import write_text
from regard.look.input import Input
from regard.look.study import Study
from regard.serving.page_file import page_file
from regard.use.model import Loaded, load

Theme: TypeAlias = Literal["system", "light", "dark"]
HEIGHT = 720
"""Pixels of a frame, unless told otherwise."""
HEIGHTS = (100, 10_000)
ROOM = 16 * 2**20
"""Bytes of answers in a frame: a notebook keeps them all."""


@dataclass(frozen=True, repr=False)
class Shown:
    """A look at a model, as a notebook shows it."""

    title: str
    html: str
    """The page, whole."""
    height: int
    left: dict[str, int]
    """By view, how many answers there was no room for."""

    def _repr_html_(self) -> str:
        """A frame without an origin: frames cannot reach one another, the notebook, or its cookies."""
        style = f"width: 100%; height: {self.height}px; border: 1px solid #8884; border-radius: 6px;"
        return (
            f'<iframe title="{escape(self.title)}" sandbox="allow-scripts" style="{style}" '
            f'srcdoc="{escape(self.html)}"></iframe>'
        )

    def __repr__(self) -> str:
        return f"<{self.title}: {len(self.html) / 2**20:.1f} MiB>"

    def save(self, path: str | Path) -> None:
        """The same page as a file, which a browser opens by itself."""
        try:
            write_text(Path(path), self.html)
        except OSError as error:
            raise InputError(f"{path} cannot be written ({error.strerror}); choose another file") from None


def show(
    model: str | Path | Loaded | Study,
    given: str | Input,
    view: str | Sequence[str] = "heads",
    *,
    at: str = "",
    height: int = HEIGHT,
    theme: Theme = "system",
) -> Shown:
    """One or several views of an input, as the last value of a notebook's cell; of several, the first is open.

    `model` is a name or a directory, or, so that it is loaded only once, what `regard.load` gave or a `Study` of it.
    `at` opens a head, such as `decoder.1.cross.0`.
    """
    if theme not in ("system", "light", "dark"):
        raise InputError(f"theme ({theme}) must be system, light or dark; choose one")
    if not HEIGHTS[0] <= height <= HEIGHTS[1]:
        raise InputError(f"height ({height}) must be from {HEIGHTS[0]} to {HEIGHTS[1]} pixels; choose another")
    study = model if isinstance(model, Study) else Study(model if isinstance(model, Loaded) else load(model))
    run = study.run(Input(given) if isinstance(given, str) else given)
    views = [view] if isinstance(view, str) else list(view)
    made = page_file(study, run, views, at, None if theme == "system" else theme, ROOM)
    name = f"{Path(study.loaded.name).name}, {', '.join(made.views)}"
    return Shown(name, made.html, height, made.left)
