"""Ragged arrays and stores, compared with plain lists; damage is noticed."""

from __future__ import annotations

import json
import os
import pickle
import sys
import time
from pathlib import Path

import numpy as np
import platformdirs
import pytest
from data_cases import texts_of
from hypothesis import given
from hypothesis import strategies as st

from regard.data.store import ABOUT, Ragged, Store, StoreWriter, cache_folder, cached, fingerprint
from regard.errors import DataError

sequences = st.lists(st.lists(st.integers(0, 2**32 - 1), max_size=7), max_size=9)


def lists(ragged: Ragged) -> list[list[int]]:
    assert len(ragged.values) == ragged.lengths.sum()
    return [part.tolist() for part in ragged.parts()]


@given(sequences, st.integers(1, 5), st.integers(0, 2**9))
def test_ragged_arrays_are_lists(given: list[list[int]], limit: int, chosen: int) -> None:
    ragged = Ragged.of(given)
    assert lists(ragged) == given
    assert lists(Ragged.joined(np.array(each, np.uint32) for each in given)) == given
    assert lists(ragged.cut(limit)) == [each[:limit] for each in given]
    pieces = [each[start : start + limit] for each in given for start in range(0, max(1, len(each)), limit)]
    assert lists(ragged.split(limit)) == pieces
    kept = [bool(chosen >> number & 1) for number in range(len(given))]
    assert lists(ragged.only(np.array(kept, np.bool_))) == [
        each for each, keep in zip(given, kept, strict=True) if keep
    ]
    for first in (None, 11):
        for last in (None, 12):
            before, after = [11] if first else [], [12] if last else []
            assert lists(ragged.framed(first, last)) == [[*before, *each, *after] for each in given]
    ended = ragged.framed(None, 5, np.array(kept, np.bool_))
    assert lists(ended) == [[*each, 5] if end else each for each, end in zip(given, kept, strict=True)]


@given(source=st.lists(st.lists(st.integers(0, 65_535), max_size=6), max_size=8), chunk=st.integers(1, 4))
def test_a_store_returns_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, source: list[list[int]], chunk: int
) -> None:
    target = [[*tokens[::-1], 1] for tokens in source]
    place = tmp_path_factory.mktemp("store")
    writer = StoreWriter(place, {"source": 65_536, "target": 65_536})
    for start in range(0, len(source), chunk):
        part = slice(start, start + chunk)
        writer.append({"source": Ragged.of(source[part]), "target": Ragged.of(target[part])})
    assert not (place / ABOUT).exists(), "it is written last"
    writer.finish({"made": "Straße"})
    store = Store(place)
    assert (len(store), store.about["made"]) == (len(source), "Straße")
    assert writer.written == {"source": sum(map(len, source)), "target": sum(map(len, target))}
    for found in (store, pickle.loads(pickle.dumps(store))):
        assert (texts_of(found, "source"), texts_of(found, "target")) == (source, target)


def test_a_value_takes_as_many_bytes_as_its_column_needs(tmp_path: Path) -> None:
    for size, width in ((1, 1), (256, 1), (257, 2), (65_536, 2), (65_537, 4), (1 << 32, 4)):
        place = tmp_path / str(size)
        writer = StoreWriter(place, {"text": size})
        writer.append({"text": Ragged.of([[size - 1, 0]])})
        writer.finish()
        assert texts_of(Store(place), "text") == [[size - 1, 0]]
        assert (place / "text.values").stat().st_size == 2 * width
    writer = StoreWriter(tmp_path / "small", {"text": 256})
    with pytest.raises(DataError, match="256"):
        writer.append({"text": Ragged.of([[1], [256]])})
    writer.close()
    writer = StoreWriter(tmp_path / "labels", {"label": 10})
    writer.append({"label": Ragged.of([[0], [1], [0], [2], [9]])})
    writer.renumber("label", [2, 0, 1])
    writer.append({"label": Ragged.of([[7]])})
    writer.finish()
    assert texts_of(Store(tmp_path / "labels"), "label") == [[2], [0], [2], [1], [9], [7]]


def test_damage_is_noticed(tmp_path: Path) -> None:
    def store(number: int) -> Path:
        writer = StoreWriter(tmp_path / str(number), {"text": 10})
        writer.append({"text": Ragged.of([[1, 2], [3]])})
        writer.finish()
        return tmp_path / str(number)

    cut = store(0)
    (cut / "text.values").write_bytes((cut / "text.values").read_bytes()[:-2])
    for number, name in enumerate(("text.values", "text.offsets", ABOUT), 1):
        (store(number) / name).unlink()
    for number, content in enumerate(("", "[]", "{}", '{"version": 2, "columns": ["text"]}', "\0\0\0"), 4):
        (store(number) / ABOUT).write_text(content)
    changed = store(9)
    (changed / ABOUT).write_text(json.dumps(json.loads((changed / ABOUT).read_text()) | {"examples": 99}))
    for number in range(10):
        with pytest.raises(DataError, match="remove"):
            Store.checked(tmp_path / str(number))


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


def test_interrupted_late_and_old_entries_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(directory: Path) -> None:
        make(directory)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached("room", "name", stop, read)
    assert not list(Path("cache/room").iterdir())
    for name, age in ((".old.1", 3 * 24 * 3600), (".young.2", 3600)):
        place = Path("cache/room") / name
        place.mkdir()
        os.utime(place, (time.time() - age,) * 2)

    def late(directory: Path) -> None:
        make(directory)
        cached("room", "name", make, read)
        (directory / "a").write_text("late")

    assert cached("room", "name", late, read) == ("content", "")
    assert {path.name for path in Path("cache/room").iterdir()} == {"name", ".young.2"}
    monkeypatch.setenv("REGARD_CACHE", "~/here")
    assert cache_folder() == Path.home() / "here"
    monkeypatch.delenv("REGARD_CACHE")
    assert cache_folder() == platformdirs.user_cache_path("regard", appauthor=False)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot lock a directory")
def test_live_work_of_another_container_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither an entry that is old but still written to, nor one whose maker was paused for days, is removed."""
    folder = cache_folder() / "things"
    old = time.time() - 3 * 24 * 3600

    def make(directory: Path) -> None:
        (directory / "first").write_text("half")
        for path in (directory / "first", directory):
            os.utime(path, (old, old))
        monkeypatch.setattr(os, "getpid", lambda: 1)  # the other container has the same numbers of processes
        cached("things", "b", lambda place: (place / "file").write_text("b") and None, lambda place: None)
        assert (directory / "first").read_text() == "half"

    cached("things", "a", make, lambda place: None)
    written, dead = folder / ".written", folder / ".dead"
    for path in (written, dead):
        path.mkdir()
        (path / "file").write_text("half")
        os.utime(path, (old, old))
    os.utime(dead / "file", (old, old))
    cached("things", "c", lambda place: None, lambda place: None)
    assert (written.exists(), dead.exists()) == (True, False)


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
