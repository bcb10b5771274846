"""Labels that do not occur in training stop the run, or are counted and skipped or kept."""

from __future__ import annotations

from typing import Any

import pytest

from regard.data.examples import Example, Labelled, Located, Tagged, Tally, ordered_labels, with_known_labels
from regard.errors import DataError


def located(*examples: Example) -> list[Located[Example]]:
    return [Located(example, "test.tsv", number) for number, example in enumerate(examples, 1)]


def test_names_are_sorted_and_numbers_by_their_value() -> None:
    assert ordered_labels(["sad", "happy"]) == ("happy", "sad")
    assert ordered_labels(["10", "9", "0"]) == ("0", "9", "10")
    assert ordered_labels(["10", "9", "09"]) == ("09", "10", "9")
    assert ordered_labels(["9" * 5000, "8"]) == ("8", "9" * 5000)


def test_unseen_labels() -> None:
    known = {"label": ("happy", "sad")}
    test = located(Labelled("x", None, "sad"), Labelled("y", None, "hapy"))
    with pytest.raises(DataError, match=r"test\.tsv, line 2 has the label hapy.*did you mean happy.*data\.unseen"):
        list(with_known_labels(test, known, "stop", Tally()))

    test = located(Tagged(("b",), ("O",)), Tagged(("c", "d"), ("O", "B-X")))
    unseen: Any
    for unseen, left in (("skip", 1), ("keep", 2)):
        tally = Tally()
        assert len(list(with_known_labels(test, {"tags": ("O",)}, unseen, tally))) == left
        assert tally.text() == "1 × has a tag that does not occur in training: test.tsv, line 2 (B-X)"
