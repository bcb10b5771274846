"""What keeps the server from growing; bench/serving.py measures that it does."""

from __future__ import annotations

import os
import sys

import pytest

from regard.serving import memory
from regard.serving.memory import CACHES, Trim, bound_caches


def test_caches_are_bounded_unless_somebody_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = CACHES
    monkeypatch.setenv(first, "7")
    monkeypatch.setenv(second, "")
    monkeypatch.delenv(second)
    bound_caches()
    assert (os.environ[first], os.environ[second]) == ("7", CACHES[second])


def test_memory_is_given_back_now_and_then() -> None:
    often, seldom = Trim(0), Trim(1000)
    assert (often(), often(), seldom()) == (sys.platform == "linux",) * 2 + (False,)


def test_another_system_gives_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_malloc_trim", lambda: None)
    assert Trim(0)() is False
