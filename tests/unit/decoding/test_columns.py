"""Rows that share columns give the scores of rows that have everything for themselves."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from decoding_cases import END, ENDS, inputs, next_chances, translator

from regard.blocks.cache import CacheKind
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
)
from regard.decoding.columns import FORGET_EVERY, FixedState, SharedState, shares
from regard.decoding.decode import decode
from regard.decoding.settings import Absolute, Beam, Greedy, Rules
from regard.decoding.source import source_of
from regard.models.build import build
from regard.models.cpu import is_prepared, prepared
from regard.models.families import EncoderDecoder
from regard.models.settings import EncoderDecoder as Settings

pytestmark = pytest.mark.slow

VOCABULARY = 12
VARIANTS: dict[str, dict[str, Any]] = {
    "paper": {"position": Sinusoidal(), "embedding_scale": True},
    "pre": {"norm_place": "pre", "position": Learned(length=64), "output_bias": True},
    "sandwich": {"norm_place": "sandwich", "norm": RmsNorm(), "layer_scale": 0.5, "position": NoPosition()},
    "grouped": {"attention": Attention(heads=4, kv_heads=2, value_size=6, bias=False), "ffn": Gated(hidden=20)},
    "normed": {"attention": Attention(heads=2, qk_norm=RmsNorm(), scale=0.3), "output_scale": 0.25},
}
OTHERS: dict[str, dict[str, Any]] = {
    "rotary": {"position": Rotary()},
    "relative": {"position": Relative()},
    "alibi": {"position": Alibi()},
    "window": {"attention": Attention(heads=2, window=3)},
    "soft cap": {"attention": Attention(heads=2, soft_cap=5.0)},
}


def model_of(changes: dict[str, Any], dtype: torch.dtype = torch.float64) -> EncoderDecoder:
    torch.manual_seed(0)
    given = {"attention": Attention(heads=2), "width": 16, "depth": 2, "vocabulary": VOCABULARY, "tied": ()} | changes
    model = build(Settings(**given))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    return model.to(dtype).eval()


def moves(steps: int, beams: int, draw: random.Random, kept: int) -> list[tuple[list[int], list[int] | None]]:
    """Rows that split, change places and go with their inputs, as a beam search would have it."""
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


@pytest.mark.parametrize(("cache", "kind"), [("growing", SharedState), ("fixed", FixedState)])
@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("name", VARIANTS)
@torch.inference_mode()
def test_every_row_has_its_own_history(name: str, beams: int, cache: CacheKind, kind: type[SharedState]) -> None:
    """Against whole passes over each row's tokens, for as long as columns are forgotten several times."""
    model, draw = model_of(VARIANTS[name]), random.Random(1)
    given = inputs(4, VOCABULARY)
    state, scores = source_of(model, ENDS, cache).begin(given, longest=40)
    assert type(state) is kind
    written: list[tuple[int, list[int]]] = [(place, []) for place in range(4)]
    steps = 3 * FORGET_EVERY + 10
    for step, (rows, stay) in enumerate(moves(steps, beams, draw, kept=2)):
        state.select(torch.tensor(rows), None if stay is None else torch.tensor(stay))
        tokens = [draw.randrange(VOCABULARY) for _ in rows]
        written = [(written[row][0], [*written[row][1], token]) for row, token in zip(rows, tokens, strict=True)]
        scores = state.step(torch.tensor(tokens))
        if step % 7 == 0 or step > steps - 2:
            expected = [next_chances(model, given[place], history) for place, history in written]
            assert torch.allclose(scores.log_softmax(-1), torch.stack(expected), atol=1e-10)
    if beams > 1 and cache == "growing":
        assert state.seen_NC.shape[1] < steps * beams  # something was forgotten


@pytest.mark.parametrize("name", OTHERS)
def test_other_models_take_the_general_way(name: str) -> None:
    model = model_of(OTHERS[name])
    assert not shares(model)
    assert len(decode(model, inputs(3, VOCABULARY), ENDS, Beam(size=2))) == 3


@torch.inference_mode()
def test_where_a_step_looked() -> None:
    """As the general state says, for inputs of different lengths."""
    model, given = model_of(VARIANTS["grouped"]), inputs(3, VOCABULARY)
    states = [source_of(model, ENDS, kind).begin(given, longest=5, look=True)[0] for kind in ("growing", "fixed")]
    assert [isinstance(state, SharedState) for state in states] == [True, False]
    for rows in ([0, 0, 1, 1, 2, 2], [1, 0, 2, 2, 5, 4]):
        seen = []
        for state in states:
            state.select(torch.tensor(rows))
            state.step(torch.tensor([3, 4, 5, 6, 7, 8]))
            seen.append(state.attended())
        assert torch.allclose(seen[0], seen[1], atol=1e-12)
        assert torch.allclose(seen[0].sum(-1), torch.ones(6, dtype=torch.float64))


@pytest.mark.parametrize("search", [Greedy(), Beam(size=3), Beam(size=3, coverage=0.2)])
def test_a_watched_model_is_called_as_it_is(search: Greedy | Beam) -> None:
    """Whoever hooks into an attention hears of every step, and the result is the same."""
    model, given = model_of(VARIANTS["paper"], torch.float32), inputs(30, VOCABULARY)
    plain = decode(model, given, ENDS, search)
    heard = []
    handle = model.decoder[1].attention.register_forward_hook(lambda *_: heard.append(1))
    watched = decode(model, given, ENDS, search)
    handle.remove()
    assert len(heard) > 5
    assert [row[0].tokens for row in plain] == [row[0].tokens for row in watched]


def test_a_model_is_prepared_by_itself() -> None:
    model, given = model_of(VARIANTS["paper"], torch.float32), inputs(40, VOCABULARY)
    source = source_of(model, ENDS)
    assert is_prepared(source.model)
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


def test_one_token_of_source() -> None:
    model = model_of(VARIANTS["paper"])
    found = decode(model, [[END], [5, 6, END]], ENDS, Beam(size=2))
    assert found[0][0].score == pytest.approx(decode(model, [[END]], ENDS, Beam(size=2))[0][0].score, abs=1e-10)
