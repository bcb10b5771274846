"""attend: which backend serves which call, how one is forced, and what the log says."""

from __future__ import annotations

import contextvars
import importlib

import pytest
import torch
from packing_cases import pack
from torch import Tensor
from torch.testing import assert_close

from regard.blocks.kernels import (
    BACKENDS,
    AttentionCall,
    Backend,
    Scoring,
    attend,
    choose,
    refusal,
    use_backend,
)
from regard.blocks.layout import Padded
from regard.blocks.visibility import Visibility
from regard.errors import InputError

CPU = AttentionCall("cpu", torch.float32, False, False, False, False, head_size=64, value_size=64)
PLAIN = Scoring(0.5)
GPU = CPU._replace(device="cuda", dtype=torch.bfloat16)
PACKED = GPU._replace(packed=True)
BIASED = GPU._replace(bias=True)
CAPPED = GPU._replace(soft_cap=True)


def test_the_fastest_backend_that_is_exact() -> None:
    """A call is described by a plain value, so no GPU is needed."""
    expected: list[tuple[AttentionCall, Backend]] = [
        (CPU, "sdpa"),
        (CPU._replace(packed=True, bias=True, dropout=True), "sdpa"),
        (CPU._replace(soft_cap=True), "reference"),
        (CPU._replace(device="mps"), "sdpa"),
        (GPU, "sdpa"),
        (PACKED, "varlen"),
        (PACKED._replace(head_size=256, value_size=256), "varlen"),
        (PACKED._replace(dtype=torch.float32), "sdpa"),
        (PACKED._replace(head_size=264, value_size=264), "sdpa"),
        (BIASED, "flex"),
        (BIASED._replace(packed=True), "flex"),
        (BIASED._replace(dtype=torch.float32), "flex"),
        (BIASED._replace(dtype=torch.float64), "sdpa"),
        (BIASED._replace(head_size=8, value_size=8), "sdpa"),
        (CAPPED, "flex"),
        (CAPPED._replace(bias=True), "flex"),
        (CAPPED._replace(dropout=True), "reference"),
        (CAPPED._replace(dtype=torch.float64), "reference"),
        (BIASED._replace(single=True), "sdpa"),
        (CAPPED._replace(single=True), "reference"),
        (CPU._replace(sinks=True), "sdpa"),
        (CPU._replace(sinks=True, beams=True), "bmm"),
        (PACKED._replace(sinks=True, bias=True), "sdpa"),
    ]
    for call, backend in expected:
        assert choose(call) == backend, call


def test_a_forced_backend_that_cannot_serve_gives_the_reason() -> None:
    refused: list[tuple[Backend, AttentionCall, str]] = [
        ("sdpa", CAPPED, "it has no soft cap"),
        ("flex", CPU, "it needs a CUDA GPU"),
        ("varlen", CPU._replace(packed=True), "it needs a CUDA GPU"),
        ("flex", BIASED._replace(dropout=True), "it has no attention dropout"),
        ("varlen", PACKED._replace(dropout=True), "it has no attention dropout"),
        ("flex", BIASED._replace(dtype=torch.float64), "it computes in float32 or 16 bits"),
        ("flex", BIASED._replace(value_size=8), "it needs heads of at least 16 channels"),
        ("varlen", GPU, "it needs a packed layout"),
        ("flex", BIASED._replace(sinks=True), "it has no sinks"),
        ("varlen", PACKED._replace(dtype=torch.float32), "it computes in 16 bits only"),
        ("varlen", PACKED._replace(bias=True), "it cannot change scores"),
        ("varlen", PACKED._replace(soft_cap=True), "it cannot change scores"),
        ("varlen", PACKED._replace(head_size=8), "it needs keys and values of one size, a multiple of 8 up to 256"),
    ]
    for backend, call, reason in refused:
        assert refusal(backend, call) == reason
        with use_backend(backend), pytest.raises(InputError, match=f"attention backend {backend}.*{reason}"):
            choose(call)


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(InputError, match=r"\(flash\).*reference, sdpa, bmm, flex, varlen"), use_backend("flash"):  # type: ignore[arg-type]
        pass


