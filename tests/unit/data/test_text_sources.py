"""Parallel, raw and labelled text: what is read, and every bad line by its reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from regard.data import raw
from regard.data.examples import Labelled, Pair, Text
from regard.data.settings import (
    DataSettings,
    LabelledCsv,
    LabelledJsonl,
    LabelledTsv,
    Parallel,
    ParallelJsonl,
    ParallelTsv,
    RawJsonl,
    RawText,
)
from regard.data.sources import Source
from regard.errors import DataError

Write = Callable[[str, str | bytes], None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a file into an empty folder that is the current one."""
    monkeypatch.chdir(tmp_path)
    return lambda name, data: Path(name).write_bytes(data if isinstance(data, bytes) else data.encode())  # type: ignore[func-returns-value]


def read(settings: DataSettings) -> tuple[list[Any], list[str]]:
    """The examples of training, and what was skipped, one text a reason."""
    source = Source(settings, "train")
    return list(source), source.problems.text().splitlines()


def refused(settings: DataSettings) -> str:
    with pytest.raises(DataError) as caught:
        list(Source(settings, "train"))
    return str(caught.value)


# ------------------------------------------------------------------------------------------------------ parallel text


def test_two_files(write: Write) -> None:
    write("a.en", "one\ntwo\n")
    write("a.de", "eins\nzwei")
    assert read(Parallel(train=["a.en", "a.de"])) == ([Pair("one", "eins"), Pair("two", "zwei")], [])


@pytest.mark.parametrize(("sources", "targets"), [(3, 2), (2, 3), (1, 5), (2000, 1)])
def test_unequal_line_counts(write: Write, sources: int, targets: int) -> None:
    write("a.en", "x\n" * sources)
    write("a.de", "y\n" * targets)
    assert refused(Parallel(train=["a.en", "a.de"])) == (
        f"a.en has {sources:,} lines, but a.de has {targets:,}; parallel files need the same number, so that line n "
        "translates line n"
    )


def test_bad_lines_of_parallel_files(write: Write) -> None:
    write("a.en", b"one\n\ngr\xfcn\nfour\n \n")
    write("a.de", "eins\nzwei\ndrei\n\nfünf\n")
    assert read(Parallel(train=["a.en", "a.de"])) == (
        [Pair("one", "eins")],
        [
            "3 × is empty: a.en, line 2; a.de, line 4; a.en, line 5",
            "1 × is not UTF-8: a.en, line 3 (byte 3 is 0xfc)",
        ],
    )


def test_tsv(write: Write) -> None:
    write("a.tsv", 'one\teins\t"1\ntwo\n\tzwei\t\nthree\tdrei\tx\n')
    assert read(ParallelTsv(train=["a.tsv"])) == (
        [Pair("one", "eins"), Pair("three", "drei")],
        [
            "1 × has not 3 columns as the first line has: a.tsv, line 2 (it has 1)",
            "1 × has an empty side: a.tsv, line 3 (source)",
        ],
    )


def test_tsv_by_names_in_its_header(write: Write) -> None:
    write("a.tsv", "de\tid\ten\neins\t1\tone\n")
    settings = ParallelTsv(train=["a.tsv"], header=True, source="en", target="de")
    assert read(settings) == ([Pair("one", "eins")], [])
    assert refused(settings.changed({"source": "ne"})) == (
        "a.tsv has no column ne (did you mean en?); its header names de, id, en"
    )


def test_a_column_that_is_not_there(write: Write) -> None:
    write("a.tsv", "one\teins\n")
    assert refused(ParallelTsv(train=["a.tsv"], target=3)) == (
        "a.tsv has no column 3: its first line has 2, parted by the separator"
    )


def test_jsonl(write: Write) -> None:
    rows: list[Any] = [
        {"translation": {"en": "one\nline", "de": "eins"}},
        {"translation": {"en": "two"}},
        {"translation": {"en": "three", "de": 3}},
        {"translation": {"en": " ", "de": "vier"}},
        [1],
        {},
    ]
    write("a.jsonl", "\n".join([*map(json.dumps, rows), "", "{", '{"translation": {"en": "\\ud83d", "de": "x"}}']))
    settings = ParallelJsonl(train=["a.jsonl"], source="translation.en", target="translation.de")
    examples, problems = read(settings)
    assert examples == [Pair("one\nline", "eins")]
    assert problems == [
        "1 × has no key translation.de: a.jsonl, line 2 (but translation)",
        "1 × has no text at translation.de: a.jsonl, line 3 (but int)",
        "1 × has an empty translation.en: a.jsonl, line 4",
        "1 × is no JSON object: a.jsonl, line 5 (list)",
        "1 × has no key translation.en: a.jsonl, line 6",
        "1 × is not JSON: a.jsonl, line 8 "
        "(Expecting property name enclosed in double quotes: line 1 column 2 (char 1))",
        "1 × holds half a character: a.jsonl, line 9",
    ]


# ----------------------------------------------------------------------------------------------------------- raw text

RAW = b"one\ntwo\n\n \nthr\xffee\nfour\r\nfive"


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ("line", [Text("one"), Text("two"), Text("four"), Text("five")]),
        ("paragraph", [Text("one\ntwo\n"), Text("four\nfive\n")]),
        ("file", [Text("one\ntwo\n\n \nfour\nfive\n")]),
    ],
)
def test_documents(write: Write, document: Any, expected: list[Text]) -> None:
    write("a.txt", RAW)
    assert read(RawText(train=["a.txt"], document=document)) == (
        expected,
        ["1 × is not UTF-8: a.txt, line 5 (byte 4 is 0xff)"],
    )


