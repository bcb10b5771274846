"""Prepared data: what goes in comes out, in any order, and what is not whole is noticed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data.prepared import ABOUT, Prepared, Writer, fingerprint
from regard.errors import DataError

sequences = st.lists(st.lists(st.integers(0, 65_535), max_size=6), max_size=8)


@given(source=sequences, chunk=st.integers(1, 4), seed=st.integers(0, 99))
def test_what_goes_in_comes_out(
    tmp_path_factory: pytest.TempPathFactory, source: list[list[int]], chunk: int, seed: int
) -> None:
    target = [[*tokens[::-1], 1] for tokens in source]
    place = tmp_path_factory.mktemp("prepared") / "train"
    writer = Writer(place, ["source", "target"], vocabulary=65_536)
    for start in range(0, len(source), chunk):
        writer.append({"source": source[start : start + chunk], "target": target[start : start + chunk]})
    assert not place.exists()
    prepared = writer.finish({"made": "here"})
    assert (place / ABOUT).is_file()
    assert len(prepared) == len(source)
    assert prepared.lengths("target").tolist() == [len(tokens) for tokens in target]
    assert prepared.tokens("source") == sum(map(len, source))
    chosen = np.random.default_rng(seed).integers(0, max(len(source), 1), size=5 if source else 0)
    for side, texts in (("source", source), ("target", target)):
        flat, lengths = prepared.gather(side, chosen)
        assert flat.tolist() == [token for i in chosen for token in texts[i]]
        assert lengths.tolist() == [len(texts[i]) for i in chosen]


@pytest.mark.parametrize(("vocabulary", "size"), [(1, 1), (256, 1), (257, 2), (65_536, 2), (65_537, 4), (1 << 32, 4)])
def test_a_token_takes_as_many_bytes_as_its_vocabulary_needs(tmp_path: Path, vocabulary: int, size: int) -> None:
    writer = Writer(tmp_path / "a", ["text", "other"], vocabulary={"text": vocabulary, "other": 300})
    writer.append({"text": [[vocabulary - 1, 0]], "other": [[299]]})
    prepared = writer.finish()
    assert prepared.gather("text", np.array([0]))[0].tolist() == [vocabulary - 1, 0]
    assert prepared.gather("other", np.array([0]))[0].tolist() == [299]
    assert (tmp_path / "a" / "text.tokens").stat().st_size == 2 * size
    assert (tmp_path / "a" / "other.tokens").stat().st_size == 2


def test_a_token_that_does_not_fit_is_refused_and_not_wrapped_around(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "a", ["text"], vocabulary=256)
    with pytest.raises(DataError, match="text has the token 256, which its vocabulary has not"):
        writer.append({"text": [[1], [256]]})
    writer.abandon()
    assert not list(tmp_path.iterdir())


def test_numbers_may_be_given_again(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "a", ["label"], vocabulary=10)
    writer.append({"label": [[0], [1], [0], [2]]})
    writer.renumber("label", [2, 0, 1])
    writer.append({"label": [[7]]})
    assert writer.finish().gather("label", np.arange(5))[0].tolist() == [2, 0, 2, 1, 7]


def test_what_is_noted_is_there_again(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "a", ["text"], vocabulary=10)
    writer.append({"text": [[1, 2], []]})
    assert writer.tokens == {"text": 2}
    assert writer.finish({"first": "Straße, line 1"}).about["first"] == "Straße, line 1"


def test_sides_must_match(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "a", ["source", "target"], vocabulary=10)
    with pytest.raises(DataError, match="every side must have as many examples"):
        writer.append({"source": [[1]], "target": []})
    writer.abandon()
    assert not list(tmp_path.iterdir())


def test_two_who_make_the_same_do_not_harm_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writers = []
    for process in (1, 2):
        monkeypatch.setattr("os.getpid", lambda process=process: process)
        writers.append(Writer(tmp_path / "a", ["text"], vocabulary=10))
    for writer in writers:
        writer.append({"text": [[1, 2]]})
    for writer in writers:
        assert writer.finish().lengths("text").tolist() == [2]
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def whole(tmp_path: Path) -> Path:
    writer = Writer(tmp_path / "a", ["text"], vocabulary=10)
    writer.append({"text": [[1, 2], [3]]})
    writer.finish()
    return tmp_path / "a"


def test_what_is_cut_short_is_noticed(tmp_path: Path) -> None:
    place = whole(tmp_path)
    (place / "text.tokens").write_bytes((place / "text.tokens").read_bytes()[:-2])
    with pytest.raises(DataError, match=r"is damaged: text is cut short; remove it, and it is made again"):
        Prepared(place)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"version": 1, "sides": ["text"]}', "\0\0\0"])
def test_notes_that_are_no_notes_are_noticed(tmp_path: Path, content: str) -> None:
    place = whole(tmp_path)
    (place / ABOUT).write_text(content)
    with pytest.raises(DataError, match="holds no whole prepared data; remove it, and it is made again"):
        Prepared(place)


@pytest.mark.parametrize("name", ["text.tokens", "text.offsets", ABOUT])
def test_a_missing_file_is_noticed(tmp_path: Path, name: str) -> None:
    place = whole(tmp_path)
    (place / name).unlink()
    with pytest.raises(DataError, match="remove it"):
        Prepared(place)


def test_another_format_is_refused(tmp_path: Path) -> None:
    place = whole(tmp_path)
    about = json.loads((place / ABOUT).read_text())
    (place / ABOUT).write_text(json.dumps(about | {"version": 99}))
    with pytest.raises(DataError, match=r"prepared in version 99 of the format, and this is 1; remove it"):
        Prepared(place)


def test_the_fingerprint_changes_with_content_and_settings() -> None:
    first = fingerprint(["a", "b"], {"size": 1, "form": "pairs"})
    assert first == fingerprint(["a", "b"], {"form": "pairs", "size": 1})
    others = [(["a", "b"], {"size": 2, "form": "pairs"}), (["b", "a"], {"size": 1, "form": "pairs"}), (["a"], {})]
    assert len({first, *(fingerprint(contents, settings) for contents, settings in others)}) == 4
