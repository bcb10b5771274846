"""For all tests of training."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def _not_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk takes most of the time, and no test can see a difference."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
