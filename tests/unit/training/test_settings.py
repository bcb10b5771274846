"""Settings of the loop that contradict each other are refused in a sentence."""

from __future__ import annotations

import pytest

from regard.errors import SettingsError
from regard.training.settings import Muon, Train


def test_parts_of_a_step_are_not_larger_than_it() -> None:
    with pytest.raises(SettingsError, match=r"micro \(200\) must not exceed tokens \(100\)"):
        Train(tokens=100, micro=200)


def test_muon_needs_whole_matrices() -> None:
    """Two processes with a part of each matrix were seen to go another way, by 1e-2 in ten steps."""
    with pytest.raises(SettingsError, match=r"shard shares matrices out, and .*muon.* needs them whole"):
        Train(optimizer=Muon(), shard=True)
    assert Train(optimizer=Muon()).shard is False


def test_budgets_that_are_set() -> None:
    assert Train(steps=10, minutes=0.5).budgets == {"steps": 10.0, "minutes": 0.5}
    assert Train().budgets == {}
