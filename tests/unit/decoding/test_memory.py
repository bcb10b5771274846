"""The caches of kernels are bounded, by every command that decodes for long."""

from __future__ import annotations

import os

import pytest
from typer.testing import CliRunner

from regard.cli.app import app
from regard.decoding.memory import CACHES, bound_caches


def test_caches_are_bounded_unless_somebody_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = CACHES
    monkeypatch.setenv(first, "7")
    monkeypatch.setenv(second, "")
    monkeypatch.delenv(second)
    bound_caches()
    assert (os.environ[first], os.environ[second]) == ("7", CACHES[second])


@pytest.mark.parametrize("verb", ["translate", "evaluate"])
def test_commands_bound_them_before_a_model_is_loaded(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CACHES:
        monkeypatch.setenv(name, "")  # so that it is taken back afterwards
        monkeypatch.delenv(name)
    assert CliRunner().invoke(app, [verb, "no-such-model"], input="a").exit_code == 1
    assert {name: os.environ.get(name) for name in CACHES} == CACHES
