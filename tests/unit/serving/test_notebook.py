"""The page in a notebook; tests/browser/test_look_files.py opens it."""

from __future__ import annotations

import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tiny_models import write_decoder

import regard
from regard.errors import InputError
from regard.look.study import Study


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return Study(regard.load(write_decoder(tmp_path_factory.mktemp("decoder")), "cpu"))


class Frames(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_a_frame_holds_the_page_and_nothing_else(study: Study) -> None:
    look = regard.show(study, '"><script>alert(1)</script>', "heads", height=400, theme="dark")
    reader = Frames()
    reader.feed(look._repr_html_())
    ((tag, given),) = reader.found
    assert tag == "iframe"
    assert given["sandbox"] == "allow-scripts", "and not allow-same-origin, with which it could leave its box"
    assert given["srcdoc"] == look.html
    assert "height: 400px" in str(given["style"])
    assert '<html lang="en" data-theme="dark">' in look.html
    assert repr(look).endswith("MiB>")
    assert look.left == {}


def test_models_by_name_and_loaded(study: Study, tmp_path: Path) -> None:
    by_name = regard.show(study.loaded.directory, "the dog")
    assert by_name.html == regard.show(study.loaded, "the dog").html
    by_name.save(tmp_path / "look.html")
    assert (tmp_path / "look.html").read_text(encoding="utf-8") == by_name.html
    with pytest.raises(InputError, match="cannot be written"):
        by_name.save(tmp_path / "none" / "look.html")
    for options, message in (
        ({"height": 5}, r"height \(5\) must be from 100"),
        ({"theme": "pink"}, r"theme \(pink\) must be system, light or dark"),
    ):
        with pytest.raises(InputError, match=message):
            regard.show(study, "the dog", **options)


def test_no_server_is_needed() -> None:
    """Neither the packages of the server nor matplotlib are imported."""
    code = "import sys; sys.modules.update(dict.fromkeys(('fastapi', 'uvicorn', 'matplotlib')))"
    subprocess.run([sys.executable, "-c", f"{code}; import regard.serving.page_file"], check=True)
