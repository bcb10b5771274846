"""Embedded corpora as sources: they name no file, and give what the corpora themselves give."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from regard.data.base_settings import SPLITS
from regard.data.embedded import grammar
from regard.data.embedded.digits import digits
from regard.data.embedded.python_text import documents
from regard.data.examples import Pair, Picture, Placed, Text
from regard.data.report import report
from regard.data.settings import AnyData, Digits, Grammar, PythonLibrary
from regard.data.sources import Source
from regard.errors import DataError, InputError, SettingsError
from regard.settings import parse

SMALL = Grammar(train_pairs=40, valid_pairs=10, test_pairs=20, seed=3)


@pytest.mark.parametrize("split", SPLITS)
def test_the_grammar(split: grammar.Split) -> None:
    source = Source(SMALL, split)
    expected = [Pair(pair.source, pair.target) for pair in grammar.pairs(split, 3, SMALL.pairs(split))]
    assert list(source) == list(source) == expected
    assert source.files == ()
    assert source.size == len(expected) == SMALL.pairs(split)
    assert next(source.placed()) == Placed(expected[0], "grammar", 1)


def test_the_other_direction_and_some_constructions() -> None:
    changed = SMALL.changed({"direction": "de-en", "constructions": ["passive"]})
    expected = grammar.pairs("valid", 3, 10, constructions=("passive",))
    assert list(Source(changed, "valid")) == [Pair(pair.target, pair.source) for pair in expected]


def test_pairs_are_filtered_as_any() -> None:
    settings = SMALL.changed({"filters.max_words": 5})
    source = Source(settings, "train")
    kept = list(source)
    assert len(kept) + source.removed.total == 40
    assert 0 < len(kept) < 40
    assert max(len(side.split()) for pair in kept for side in pair.sides().values()) <= 5


def test_the_standard_library() -> None:
    source = Source(PythonLibrary(), "valid")
    expected = list(documents("valid"))
    assert [(placed.example, placed.file) for placed in source.placed()] == [(Text(d.text), d.name) for d in expected]
    assert source.size is None
    with pytest.raises(DataError) as caught:
        Source(PythonLibrary(), "test")
    assert str(caught.value) == "data of kind python have no test, only train and valid; choose one of them"


def test_digits() -> None:
    pytest.importorskip("sklearn")
    expected = digits("valid")
    found = list(Source(Digits(), "valid"))
    assert [int(picture.label) for picture in found] == expected.labels.tolist()
    pixels = np.stack([picture.pixels for picture in found if isinstance(picture, Picture)])
    assert pixels.shape == (len(found), 8, 8, 1)
    np.testing.assert_allclose(pixels[..., 0] / 255, expected.images[:, 0], atol=0.5 / 255)
    assert {pixels.min(), pixels.max()} == {0, 255}


def test_what_decides_them_is_known() -> None:
    """The cache names what is prepared by the content of these."""
    assert {"corpus.py", "nouns.py"} <= {path.name for path in Source(SMALL, "train").origin}
    names = [path.name for path in Source(PythonLibrary(), "train").origin]
    assert "decoder.py" in names
    assert "test_grammar.py" not in names
    pytest.importorskip("sklearn")
    (table,) = Source(Digits(), "train").origin
    assert table.is_file()


def test_digits_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(InputError, match=r"the digits come with scikit-learn, which is missing"):
        _ = Source(Digits(), "train").origin


def test_a_report_of_what_has_no_files() -> None:
    found = report(SMALL)
    assert {split: each.examples for split, each in found.splits.items()} == {"train": 40, "valid": 10, "test": 20}
    assert found.splits["train"].files == ()
    assert list(report(PythonLibrary(), ("valid", "test")).splits) == ["valid"]


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({"kind": "grammar", "train_pairs": 0}, "data.train_pairs (0) is wrong: input should be greater than 0"),
        ({"kind": "grammar", "seed": -1}, "data.seed (-1) is wrong: input should be greater than or equal to 0"),
        (
            {"kind": "grammar", "direction": "en-fr"},
            "data.direction (en-fr) is not known (did you mean en-de?); choose one of en-de, de-en",
        ),
        (
            {"kind": "grammar", "train": ["train.en"]},
            "unknown setting data.train (did you mean train_pairs?); known here: both, constructions, direction",
        ),
        (
            {"kind": "grammar", "constructions": ["present", "passives"]},
            "data: constructions (passives) is not known (did you mean passive?); choose from present, past",
        ),
        ({"kind": "digits", "root": "x"}, "unknown setting data.root; known here: kind, unseen"),
    ],
)
def test_mistakes(table: dict[str, object], expected: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse(AnyData, table, "data")
    assert str(caught.value).startswith(expected)
