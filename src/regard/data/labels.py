"""Labels: the names that occur in training data, and the treatment of other ones.

An example may have labels of two sorts: one for the whole (`label`), and one for each word (`tags`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Literal, TypeAlias, TypeVar

from regard.data.examples import Example, Labelled, Located, Picture, Tagged, Tally
from regard.errors import DataError
from regard.settings import did_you_mean

Sort: TypeAlias = Literal["label", "tags"]
Labels: TypeAlias = tuple[str, ...]
"""The names of one sort of labels; the index of a name is the class that a model predicts."""
E = TypeVar("E", bound=Example)

SHOWN = 12
"""Known labels that an error lists."""


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
    numbers = all(name.isascii() and name.isdigit() and str(int(name)) == name for name in names)
    return tuple(sorted(names, key=int if numbers else str))


def with_known_labels(
    examples: Iterable[Located[E]],
    known: Mapping[Sort, Labels],
    unseen: Literal["stop", "skip", "keep"],
    tally: Tally,
) -> Iterator[Located[E]]:
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
                names = known.get(sort, ())
                more = f", … ({len(names):,} in all)" if len(names) > SHOWN else ""
                raise DataError(
                    f"{located.where} has the {what} {name}, which does not occur in training"
                    f"{did_you_mean(name, names)}; known: {', '.join(names[:SHOWN])}{more}. Fix it, or set data.unseen "
                    'to "skip", or to "keep" to count it as a mistake'
                )
            tally.count(f"has a {what} that does not occur in training", f"{located.where} ({name})")
        if strange is None or unseen == "keep":
            yield located
