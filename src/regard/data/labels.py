"""Labels: the names that training data hold, and what happens to others.

An example may carry labels of two sorts: one for the whole (`label`), and one for each word (`tags`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar

from regard.data.examples import Example, Labelled, Picture, Placed, Tagged, place_of
from regard.data.problems import Tally
from regard.errors import DataError
from regard.settings import did_you_mean

Sort: TypeAlias = Literal["label", "tags"]
E = TypeVar("E", bound=Example)

SHOWN = 12
"""Known labels that an error lists."""


@dataclass(frozen=True)
class Labels:
    """The names of one sort of labels; the place of a name is the class that a model predicts."""

    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self.indices

    @property
    def indices(self) -> Mapping[str, int]:
        """The class of each name."""
        return {name: index for index, name in enumerate(self.names)}

    @property
    def known(self) -> str:
        """The names for a message, the first few of many."""
        more = f", … ({len(self):,} in all)" if len(self) > SHOWN else ""
        return ", ".join(self.names[:SHOWN]) + more


def labels_in(example: Example) -> dict[Sort, tuple[str, ...]]:
    """The named labels of one example; numbers are none."""
    found: dict[Sort, tuple[str, ...]] = {}
    if isinstance(example, Labelled | Picture | Tagged) and isinstance(example.label, str):
        found["label"] = (example.label,)
    if isinstance(example, Tagged):
        found["tags"] = example.tags
    return found


def learn_labels(examples: Iterable[Example]) -> dict[Sort, Labels]:
    """The labels of training data, in the order of their names (of their numbers, if all are numbers)."""
    names: dict[Sort, set[str]] = {}
    for example in examples:
        for sort, found in labels_in(example).items():
            names.setdefault(sort, set()).update(found)
    return {sort: ordered_labels(found) for sort, found in names.items()}


def ordered_labels(names: Collection[str]) -> Labels:
    """Names in the order that decides their classes."""
    # int() also takes "١" and "1_0", which are two spellings of a number and would not be ordered for sure.
    numbers = all(name.isascii() and name.isdigit() and str(int(name)) == name for name in names)
    return Labels(tuple(sorted(names, key=int if numbers else str)))


def with_known_labels(
    examples: Iterable[Placed[E]],
    known: Mapping[Sort, Labels],
    unseen: Literal["stop", "skip", "keep"],
    tally: Tally,
) -> Iterator[Placed[E]]:
    """The examples of valid or test. One with a label that training never saw stops the run, or is counted in `tally`
    and skipped or kept, as `data.unseen` says."""
    indices = {sort: labels.indices for sort, labels in known.items()}
    for placed in examples:
        strange = _first_unseen(placed.example, indices)
        if strange is None:
            yield placed
            continue
        sort, name = strange
        where = place_of(placed)
        if unseen == "stop":
            raise _unseen(where, sort, name, known.get(sort, Labels(())))
        tally.count(f"has a {_one(sort)} that training never saw", f"{where} ({name})")
        if unseen == "keep":
            yield placed


def _first_unseen(example: Example, indices: Mapping[Sort, Mapping[str, int]]) -> tuple[Sort, str] | None:
    for sort, found in labels_in(example).items():
        known = indices.get(sort, {})
        for name in found:
            if name not in known:
                return sort, name
    return None


def _unseen(where: str, sort: Sort, name: str, labels: Labels) -> DataError:
    return DataError(
        f"{where} has the {_one(sort)} {name}, which training never saw{did_you_mean(name, labels.names)}; known: "
        f'{labels.known}. Mend it, or set data.unseen = "skip", or "keep" to count it as a mistake'
    )


def _one(sort: Sort) -> str:
    return "tag" if sort == "tags" else "label"
