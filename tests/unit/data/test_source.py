"""A split as a whole: files in order, skipping or stopping, filters on training only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from regard.data.examples import Labelled, Located, Pair, Text, excerpt
from regard.data.settings import LabelledTsv, PairFilters, Parallel, ParallelTsv, RawText, TextFilters
from regard.data.source import Source, make_check
from regard.errors import DataError


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.tsv").write_text("a\tA\nb\tB\nbad\n", encoding="utf-8")
    Path("b.tsv").write_text("c\tC\na\tA\n", encoding="utf-8")


def test_files_follow_one_another_and_reading_repeats() -> None:
    source = Source(ParallelTsv(train=["a.tsv", "b.tsv"]), "train")
    expected = [
        Located(Pair("a", "A"), "a.tsv", 1),
        Located(Pair("b", "B"), "a.tsv", 2),
        Located(Pair("c", "C"), "b.tsv", 1),
        Located(Pair("a", "A"), "b.tsv", 2),
    ]
    assert list(source.located()) == list(source.located()) == expected
    assert list(source) == [located.example for located in expected]
    assert expected[1].where == "a.tsv, line 2"
    for name in ("1.en", "1.de", "2.en", "2.de"):
        Path(name).write_text(f"{name}\n", encoding="utf-8")
    files = Source(Parallel(valid=["1.en", "1.de", "2.en", "2.de"]), "valid")
    assert list(files) == [Pair("1.en", "1.de"), Pair("2.en", "2.de")]


def test_lazy_reading_and_the_root() -> None:
    Path("rest.tsv").write_bytes(b"\0")
    assert next(Source(ParallelTsv(train=["a.tsv", "rest.tsv"]), "train").located()).example == Pair("a", "A")
    Path("in").mkdir()
    Path("in/a.txt").write_text("x\n", encoding="utf-8")
    source = Source(RawText(root="in", train=["a.txt", "/b"]), "train")
    assert source.files == (str(Path("in/a.txt")), str(Path("/b")))


def test_only_training_is_filtered() -> None:
    settings = ParallelTsv(train=["b.tsv", "b.tsv"], valid=["b.tsv", "b.tsv"]).changed({"filters.duplicates": "pair"})
    train, valid = Source(settings, "train"), Source(settings, "valid")
    assert len(list(train)) == 2
    assert len(list(valid)) == 4
    assert train.removed.text() == "2 × is a duplicate: b.tsv, line 1 (c | C); b.tsv, line 2 (a | A)"
    assert not valid.removed


def test_errors() -> None:
    with pytest.raises(DataError, match=r"a\.tsv, line 3 .*\(it has 1\).*data\.bad"):
        list(Source(ParallelTsv(train=["a.tsv"], bad="stop"), "train"))
    with pytest.raises(DataError, match=r"data\.valid is empty"):
        Source(RawText(), "valid")
    Path("a.txt").write_text("\n\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"data\.train \(a\.txt\) has no usable example$"):
        list(Source(RawText(train=["a.txt"]), "train"))
    Path("b.txt").write_bytes(b"\xff\n" * 5)
    with pytest.raises(DataError, match=r"no usable example\n5 × is not UTF-8: b\.txt, line 1 .*; …$"):
        list(Source(RawText(train=["b.txt"]), "train"))


def removed(filters: PairFilters | TextFilters, *examples: Any) -> dict[int, str]:
    """The number of each removed example, and the reason."""
    check = make_check(filters)
    return {number: reason for number, example in enumerate(examples, 1) if (reason := check(example))}


def test_lengths_apply_to_both_sides() -> None:
    pairs = [Pair("one", "eins"), Pair("to be", "zu sein"), Pair("a b c d", "a b c d e"), Pair("a", "w x y z")]
    for filters, expected in [
        (PairFilters(), {}),
        (PairFilters(min_words=2), dict.fromkeys([1, 4], "has fewer than 2 words")),
        (PairFilters(max_words=4), {3: "has more than 4 words"}),
        (PairFilters(min_characters=3), {4: "has fewer than 3 characters"}),
        (PairFilters(max_characters=8), {3: "has more than 8 characters"}),
        (PairFilters(ratio=3.0), {4: "has a side over 3 times as long"}),
        (PairFilters(ratio=4.0), {}),
    ]:
        assert removed(filters, *pairs) == expected


def test_duplicates_and_copies() -> None:
    pairs = [Pair("a", "A"), Pair("a", "B"), Pair("b", "A"), Pair("a", "A"), Pair("aA", "")]
    assert removed(PairFilters(duplicates="pair"), *pairs) == {4: "is a duplicate"}
    assert removed(PairFilters(duplicates="source"), *pairs) == dict.fromkeys([2, 4], "is a duplicate by its source")
    assert removed(PairFilters(duplicates="target"), *pairs) == dict.fromkeys([3, 4], "is a duplicate by its target")
    texts = [Text("a"), Text("b"), Text("a"), Labelled("a", "b", "x"), Labelled("a", "b", "y")]
    assert removed(TextFilters(duplicates=True), *texts) == dict.fromkeys([3, 5], "is a duplicate")
    assert removed(TextFilters(), *texts) == {}
    pairs = [Pair("Berlin", "berlin "), Pair("New  York", "New York"), Pair("a b", "ab"), Pair("one", "eins")]
    assert removed(PairFilters(copies=True), *pairs) == dict.fromkeys([1, 2], "copies its source")


def test_the_first_removed_examples_are_shown() -> None:
    long = "word " * 40
    shown = "word " * 11 + "word…"
    assert excerpt(Pair(long, "x\ny")) == f"{shown} | x y"
    Path("long.tsv").write_text("a\tb\n" + f"{long}\tx\n" * 5, encoding="utf-8")
    source = Source(LabelledTsv(train=["long.tsv"]).changed({"filters.max_words": 5}), "train")
    assert len(list(source)) == 1
    lines = "; ".join(f"long.tsv, line {number} ({shown})" for number in (2, 3, 4))
    assert source.removed.text() == f"5 × has more than 5 words: {lines}; …"
