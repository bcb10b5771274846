"""Turns that can be recorded: all in place, and the same results, search after search."""

from __future__ import annotations

import dataclasses
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


def replayed(
    model: EncoderDecoder | Decoder,
    inputs: list[list[int]],
    beam: Beam,
    record: replay.Record,
    ends: Ends = ENDS,
    rules: Rules = RULES,
) -> list[list[Hypothesis]]:
    source = source_of(model, ends, "fixed")
    with torch.inference_mode():
        jobs = jobs_for(source, inputs, ends, rules, [Wish()] * len(inputs))
        return replay.replayed(source, jobs, ends, rules, beam, record)


def assert_same(found: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    for some, others in zip(found, expected, strict=True):
        assert [each.tokens for each in some] == [each.tokens for each in others]
        assert [each.score for each in some] == pytest.approx([each.score for each in others], abs=1e-5)


def tensors(search: BeamSearch) -> list[torch.Tensor]:
    """All that turns read and write."""
    fixed = search.state.fixed()
    assert fixed is not None
    own = [search.scores_NV, search.pool_BKF, search.live_B, search.step_1, search.offset_B1, search.rows_BK]
    return [*own, *(getattr(search.open, each.name) for each in dataclasses.fields(search.open)), *fixed.tensors]


def places(search: BeamSearch) -> list[int]:
    return [each.data_ptr() for each in tensors(search)]


class Player:
    """In the place of a recorder: does the work itself, as a recording would, and looks whether memory stays.

    A recording does not run Python again. So an opening that is played is copied into the memory of the one that was
    recorded, and turns go on with what they counted when they were.
    """

    def __init__(self) -> None:
        self.recorded = 0
        self.played = 0

    def __call__(self, work: replay.Work) -> replay.Work:
        self.recorded += 1
        recording: replay.Recording = work.__self__  # type: ignore[attr-defined]
        opens = work.__name__ == "_open"
        work()
        if opens:
            work()
        search = recording.search
        cache, where = getattr(search.state, "cache", None), places(search)
        used = None if cache is None else cache.used

        def play() -> None:
            self.played += 1
            if opens:
                recording._open()
                for mine, its in zip(tensors(search), tensors(recording.search), strict=True):
                    mine.copy_(its)
                recording.search = search
                return
            if cache is not None:
                cache.used = used
            work()
            assert places(search) == where

        return play


@pytest.mark.parametrize("stop", ["all", "best", "first"])
def test_replayed_turns_give_what_a_search_gives(stop: Stop) -> None:
    """Batches of about one size share the recordings of opening and turn; another length has its own."""
    model, player = translator(seed=2), Player()
    vocabulary = model.settings.target_size
    beam = Beam(size=3, nbest=2, stop=stop, length=Power(alpha=0.6))
    for seed, lengths in enumerate([(5, 9, 3, 7), (8, 8, 2, 4), (16, 1, 1, 2, 6, 3, 5), (4,)]):
        inputs = inputs_of(lengths, vocabulary, seed)
        assert_same(replayed(model, inputs, beam, player), decode(model, inputs, ENDS, beam, RULES))
        assert player.recorded == 2
    inputs = inputs_of((17, 5), vocabulary, 9)
    assert_same(replayed(model, inputs, beam, player), decode(model, inputs, ENDS, beam, RULES))
    assert player.recorded == 4
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
    assert_same(replayed(model, inputs, beam, player), decode(model, inputs, ENDS, beam, RULES))
    assert player.played > 2


def test_weights_that_moved_are_recorded_anew() -> None:
    model, player = translator(seed=2), Player()
    inputs, beam = inputs_of((5, 3), model.settings.target_size, 1), Beam(size=2, length=NoPenalty())
    replayed(model, inputs, beam, player)
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    replayed(model, inputs, beam, player)
    assert player.recorded == 4


def test_no_place_beyond_the_learned_ones_is_asked_for() -> None:
    """A sequence as long as the positions reach; the model never ends one by itself."""
    given = EncoderDecoderSettings(
        vocabulary=6, width=8, depth=1, attention=Attention(heads=2), position=Learned(length=12), tied=()
    )
    model, player = build(given).eval(), Player()
    assert isinstance(model, EncoderDecoder)
    beam, ends = Beam(size=2), Ends(ENDS.start)
    inputs = inputs_of((5, 3), 6, 1)
    rules = Rules(longest=Absolute(tokens=100))
    found = replayed(model, inputs, beam, player, ends, rules)
    assert [len(row[0].tokens) for row in found] == [12, 12]
    assert_same(found, decode(model, inputs, ends, beam, rules))


def test_what_cannot_be_recorded_is_searched_as_it_is() -> None:
    model, beam = translator(seed=2), Beam(size=3)
    inputs = inputs_of((5, 9, 3), model.settings.target_size, 1)

    def failing(work: replay.Work) -> replay.Work:
        work()
        raise RuntimeError("not permitted when stream is capturing")

    assert_same(replayed(model, inputs, beam, failing), decode(model, inputs, ENDS, beam, RULES))


def test_a_cpu_replays_nothing() -> None:
    model = translator(seed=2)
    source = source_of(model, ENDS, "fixed")
    jobs = jobs_for(source, [[5, ENDS.end]], ENDS, RULES, [Wish()])
    assert not replay.can_replay(source, jobs, RULES, Beam(size=2))


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
