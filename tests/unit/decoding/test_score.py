"""Scores of given targets, and alternatives, against one whole pass a token."""

from __future__ import annotations

import math

import pytest
from decoding_cases import END, ENDS, inputs, next_chances, translator

from regard.decoding.decode import alternatives, score
from regard.decoding.settings import Ends
from regard.errors import InputError


@pytest.mark.parametrize("batch_tokens", [1, 1000])
def test_targets(batch_tokens: int) -> None:
    model, sources, targets = translator(), inputs(5), [[2, 3], [], [5], [4, 4, 4, 2], [3]]
    found = score(model, sources, targets, ENDS, batch_tokens)
    for source, target, chances in zip(sources, targets, found, strict=True):
        whole = [*target, END]
        again = [next_chances(model, source, whole[:t])[token].item() for t, token in enumerate(whole)]
        assert chances == pytest.approx(again)
    open_ = score(model, sources, targets, Ends(start=0))
    assert [len(row) for row in open_] == [len(target) for target in targets]


def test_alternatives() -> None:
    model, source = translator(), [3, 2, END]
    for prefix in ([], [4, 5]):
        best = alternatives(model, source, prefix, ENDS, count=3)
        chances = next_chances(model, source, prefix)
        assert [token for token, _ in best] == chances.sort(descending=True).indices[:3].tolist()
        assert [chance for _, chance in best] == pytest.approx(chances.sort(descending=True).values[:3].tolist())
    everything = alternatives(model, source, [], ENDS, count=100)
    assert sum(math.exp(chance) for _, chance in everything) == pytest.approx(1)
    assert len(everything) == 6


def test_what_is_refused() -> None:
    model = translator()
    for message, given, sources, targets, ends in (
        ("2 targets for 1 inputs", model, [[2]], [[2], [3]], ENDS),
        ("is empty", model, [[]], [[2]], ENDS),
        (r"needs Ends\.start", model, [[2]], [[2]], Ends(end=1)),
        (r"call model\.eval\(\)", translator().train(), [[2]], [[2]], ENDS),
    ):
        with pytest.raises(InputError, match=message):
            score(given, sources, targets, ends)
    with pytest.raises(InputError, match="is empty"):
        alternatives(model, [], [2], ENDS)
