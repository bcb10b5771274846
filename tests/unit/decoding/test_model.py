"""Models as searches see them: read once, beams that share columns, rows that split, change places and go."""

from __future__ import annotations

import random
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from decoding_cases import ENDS, inputs, next_chances, translator

from regard.blocks.cache import DROP_EVERY
from regard.blocks.settings import (
    Alibi,
    Attention,
    Gated,
    Learned,
    NoPosition,
    Relative,
    RmsNorm,
    Rotary,
    Sinusoidal,
    TransformerXL,
)
from regard.decoding import fast
from regard.decoding.decode import decode
from regard.decoding.fast import FastPaths, select
from regard.decoding.model import SearchModel
from regard.decoding.settings import Absolute, Beam, Greedy, Rules
from regard.models.build import build
from regard.models.cpu import is_prepared, prepared
from regard.models.families import Decoder, EncoderDecoder
from regard.models.settings import Decoder as DecoderSettings
from regard.models.settings import EncoderDecoder as EncoderDecoderSettings

VOCABULARY = 12
VARIANTS: dict[str, dict[str, Any]] = {
    "paper": {"position": Sinusoidal(), "embedding_scale": True},
    "pre": {"norm_place": "pre", "position": Learned(length=64), "output_bias": True},
    "sandwich": {"norm_place": "sandwich", "norm": RmsNorm(), "layer_scale": 0.5, "position": NoPosition()},
    "grouped": {"attention": Attention(heads=4, kv_heads=2, value_size=6, bias=False), "ffn": Gated(hidden=20)},
    "normed": {"attention": Attention(heads=2, qk_norm=RmsNorm(), scale=0.3)},
    "rotary": {"position": Rotary()},
    "relative": {"position": Relative()},
    "alibi": {"position": Alibi()},
    "transformer-xl": {"position": TransformerXL()},
    "window": {"attention": Attention(heads=2, window=3)},
    "soft cap": {"attention": Attention(heads=2, soft_cap=5.0)},
}


def model_of(
    changes: dict[str, Any], dtype: torch.dtype = torch.float64, family: type = EncoderDecoderSettings
) -> EncoderDecoder | Decoder:
    torch.manual_seed(0)
    tied: Any = () if family is EncoderDecoderSettings else False
    given = {"attention": Attention(heads=2), "width": 16, "depth": 2, "vocabulary": VOCABULARY, "tied": tied} | changes
    model = build(family(**given))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    return model.to(dtype).eval()


