"""Our decoding and transformers' `generate` write the same, with the settings that mean the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from generate_cases import PAD, TIE, Agreement, bart, compare, ends_of, generate, gpt2, marian, sources
from huggingface_cases import saved_and_read
from torch import nn
from transformers import PreTrainedModel

from regard.decoding.decode import decode
from regard.decoding.settings import Absolute, Beam, Greedy, Hypothesis, Power, Rules, Search, Wish

COUNT, LONGEST = 40, 20
STOPS = {"best": False, "first": True, "all": "never"}
"""What each `Beam.stop` is called there: `early_stopping`."""

Pair = tuple[PreTrainedModel, nn.Module]


def pair(model: PreTrainedModel, directory: Path) -> Pair:
    return model, saved_and_read(model, directory).eval()


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    made = {"marian": marian(), "bart": bart(), "gpt2": gpt2()}
    return {name: pair(model, tmp_path_factory.mktemp(name)) for name, model in made.items()}


def both(
    name: str,
    models: Pair,
    search: Search,
    rules: dict[str, Any],
    options: dict[str, Any],
    prefix: tuple[int, ...] = (),
) -> tuple[Agreement, list[list[Hypothesis]]]:
    """The same inputs through both; `rules` are ours, `options` theirs."""
    model, ours = models
    inputs = sources(COUNT)
    if name == "gpt2":
        inputs = [row[:-1] for row in inputs]  # a prompt that has ended is not continued
    beams = search.size if isinstance(search, Beam) else 1
    theirs = generate(model, inputs, beams, max_new_tokens=LONGEST, **options)
    every = Rules(longest=Absolute(tokens=LONGEST), end_at_longest=name == "bart", **rules)
    wishes = [Wish(prefix=prefix)] * COUNT
    found = decode(ours, inputs, ends_of(model), search, every, wishes, batch_tokens=300)
    return compare(found, theirs), found


def assert_agreed(agreement: Agreement) -> None:
    assert agreement.equal >= 0.975 * agreement.inputs, agreement
    assert agreement.unexplained == 0, agreement
    assert agreement.apart < TIE, agreement


@pytest.mark.parametrize("name", ["marian", "bart", "gpt2"])
def test_beam_search(pairs: dict[str, Pair], name: str) -> None:
    """Their length counts what is written, the end included and the start not, as ours does."""
    for size, alpha, stop in ((4, 0.0, "best"), (5, 0.6, "first"), *((4, 1.0, stop) for stop in STOPS)):
        beam = Beam(size=size, length=Power(alpha=alpha), stop=stop)
        options = {"length_penalty": alpha, "early_stopping": STOPS[stop]}
        agreement, found = both(name, pairs[name], beam, {}, options)
        assert_agreed(agreement)
        assert len({len(row[0].tokens) for row in found}) > 1


def test_stopping_differently_gives_different_results(pairs: dict[str, Pair]) -> None:
    """Or the three names would not have been told apart above."""
    found = [
        both("gpt2", pairs["gpt2"], Beam(size=4, length=Power(alpha=1.0), stop=stop), {}, {"length_penalty": 1.0})[1]
        for stop in STOPS
    ]
    texts = [[row[0].tokens for row in each] for each in found]
    assert texts[0] != texts[1] != texts[2] != texts[0]


@pytest.mark.parametrize("name", ["marian", "gpt2"])
def test_n_best(pairs: dict[str, Pair], name: str) -> None:
    beam = Beam(size=4, nbest=4, length=Power(alpha=1.0), stop="best")
    agreement, _ = both(name, pairs[name], beam, {}, {"num_return_sequences": 4, "early_stopping": False})
    assert_agreed(agreement)


RULES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "none": ({}, {}),
    "no n-gram twice": ({"ngram": 2}, {"no_repeat_ngram_size": 2}),
    "no token twice": ({"ngram": 1}, {"no_repeat_ngram_size": 1}),
    "repetition": ({"repetition": 1.3}, {"repetition_penalty": 1.3}),
    "rewarded repetition": ({"repetition": 0.8}, {"repetition_penalty": 0.8}),
    "must not": (
        {"must_not": ((7,), (9, 12), (30, 31, 32), (PAD,))},
        {"bad_words_ids": [[7], [9, 12], [30, 31, 32], [PAD]]},
    ),
    "shortest": ({"shortest": 6}, {"min_new_tokens": 6}),
    "several": (
        {"repetition": 1.1, "ngram": 3, "shortest": 3, "must_not": ((11,),)},
        {"repetition_penalty": 1.1, "no_repeat_ngram_size": 3, "min_new_tokens": 3, "bad_words_ids": [[11]]},
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_rules(pairs: dict[str, Pair], rule: str) -> None:
    """Penalties change raw scores where the likeliest token is taken, and log-probabilities in a beam, as there."""
    ours, theirs = RULES[rule]
    beam = Beam(size=4, length=Power(alpha=1.0), stop="best")
    for name, search in (("marian", Greedy()), ("gpt2", Greedy()), ("bart", beam), ("gpt2", beam)):
        agreement, found = both(name, pairs[name], search, ours, theirs)
        assert_agreed(agreement)
        assert len({tuple(row[0].tokens) for row in found}) > COUNT // 8


@pytest.mark.parametrize("beams", [1, 4])
def test_a_forced_first_token(pairs: dict[str, Pair], beams: int) -> None:
    search: Search = Greedy() if beams == 1 else Beam(size=beams, length=Power(alpha=1.0), stop="best")
    agreement, found = both("bart", pairs["bart"], search, {}, {"forced_bos_token_id": 17}, prefix=(17,))
    assert_agreed(agreement)
    assert all(row[0].tokens[0] == 17 for row in found)


@pytest.mark.parametrize("name", ["marian", "gpt2"])
def test_a_tie_is_rounding(name: str, tmp_path: Path) -> None:
    """In float64 there is none: whatever differs in float32 must be equal here."""
    model = {"marian": marian, "gpt2": gpt2}[name](1)
    ours = saved_and_read(model, tmp_path).eval().double()
    beam = Beam(size=5, length=Power(alpha=0.6), stop="all")
    options = {"length_penalty": 0.6, "early_stopping": "never"}
    agreement, _ = both(name, (model.double(), ours), beam, {}, options)
    assert agreement.equal == COUNT, agreement
