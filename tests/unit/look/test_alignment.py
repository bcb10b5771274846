"""Word alignment: which attention is read, both directions, the choice by gold links, and links by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_translator import write_translator

import regard
from regard.decoding.alignment import Look, cross_weights, look_at, word_alignment
from regard.errors import DataError
from regard.look import alignment
from regard.look.study import Study
from regard.weights.directory import read_config

PAIRS = [
    ("ein Hund läuft", "a dog is running"),
    ("und eine Katze", "and a cat too"),
    ("durch den Schnee", "through the snow"),
    ("", ""),
    ("Hund", ""),
]
LINKS = st.frozensets(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12)
MEASURED = alignment.MeasuredAlignment("en", "gold.talp", 12, 0.25, 0.5)


@pytest.fixture(scope="module")
def model(studies: dict[str, Study]) -> Any:
    return studies["translator"].loaded


def test_weights_are_those_of_translating(model: Any) -> None:
    side = alignment.Aligner(model, "en", look_at(model.network, 0, consumed=True))
    source, target = PAIRS[0]
    ids = model.tokenizers.target.encode(target, framed=False)
    outputs = [[*ids.ids, model.frame.ends.end]]
    (tokens,) = cross_weights(model.network, model.inputs([source], "en"), outputs, model.frame.ends, side.seen)
    (words,) = alignment.weights(side, PAIRS[:1])
    assert words.shape == (4, 3)
    first = [row for row, (start, _) in enumerate(ids.offsets) if start < 1]
    inside = [column for column, (_, end) in enumerate(model.input_spans(source)) if 0 < end <= 3]
    assert words[0, 0] == pytest.approx(float(tokens[first][:, inside].sum(1).mean()), abs=1e-5)


def test_links_of_pairs(model: Any) -> None:
    forth, back = alignment.Aligner(model, "en"), alignment.Aligner(model, "de")
    found = alignment.align(forth, PAIRS)
    assert [len(links) > 0 for links in found] == [True, True, True, False, False]
    assert found[0] == frozenset(word_alignment(alignment.weights(forth, PAIRS[:1])[0]))
    assert sorted(target for _, target in alignment.align_last_layer(forth, PAIRS)[0]) == [0, 1, 2, 3], (
        "one for each word"
    )
    joined = alignment.align_both(forth, back, PAIRS)
    assert joined == [
        alignment.swap_links(links) for links in alignment.align_both(back, forth, alignment.swap_pairs(PAIRS))
    ]


def test_the_best_heads_are_chosen(model: Any) -> None:
    """Gold made by one head is found again without error."""
    side = alignment.Aligner(model, "en")
    made = alignment.align(side._replace(look=Look(((0, 1),), consumed=True)), PAIRS)
    gold = [alignment.GoldLinks(links, links) for links in made]
    tried = alignment.choose_heads(side, PAIRS, gold)
    assert tried[0].error == pytest.approx(0)
    assert alignment.score_links(
        alignment.align(side._replace(look=tried[0].look), PAIRS), gold
    ).error == pytest.approx(0)
    assert [one.error for one in tried] == sorted(one.error for one in tried)
    assert {one.look.consumed for one in tried} == {False, True}


def test_a_saved_choice_is_used_and_keeps_its_measurements(tmp_path: Path) -> None:
    place, look = write_translator(tmp_path), Look(((0, 1),), consumed=True)
    before: Any = regard.load(place, device="cpu")
    assert alignment.Aligner(before).seen != look
    other = alignment.MeasuredAlignment("de", "gold.talp", 12, 0.125, 0.5, joined=0.0625)
    for measured in (replace(MEASURED, error=0.75), other, MEASURED):
        alignment.save_look(place, look, measured)
    assert alignment.measured_in(read_config(place)) == [other, MEASURED]
    after: Any = regard.load(place, device="cpu")
    assert alignment.Aligner(after).seen == look
    assert after.directions == before.directions
    assert after.translate("ein Hund", to="en") == before.translate("ein Hund", to="en")
    alignment.save_look(place, Look(((0, 0),), consumed=True), MEASURED)
    assert alignment.measured_in(read_config(place)) == [MEASURED]
    for empty in ({}, {"align": {"measured": 3}}, {"align": {"measured": [3, {}]}}):
        assert alignment.measured_in(empty) == []


def gold(sure: set[tuple[int, int]], also: set[tuple[int, int]] = frozenset()) -> alignment.GoldLinks:
    return alignment.GoldLinks(frozenset(sure), frozenset(sure | also))


def test_error_rate_by_hand() -> None:
    """Och and Ney: 1 − (2 sure found + 3 possible found) / (4 found + 3 sure), over all pairs together."""
    found = alignment.score_links([{(0, 0), (1, 1), (2, 2), (5, 5)}], [gold({(0, 0), (1, 1), (3, 3)}, {(2, 2)})])
    assert found == pytest.approx((1 - (2 + 3) / (4 + 3), 3 / 4, 2 / 3))
    one = gold({(0, 0)})
    assert alignment.score_links([{(0, 0)}, {(1, 1), (2, 2), (3, 3)}], [one, one]).error == pytest.approx(
        1 - (1 + 1) / (4 + 2)
    )
    assert alignment.score_links([set()], [gold(set())]) == (1.0, 1.0, 1.0)


def test_grow_diagonal_by_hand() -> None:
    """0-0 and 3-3 are in both; 0-1 and 1-1 are neighbours, 4-0 is not."""
    one = frozenset({(0, 0), (3, 3), (1, 1), (4, 0)})
    other = frozenset({(0, 0), (3, 3), (0, 1)})
    assert alignment.grow_diagonal(one, other) == {(0, 0), (3, 3), (0, 1), (1, 1)}
    assert alignment.grow_diagonal(frozenset({(0, 0)}), frozenset({(1, 1)})) == frozenset()


@given(LINKS, LINKS)
def test_properties_of_links(one: alignment.Links, other: alignment.Links) -> None:
    joined = alignment.grow_diagonal(one, other)
    assert one & other <= joined <= one | other
    assert alignment.grow_diagonal(one, one) == one
    assert alignment.swap_links(alignment.swap_links(one)) == one
    if one:
        assert alignment.score_links([one], [alignment.GoldLinks(one, one)]).error == pytest.approx(0)


def test_gold_files(tmp_path: Path) -> None:
    file = tmp_path / "gold"
    file.write_text("1-1 2p3\n3?1\n\n", encoding="utf-8")
    expected = [gold({(0, 0)}, {(1, 2)}), gold(set(), {(2, 0)}), gold(set())]
    assert alignment.read_gold(file, [("a b c", "d e f")] * 3) == expected
    assert alignment.read_gold(file, [("a b c", "d e f")] * 3, swapped=True) == [each.swapped() for each in expected]
    file.write_text("0-0 1p2\n2?0\n\n", encoding="utf-8")
    assert alignment.read_gold(file, [("a b c", "d e f")] * 3) == expected
    for text, message in (
        ("1-1\n", "1 lines, expected 2"),
        ("1-1\n1:2\n", "line 2: '1:2'"),
        ("1-1\n1-9\n", r"line 2: link \(0, 8\)"),
    ):
        file.write_text(text, encoding="utf-8")
        with pytest.raises(DataError, match=message):
            alignment.read_gold(file, [("a b c", "d e f g")] * 2)
    assert alignment.format_links({(1, 2), (0, 3), (0, 1)}) == "0-1 0-3 1-2"
