"""Steps in few kernels give the scores of whole passes, and searches with them what searches without them give."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from decoding_cases import ENDS, inputs
from fused_cases import DEVICE, needs_triton
from replay_cases import Player, replayed

from regard.blocks.settings import Attention, Dense, Gated, Learned, NoPosition, RmsNorm, Sinusoidal
from regard.decoding import fast
from regard.decoding.beam import BeamBatch, BeamSearch
from regard.decoding.decode import ONE, decode, jobs_for
from regard.decoding.fast import FastPaths, triton_works
from regard.decoding.model import SearchModel
from regard.decoding.settings import Absolute, Beam, Rules, Wish
from regard.models.build import build
from regard.models.families import EncoderDecoder
from regard.models.settings import EncoderDecoder as Settings

VOCABULARY = 12
TRITON = FastPaths(fixed=True, triton_step=True, triton_choice=True)
PLAIN: dict[str, dict[str, Any]] = {
    "paper": {"position": Sinusoidal(), "embedding_scale": True},
    "pre": {"norm_place": "pre", "position": Learned(length=64), "output_bias": True, "embedding_norm": True},
    "rms": {"norm_place": "pre", "norm": RmsNorm(unit_offset=True), "position": NoPosition(), "output_scale": 0.5},
    "grouped": {
        "attention": Attention(heads=4, kv_heads=2, head_size=16, value_size=32, bias=False),
        "ffn": Gated(hidden=20),
    },
    "post and norm": {"norm": RmsNorm(), "final_norm": True, "ffn": Dense(hidden=24, bias=False)},
}
OTHERS: dict[str, dict[str, Any]] = {
    "sandwich": {"norm_place": "sandwich"},
    "layer scale": {"layer_scale": 0.5},
    "normed": {"attention": Attention(heads=2, qk_norm=RmsNorm())},
    "small heads": {"attention": Attention(heads=4)},
    "odd heads": {"attention": Attention(heads=2, head_size=24)},
    "window": {"attention": Attention(heads=2, window=3)},
}


def model_of(changes: dict[str, Any], dtype: torch.dtype = torch.float32) -> EncoderDecoder:
    torch.manual_seed(0)
    given = {"attention": Attention(heads=2), "width": 32, "depth": 2, "vocabulary": VOCABULARY, "tied": ()} | changes
    model = build(Settings(**given))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    assert isinstance(model, EncoderDecoder)
    return model.to(DEVICE, dtype).eval()


@pytest.fixture
def _works(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton, on a CPU in its interpreter."""
    monkeypatch.setattr(fast, "triton_works", lambda device: True)


def next_scores(model: EncoderDecoder, source: list[int], written: list[int]) -> torch.Tensor:
    given = [torch.tensor([tokens], device=DEVICE) for tokens in (source, [ENDS.start, *written])]
    return model.double()(*given)[0, -1]


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("name", PLAIN)
@needs_triton
@pytest.mark.usefixtures("_works")
@torch.inference_mode()
def test_every_row_has_its_own_history(name: str, beams: int) -> None:
    """Against whole passes in float64; rows split, change places, and once an input goes."""
    model, draw, given = model_of(PLAIN[name]), random.Random(1), inputs(4, VOCABULARY)
    prepared = SearchModel(model, ENDS, TRITON)
    state, scores = prepared.begin(prepared.lay_out(given), 12, beams)
    assert type(state).__name__ == "TritonState"
    written: list[tuple[int, list[int]]] = [(place, []) for place in range(4)]
    rows, count, found = 1, 4, []
    for step in range(9):
        found.append((scores.clone(), written))
        kept = [0, 1, 3] if step == 5 else range(count)
        chosen = [b * rows + draw.randrange(rows) for b in kept for _ in range(beams)]
        state.select(torch.tensor(chosen, device=DEVICE), torch.tensor(kept, device=DEVICE) if step == 5 else None)
        tokens = [draw.randrange(VOCABULARY) for _ in chosen]
        written = [(written[row][0], [*written[row][1], token]) for row, token in zip(chosen, tokens, strict=True)]
        scores = state.step(torch.tensor(tokens, device=DEVICE))
        rows, count = beams, len(kept)
    for scores, written in found:
        expected = torch.stack([next_scores(model, given[place], history) for place, history in written])
        assert torch.allclose(scores.double(), expected, atol=1e-4)


@pytest.mark.parametrize("name", [*PLAIN, *OTHERS])
@needs_triton
def test_which_models_are_plain(name: str) -> None:
    from regard.decoding.fast.triton_model import serves

    assert serves(model_of({**PLAIN, **OTHERS}[name])) is (name in PLAIN)
    assert not serves(model_of(PLAIN["paper"], torch.float64))


def test_no_kernel_is_looked_for_on_a_cpu() -> None:
    assert not triton_works("cpu")


@pytest.mark.parametrize("beam", [Beam(size=3, nbest=2), Beam(size=4, stop="best"), Beam(size=2, stop="first"), ONE])
@needs_triton
@pytest.mark.usefixtures("_works")
def test_a_search_finds_the_same(beam: Beam, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs that are done are dropped on the way."""
    model, given, rules = model_of(PLAIN["paper"]), inputs(5, VOCABULARY, longest=4), Rules(longest=Absolute(tokens=5))
    writer = SearchModel(model, ENDS, TRITON)
    with torch.inference_mode():
        batch = BeamBatch(writer, jobs_for(writer, given, ENDS, beam, rules, [Wish()] * len(given)), ENDS, rules, beam)
        search = BeamSearch(batch)
        assert (search.triton_choice, type(search.state).__name__) == (True, "TritonState")
        found = search.run()
    monkeypatch.setattr(fast, "triton_works", lambda device: False)
    expected = decode(model, given, ENDS, beam, rules, fixed=False)
    for some, others in zip(found, expected, strict=True):
        assert [each.tokens for each in some] == [each.tokens for each in others]
        assert [each.score for each in some] == pytest.approx([each.score for each in others], abs=1e-4)
        assert some[0].token_scores == pytest.approx(others[0].token_scores, abs=1e-4)


@needs_triton
@pytest.mark.usefixtures("_works")
def test_weights_that_change_are_those_of_a_recording_too() -> None:
    """What a recording has joined or worked out before is made anew for each batch."""
    model, given, beam, player = model_of(PLAIN["pre"]), inputs(3, VOCABULARY, longest=4), Beam(size=2), Player()
    rules = Rules(longest=Absolute(tokens=4))
    for _ in range(2):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.2 * torch.randn_like(parameter))
        found = replayed(model, given, beam, player, rules=rules, paths=TRITON)
        expected = decode(model, given, ENDS, beam, rules, fixed=False)
        assert [each[0].tokens for each in found] == [each[0].tokens for each in expected]
        assert [each[0].score for each in found] == pytest.approx([each[0].score for each in expected], abs=1e-4)
    assert player.recorded == 2
