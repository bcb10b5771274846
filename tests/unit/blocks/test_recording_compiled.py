"""A compiled model is recorded call after call, and goes on compiled as if nothing had been.

The backend is `aot_eager`, which traces as any other does and generates no code.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from typing import Any

import family_cases as cases
import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.testing import assert_close

import regard
from regard.blocks.recording import names_of
from regard.models.build import build

pytestmark = pytest.mark.slow  # together they take some ten seconds

TOKENS = torch.tensor([[1, 5, 3, 7], [2, 2, 9, 4]])


@pytest.fixture(autouse=True)
def _forget_what_was_compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # The compiler's diary: thousands of records, which pytest would keep.
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "propagate", False)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def fresh() -> Any:
    return cases.unsettled(build(cases.decoder()))


def stance() -> str:
    return sys.modules["torch._dynamo.eval_frame"]._stance.stance  # type: ignore[no-any-return]


@pytest.mark.parametrize("way", ["wrapped", "in place", "by a function", "only the original is named"])
@torch.no_grad()
def test_every_event_of_every_call(way: str) -> None:
    model, counter = fresh(), CompileCounterWithBackend("aot_eager")
    plain = model(TOKENS)
    named: Any = model
    if way == "in place":
        model.compile(backend=counter, fullgraph=True)
        fast: Any = model
    elif way == "by a function":
        fast = torch.compile(lambda tokens: model(tokens), backend=counter, fullgraph=True)
    else:
        fast = torch.compile(model, backend=counter, fullgraph=True)
        named = fast if way == "wrapped" else model
    assert_close(fast(TOKENS), plain)
    assert counter.frame_count == 1
    for _ in range(2):  # between recordings it is compiled, and not anew
        with regard.record(named, "*") as seen:
            outs = [fast(TOKENS) for _ in range(3)]
        assert seen.names() == list(names_of(model))
        assert all(len(seen.calls(name)) == 3 for name in seen)
        assert all(torch.equal(out, plain) for out in outs)
        assert all(torch.equal(logits, plain) for logits in seen.calls("output.logits"))
        fast(TOKENS)
        fast(TOKENS)
    assert counter.frame_count == 1
    assert stance() == "default"


@torch.no_grad()
def test_an_edit_of_a_compiled_model() -> None:
    model = fresh()
    fast = torch.compile(model, backend="aot_eager", fullgraph=True)
    plain = fast(TOKENS)
    with regard.record(fast, edit={"output.logits": torch.neg}):
        assert_close(fast(TOKENS), -plain)
    assert_close(fast(TOKENS), plain)


@torch.no_grad()
def test_recordings_in_two_threads_end_in_any_order() -> None:
    """The compiler's stance belongs to the process: who ends first must not leave the other without events."""
    model, counter = fresh(), CompileCounterWithBackend("aot_eager")
    fast = torch.compile(model, backend=counter, fullgraph=True)
    fast(TOKENS)
    begun, ended = threading.Event(), threading.Event()
    heard = []

    def longer() -> None:
        with torch.no_grad(), regard.record(fast, "decoder.out") as seen:
            begun.set()
            ended.wait(10)
            fast(TOKENS)
        heard.append(len(seen.events))

    thread = threading.Thread(target=longer)
    with regard.record(fast, "decoder.out") as seen:
        thread.start()
        begun.wait(10)
        fast(TOKENS)
    ended.set()
    thread.join()
    assert (heard, len(seen.events)) == ([1], 1)
    assert stance() == "default"
    fast(TOKENS)
    assert counter.frame_count == 1


def test_a_wrapper_is_looked_through() -> None:
    class Wrapper(nn.Module):
        def __init__(self, *models: nn.Module) -> None:
            super().__init__()
            self.parts = nn.ModuleList(models)

    model = fresh()
    with regard.record(Wrapper(model), "decoder.out") as seen:
        model(TOKENS)
    assert list(seen) == ["decoder.out"]
    with pytest.raises(regard.InputError, match="a Wrapper cannot be used: it contains 2 models of Regard"):
        regard.record(Wrapper(model, fresh()), "*").__enter__()
