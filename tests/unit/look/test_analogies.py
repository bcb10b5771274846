"""Neighbours and analogies, against the decks' numbers, against plain loops, and by their properties."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch.testing import assert_close

from regard.errors import DataError, InputError
from regard.look.analogies import accuracy, analogy, nearest, similarities, similarity
from regard.look.table import MOST, WEIGHTS, WORDS, VectorTable, load, one_of_n, save

PEOPLE = VectorTable.of(
    {
        "man": [1.0, 0.0, 0.1],
        "woman": [0.0, 1.0, 0.1],
        "king": [1.0, 0.0, 1.0],
        "queen": [0.0, 1.0, 1.0],
        "tree": [-1.0, -1.0, 0],
    }
)
ROYAL = ("man", "king", "woman", "queen")


# -------------------------------------------------------------------------------------------------------- the decks'


def test_context_moves_bank_towards_its_company() -> None:
    """0.9 bank + 0.1 river and 0.8 bank + 0.2 money: each is nearer to its company than bank was."""
    bank, river, money = (torch.tensor(v, dtype=torch.float64) for v in ([6, 6], [0, 5], [8, 0]))
    given = VectorTable.of(
        {
            "bank": bank,
            "river": river,
            "money": money,
            "bank1": 0.9 * bank + 0.1 * river,
            "bank2": 0.8 * bank + 0.2 * money,
        }
    )
    assert_close(given["bank1"], torch.tensor([5.4, 5.9], dtype=torch.float64))
    assert_close(given["bank2"], torch.tensor([6.4, 4.8], dtype=torch.float64))
    assert similarity(given, "bank1", "river") == pytest.approx(5.9 / math.hypot(5.4, 5.9))
    assert similarity(given, "bank1", "river") > similarity(given, "bank", "river") == pytest.approx(math.sqrt(0.5))
    assert similarity(given, "bank2", "money") == pytest.approx(6.4 / 8)
    assert nearest(given, "river", 1)[0].word == "bank1"
    assert nearest(given, "money", 1)[0].word == "bank2"


def test_context_moves_apple_towards_its_company() -> None:
    apple, fruit, brand = (torch.tensor(v, dtype=torch.float64) for v in ([5, 7], [0, 8], [6, 0]))
    given = VectorTable.of(
        {"fruit": fruit, "brand": brand, "apple1": 0.8 * apple + 0.2 * fruit, "apple2": 0.9 * apple + 0.1 * brand}
    )
    assert_close(given["apple1"], torch.tensor([4.0, 7.2], dtype=torch.float64))
    assert_close(given["apple2"], torch.tensor([5.1, 6.3], dtype=torch.float64))
    assert nearest(given, "fruit", 1)[0].word == "apple1"
    assert nearest(given, "brand", 1)[0].word == "apple2"


def test_one_of_n_of_the_deck() -> None:
    given = one_of_n(["apple", "bag", "cat", "dog", "elephant"])
    assert given["apple"].tolist() == [1, 0, 0, 0, 0]
    assert given["dog"].tolist() == [0, 0, 0, 1, 0]
    assert given.kind == "1-of-n"
    assert_close(similarities(given), torch.eye(5))


def test_king_minus_man_plus_woman() -> None:
    for method in ("add", "multiply"):
        found = analogy(PEOPLE, "man", "king", "woman", method=method)
        assert found[0].word == "queen"
        assert {each.word for each in found} == {"queen", "tree"}, "the three given words are left out"


def test_one_of_n_knows_no_analogy() -> None:
    """All other words tie, and a tie is no answer."""
    found = one_of_n([*ROYAL, "tree"])
    assert accuracy(found, [ROYAL])[:3] == (0, 0, 1)
    assert [each.score for each in analogy(found, "man", "king", "woman")] == [0.0, 0.0]


# ----------------------------------------------------------------------------------------------------------- by hand


def cosine(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def test_both_methods_by_hand() -> None:
    torch.manual_seed(3)
    given = VectorTable(tuple("abcdefgh"), torch.randn(8, 5, dtype=torch.float64))
    rows = given.vectors.tolist()
    for method in ("add", "multiply"):
        wanted = {}
        for number in range(3, 8):
            to_a, to_b, to_c = (cosine(rows[number], rows[other]) for other in range(3))
            if method == "add":
                wanted[given.words[number]] = to_b - to_a + to_c
            else:
                a, b, c = ((value + 1) / 2 for value in (to_a, to_b, to_c))
                wanted[given.words[number]] = b * c / (a + 0.001)
        found = analogy(given, "a", "b", "c", method=method)
        assert dict(found) == pytest.approx(wanted)
        assert [each.word for each in found] == sorted(wanted, key=wanted.__getitem__, reverse=True)


def test_accuracy_counts_and_tells_what_it_left_out() -> None:
    asked = [
        ROYAL,
        ("woman", "queen", "man", "king"),
        ("man", "king", "woman", "tree"),
        ("man", "king", "woman", "duke"),
    ]
    found = accuracy(PEOPLE, asked)
    assert (found.right, found.asked) == (2, 3)
    assert found.unknown == (asked[3],)
    assert found.share == pytest.approx(2 / 3)
    assert found.baseline == found.by_neighbour / 3
    assert accuracy(PEOPLE, []).share == accuracy(PEOPLE, []).baseline == 0.0
    # The nearest neighbour of woman, of all but the three, is queen whatever was asked.
    assert accuracy(PEOPLE, [ROYAL]).by_neighbour == 1


def test_nearest_to_a_vector() -> None:
    found = nearest(PEOPLE, torch.tensor([2.0, 0.0, 0.2]), 2)
    assert found[0] == ("man", pytest.approx(1.0))
    assert nearest(PEOPLE, "man", 1, without=["king"])[0].word != "king"
    assert len(nearest(PEOPLE, "man", 100)) == 4


# -------------------------------------------------------------------------------------------------------- properties

NUMBERS = st.floats(-1e3, 1e3, allow_nan=False, width=32)


@hypothesis_settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(NUMBERS, min_size=3, max_size=3), min_size=2, max_size=8))
def test_cosines_lie_between_minus_one_and_one(rows: list[list[float]]) -> None:
    given = VectorTable(tuple(map(str, range(len(rows)))), torch.tensor(rows))
    found = similarities(given)
    assert found.isfinite().all()
    assert float(found.abs().max()) <= 1
    assert_close(found, found.mT)
    for row, vector in enumerate(rows):
        if math.hypot(*vector) > 1e-10:
            assert float(found[row, row]) == pytest.approx(1, abs=1e-5)


@hypothesis_settings(max_examples=20, deadline=None)
@given(st.integers(2, 30))
def test_one_of_n_is_equally_far_everywhere(count: int) -> None:
    given = one_of_n(map(str, range(count)))
    apart = torch.cdist(given.vectors, given.vectors)[~torch.eye(count, dtype=torch.bool)]
    assert_close(apart, torch.full_like(apart, 2**0.5))


# ------------------------------------------------------------------------------------------------------------ errors


def test_what_cannot_be_asked() -> None:
    with pytest.raises(InputError, match=r"word \(quen\) is not among the 5.*did you mean queen"):
        analogy(PEOPLE, "man", "king", "quen")
    with pytest.raises(InputError, match=r"method \(times\)"):
        analogy(PEOPLE, "man", "king", "woman", method="times")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"count \(0\)"):
        nearest(PEOPLE, "man", 0)
    with pytest.raises(InputError, match=r"shape \[2\] does not fit.*\[3\]"):
        nearest(PEOPLE, torch.zeros(2))
    with pytest.raises(InputError, match="must be of four words"):
        accuracy(PEOPLE, [("man", "king", "woman")])


def test_tables_that_cannot_be() -> None:
    with pytest.raises(InputError, match=r"shape \[2, 2\] do not fit 1 words"):
        VectorTable(("a",), torch.zeros(2, 2))
    with pytest.raises(InputError, match=r"word \(a\) stands in the table twice"):
        VectorTable(("a", "b", "a"), torch.zeros(3, 2))
    with pytest.raises(InputError, match="2 shapes"):
        VectorTable.of({"a": [1.0], "b": [1.0, 2.0]})
    with pytest.raises(InputError, match=f"{MOST:,} at most"):
        one_of_n(map(str, range(MOST + 1)))


def test_tables_are_kept(tmp_path: Path) -> None:
    given = VectorTable(("ab", "ü", "c\u2028d"), torch.randn(3, 2, dtype=torch.float64), "embedding", {"ab": 2})
    save(given, tmp_path)
    again = load(tmp_path)
    assert (again.words, again.kind, dict(again.pieces)) == (given.words, "embedding", {"ab": 2})
    assert torch.equal(again.vectors, given.vectors)
    with pytest.raises(InputError, match="end of a line"):
        save(VectorTable(("a\nb",), torch.zeros(1, 1)), tmp_path)
    (tmp_path / WORDS).write_text("a\n")
    with pytest.raises(DataError, match="1 words for 3 vectors"):
        load(tmp_path)
    (tmp_path / WEIGHTS).write_bytes(b"nothing")
    with pytest.raises(DataError, match="holds no vectors"):
        load(tmp_path)