def test_a_long_file_comes_in_pieces(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw, "PIECE", 8)
    write("a.txt", "first\nsecond\nthird\n\nlast\n")
    write("b.txt", "other\n")
    examples, _ = read(RawText(train=["a.txt", "b.txt"], document="file"))
    assert examples == [
        Text("first\nsecond\n", ends=False),
        Text("third\n\nlast\n"),
        Text("other\n"),
    ]
    assert read(RawText(train=["a.txt"], document="paragraph"))[0][0] == Text("first\nsecond\nthird\n")


def test_raw_jsonl(write: Write) -> None:
    write("a.jsonl", '{"body": "one\\n\\ntwo"}\n{"text": "x"}\n')
    assert read(RawJsonl(train=["a.jsonl"], text="body")) == (
        [Text("one\n\ntwo")],
        ["1 × has no key body: a.jsonl, line 2 (but text)"],
    )


# ------------------------------------------------------------------------------------------------------ labelled text


def test_labelled_tsv_without_a_header(write: Write) -> None:
    """CoLA's columns: source, label, the author's mark, text."""
    write("a.tsv", 'gj04\t1\t\tThe "sailors" rode.\ngj04\t0\t*\tThey rode "home.\ngj04\t\t\tNo label.\n')
    assert read(LabelledTsv(train=["a.tsv"], text=4, label=2)) == (
        [Labelled('The "sailors" rode.', None, "1"), Labelled('They rode "home.', None, "0")],
        ["1 × has an empty label: a.tsv, line 3"],
    )


def test_labelled_tsv_with_a_header_a_mark_and_two_texts(write: Write) -> None:
    """MRPC's: a byte order mark, Windows line ends, names with signs in them."""
    write("a.tsv", b"\xef\xbb\xbfQuality\t#1 ID\t#1 String\t#2 String\r\n1\t7\tone\tuno\r\n0\t8\ttwo\r\n")
    settings = LabelledTsv(train=["a.tsv"], header=True, text="#1 String", second="#2 String", label="Quality")
    assert read(settings) == (
        [Labelled("one", "uno", "1")],
        ["1 × has not 4 columns as the first line has: a.tsv, line 3 (it has 3)"],
    )


def test_labelled_data_without_labels(write: Write) -> None:
    write("a.tsv", "index\tsentence\n0\tone\n")
    settings = LabelledTsv(train=["a.tsv"], header=True, text="sentence", labels="absent")
    assert read(settings) == ([Labelled("one", None, None)], [])


def test_numbers_as_labels_in_csv(write: Write) -> None:
    """STS-B's: a quoted field may hold commas, quotes and line ends."""
    write("a.csv", '"A, b","say ""hi""",5.0\nline,"over\ntwo lines",2\nx,y,much\nx,y,nan\n\nx,y\n')
    settings = LabelledCsv(train=["a.csv"], text=1, second=2, label=3, labels="numbers")
    assert read(settings) == (
        [Labelled("A, b", 'say "hi"', 5.0), Labelled("line", "over\ntwo lines", 2.0)],
        [
            "2 × has a label that is no number: a.csv, line 4 ('much'); a.csv, line 5 ('nan')",
            "1 × has not 3 columns as the first line has: a.csv, line 7 (it has 2)",
        ],
    )


def test_csv_that_is_none(write: Write) -> None:
    write("a.csv", b'one;1\ngr\xfcn;2\n"three" x;3\nfour;4\n')
    examples, problems = read(LabelledCsv(train=["a.csv"], separator=";"))
    assert examples == [Labelled("one", None, "1"), Labelled("four", None, "4")]
    assert problems == ["1 × is not UTF-8: a.csv, line 2", "1 × is not CSV: a.csv, line 3 (';' expected after '\"')"]


def test_labelled_jsonl(write: Write) -> None:
    rows = [
        {"text": "one", "label": 1},
        {"text": "two", "label": "b"},
        {"text": "three", "label": True},
        {"text": "four", "label": [1]},
        {"text": "five"},
        {"label": 1},
    ]
    write("a.jsonl", "\n".join(map(json.dumps, rows)))
    assert read(LabelledJsonl(train=["a.jsonl"])) == (
        [Labelled("one", None, "1"), Labelled("two", None, "b"), Labelled("three", None, "true")],
        [
            "1 × has a label that is no class: a.jsonl, line 4 ([1])",
            "1 × has no key label: a.jsonl, line 5 (but text)",
            "1 × has no key text: a.jsonl, line 6 (but label)",
        ],
    )


def test_labelled_jsonl_with_two_texts_and_numbers(write: Write) -> None:
    rows = [{"a": "x", "b": "y", "score": 0.5}, {"a": "x", "score": 1}, {"a": "x", "b": "y", "score": False}]
    write("a.jsonl", "\n".join(map(json.dumps, rows)))
    settings = LabelledJsonl(train=["a.jsonl"], text="a", second="b", label="score", labels="numbers")
    assert read(settings) == (
        [Labelled("x", "y", 0.5)],
        [
            "1 × has no key b: a.jsonl, line 2 (but a, score)",
            "1 × has a label that is no number: a.jsonl, line 3 (False)",
        ],
    )
