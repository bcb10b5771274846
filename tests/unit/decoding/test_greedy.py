"""Greedy decoding, sampling and streaming, against one whole pass a token."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from decoding_cases import END, ENDS, continuer, inputs, next_chances, translator

from regard.blocks.settings import Attention, Learned
from regard.decoding.decode import decode, stream
from regard.decoding.settings import Absolute, Ends, Greedy, Rules, Sampling, ToSource
from regard.errors import InputError
from regard.models.build import build
from regard.models.settings import Decoder


@pytest.mark.parametrize("family", [translator, continuer])
def test_the_likeliest_token_each_time(family) -> None:
    model, sources = family(), inputs(8)
    found = decode(model, sources, ENDS, rules=Rules(longest=Absolute(tokens=10)))
    for source, (best,) in zip(sources, found, strict=True):
        written: list[int] = []
        while len(written) < 10 and END not in written:
            written.append(int(next_chances(model, source, written).argmax()))
        assert best.finished is (END in written)
        assert best.tokens == [token for token in written if token != END]
        again = [next_chances(model, source, written[:t])[token].item() for t, token in enumerate(written)]
        assert best.token_scores == pytest.approx(again)
        assert best.score == pytest.approx(sum(again))
    assert len({len(row[0].tokens) for row in found}) > 1


def test_frequency_and_presence_count_what_was_written() -> None:
    """Not the prompt: by the formula, from the model's own scores."""
    model, sources = continuer(), inputs(5)
    rules = Rules(longest=Absolute(tokens=8), frequency=0.7, presence=0.4)
    for source, (best,) in zip(sources, decode(model, sources, ENDS, rules=rules), strict=True):
        written: list[int] = []
        while len(written) < 8 and END not in written:
            chances, counts = next_chances(model, source, written).tolist(), Counter(written)
            written.append(max(range(6), key=lambda t: chances[t] - 0.7 * counts[t] - 0.4 * (counts[t] > 0)))
        assert best.tokens == [token for token in written if token != END]


def test_samples_have_the_chances_of_the_model() -> None:
    """2,000 draws of a first token, within five standard deviations; those beyond top-k never."""
    model, count = translator(), 2000
    sampling = Sampling(temperature=1.5, top_k=4)
    found = decode(model, [[2, END]] * count, ENDS, sampling, Rules(longest=Absolute(tokens=1)), batch_tokens=4000)
    drawn = Counter(row[0].tokens[0] if row[0].tokens else END for row in found)
    scores = next_chances(model, [2, END], []) / 1.5
    least = scores.sort(descending=True).values[3]
    expected = torch.where(scores >= least, scores, -torch.inf).softmax(-1).tolist()
    for token, chance in enumerate(expected):
        assert abs(drawn[token] / count - chance) <= 5 * (chance * (1 - chance) / count) ** 0.5


def test_samples_do_not_depend_on_the_batch() -> None:
    model, sources = translator(), inputs(9)
    sampling = Sampling(temperature=2.0, top_p=0.9, min_p=0.02, seed=3)
    rules = Rules(longest=Absolute(tokens=9))
    whole, alone = (decode(model, sources, ENDS, sampling, rules, batch_tokens=size) for size in (1000, 1))
    assert [row[0].tokens for row in whole] == [row[0].tokens for row in alone]
    other = decode(model, sources, ENDS, sampling.changed({"seed": 4}), rules)
    assert [row[0].tokens for row in whole] != [row[0].tokens for row in other]
    twins = decode(model, [sources[0]] * 6, ENDS, sampling, rules)
    assert len({tuple(row[0].tokens) for row in twins}) > 1


@pytest.mark.parametrize("search", [Greedy(), Sampling(seed=5)])
def test_streaming_gives_what_decoding_gives(search) -> None:
    model, rules = continuer(), Rules(longest=Absolute(tokens=8))
    for source in inputs(5):
        ((best,),) = decode(model, [source], ENDS, search, rules)
        streamed = list(stream(model, source, ENDS, search, rules))
        assert [token for token, _ in streamed] == best.tokens
        assert [score for _, score in streamed] == pytest.approx(best.token_scores[: len(best.tokens)])


def test_lengths() -> None:
    model = continuer()
    relative = Rules(longest=ToSource(ratio=2.0, extra=3))
    found = decode(model, [[2], [3, 4, 5]], Ends(), rules=relative)
    assert [len(row[0].tokens) for row in found] == [5, 9]
    assert not found[0][0].finished
    paper = decode(model, [[2, 3]], Ends())
    assert len(paper[0][0].tokens) == 52
    for row in decode(model, inputs(5), ENDS, rules=Rules(shortest=4, longest=Absolute(tokens=6))):
        assert 4 <= len(row[0].tokens) <= 6


def test_the_model_s_positions_are_a_limit() -> None:
    model = build(
        Decoder(vocabulary=6, width=8, depth=1, attention=Attention(heads=2), position=Learned(length=6))
    ).eval()
    ((best,),) = decode(model, [[2, 3]], Ends())
    assert len(best.tokens) == 5  # the last is written and not read
    with pytest.raises(InputError, match="7 tokens"):
        decode(model, [[2] * 7], Ends())
