"""What keeps the server from growing; bench/serving.py measures that it does."""

from __future__ import annotations

import sys

import pytest

from regard.serving import memory
from regard.serving.memory import Trim


def test_memory_is_given_back_now_and_then() -> None:
    often, seldom = Trim(0), Trim(1000)
    assert (often(), often(), seldom()) == (sys.platform == "linux",) * 2 + (False,)


def test_another_system_gives_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_malloc_trim", lambda: None)
    assert Trim(0)() is False
