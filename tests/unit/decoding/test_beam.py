"""Beam search against the enumeration of every sequence, and what must not change its results."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from decoding_cases import (
    END,
    ENDS,
    START,
    continuer,
    convolutional,
    every_sequence,
    inputs,
    next_chances,
    recurrent,
    translator,
)

from regard.decoding.decode import decode
from regard.decoding.settings import Absolute, Beam, Ends, Greedy, Paper, Power, Rules, Wish
from regard.errors import InputError, SettingsError

SHORT = Rules(longest=Absolute(tokens=3))


@pytest.mark.parametrize("stop", ["all", "best", "first"])
@pytest.mark.parametrize("length", [Power(alpha=0.0), Power(alpha=1.0), Power(alpha=-0.5), Paper(alpha=0.6)])
@pytest.mark.parametrize("family", [translator, recurrent, convolutional, continuer])
def test_a_beam_that_holds_everything_finds_the_best(family, length, stop) -> None:
    """With `first` it stops too early by its own rule, but what it finds is scored right."""
    model = family(5)
    sources = inputs(2, 5)
    found = decode(model, sources, ENDS, Beam(size=30, nbest=4, length=length, stop=stop), SHORT)
    for place, hypotheses in enumerate(found):
        every = every_sequence(family, place, 5, 3)
        ranked = {tokens: score / length.divisor(len(tokens)) for tokens, score in every.items()}
        best = sorted(ranked, key=lambda tokens: -ranked[tokens])
        written = [(*each.tokens, END) if each.finished else tuple(each.tokens) for each in hypotheses]
        if stop == "all":
            assert written == best[:4]
        for tokens, each in zip(written, hypotheses, strict=True):
            assert each.score == pytest.approx(ranked[tokens], abs=1e-9)
            assert sum(each.token_scores) == pytest.approx(every[tokens], abs=1e-9)
            assert len(each.token_scores) == len(tokens)


@pytest.mark.parametrize("alpha", [-0.5, 0.0, 0.6, 2.0])
def test_stopping_early_loses_nothing(alpha: float) -> None:
    """`all` gives what a search to the very end gives: a penalty too small to matter takes its bound away."""
    model, sources = translator(), inputs(12)
    beam = Beam(size=3, nbest=2, length=Power(alpha=alpha))
    rules = Rules(longest=Absolute(tokens=12), shortest=1)
    bounded = decode(model, sources, ENDS, beam, rules)
    exhausted = decode(model, sources, ENDS, beam, rules.changed({"presence": -1e-300}))
    assert [[each.tokens for each in row] for row in bounded] == [[each.tokens for each in row] for row in exhausted]
    assert len({len(row[0].tokens) for row in bounded}) > 1


@pytest.mark.parametrize("family", [translator, recurrent, convolutional, continuer])
def test_a_beam_of_one_is_greedy(family) -> None:
    model, sources = family(), inputs(10)
    rules = Rules(longest=Absolute(tokens=9), shortest=1, ngram=2)
    one = decode(model, sources, ENDS, Beam(size=1, length=Power(alpha=0.0), stop="first"), rules)
    greedy = decode(model, sources, ENDS, Greedy(), rules)
    for (a,), (b,) in zip(one, greedy, strict=True):
        assert (a.tokens, a.finished) == (b.tokens, b.finished)
        assert a.score == pytest.approx(b.score)
        assert a.token_scores == pytest.approx(b.token_scores)


@pytest.mark.parametrize("search", [Greedy(), Beam(size=3, nbest=3), Beam(size=4, coverage=0.3)])
@pytest.mark.parametrize("family", [translator, recurrent, convolutional])
def test_batches_change_nothing(family, search) -> None:
    """Alone, two at a time, all together: the same tokens, exactly; batches differ in padding and in who ends first."""
    model, sources = family(), inputs(14)
    rules = Rules(longest=Absolute(tokens=10), repetition=1.2)
    whole = decode(model, sources, ENDS, search, rules)
    for batch_tokens in (1, 40):
        parts = decode(model, sources, ENDS, search, rules, batch_tokens=batch_tokens)
        for row, other in zip(whole, parts, strict=True):
            assert [each.tokens for each in row] == [each.tokens for each in other]
            assert [each.score for each in row] == pytest.approx([each.score for each in other], abs=1e-10)
    assert len({len(row[0].tokens) for row in whole}) > 2
    backwards = decode(model, sources[::-1], ENDS, search, rules)
    assert [row[0].tokens for row in backwards[::-1]] == [row[0].tokens for row in whole]


def test_coverage_is_the_published_formula() -> None:
    """Against attention recomputed from the weights of a one-layer decoder, for a whole target at once."""
    model, sources = translator(), inputs(4)
    beam = Beam(size=3, length=Power(alpha=0.0), coverage=0.7)
    rules = Rules(longest=Absolute(tokens=6))
    plain, covered = (decode(model, sources, ENDS, each, rules) for each in (beam.changed({"coverage": 0.0}), beam))
    assert [row[0].score for row in plain] != [row[0].score for row in covered]
    for source, (best,) in zip(sources, covered, strict=True):
        written = [*best.tokens, END] if best.finished else best.tokens
        got = _attention(model, source, written).sum(0).clamp(max=1.0)
        assert best.score == pytest.approx(sum(best.token_scores) + 0.7 * got.log().sum().item(), abs=1e-9)


@torch.no_grad()
def _attention(model, source: list[int], written: list[int]) -> torch.Tensor:
    """`[T, S]`: the mean of the heads of the last layer, when a whole target is read."""
    kept = {}
    cross = model.decoder[0].cross
    handle = cross.register_forward_pre_hook(lambda _, given: kept.update(x=given[0]))
    memory = model.encode(torch.tensor([source]))
    model.output(model.states(torch.tensor([[START, *written[:-1]]]), memory))
    handle.remove()
    heads = []
    for head in range(2):
        part = slice(4 * head, 4 * head + 4)
        q, k = cross.q(kept["x"])[0, :, part], cross.k(memory)[0, :, part]
        heads.append((q @ k.T / 2).softmax(-1))
    return torch.stack(heads).mean(0)


def test_a_forced_prefix_costs_nothing() -> None:
    model, sources = translator(), inputs(4)
    prefixes = [(3, 4), (), (5,), (2, 2, 2)]
    wishes = [Wish(prefix=prefix) for prefix in prefixes]
    for search in (Greedy(), Beam(size=3, length=Power(alpha=0.0))):
        found = decode(model, sources, ENDS, search, Rules(longest=Absolute(tokens=6)), wishes)
        for source, prefix, (best,) in zip(sources, prefixes, found, strict=True):
            size = len(prefix)
            assert tuple(best.tokens[:size]) == prefix
            assert best.token_scores[:size] == [0.0] * size
            written = [*best.tokens, END] if best.finished else best.tokens
            rest = [next_chances(model, source, written[:t])[written[t]].item() for t in range(size, len(written))]
            assert best.token_scores[size:] == pytest.approx(rest)
            assert best.score == pytest.approx(sum(rest))


def test_rules_that_leave_nothing() -> None:
    rules = Rules(must_not=tuple((token,) for token in range(6)))
    for search in (Greedy(), Beam()):
        ((best,),) = decode(translator(), [[2, END]], ENDS, search, rules)
        assert (best.tokens, best.finished) == ([], False)


def test_the_end_at_the_longest() -> None:
    rules = Rules(longest=Absolute(tokens=3), shortest=2, end_at_longest=True)
    for search in (Greedy(), Beam()):
        for row in decode(translator(), inputs(6), ENDS, search, rules):
            assert row[0].finished
            assert len(row[0].tokens) == 2
            assert row[0].token_scores[-1] == 0.0


def test_what_is_refused() -> None:
    model = translator()
    with pytest.raises(SettingsError, match=r"nbest \(5\) must be at most size \(4\)"):
        Beam(nbest=5)
    cases: list[tuple[str, Any, list[list[int]], Ends, dict[str, Any]]] = [
        ("is empty", model, [[2], []], ENDS, {}),
        (r"needs Ends\.start", model, [[2]], Ends(end=1), {}),
        ("2 wishes for 1 inputs", model, [[2]], ENDS, {"wishes": [Wish(), Wish()]}),
        (r"token 9 .* outside the vocabulary \(6\)", model, [[2]], ENDS, {"wishes": [Wish(prefix=(9,))]}),
        (r"end_at_longest needs Ends\.end", model, [[2]], Ends(start=0), {"rules": Rules(end_at_longest=True)}),
        (r"beam\.coverage", continuer(), [[2]], ENDS, {"search": Beam(coverage=0.1)}),
        (r"batch_tokens \(0\)", model, [[2]], ENDS, {"batch_tokens": 0}),
        ("cannot write text", torch.nn.Linear(1, 1), [[2]], ENDS, {}),
        (r"call model\.eval\(\)", translator().train(), [[2]], ENDS, {}),
    ]
    for message, given, tokens, ends, options in cases:
        with pytest.raises(InputError, match=message):
            decode(given, tokens, ends, **options)
    assert decode(model, [], ENDS) == []