def moves(steps: int, beams: int, draw: random.Random, kept: int) -> list[tuple[list[int], list[int] | None]]:
    """Rows that split, change places and go with their inputs, as in a beam search."""
    rows, count, found = 1, kept + 2, []
    for step in range(steps):
        stay = None
        if step in (steps // 3, steps // 2):
            stay = sorted(draw.sample(range(count), count - 1))
            count -= 1
        chosen = range(count) if stay is None else stay
        found.append(([b * rows + draw.randrange(rows) for b in chosen for _ in range(beams)], stay))
        rows = beams
    return found


@pytest.mark.slow
@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("family", [EncoderDecoderSettings, DecoderSettings])
@torch.inference_mode()
def test_every_row_has_its_own_history(family: type, fixed: bool) -> None:
    """Against whole passes over each row's tokens, in float64; columns are dropped twice."""
    given, steps = inputs(4, VOCABULARY), 2 * DROP_EVERY + 6
    for name, changes in VARIANTS.items():
        model = model_of(changes, family=family)
        for beams in (1, 3) if name in ("paper", "relative", "window") else (3,):
            draw = random.Random(1)
            prepared = SearchModel(model, ENDS, FastPaths(fixed=fixed))
            state, scores = prepared.begin(prepared.lay_out(given), 40, beams)
            written: list[tuple[int, list[int]]] = [(place, []) for place in range(4)]
            for step, (rows, stay) in enumerate(moves(steps, beams, draw, kept=2)):
                state.select(torch.tensor(rows), None if stay is None else torch.tensor(stay))
                tokens = [draw.randrange(VOCABULARY) for _ in rows]
                written = [
                    (written[row][0], [*written[row][1], token]) for row, token in zip(rows, tokens, strict=True)
                ]
                scores = state.step(torch.tensor(tokens))
                if step % 9 == 0 or step > steps - 2:
                    expected = [next_chances(model, given[place], history) for place, history in written]
                    assert torch.allclose(scores.log_softmax(-1), torch.stack(expected), atol=1e-10), (name, step)
            if beams > 1 and not fixed:
                assert state.cache.columns < steps * beams, "unused columns are dropped"


def test_a_watched_model_is_called_as_it_is() -> None:
    """Forward hooks run at every step, and the result is the same."""
    model, given = model_of(VARIANTS["paper"], torch.float32), inputs(30, VOCABULARY)
    for search in (Greedy(), Beam(size=3), Beam(size=3, coverage=0.2)):
        plain = decode(model, given, ENDS, search)
        calls = []
        handle = model.decoder[1].attention.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        assert select(model, search, Rules()) == FastPaths()
        watched = decode(model, given, ENDS, search)
        handle.remove()
        assert len(calls) > 5
        assert [row[0].tokens for row in plain] == [row[0].tokens for row in watched]


@pytest.mark.parametrize("served", [True, False])
def test_each_path_of_a_gpu_is_chosen_by_its_own_rule(served: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(VARIANTS["paper"], torch.float32)
    weight = SimpleNamespace(is_cuda=True, dtype=torch.float32)
    monkeypatch.setattr(model, "parameters", lambda: iter([weight]))
    monkeypatch.setattr(fast, "triton_works", lambda _: True)
    monkeypatch.setattr(fast, "can_pack", lambda _: False)
    steps = SimpleNamespace(serves=lambda _: served)
    monkeypatch.setitem(sys.modules, "regard.decoding.fast.triton_model", steps)
    whole = FastPaths(fixed=True, replay=True, triton_step=served, triton_choice=True)
    assert select(model, Beam(size=4)) == whole
    assert select(model, Beam(size=4), fixed=False) == whole._replace(fixed=False, replay=False, triton_step=False)


def test_a_model_is_packed_for_a_cpu() -> None:
    model, given = model_of(VARIANTS["paper"], torch.float32), inputs(40, VOCABULARY)
    assert select(model, Beam(), Rules()) == FastPaths(packed=True)
    assert is_prepared(SearchModel(model, ENDS).model)
    assert not is_prepared(model)
    found, exact = (decode(each, given, ENDS, Beam(size=3)) for each in (model, model_of(VARIANTS["paper"])))
    assert [row[0].tokens for row in found] == [row[0].tokens for row in exact]
    assert [row[0].score for row in found] == pytest.approx([row[0].score for row in exact], abs=1e-4)


def test_eight_bits_write_nearly_the_same_in_any_batch() -> None:
    model = translator(vocabulary=40, dtype=torch.float32)
    small, given, rules = prepared(model, "int8"), inputs(30, 40), Rules(longest=Absolute(tokens=4))
    plain, found = (decode(each, given, ENDS, Beam(size=4), rules) for each in (model, small))
    gaps = [abs(a[0].score - b[0].score) for a, b in zip(plain, found, strict=True) if a[0].tokens == b[0].tokens]
    assert len(gaps) > 20
    assert 0 < max(gaps) < 0.5
    alone = [decode(small, [each], ENDS, Beam(size=4), rules)[0][0] for each in given[:6]]
    assert [each.tokens for each in alone] == [row[0].tokens for row in found[:6]]
    assert [each.score for each in alone] == pytest.approx([row[0].score for row in found[:6]], abs=1e-4)


def test_learned_positions_bound_neither_rounded_memory_nor_shorter_prompts() -> None:
    """A prompt near the last position is decoded with fixed memory too, and with shorter ones in a batch."""
    model = model_of({"position": Learned(length=48)}, family=DecoderSettings)
    prompts = [[2 + i % 9 for i in range(40)], [3, 4, 5]]
    rules = Rules(longest=Absolute(tokens=30))
    for search in (Greedy(), Beam(size=3)):
        alone = [decode(model, [prompt], ENDS, search, rules)[0][0] for prompt in prompts]
        for fixed in (False, True):
            found = [row[0] for row in decode(model, prompts, ENDS, search, rules, fixed=fixed)]
            assert [each.tokens for each in found] == [each.tokens for each in alone]
            assert [each.score for each in found] == pytest.approx([each.score for each in alone], abs=1e-9)
