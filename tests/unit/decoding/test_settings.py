"""Settings of decoding: read from TOML, refused where they mean nothing, and free of torch."""

from __future__ import annotations

import tomllib

import pytest

from regard.decoding.settings import AnySearch, Beam, Greedy, Power, Rules, Sampling
from regard.errors import SettingsError
from regard.settings import parse


def test_kinds_are_told_apart() -> None:
    table = tomllib.loads('kind = "beam"\nsize = 5\nlength = { kind = "power", alpha = 0.6 }\nstop = "first"')
    assert parse(AnySearch, table) == Beam(size=5, length=Power(alpha=0.6), stop="first")
    assert parse(AnySearch, {"kind": "greedy"}) == Greedy()
    assert parse(AnySearch, {"kind": "sampling", "top_k": 5}).top_k == 5


def test_values_out_of_range() -> None:
    for kind, name, value in (
        (Sampling, "temperature", 0.0),
        (Sampling, "top_p", 1.5),
        (Sampling, "min_p", -0.1),
        (Beam, "size", 0),
        (Beam, "stop", "never"),
        (Rules, "repetition", 0.0),
        (Rules, "must_not", ((),)),
        (Rules, "loop_times", 1),
    ):
        with pytest.raises(SettingsError, match=name):
            kind(**{name: value})
