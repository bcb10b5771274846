"""scikit-learn's digits."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from regard.data.embedded.digits import digits
from regard.errors import InputError


def test_splits_share_all_images_between_them() -> None:
    pytest.importorskip("sklearn")
    from sklearn.datasets import load_digits

    parts = {split: digits(split) for split in ("train", "valid", "test")}
    assert sum(len(part.images) for part in parts.values()) == 1797
    for part in parts.values():
        assert part.images.shape[1:] == (1, 8, 8)
        assert part.images.dtype == np.float32
        assert part.labels.dtype == np.int64
        assert part.images.min() == 0.0
        assert part.images.max() == 1.0
        shares = np.bincount(part.labels, minlength=10) / len(part.labels)
        assert shares.min() > 0.09
        assert shares.max() < 0.11
    assert len(parts["valid"].labels) > 170
    assert len(parts["test"].labels) > 170
    given = {(image.tobytes(), int(label)) for part in parts.values() for image, label in zip(*part, strict=True)}
    loaded = load_digits()
    whole = zip((loaded.images / 16).astype(np.float32)[:, None], loaded.target, strict=True)
    assert given == {(image.tobytes(), int(label)) for image, label in whole}


def test_a_split_that_does_not_exist() -> None:
    with pytest.raises(InputError) as caught:
        digits("dev")  # type: ignore[arg-type]
    assert str(caught.value) == "split (dev) is not known; choose one of train, valid, test"


def test_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(InputError) as caught:
        digits("train")
    assert str(caught.value) == (
        "the digits come with scikit-learn, which is missing; run pip install 'regard[vision]'"
    )
