"""What the tests of pages share: a browser, a server for each family, and a page that is watched."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from browser_cases import CHROMIUM, SERVER_LOG, Served, Watched
from tiny_models import WRITERS

import regard
from regard.look.study import Study


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Served]]:
    found = {
        name: Served(Study(regard.load(write(tmp_path_factory.mktemp(name)), "cpu"))) for name, write in WRITERS.items()
    }
    yield found
    for each in found.values():
        each.close()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="needs the package playwright: pip install playwright"
    )
    if CHROMIUM is None:
        if os.environ.get("REGARD_CHROMIUM") == "required":
            pytest.fail("Chromium is not installed, and REGARD_CHROMIUM says that the page must be tested")
        pytest.skip("needs Chromium, which is not installed")
    with playwright.sync_playwright() as started:
        made = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture
def watched(browser: Any) -> Iterator[Watched]:
    made = Watched(browser)
    yield made
    made.context.close()
    assert made.wrong == [], SERVER_LOG
    assert all(url.startswith(("http://127.0.0.1:", "file:", "data:", "about:")) for url in made.asked)
