"""The cache: entries are complete, found by their content, and made again when damaged."""

from __future__ import annotations

import io
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import platformdirs
import pytest

from regard.data import store
from regard.data.settings import Digits, RawText
from regard.data.source import Source
from regard.data.store import cache_folder, cached, fingerprint, keep_standard_input
from regard.errors import DataError


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))


def make(directory: Path) -> None:
    (directory / "a").write_text("content")


def read(place: Path) -> str:
    if not (place / "a").is_file():
        raise DataError(f"{place} is damaged; remove it")
    return (place / "a").read_text()


def test_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_CACHE", "~/here")
    assert cache_folder() == Path.home() / "here"
    monkeypatch.delenv("REGARD_CACHE")
    assert cache_folder() == platformdirs.user_cache_path("regard", appauthor=False)


def test_an_entry_is_made_once_and_again_when_it_is_damaged() -> None:
    made: list[Path] = []
    notes: list[str] = []

    def counted(directory: Path) -> None:
        made.append(directory)
        make(directory)

    for _ in range(2):
        assert cached("room", "name", counted, read, notes.append) == "content"
    assert (len(made), notes) == (1, [])
    Path("cache/room/name/a").unlink()
    assert cached("room", "name", counted, read, notes.append) == "content"
    assert len(made) == 2
    assert notes[0].endswith("is damaged; it was made again")
    assert [path.name for path in Path("cache/room").iterdir()] == ["name"]


def test_an_interrupted_entry_leaves_nothing() -> None:
    def stop(directory: Path) -> None:
        make(directory)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached("room", "name", stop, read)
    assert not list(Path("cache/room").iterdir())


def test_the_faster_of_two_processes_wins() -> None:
    def late(directory: Path) -> None:
        make(directory)
        cached("room", "name", make, read)
        (directory / "a").write_text("late")

    assert cached("room", "name", late, read) == "content"
    assert [path.name for path in Path("cache/room").iterdir()] == ["name"]


def test_old_leftovers_are_removed_and_young_ones_stay() -> None:
    for name, age in ((".old.1", 3 * 24 * 3600), (".young.2", 3600)):
        place = Path("cache/room") / name
        place.mkdir(parents=True)
        os.utime(place, (time.time() - age,) * 2)
    cached("room", "name", make, read)
    assert {path.name for path in Path("cache/room").iterdir()} == {"name", ".young.2"}


def test_a_cache_that_cannot_be_written() -> None:
    Path("cache").write_text("a file instead of the folder")
    with pytest.raises(DataError, match="REGARD_CACHE"):
        cached("room", "name", make, read)


def test_a_fingerprint_changes_with_content_and_settings(tmp_path: Path) -> None:
    one, two, folder = Path("one"), Path("two"), Path("folder")
    one.write_text("1")
    two.write_text("2")
    folder.mkdir()
    (folder / "a").write_text("x")
    first = fingerprint([one, two], {"a": 1, "b": 2})
    assert first == fingerprint([one, two], {"b": 2, "a": 1})
    others = [
        fingerprint([two, one], {"a": 1, "b": 2}),
        fingerprint([one, two], {"a": 2, "b": 2}),
        fingerprint([folder], {}),
    ]
    (folder / "a").rename(folder / "b")
    others.append(fingerprint([folder], {}))
    (folder / "b").write_text("y")
    others.append(fingerprint([folder], {}))
    one.write_text("3")
    others.append(fingerprint([one, two], {"a": 1, "b": 2}))
    assert len({first, *others}) == 7
    with pytest.raises(DataError, match="none"):
        fingerprint([tmp_path / "none"], {})


def test_standard_input_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "BLOCK", 4)
    for _ in range(2):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"one line\ntwo lines\n")))
        kept = keep_standard_input(RawText(train=("-",), valid=("x",)))
        assert isinstance(kept, RawText)
        assert kept.valid == ("x",)
        for _ in range(2):
            assert [text.text for text in Source(kept, "train")] == ["one line", "two lines"]  # type: ignore[union-attr]
    assert len(list(Path("cache/input").iterdir())) == 1
    with pytest.raises(DataError, match="standard input"):
        keep_standard_input(RawText(train=("-",)))
    assert len(list(Path("cache/input").iterdir())) == 1
    for settings in (RawText(train=("x",)), Digits()):
        assert keep_standard_input(settings) is settings
