"""Turns that can be recorded: all in place, and the same results, search after search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from decoding_cases import ENDS, continuer, translator
from replay_cases import RULES, Player, replayed
from torch.utils._python_dispatch import TorchDispatchMode

from regard.blocks import embedding, layout
from regard.blocks.settings import Attention, Learned, Rotary, Sinusoidal
from regard.decoding.beam import BeamBatch, BeamSearch
from regard.decoding.decode import decode, jobs_for
from regard.decoding.fast import FastPaths
from regard.decoding.fast import graphs as replay
from regard.decoding.model import SearchModel
from regard.decoding.settings import Absolute, Beam, Ends, Hypothesis, Power, Rules, Stop, Wish
from regard.models.build import build
from regard.models.families import EncoderDecoder
from regard.models.settings import Decoder as DecoderSettings
from regard.models.settings import EncoderDecoder as EncoderDecoderSettings


def inputs_of(lengths: Sequence[int], vocabulary: int, seed: int) -> list[list[int]]:
    chance = torch.Generator().manual_seed(seed)
    return [[*torch.randint(3, vocabulary, (length - 1,), generator=chance).tolist(), ENDS.end] for length in lengths]


def assert_same(found: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    for some, others in zip(found, expected, strict=True):
        assert [each.tokens for each in some] == [each.tokens for each in others]
        assert [each.score for each in some] == pytest.approx([each.score for each in others], abs=1e-5)


@pytest.mark.parametrize("stop", ["all", "best", "first"])
@pytest.mark.parametrize("family", [translator, continuer])
def test_replayed_turns_give_what_a_search_gives(family: Callable[..., Any], stop: Stop) -> None:
    """Batches of about one size share the recordings of opening and turn; another length has its own."""
    model, player, vocabulary = family(seed=2), Player(), 6
    beam = Beam(size=3, nbest=2, stop=stop, length=Power(alpha=0.6))
    for seed, lengths in enumerate([(5, 9, 3, 7), (8, 8, 2, 4), (16, 1, 1, 2, 6, 3, 5), (4,)]):
        inputs = inputs_of(lengths, vocabulary, seed)
        assert_same(replayed(model, inputs, beam, player), decode(model, inputs, ENDS, beam, RULES))
        assert player.recorded == 2
    inputs = inputs_of((17, 5), vocabulary, 9)
    assert_same(replayed(model, inputs, beam, player), decode(model, inputs, ENDS, beam, RULES))
    assert player.recorded == 4
    assert player.played > 8


def test_weights_that_moved_are_recorded_anew() -> None:
    model, player = translator(seed=2), Player()
    inputs, beam = inputs_of((5, 3), model.settings.target_size, 1), Beam(size=2, length=Power(alpha=0.0))
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
    """And not tried again."""
    model, beam = translator(seed=2), Beam(size=3)
    inputs = inputs_of((5, 9, 3), model.settings.target_size, 1)

    tries = []

    def failing(work: replay.Work) -> replay.Work:
        work()
        tries.append(work)
        raise RuntimeError("not permitted when stream is capturing")

    for _ in range(2):
        assert_same(replayed(model, inputs, beam, failing), decode(model, inputs, ENDS, beam, RULES))
    assert len(tries) == 1


class Silent(TorchDispatchMode):
    """Refuses what a GPU cannot record: to be asked for a number, or told of one in the host's memory."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert function.__name__.split(".")[0] not in ("item", "_local_scalar_dense", "nonzero", "lift_fresh")
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("position", [Sinusoidal(), Learned(length=40), Rotary()])
@pytest.mark.parametrize("family", [EncoderDecoderSettings, DecoderSettings])
def test_what_is_recorded_asks_the_host_nothing(
    family: type[EncoderDecoderSettings | DecoderSettings], position: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build(family(vocabulary=9, width=8, depth=1, attention=Attention(heads=2), position=position)).eval()
    source = SearchModel(model, ENDS, FastPaths(fixed=True))
    jobs = replay.filled(jobs_for(source, inputs_of((5, 3), 9, 1), ENDS, Beam(size=2), RULES, [Wish()] * 2))
    batch = BeamBatch(source, jobs, ENDS, RULES, Beam(size=2))
    for module in (layout, embedding):  # whoever looks at numbers does so where that costs nothing
        monkeypatch.setattr(module, "readable", lambda tensor: False)
    with torch.inference_mode(), Silent():
        search = BeamSearch(batch)
        search.turn()
        search.turn()
    assert int(search.step_1) == 2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("stop", ["all", "best", "first"])
def test_a_gpu_replays(stop: Stop) -> None:
    model = translator(seed=2).cuda()
    beam = Beam(size=3, nbest=2, stop=stop)
    for seed in range(3):
        inputs = inputs_of((5, 9, 3, 7, 11, 30), model.settings.target_size, seed)
        found = decode(model, inputs, ENDS, beam, RULES)
        assert len(replay._graphs[model]) >= 1
        assert_same(found, decode(model, inputs, ENDS, beam, RULES, fixed=False))
