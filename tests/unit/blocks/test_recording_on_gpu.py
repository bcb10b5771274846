"""The GPU's own kernels, and searches that it would replay."""

from __future__ import annotations

from typing import Any

import decoding_cases
import family_cases as cases
import pytest
import torch
from decoding_cases import ENDS

import regard
from regard.blocks import settings as blocks
from regard.blocks.kernels import Backend, use_backend
from regard.decoding.decode import decode
from regard.decoding.fast import graphs as replay
from regard.decoding.settings import Absolute, Beam, Rules
from regard.models.build import build

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    ("backend", "dtype", "changes"),
    [
        ("sdpa", torch.float32, {}),
        ("sdpa", torch.bfloat16, {"position": blocks.Alibi()}),
        ("varlen", torch.bfloat16, {"position": blocks.Rotary()}),
        ("flex", torch.bfloat16, {"position": blocks.Relative(buckets=8, longest=12)}),
        ("flex", torch.float32, {"position": blocks.Alibi()}),
    ],
)
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")  # PyTorch's own
@torch.no_grad()
def test_kernels(backend: Backend, dtype: torch.dtype, changes: dict[str, Any]) -> None:
    attention = blocks.Attention(heads=2, head_size=16)
    model = cases.unsettled(build(cases.decoder(attention=attention, **changes))).to("cuda", dtype)
    (laid,) = cases.packed(cases.sentences([5, 9, 3]), widths=[16])
    fast = torch.compile(model, backend="aot_eager")
    with use_backend(backend), regard.record(fast, "*.weights") as seen:
        fast(laid.tokens.cuda(), laid.layout.to("cuda"))
    weights = seen["decoder.1.attention.weights"]
    assert isinstance(weights, torch.Tensor)
    assert weights.device.type == "cpu"
    total = weights.sum(-1)
    assert bool(((total - 1).abs() < 1e-5).logical_or(total == 0).all())


def test_a_recorded_search_is_not_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    model, given = decoding_cases.translator(dtype=torch.float32).cuda(), decoding_cases.inputs(3)
    rules = Rules(longest=Absolute(tokens=9))
    plain = decode(model, given, ENDS, Beam(size=3), rules)
    monkeypatch.setattr(replay, "replayed", None)
    with regard.record(model, "*.weights") as seen:
        heard = decode(model, given, ENDS, Beam(size=3), rules)
    assert [row[0].tokens for row in heard] == [row[0].tokens for row in plain]
    steps = [event.step for event in seen.events_of("decoder.0.cross.weights")]
    assert steps == [*range(len(steps))]
