"""Ragged arrays and stores, compared with plain lists; damage is noticed."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from data_cases import texts_of
from hypothesis import given
from hypothesis import strategies as st

from regard.data.store import ABOUT, Ragged, Store, StoreWriter, spread
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


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5)), max_size=6))
def test_spread_by_brute_force(pairs: list[tuple[int, int]]) -> None:
    starts, lengths = (np.array([pair[i] for pair in pairs], dtype=np.int64) for i in (0, 1))
    assert spread(starts, lengths).tolist() == [start + i for start, length in pairs for i in range(length)]


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
    writer.abandon()


def test_values_can_be_renumbered(tmp_path: Path) -> None:
    writer = StoreWriter(tmp_path, {"label": 10})
    writer.append({"label": Ragged.of([[0], [1], [0], [2], [9]])})
    writer.renumber("label", [2, 0, 1])
    writer.append({"label": Ragged.of([[7]])})
    writer.finish()
    assert texts_of(Store(tmp_path), "label") == [[2], [0], [2], [1], [9], [7]]


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
    for number in range(9):
        with pytest.raises(DataError, match="remove"):
            Store(tmp_path / str(number))
    other = store(9)
    (other / ABOUT).write_text(json.dumps(json.loads((other / ABOUT).read_text()) | {"version": 99}))
    with pytest.raises(DataError, match="99"):
        Store(other)
