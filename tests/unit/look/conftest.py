"""Studies of one small random model of each family."""

from __future__ import annotations

import pytest
from tiny_models import write_decoder, write_encoder, write_vision
from tiny_translator import write_translator

import regard
from regard.look.study import Study

WRITERS = {"translator": write_translator, "decoder": write_decoder, "encoder": write_encoder, "vision": write_vision}


@pytest.fixture(scope="session")
def studies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Study]:
    return {name: Study(regard.load(write(tmp_path_factory.mktemp(name)), "cpu")) for name, write in WRITERS.items()}
