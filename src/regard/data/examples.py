"""Examples, their location in a file, tallies of examples that were left out, and labels.

Examples are named tuples: a corpus has millions of them, and Python creates no other value faster. `sides()` returns
the texts (or bytes) of an example by name, for statistics, filters and the search for duplicates.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from regard.errors import DataError
from regard.settings import did_you_mean

Side: TypeAlias = str | bytes
Pixels: TypeAlias = NDArray[np.uint8]
"""[height, width, channels], values from 0 to 255."""


class Pair(NamedTuple):
    """A text and its translation (summary, answer, ...)."""

    source: str
    target: str
    to: str | None = None
    """The language of the target, for a model that translates into several."""

    def sides(self) -> dict[str, Side]:
        return {"source": self.source, "target": self.target}


class Text(NamedTuple):
    """A document of raw text, or a piece of a long one."""

    text: str
    ends: bool = True
    """Whether the document ends here; a long one comes in several pieces, cut at line ends."""

    def sides(self) -> dict[str, Side]:
        return {"text": self.text}


class Labelled(NamedTuple):
    """One or two texts with a class or a number."""

    text: str
    second: str | None
    label: str | float | None
    """The name of the class, or a number; None if the data have no labels."""

    def sides(self) -> dict[str, Side]:
        return {"text": self.text} if self.second is None else {"text": self.text, "second": self.second}


class Tagged(NamedTuple):
    """Words with one tag each, and an optional label of the sentence (its intent)."""

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
    """A question about a context, with the answers that annotators marked; without any, it cannot be answered."""

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...]

    def sides(self) -> dict[str, Side]:
        return {"question": self.question, "context": self.context}


class Choice(NamedTuple):
    """A text (a question, a beginning) with several options, and the index of the right one."""

    text: str
    options: tuple[str, ...]
    label: int

    def sides(self) -> dict[str, Side]:
        return {"text": self.text, "options": "\n".join(self.options)}


class Chat(NamedTuple):
    """A conversation. Each message has a role (system, user or assistant) and a content."""

    messages: tuple[tuple[str, str], ...]

    def sides(self) -> dict[str, Side]:
        return {"text": "\n".join(content for _, content in self.messages)}


class Picture(NamedTuple):
    """An image with its class."""

    pixels: Pixels
    label: str | None

    def sides(self) -> dict[str, Side]:
        return {"pixels": self.pixels.tobytes()}


Example: TypeAlias = Pair | Text | Labelled | Tagged | Question | Choice | Chat | Picture


@dataclass(frozen=True)
class Problem:
    """Why a line or example cannot be used. It is false, like an empty line, so that one test finds both."""

    reason: str
    detail: str = ""

    def __bool__(self) -> Literal[False]:
        return False


E = TypeVar("E", bound="Example | Problem", covariant=True)


class Located(NamedTuple, Generic[E]):
    """An example and its location: a file, and the number of a line, question or image in it, counted from 1."""

    example: E
    file: str
    number: int
    unit: str = "line"
    """What the number counts; empty if the file alone is the location."""

    @property
    def where(self) -> str:
        """The location in words: "train.en, line 7"."""
        return f"{self.file}, {self.unit} {self.number}" if self.unit else self.file


def excerpt(example: Example) -> str:
    """An example on one short line, for lists of skipped or removed examples."""
    return " | ".join(
        f"{name} of {len(side):,} bytes"
        if isinstance(side, bytes)
        else " ".join((f"{side[:59]}…" if len(side) > 60 else side).split())
        for name, side in example.sides().items()
    )


SHOWN = 3
"""First examples that are kept for each reason."""


class Tally(dict[str, dict[str, Any]]):
    """Counts by reason: for each a `count` and its `first` examples; memory does not grow with the counts."""

    def count(self, reason: str, example: str) -> None:
        found = self.setdefault(reason, {"count": 0, "first": []})
        found["count"] += 1
        if len(found["first"]) < SHOWN:
            found["first"].append(example)

    def text(self) -> str:
        """One line for each reason; empty if nothing was counted."""
        return "\n".join(
            f"{found['count']:,} × {reason}: {'; '.join(found['first'])}{'; …' if found['count'] > SHOWN else ''}"
            for reason, found in self.items()
        )


Sort: TypeAlias = Literal["label", "tags"]
"""Of labels: an example may have one for the whole, and one for each word."""
Labels: TypeAlias = tuple[str, ...]
"""The names of one sort of labels; the index of a name is the class that a model predicts."""


def labels_in(example: Example) -> dict[Sort, tuple[str, ...]]:
    """The names of classes and tags of one example; numbers do not count."""
    found: dict[Sort, tuple[str, ...]] = {}
    if isinstance(example, Labelled | Picture | Tagged) and isinstance(example.label, str):
        found["label"] = (example.label,)
    if isinstance(example, Tagged):
        found["tags"] = example.tags
    return found


def ordered_labels(names: Collection[str]) -> Labels:
    """Sorts names alphabetically, or as numbers if all are numbers."""
    # int() also accepts "١" and "1_0", other spellings of a number whose order would not be fixed.
    numbers = all(name.isascii() and name.isdigit() and len(name) < 20 and str(int(name)) == name for name in names)
    return tuple(sorted(names, key=int if numbers else str))


def with_known_labels(
    examples: Iterable[Located[Example]],
    known: Mapping[Sort, Labels],
    unseen: Literal["stop", "skip", "keep"],
    tally: Tally,
) -> Iterator[Located[Example]]:
    """Yields the examples of valid or test. An example with a label that does not occur in training raises an error, or
    is counted in `tally` and skipped or kept, depending on `data.unseen`."""
    seen = {sort: {*names} for sort, names in known.items()}
    for located in examples:
        found = ((sort, name) for sort, names in labels_in(located.example).items() for name in names)
        strange = next(((sort, name) for sort, name in found if name not in seen.get(sort, ())), None)
        if strange is not None:
            sort, name = strange
            what = "tag" if sort == "tags" else "label"
            if unseen == "stop":
                raise DataError(
                    f"{located.where} has the {what} {name}, which does not occur in training"
                    f'{did_you_mean(name, known.get(sort, ()))}; fix it, or set data.unseen to "skip", or to "keep" to '
                    "count it as a mistake"
                )
            tally.count(f"has a {what} that does not occur in training", f"{located.where} ({name})")
        if strange is None or unseen == "keep":
            yield located
