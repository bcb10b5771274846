"""Compiled models run uncompiled for a while: taps are not in compiled code."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import Lock

import torch


class _Users:
    """How many ask for it at once. The compiler's stance belongs to the process, so threads have to share it."""

    def __init__(self) -> None:
        self.lock, self.count = Lock(), 0
        self.stance = ExitStack()


_users = _Users()


@contextmanager
def uncompiled() -> Iterator[None]:
    """Within the block nothing that was compiled runs compiled; afterwards it does again, and is not compiled anew."""
    if "torch._dynamo" not in sys.modules:  # it takes a second to load, and without it nothing is compiled
        yield
        return
    with _users.lock:
        if _users.count == 0:
            _users.stance.enter_context(torch.compiler.set_stance("force_eager"))
        _users.count += 1
    try:
        yield
    finally:
        with _users.lock:
            _users.count -= 1
            if _users.count == 0:
                _users.stance.close()
