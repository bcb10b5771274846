"""A split as a whole: files in order, skipping or stopping, filters on training alone, nothing left."""

from __future__ import annotations

from pathlib import Path

import pytest

from regard.data.examples import Pair, Placed
from regard.data.settings import Parallel, ParallelTsv, RawText
from regard.data.sources import Source
from regard.errors import DataError


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.tsv").write_text("a\tA\nb\tB\nbad\n", encoding="utf-8")
    Path("b.tsv").write_text("c\tC\na\tA\n", encoding="utf-8")


def test_files_follow_one_another_and_reading_repeats() -> None:
    source = Source(ParallelTsv(train=["a.tsv", "b.tsv"]), "train")
    expected = [
        Placed(Pair("a", "A"), "a.tsv", 1),
        Placed(Pair("b", "B"), "a.tsv", 2),
        Placed(Pair("c", "C"), "b.tsv", 1),
        Placed(Pair("a", "A"), "b.tsv", 2),
    ]
    assert list(source.placed()) == expected
    assert list(source.placed()) == expected
    assert list(source) == [placed.example for placed in expected]


def test_several_pairs_of_files() -> None:
    for name in ("1.en", "1.de", "2.en", "2.de"):
        Path(name).write_text(f"{name}\n", encoding="utf-8")
    source = Source(Parallel(valid=["1.en", "1.de", "2.en", "2.de"]), "valid")
    assert list(source) == [Pair("1.en", "1.de"), Pair("2.en", "2.de")]


def test_reading_is_lazy() -> None:
    Path("rest.tsv").write_bytes(b"\0")
    source = Source(ParallelTsv(train=["a.tsv", "rest.tsv"]), "train").placed()
    assert next(source).example == Pair("a", "A")


def test_the_root(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    Path("in/a.txt").write_text("x\n", encoding="utf-8")
    source = Source(RawText(root="in", train=["a.txt"]), "train")
    assert source.files == (str(Path("in/a.txt")),)
    assert len(list(source)) == 1


def test_a_bad_line_stops_the_run_where_the_settings_say_so() -> None:
    source = Source(ParallelTsv(train=["a.tsv"], bad="stop"), "train")
    with pytest.raises(DataError) as caught:
        list(source)
    assert str(caught.value) == (
        'a.tsv, line 3 has not 2 columns as the first line has (it has 1); mend it, or set data.bad = "skip" to pass '
        "over such examples"
    )


def test_only_training_is_filtered() -> None:
    settings = ParallelTsv(train=["b.tsv", "b.tsv"], valid=["b.tsv", "b.tsv"]).changed({"filters.duplicates": "pair"})
    train, valid = Source(settings, "train"), Source(settings, "valid")
    assert len(list(train)) == 2
    assert len(list(valid)) == 4
    assert train.removed.text() == "2 × is a duplicate: b.tsv, line 1 (c | C); b.tsv, line 2 (a | A)"
    assert valid.removed.total == 0


def test_a_split_without_files() -> None:
    with pytest.raises(DataError) as caught:
        Source(RawText(), "valid")
    assert str(caught.value) == "data.valid ([]) names no file; give it a list of files"


def test_a_split_that_gives_nothing_says_why() -> None:
    Path("a.txt").write_text("\n\n", encoding="utf-8")
    with pytest.raises(DataError) as caught:
        list(Source(RawText(train=["a.txt"]), "train"))
    assert str(caught.value) == "data.train (a.txt) gives no example"
    Path("b.txt").write_bytes(b"\xff\n" * 5)
    with pytest.raises(DataError) as caught:
        list(Source(RawText(train=["b.txt"]), "train"))
    assert str(caught.value) == (
        "data.train (b.txt) gives no example:\n5 × is not UTF-8: b.txt, line 1 (byte 1 is 0xff); b.txt, line 2 (byte 1 "
        "is 0xff); b.txt, line 3 (byte 1 is 0xff); …"
    )
