"""tap(module, name, x): where what flows through a model can be seen and changed.

It gives x back at once unless a recorder is set in the current context (a `ContextVar`, so that threads and tasks do
not hear each other), and at once in compiled code, which must not depend on who listens. What can be tapped, and under
which names, is listed in `regard.look.names`; who listens is `regard.record`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple, Protocol

from torch import Tensor, nn
from torch.compiler import is_compiling

from regard.blocks.score_bias import Scoring
from regard.blocks.visibility import Visibility


class Attended(NamedTuple):
    """All that one call of attention was given."""

    q: Tensor
    k: Tensor
    v: Tensor
    visibility: Visibility
    scoring: Scoring


class Recorder(Protocol):
    """Who listens to a model, and may change what it hears."""

    def tap(self, module: nn.Module, name: str, x: Tensor) -> Tensor:
        """What flows on in the place of x."""

    def tap_attention(self, module: nn.Module, attended: Attended, mixed: Tensor) -> Tensor:
        """What flows on in the place of what the heads took; scores and weights have to be worked out."""

    def tap_pass(self, module: nn.Module, cache: object | None) -> None:
        """A model begins to read tokens: those that go on from a cache are a step of decoding."""

    def hears(self, module: nn.Module) -> bool:
        """Whether the module is part of what is recorded."""


_recorder: ContextVar[Recorder | None] = ContextVar("regard_recorder", default=None)


def tap(module: nn.Module, name: str, x: Tensor) -> Tensor:
    """x, or what a recorder makes of it. The full name is the module's place in its model, a dot, and `name`."""
    if is_compiling():
        return x
    recorder = _recorder.get()
    return x if recorder is None else recorder.tap(module, name, x)


def tap_attention(
    module: nn.Module, q: Tensor, k: Tensor, v: Tensor, visibility: Visibility, scoring: Scoring, mixed: Tensor
) -> Tensor:
    """`mixed`, what the heads took from v, or what a recorder makes of it."""
    if is_compiling():
        return mixed
    recorder = _recorder.get()
    if recorder is None:
        return mixed
    return recorder.tap_attention(module, Attended(q, k, v, visibility, scoring), mixed)


def tap_pass(module: nn.Module, cache: object | None = None) -> None:
    """Says that a model begins to read tokens, and with which cache."""
    if is_compiling():
        return
    recorder = _recorder.get()
    if recorder is not None:
        recorder.tap_pass(module, cache)


def is_recorded(module: nn.Module) -> bool:
    """Whether someone listens to this module, so that no shorter way may be taken around it."""
    if is_compiling():
        return False
    recorder = _recorder.get()
    return recorder is not None and recorder.hears(module)


def current_recorder() -> Recorder | None:
    """Who listens in this context."""
    return _recorder.get()


@contextmanager
def recorded_by(recorder: Recorder) -> Iterator[None]:
    """Within the block the recorder listens, in this context alone."""
    token = _recorder.set(recorder)
    try:
        yield
    finally:
        _recorder.reset(token)
