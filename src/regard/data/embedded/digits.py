"""scikit-learn's bundled digits: 1,797 handwritten digits of 8 × 8 pixels, from the UCI archive."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from regard.data.embedded.splits import SPLITS, Split, checked
from regard.errors import InputError

CLASSES = 10
BRIGHTEST = 16.0
"""The data's grey values go from 0 to 16."""
FOLD = 10
"""Of so many images of each digit, one is for validation and one for the test."""


class Digits(NamedTuple):
    """Images `[N, 1, 8, 8]`, float32 from 0 to 1, and their labels `[N]`, int64 from 0 to 9."""

    images: NDArray[np.float32]
    labels: NDArray[np.int64]


def digits(split: Split) -> Digits:
    """One split. Every tenth image of each digit is the test's, every tenth the validation's: all classes are alike."""
    wanted = SPLITS.index(checked(split))
    try:
        from sklearn.datasets import load_digits  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        raise InputError(
            "the digits come with scikit-learn, which is missing; run pip install 'regard[vision]'"
        ) from error
    loaded = load_digits()
    images = (loaded.images / BRIGHTEST).astype(np.float32)[:, None]
    labels = loaded.target.astype(np.int64)
    chosen = _split_of_each(labels) == wanted
    return Digits(np.ascontiguousarray(images[chosen]), labels[chosen])


def _split_of_each(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """The index of the split that each image belongs to, by its rank among the images of its digit."""
    rank = np.zeros_like(labels)
    for digit in range(CLASSES):
        here = labels == digit
        rank[here] = np.arange(here.sum()) % FOLD
    return np.select([rank == FOLD - 1, rank == FOLD - 2], [2, 1], default=0)
