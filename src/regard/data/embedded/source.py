"""Embedded corpora as sources: their examples, how many they are, and the files that decide them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import assert_never

import numpy as np

from regard.data.base_settings import Split
from regard.data.embedded import grammar, python_text
from regard.data.embedded.digits import digits
from regard.data.examples import Example, Pair, Picture, Placed, Text
from regard.data.settings import Digits, EmbeddedSettings, Grammar, PythonLibrary
from regard.errors import InputError


def read_embedded(settings: EmbeddedSettings, split: Split) -> Iterator[Placed[Example]]:
    """The examples of a split. A pair stands in the grammar, a document in its file, a digit among the digits."""
    match settings:
        case Grammar():
            return _pairs(settings, split)
        case PythonLibrary():
            return _documents(settings, split)
        case Digits():
            return _digits(split)
        case _:
            assert_never(settings)


def size_of(settings: EmbeddedSettings, split: Split) -> int | None:
    """How many examples a split has before filters; none: only reading tells."""
    return settings.pairs(split) if isinstance(settings, Grammar) else None


def origin_of(settings: EmbeddedSettings) -> list[Path]:
    """The files whose content decides the examples: the grammar's own code, the library, scikit-learn's table."""
    match settings:
        case Grammar():
            return sorted(Path(grammar.__file__).parent.glob("*.py"))
        case PythonLibrary():
            return python_text.sources()
        case Digits():
            return [_digits_table()]
        case _:
            assert_never(settings)


def _pairs(settings: Grammar, split: Split) -> Iterator[Placed[Pair]]:
    swap = settings.direction == "de-en"
    made = grammar.pairs(split, settings.seed, settings.pairs(split), constructions=settings.constructions)
    for number, pair in enumerate(made, 1):
        english, german = pair.source, pair.target
        yield Placed(Pair(german, english) if swap else Pair(english, german), settings.kind, number)


def _documents(settings: PythonLibrary, split: Split) -> Iterator[Placed[Text]]:
    if split == "test":
        raise InputError("split (test) is not in the standard library; choose train or valid")
    for document in python_text.documents(split, docstrings_only=settings.docstrings):
        yield Placed(Text(document.text), document.name, 1)


def _digits(split: Split) -> Iterator[Placed[Picture]]:
    found = digits(split)
    images = np.rint(found.images * 255).astype(np.uint8).transpose(0, 2, 3, 1)
    for number, (pixels, label) in enumerate(zip(images, found.labels, strict=True), 1):
        yield Placed(Picture(np.ascontiguousarray(pixels), str(label)), "digits", number)


def _digits_table() -> Path:
    try:
        import sklearn.datasets  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        digits("train")  # which says what is missing
        raise
    return Path(sklearn.datasets.__file__).parent / "data" / "digits.csv.gz"
