"""Turns that can be recorded: all in place, and the same results, search after search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from decoding_cases import ENDS, continuer, translator

from regard.blocks.settings import Attention, Learned
from regard.decoding import replay
from regard.decoding.beam import BeamSearch
from regard.decoding.decode import ONE, decode, jobs_for
from regard.decoding.request import Ends, Hypothesis, Wish
from regard.decoding.settings import Absolute, Beam, Greedy, NoPenalty, Power, Rules, Stop
from regard.decoding.source import source_of
from regard.models.build import build
from regard.models.decoder import Decoder
from regard.models.encoder_decoder import EncoderDecoder
from regard.models.settings import EncoderDecoder as EncoderDecoderSettings

RULES = Rules(longest=Absolute(tokens=12))


def inputs_of(lengths: Sequence[int], vocabulary: int, seed: int) -> list[list[int]]:
    chance = torch.Generator().manual_seed(seed)
    return [[*torch.randint(3, vocabulary, (length - 1,), generator=chance).tolist(), ENDS.end] for length in lengths]


def searched(model: EncoderDecoder | Decoder, inputs: list[list[int]], beam: Beam) -> BeamSearch:
    source = source_of(model, ENDS, "fixed")
    jobs = jobs_for(source, inputs, ENDS, RULES, [Wish()] * len(inputs))
    return BeamSearch(source, jobs, ENDS, RULES, beam)


def assert_same(found: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    for some, others in zip(found, expected, strict=True):
        assert [each.tokens for each in some] == [each.tokens for each in others]
        assert [each.score for each in some] == pytest.approx([each.score for each in others], abs=1e-5)


class Player:
    """In the place of a recorder: runs the turn itself, as a recording would, and looks whether memory stays."""

    def __init__(self) -> None:
        self.recorded = 0
        self.played = 0

    def __call__(self, turn: replay.Turn) -> replay.Turn:
        self.recorded += 1
        recording: replay.Recording = turn.__self__  # type: ignore[attr-defined]
        cache = getattr(recording.search.state, "cache", None)
        places = [each.data_ptr() for each in recording.tensors]
        used = None if cache is None else cache.used

        def play() -> None:
            self.played += 1
            if cache is not None:
                cache.used = used  # what Python counts, a recording does not
            turn()
            now = replay._tensors(recording.search)
            assert [each.data_ptr() for each in now] == places

        play()
        return play


@pytest.mark.parametrize("stop", ["all", "best", "first"])
def test_replayed_turns_give_what_a_search_gives(stop: Stop) -> None:
    """Three batches of one shape share a recording; another shape has its own."""
    model, player = translator(seed=2), Player()
    vocabulary = model.settings.target_size
    beam = Beam(size=3, nbest=2, stop=stop, length=Power(alpha=0.6))
    with torch.inference_mode():
        for seed, lengths in enumerate([(5, 9, 3, 7), (8, 8, 2, 4), (16, 1, 1, 2)]):
            inputs = inputs_of(lengths, vocabulary, seed)
            found = replay.replayed(searched(model, inputs, beam), player)
            assert_same(found, decode(model, inputs, ENDS, beam, RULES))
            assert player.recorded == 1
        inputs = inputs_of((17, 5), vocabulary, 9)
        found = replay.replayed(searched(model, inputs, beam), player)
    assert_same(found, decode(model, inputs, ENDS, beam, RULES))
    assert player.recorded == 2
    assert player.played > 8


@pytest.mark.parametrize("family", [translator, continuer])
def test_a_beam_of_one_is_greedy(family: Callable[..., Any]) -> None:
    model = family(seed=2)
    inputs = inputs_of((5, 9, 3, 7, 1), 6, 3)
    found, expected = (decode(model, inputs, ENDS, search, RULES) for search in (ONE, Greedy()))
    assert_same(found, expected)
    for (one,), (other,) in zip(found, expected, strict=True):
        assert (one.finished, one.looped) == (other.finished, other.looped)
        assert one.token_scores == pytest.approx(other.token_scores, abs=1e-9)


def test_a_decoder_is_replayed_too() -> None:
    model, player, beam = continuer(seed=2), Player(), Beam(size=3)
    inputs = inputs_of((5, 9, 3), 6, 4)
    with torch.inference_mode():
        found = replay.replayed(searched(model, inputs, beam), player)
    assert_same(found, decode(model, inputs, ENDS, beam, RULES))
    assert player.played > 1


def test_weights_that_moved_are_recorded_anew() -> None:
    model, player = translator(seed=2), Player()
    inputs, beam = inputs_of((5, 3), model.settings.target_size, 1), Beam(size=2, length=NoPenalty())
    with torch.inference_mode():
        replay.replayed(searched(model, inputs, beam), player)
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    with torch.inference_mode():
        replay.replayed(searched(model, inputs, beam), player)
    assert player.recorded == 2


def test_no_place_beyond_the_learned_ones_is_asked_for() -> None:
    """A sequence as long as the positions reach; the model never ends one by itself."""
    given = EncoderDecoderSettings(
        vocabulary=6, width=8, depth=1, attention=Attention(heads=2), position=Learned(length=12), tied=()
    )
    model, player = build(given).eval(), Player()
    assert isinstance(model, EncoderDecoder)
    beam, ends = Beam(size=2), Ends(ENDS.start)
    inputs = inputs_of((5, 3), 6, 1)
    source = source_of(model, ends, "fixed")
    rules = Rules(longest=Absolute(tokens=100))
    with torch.inference_mode():
        jobs = jobs_for(source, inputs, ends, rules, [Wish()] * 2)
        found = replay.replayed(BeamSearch(source, jobs, ends, rules, beam), player)
    assert [len(row[0].tokens) for row in found] == [12, 12]
    assert_same(found, decode(model, inputs, ends, beam, rules))


def test_what_cannot_be_recorded_is_searched_as_it_is() -> None:
    """Whatever the attempt has computed is put right before."""
    model, beam = translator(seed=2), Beam(size=3)
    inputs = inputs_of((5, 9, 3), model.settings.target_size, 1)

    def failing(turn: replay.Turn) -> replay.Turn:
        turn()
        raise RuntimeError("not permitted when stream is capturing")

    with torch.inference_mode():
        found = replay.replayed(searched(model, inputs, beam), failing)
    assert_same(found, decode(model, inputs, ENDS, beam, RULES))


def test_a_cpu_replays_nothing() -> None:
    model = translator(seed=2)
    assert not replay.can_replay(searched(model, [[5, ENDS.end]], Beam(size=2)))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("stop", ["all", "best", "first"])
def test_a_gpu_replays(stop: Stop) -> None:
    model = translator(seed=2).cuda()
    beam = Beam(size=3, nbest=2, stop=stop)
    for seed in range(3):
        inputs = inputs_of((5, 9, 3, 7, 11, 30), model.settings.target_size, seed)
        found = decode(model, inputs, ENDS, beam, RULES)
        assert len(replay._recordings[model]) >= 1
        assert_same(found, decode(model, inputs, ENDS, beam, RULES, cache="growing"))
