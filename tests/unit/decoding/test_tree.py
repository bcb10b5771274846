"""The tree of a search holds what the search gave, and all that it weighed."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from decoding_cases import ENDS, continuer, translator

from regard.decoding.decode import decode
from regard.decoding.settings import Absolute, Beam, Paper, Power, Rules, Wish
from regard.decoding.tree import search_tree
from regard.errors import InputError

RULES = Rules(longest=Absolute(tokens=8))
BEAMS = [
    Beam(size=3, nbest=3),
    Beam(size=2, nbest=2, stop="first", length=Power(alpha=1.0)),
    Beam(size=4, nbest=4, stop="best", length=Paper(alpha=0.6)),
    Beam(size=1),
]
INPUT = [3, 5, 2, 4, 1]


def test_it_finds_what_decoding_finds() -> None:
    """Each result is a finished path of the tree."""
    for beam, family in itertools.product(BEAMS, (translator, continuer)):
        model = family(seed=3)
        (expected,) = decode(model, [INPUT], ENDS, beam, RULES)
        tree = search_tree(model, INPUT, ENDS, beam, RULES)
        assert [each.tokens for each in tree.found] == [each.tokens for each in expected], beam
        assert [each.score for each in tree.found] == pytest.approx([each.score for each in expected])
        finished = {}
        for number, node in enumerate(tree.nodes):
            if node.fate == "finished":
                tokens = [tree.nodes[at].token for at in tree.path(number)]
                finished[tuple(tokens[:-1] if tokens[-1] == ENDS.end else tokens)] = node.score
        for found in tree.found:
            assert finished[tuple(found.tokens)] == pytest.approx(found.score)


@pytest.mark.parametrize("beam", BEAMS, ids=str)
def test_totals_are_sums_of_chances_and_chances_are_the_models(beam: Beam) -> None:
    model = translator(seed=2)
    tree = search_tree(model, INPUT, ENDS, beam, RULES)
    for number, node in enumerate(tree.nodes):
        path = tree.path(number)
        assert [tree.nodes[at].step for at in path] == list(range(node.step + 1))
        assert node.total == pytest.approx(sum(tree.nodes[at].chance for at in path), abs=1e-4)
    deepest = max(range(len(tree.nodes)), key=lambda number: tree.nodes[number].step)
    tokens = [ENDS.start, *(tree.nodes[at].token for at in tree.path(deepest))]
    with torch.no_grad():
        chances = model(torch.tensor([INPUT]), torch.tensor([tokens[:-1]])).log_softmax(-1)[0]
    expected = [float(chances[step, token]) for step, token in enumerate(tokens[1:])]
    assert [tree.nodes[at].chance for at in tree.path(deepest)] == pytest.approx(expected, abs=1e-4)


def test_what_was_dropped_is_no_better_than_what_went_on() -> None:
    beam = Beam(size=3, nbest=3)
    tree = search_tree(translator(seed=2), INPUT, ENDS, beam, RULES)
    for step in range(max(node.step for node in tree.nodes) + 1):
        here = [node for node in tree.nodes if node.step == step]
        assert len(here) <= 2 * beam.size
        assert [node.total for node in here] == sorted((node.total for node in here), reverse=True)
        worst = min((node.total for node in here if node.fate == "open"), default=-math.inf)
        going = [node for node in here if node.fate == "dropped" and node.token != ENDS.end]
        if any(node.fate == "open" for node in here):
            assert all(node.total <= worst + 1e-6 for node in going)
        assert sum(node.fate == "open" for node in here) <= beam.size


def test_words_that_must_occur_have_no_tree() -> None:
    with pytest.raises(InputError, match="has no tree"):
        search_tree(translator(), INPUT, ENDS, Beam(), RULES, Wish(must=((3,),)))
