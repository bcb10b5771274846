"""Studies of one small random model of each family."""

from __future__ import annotations

import pytest
from tiny_models import WRITERS

import regard
from regard.look.study import Study


@pytest.fixture(scope="session")
def studies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Study]:
    return {name: Study(regard.load(write(tmp_path_factory.mktemp(name)), "cpu")) for name, write in WRITERS.items()}
