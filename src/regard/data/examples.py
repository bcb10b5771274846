"""What sources give: one small value for each example, and where it was found.

They are named tuples, since a corpus has millions of them and these are the quickest values that Python makes.
`sides()` gives the texts (or bytes) of an example by name: what is measured, compared and searched for leaks.
"""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from regard.data.files import shown_name

Side: TypeAlias = str | bytes
Pixels: TypeAlias = NDArray[np.uint8]
"""[height, width, channels], each from 0 to 255."""


class Pair(NamedTuple):
    """A text and its translation (summary, answer, ...)."""

    source: str
    target: str
    to: str | None = None
    """The language of the target, where a model learns several and must be told."""

    def sides(self) -> dict[str, Side]:
        return {"source": self.source, "target": self.target}


class Text(NamedTuple):
    """A document of raw text, or a piece of one that is long."""

    text: str
    ends: bool = True
    """Whether the document ends here; a long one comes in several pieces, cut at line ends."""

    def sides(self) -> dict[str, Side]:
        return {"text": self.text}


class Labelled(NamedTuple):
    """A text, or two, with a class or a number."""

    text: str
    second: str | None
    label: str | float | None
    """The class by its name; a number where labels are numbers; None where the data have no label."""

    def sides(self) -> dict[str, Side]:
        return {"text": self.text} if self.second is None else {"text": self.text, "second": self.second}


class Tagged(NamedTuple):
    """Words with a tag each, and perhaps a label for the whole sentence (its intent)."""

    words: tuple[str, ...]
    tags: tuple[str, ...]
    label: str | None = None

    def sides(self) -> dict[str, Side]:
        return {"words": " ".join(self.words)}


class Answer(NamedTuple):
    """A span of a context: `context[start : start + len(text)] == text`."""

    text: str
    start: int


class Question(NamedTuple):
    """A question about a context, with the answers that people marked in it; none: it has no answer there."""

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...]

    def sides(self) -> dict[str, Side]:
        return {"question": self.question, "context": self.context}


class Picture(NamedTuple):
    """An image with its class."""

    pixels: Pixels
    label: str | None

    def sides(self) -> dict[str, Side]:
        return {"pixels": self.pixels.tobytes()}


Example: TypeAlias = Pair | Text | Labelled | Tagged | Question | Picture

E = TypeVar("E", bound=Example, covariant=True)


class Placed(NamedTuple, Generic[E]):
    """An example, and where it stands: the line, question or image of that number (from 1) in that file."""

    example: E
    file: str
    number: int


def place_of(placed: Placed[Example]) -> str:
    """Where an example stands, in words: "train.en, line 7"."""
    unit = (
        "question"
        if isinstance(placed.example, Question)
        else "image"
        if isinstance(placed.example, Picture)
        else "line"
    )
    return f"{shown_name(placed.file)}, {unit} {placed.number}"


def excerpt(example: Example, width: int = 60) -> str:
    """An example in one short line, for lists of what was skipped or removed."""
    parts: list[str] = []
    for name, side in example.sides().items():
        shown: Any = side
        if isinstance(side, bytes):
            shown = f"{name} of {len(side):,} bytes"
        elif len(side) > width:
            shown = f"{side[: width - 1]}…"
        parts.append(" ".join(str(shown).split()))
    return " | ".join(parts)
