"""What every test may rely on: fixed random states, Ctrl-C, a cache apart, no deadlines, GPU tests only on a GPU."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest
from hypothesis import settings

# The suite gives the same result each time; `pytest --hypothesis-profile=explore` looks for new counterexamples.
settings.register_profile("fixed", deadline=None, derandomize=True, database=None)
settings.register_profile("explore", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile("fixed")

# A suite that a script started in the background would ignore Ctrl-C, and so would all that its tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    """Every test starts from the same random state, alone or in the suite. Tests without torch are not slowed by it."""
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


@pytest.fixture(scope="session")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _own_cache(_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What tests prepare goes nowhere near the user's own cache, and with the tests."""
    monkeypatch.setenv("REGARD_CACHE", str(_cache))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    needing = [item for item in items if item.get_closest_marker("gpu")]
    if not needing:
        return
    import torch

    if not torch.cuda.is_available():
        for item in needing:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
