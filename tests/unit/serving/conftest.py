"""What the tests of the page's server share: a study, of a translator unless a file has its own, behind a client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient
from tiny_translator import write_translator

import regard
from regard.look.study import Study
from regard.serving.look_app import create_look_app
from regard.serving.look_settings import Looking

HOST = "http://localhost:5050"


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return Study(regard.load(write_translator(tmp_path_factory.mktemp("translator")), "cpu"))


@pytest.fixture(scope="module")
def client(study: Study) -> Iterator[TestClient]:
    with TestClient(create_look_app(study, Looking(characters=2000)), HOST) as made:
        yield made
