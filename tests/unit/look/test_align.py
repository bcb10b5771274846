"""Aligning given pairs: which attention is looked at, both directions, and the choice by gold links."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_translator import write_translator

import regard
from regard.decoding.attention import Look, cross_weights, look_at
from regard.decoding.word_links import word_alignment
from regard.look.align import (
    Aligner,
    Measured,
    align,
    align_both,
    align_naively,
    choose,
    measured_in,
    save_look,
    turned_pairs,
    weights,
)
from regard.look.links import Gold, score
from regard.shipped import MODELS, place_of
from regard.use.translation import TranslateOptions
from regard.weights.directory import read_config

PAIRS = [
    ("ein Hund läuft", "a dog is running"),
    ("und eine Katze", "and a cat too"),
    ("durch den Schnee", "through the snow"),
    ("", ""),
    ("Hund", ""),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return regard.load(write_translator(tmp_path_factory.mktemp("model")), device="cpu")


def test_weights_are_those_of_translating(model: Any) -> None:
    """One word is one token here, or the sum of its tokens: the same table that the network's own pass gives."""
    side = Aligner(model, "en", look_at(model.network, 0, consumed=True))
    scribe = model.scribe(TranslateOptions(to="en"))
    source, target = PAIRS[0]
    ids = model.tokenizers.target.encode(target, framed=False)
    outputs = [[*ids.ids, scribe.frame.ends.end]]
    (tokens,) = cross_weights(model.network, scribe.read([source]), outputs, scribe.frame.ends, side.seen)
    (words,) = weights(side, PAIRS[:1])
    assert words.shape == (4, 3)
    first = [row for row, (start, _) in enumerate(ids.offsets) if start < 1]
    inside = [column for column, (start, end) in enumerate(scribe.read_spans(source)) if 0 < end <= 3]
    assert words[0, 0] == pytest.approx(float(tokens[first][:, inside].sum(1).mean()), abs=1e-5)


def test_links_of_pairs_and_of_nothing(model: Any) -> None:
    side = Aligner(model, "en")
    found = align(side, PAIRS)
    assert [len(links) > 0 for links in found] == [True, True, True, False, False]
    assert list(found[0]) == list(frozenset(word_alignment(weights(side, PAIRS[:1])[0])))
    naive = align_naively(side, PAIRS)
    assert sorted(target for _, target in naive[0]) == [0, 1, 2, 3], "each target word has one"


def test_both_directions_agree_on_what_is_joined(model: Any) -> None:
    forth, back = Aligner(model, "en"), Aligner(model, "de")
    joined = align_both(forth, back, PAIRS)
    assert joined == [frozenset((b, a) for a, b in links) for links in align_both(back, forth, turned_pairs(PAIRS))]


def test_the_choice_is_the_best_of_what_is_offered(model: Any) -> None:
    """Gold that one head made is found again, without error."""
    side = Aligner(model, "en")
    made = align(side._replace(look=Look(((0, 1),), consumed=True)), PAIRS)
    tried = choose(side, PAIRS, [Gold(links, links) for links in made])
    assert tried[0].error == pytest.approx(0)
    again = align(side._replace(look=tried[0].look), PAIRS)
    assert score(again, [Gold(links, links) for links in made]).error == pytest.approx(0)
    assert [one.error for one in tried] == sorted(one.error for one in tried)
    assert {one.look.consumed for one in tried} == {False, True}


MEASURED = Measured("en", "gold.talp", 12, 0.25, 0.5)


def test_figures_stay_with_the_heads_that_they_are_of(tmp_path: Path) -> None:
    place, look = write_translator(tmp_path), Look(((0, 1),), consumed=True)
    other = Measured("de", "gold.talp", 12, 0.125, 0.5, joined=0.0625)
    save_look(place, look, replace(MEASURED, error=0.75))
    save_look(place, look, other)
    save_look(place, look, MEASURED)
    assert measured_in(read_config(place)) == [other, MEASURED]
    save_look(place, Look(((0, 0),), consumed=True), MEASURED)
    assert measured_in(read_config(place)) == [MEASURED]
    assert (
        measured_in({})
        == measured_in({"align": {"measured": 3}})
        == measured_in({"align": {"measured": [3, {}]}})
        == []
    )


def test_the_model_that_comes_along_tells_its_figures() -> None:
    """Those of bench/results/2026-11-16-aligning.json."""
    english, german = measured_in(read_config(place_of(MODELS["german-english"])))
    assert (english.to, english.pairs, english.error, english.naive, english.joined) == ("en", 408, 0.178, 0.334, 0.155)
    assert (german.to, german.pairs, german.error, german.naive, german.joined) == ("de", 408, 0.196, 0.357, 0.155)


def test_a_choice_that_was_saved_is_looked_at(tmp_path: Path) -> None:
    place = write_translator(tmp_path)
    before: Any = regard.load(place, device="cpu")
    look = Look(((0, 1),), consumed=True)
    assert Aligner(before).seen != look
    save_look(place, look, MEASURED)
    after: Any = regard.load(place, device="cpu")
    assert Aligner(after).seen == look
    assert after.directions == before.directions
    assert after.translate("ein Hund", to="en") == before.translate("ein Hund", to="en")
