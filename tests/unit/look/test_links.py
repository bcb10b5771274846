"""Links by hand: joined, read, scored."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import DataError
from regard.look.links import Gold, Links, grow_diagonal, read_gold, score, turned, written

LINKS = st.frozensets(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12)


def gold(sure: set[tuple[int, int]], also: set[tuple[int, int]] = frozenset()) -> Gold:
    return Gold(frozenset(sure), frozenset(sure | also))


def test_the_error_rate_by_hand() -> None:
    """Och and Ney's formula: 1 − (2 sure found + 3 possible found) / (4 found + 3 sure)."""
    found = score([{(0, 0), (1, 1), (2, 2), (5, 5)}], [gold({(0, 0), (1, 1), (3, 3)}, {(2, 2)})])
    assert found.error == pytest.approx(1 - (2 + 3) / (4 + 3))
    assert found.precision == pytest.approx(3 / 4)
    assert found.recall == pytest.approx(2 / 3)


def test_pairs_are_counted_together_and_not_averaged() -> None:
    one = gold({(0, 0)})
    found = score([{(0, 0)}, {(1, 1), (2, 2), (3, 3)}], [one, one])
    assert found.error == pytest.approx(1 - (1 + 1) / (4 + 2))
    assert score([set()], [gold(set())]) == (1.0, 1.0, 1.0)


@given(LINKS)
def test_gold_itself_is_without_error(links: Links) -> None:
    if links:
        assert score([links], [Gold(links, links)]).error == pytest.approx(0)
    assert turned(turned(links)) == links


def test_growing_by_hand() -> None:
    """Both say 0-0 and 3-3; 0-1 and 1-1 come in as neighbours, 4-0 is alone, 3-4 has two words that are taken."""
    one = frozenset({(0, 0), (3, 3), (1, 1), (4, 0)})
    other = frozenset({(0, 0), (3, 3), (0, 1)})
    assert grow_diagonal(one, other) == {(0, 0), (3, 3), (0, 1), (1, 1)}
    assert grow_diagonal(frozenset({(0, 0)}), frozenset({(1, 1)})) == frozenset()


@given(LINKS, LINKS)
def test_what_is_grown_lies_between_both_and_either(one: Links, other: Links) -> None:
    joined = grow_diagonal(one, other)
    assert one & other <= joined <= one | other
    assert grow_diagonal(one, one) == one
    assert turned(grow_diagonal(turned(one), turned(other))) >= one & other


def test_gold_is_read_from_one_or_from_zero(tmp_path: Path) -> None:
    file = tmp_path / "gold"
    file.write_text("1-1 2p3\n3?1\n\n", encoding="utf-8")
    expected = [gold({(0, 0)}, {(1, 2)}), gold(set(), {(2, 0)}), gold(set())]
    assert read_gold(file, [(3, 3)] * 3) == expected
    assert read_gold(file, [(3, 3)] * 3, swapped=True) == [each.turned() for each in expected]
    file.write_text("0-0 1p2\n2?0\n\n", encoding="utf-8")
    assert read_gold(file, [(3, 3)] * 3) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1-1\n", r"gold has 1 lines, and there are 2 pairs; give the gold of these"),
        ("1-1\n1:2\n", r"gold, line 2: '1:2' is no link; write 3-4 for a sure one and 3p4 for another"),
        ("1-1\n1-9\n", r"gold, line 2: link \(0, 8\) lies outside of 3 source and 4 target words"),
    ],
)
def test_gold_that_does_not_fit(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "gold").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        read_gold(tmp_path / "gold", [(3, 4)] * 2)


def test_links_are_written_in_order() -> None:
    assert written({(1, 2), (0, 3), (0, 1)}) == "0-1 0-3 1-2"