def called(monkeypatch: pytest.MonkeyPatch) -> list[Backend]:
    """The kernels that are called from now on, in order."""
    module = importlib.import_module("regard.blocks.kernels")
    calls: list[Backend] = []

    def watched(name: Backend) -> object:
        kernel = module._KERNELS[name]
        return lambda *arguments: (calls.append(name), kernel(*arguments))[1]

    monkeypatch.setattr(module, "_KERNELS", {name: watched(name) for name in BACKENDS})
    return calls


def one_call() -> Tensor:
    q, kv = torch.randn(2, 4, 1, 8), torch.randn(2, 3, 1, 8)
    return attend(q, kv, kv, Visibility(Padded(2, 4), Padded(2, 3)), PLAIN)


def test_a_backend_is_forced_within_the_block_and_context(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = called(monkeypatch)
    one_call()
    with use_backend("reference"):
        one_call()
        with use_backend("sdpa"):
            one_call()
        one_call()
        contextvars.Context().run(one_call)
    with pytest.raises(ZeroDivisionError), use_backend("reference"):
        raise ZeroDivisionError
    one_call()
    assert calls == ["sdpa", "reference", "sdpa", "reference", "sdpa", "sdpa"]


@pytest.mark.parametrize("backend", ["reference", "sdpa"])
def test_dropout_falls_on_the_weights(backend: Backend) -> None:
    """A query that sees one key has one weight, 1: it is dropped with the given rate, or divided by 1 − rate."""
    rate, rows = 0.25, 20_000
    q, v = torch.zeros(rows, 1, 1, 2), torch.tensor([3.0, -1.0]).expand(rows, 1, 1, 2)
    with use_backend(backend):
        out = attend(q, q, v, Visibility(Padded(rows, 1), Padded(rows, 1)), Scoring(1.0, dropout=rate))[:, 0, 0]
    dropped = (out == 0).all(-1)
    assert_close(out[~dropped], (v[0, 0, 0] / (1 - rate)).expand(int((~dropped).sum()), 2))
    deviation = (rate * (1 - rate) / rows) ** 0.5
    assert abs(dropped.double().mean().item() - rate) < 5 * deviation


@pytest.mark.parametrize("backend", ["reference", "sdpa"])
def test_nothing_at_all_to_look_at(backend: Backend) -> None:
    """Every source of a packed batch is empty: there is no key, and every query gets zero."""
    queries, keys = pack([[2, 0], [3, 0]], [None, None]).layouts
    q, kv = torch.randn(5, 2, 4, requires_grad=True), torch.randn(0, 2, 4)
    with use_backend(backend):
        out = attend(q, kv, kv, Visibility(queries, keys), PLAIN)
    assert torch.equal(out, torch.zeros(5, 2, 4))


@pytest.mark.parametrize("backend", ["reference", "sdpa", "bmm"])
def test_sinks_take_a_share_of_the_softmax(backend: Backend) -> None:
    """As a further key, of zeros, whose score is the sink; gradients too. A sink of −∞ takes nothing."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, length, 4, 8, dtype=torch.float64, requires_grad=True) for length in (3, 5, 5))
    sinks = torch.randn(4, dtype=torch.float64, requires_grad=True)
    view = Visibility(Padded(2, 3), Padded.of(torch.tensor([5, 2])), beams=True)
    scores = torch.einsum("bqhe,bkhe->bhqk", q, k) * 0.5
    scores = scores.masked_fill(torch.arange(5) >= torch.tensor([5, 2])[:, None, None, None], -torch.inf)
    weights = torch.cat([scores, sinks[:, None, None].expand(2, 4, 3, 1)], dim=-1).softmax(-1)[..., :5]
    wanted = torch.einsum("bhqk,bkhv->bqhv", weights, v)
    with use_backend(backend):
        out = attend(q, k, v, view, Scoring(0.5, sinks=sinks))
        none = attend(q, k, v, view, Scoring(0.5, sinks=torch.full((4,), -torch.inf, dtype=torch.float64)))
        assert_close(none, attend(q, k, v, view, PLAIN))
    assert_close(out, wanted)
    for got, other in zip(
        *(torch.autograd.grad(x.square().sum(), (q, k, v, sinks)) for x in (out, wanted)), strict=True
    ):
        assert_close(got, other)
