"""Text files and formats: the examples that are read, and every bad line by its reason."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from regard.data import readers
from regard.data.examples import Answer, Labelled, Pair, Problem, Question, Tagged, Text
from regard.data.readers import begin_entities, open_bytes, read_lines, require_there
from regard.data.settings import (
    Columns,
    DataSettings,
    LabelledCsv,
    LabelledJsonl,
    LabelledTsv,
    Parallel,
    ParallelCsv,
    ParallelJsonl,
    ParallelTsv,
    RawJsonl,
    RawText,
    Slots,
    Squad,
)
from regard.data.source import Source
from regard.errors import DataError, RegardError, SettingsError


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(name: str, data: str | bytes) -> None:
    Path(name).write_bytes(data if isinstance(data, bytes) else data.encode())


def read(settings: DataSettings) -> tuple[list[Any], list[str]]:
    """The training examples, and the problems, one line for each reason."""
    source = Source(settings, "train")
    return list(source), source.problems.text().splitlines()


TEXT = "Grüße aus Köln\nzwei\n"
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "plain": lambda data: data,
    "gzip": gzip.compress,
    "xz": lzma.compress,
    "bzip2": bz2.compress,
}


def lines(file: str) -> list[object]:
    return list(read_lines(file))


def test_the_content_decides_and_not_the_name() -> None:
    for pack in PACKERS.values():
        for name in ("a.txt", "a.gz", "a.xz"):
            write(name, pack(b"\xef\xbb\xbf" + TEXT.encode()))
            assert lines(name) == ["Grüße aus Köln", "zwei"]
    write("members", gzip.compress(b"one\n") + gzip.compress(b"two\n"))
    assert lines("members") == ["one", "two"]


def test_files_that_cannot_be_used() -> None:
    assert issubclass(DataError, RegardError)
    for content, message in [
        (b"", "is empty"),
        (gzip.compress(b""), "is empty after decompression"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "byte 8 is zero"),
        (("\ufeff" + TEXT).encode("utf-16-le"), "UTF-16"),
        (("\ufeff" + TEXT).encode("utf-16-be"), "UTF-16"),
    ]:
        write("a", content)
        with pytest.raises(DataError, match=f"a .*{message}"):
            lines("a")
    for action in (lambda: lines("none"), lambda: require_there(["a", "none"])):
        with pytest.raises(DataError, match=r"none does not exist.*data\.root"):
            action()
    with pytest.raises(DataError, match="cannot be read: "):
        lines(".")


def test_damaged_files() -> None:
    for name in ("gzip", "xz", "bzip2"):
        data = PACKERS[name](bytes(range(1, 256)) * 100)
        changed = bytearray(data)
        changed[len(data) // 2] ^= 0xFF
        changed[-6] ^= 0xFF
        for damaged in (data[: len(data) // 2], bytes(changed)):
            write("a", damaged)
            with pytest.raises(DataError, match="damaged or incomplete"), open_bytes("a") as stream:
                stream.read()


def test_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    cases: list[tuple[bytes, list[object]]] = [
        (b"a", ["a"]),
        (b"a\n", ["a"]),
        (b"a\nb", ["a", "b"]),
        (b"\n", [""]),
        (b"\n\na\n\n", ["", "", "a", ""]),
        (b"a\r\nb\r\n", ["a", "b"]),
        ("längere Zeile\nß\n".encode(), ["längere Zeile", "ß"]),
        (b"one\ngr\xfc\xdfe\r\nthree\r\n", ["one", Problem("is not UTF-8", "byte 3 is 0xfc"), "three"]),
        (b"text\n" * 2000 + b"ze\0ro\n", [*["text"] * 2000, Problem("holds a zero byte", "byte 3")]),
    ]
    for sign in ("\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\r"):
        cases.append((f"a{sign}b\nc\n".encode(), [f"a{sign}b", "c"]))
    for block in (3, 1 << 20):
        monkeypatch.setattr(readers, "BLOCK", block)
        for data, expected in cases:
            write("a", data)
            assert lines("a") == expected, data
    monkeypatch.setattr(readers, "LONGEST", 8)
    monkeypatch.setattr(readers, "BLOCK", 3)
    long = readers.TOO_LONG
    for data, expected in {
        b"a" * 8 + b"\nb\n": ["a" * 8, "b"],
        b"a" * 99 + b"\nb\n": [long, "b"],
        b"a\nb" + b"b" * 99: ["a", long],
        b"a" * 50 + b"\n" + b"c" * 50 + b"\n\nd": [long, long, "", "d"],
    }.items():
        write("a", gzip.compress(data))
        assert lines("a") == expected, data


def test_parallel_files() -> None:
    write("a.en", b"one\n\ngr\xfcn\nfour\n \nsix\n")
    write("a.de", "eins\nzwei\ndrei\n\nfünf\nsechs")
    assert read(Parallel(train=["a.en", "a.de"])) == (
        [Pair("one", "eins"), Pair("six", "sechs")],
        ["3 × is empty: a.en, line 2; a.de, line 4; a.en, line 5", "1 × is not UTF-8: a.en, line 3 (byte 3 is 0xfc)"],
    )
    for sources, targets in [(3, 2), (2, 3), (1, 5), (2000, 1)]:
        write("a.en", "x\n" * sources)
        write("a.de", "y\n" * targets)
        with pytest.raises(DataError, match=f"a.en has {sources:,} lines, a.de has {targets:,} lines"):
            read(Parallel(train=["a.en", "a.de"]))


def test_parallel_tsv() -> None:
    write("a.tsv", 'one\teins\t"1\ntwo\n\tzwei\t\nthree\tdrei\tx\n')
    assert read(ParallelTsv(train=["a.tsv"])) == (
        [Pair("one", "eins"), Pair("three", "drei")],
        [
            "1 × does not have 3 columns, as the first line has: a.tsv, line 2 (it has 1)",
            "1 × has an empty source: a.tsv, line 3",
        ],
    )
    with pytest.raises(DataError, match=r"a\.tsv has no column 4; its first line has 3"):
        read(ParallelTsv(train=["a.tsv"], target=4))
    write("a.tsv", "de\tid\ten\neins\t1\tone\n")
    settings = ParallelTsv(train=["a.tsv"], header=True, source="en", target="de")
    assert read(settings) == ([Pair("one", "eins")], [])
    with pytest.raises(DataError, match=r"no column ne \(did you mean en\?\)"):
        read(settings.changed({"source": "ne"}))


def test_parallel_jsonl() -> None:
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
    assert [problem.split(" (")[0] for problem in problems] == [
        "1 × has no key translation.de: a.jsonl, line 2",
        "1 × has no text at translation.de: a.jsonl, line 3",
        "1 × has an empty source: a.jsonl, line 4",
        "1 × is not a JSON object: a.jsonl, line 5",
        "1 × has no key translation.en: a.jsonl, line 6",
        "1 × is not JSON: a.jsonl, line 8",
        "1 × contains a lone surrogate: a.jsonl, line 9",
    ]


def test_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    write("a.txt", b"one\ntwo\n\n \nthr\xffee\nfour\r\nfive")
    problems = ["1 × is not UTF-8: a.txt, line 5 (byte 4 is 0xff)"]
    expected = {
        "line": [Text("one"), Text("two"), Text("four"), Text("five")],
        "paragraph": [Text("one\ntwo\n"), Text("four\nfive\n")],
        "file": [Text("one\ntwo\n\n \nfour\nfive\n")],
    }
    for document, texts in expected.items():
        assert read(RawText(train=["a.txt"]).changed({"document": document})) == (texts, problems)
    monkeypatch.setattr(readers, "PIECE", 8)  # a long file comes in pieces
    write("a.txt", "first\nsecond\nthird\n\nlast\n")
    write("b.txt", "other\n")
    examples, _ = read(RawText(train=["a.txt", "b.txt"], document="file"))
    assert examples == [Text("first\nsecond\n", ends=False), Text("third\n\nlast\n"), Text("other\n")]
    assert read(RawText(train=["a.txt"], document="paragraph"))[0][0] == Text("first\nsecond\nthird\n")
    write("a.jsonl", '{"body": "one\\n\\ntwo"}\n{"text": "x"}\n')
    assert read(RawJsonl(train=["a.jsonl"], text="body")) == (
        [Text("one\n\ntwo")],
        ["1 × has no key body: a.jsonl, line 2"],
    )


def test_labelled_tsv() -> None:
    # CoLA's columns: source, label, the author's mark, text
    write("a.tsv", 'gj04\t1\t\tThe "sailors" rode.\ngj04\t0\t*\tThey rode "home.\ngj04\t\t\tNo label.\n')
    assert read(LabelledTsv(train=["a.tsv"], text=4, label=2)) == (
        [Labelled('The "sailors" rode.', None, "1"), Labelled('They rode "home.', None, "0")],
        ["1 × has an empty label: a.tsv, line 3"],
    )
    # MRPC's: a header with a byte order mark, Windows line ends, two texts
    write("a.tsv", b"\xef\xbb\xbfQuality\t#1 ID\t#1 String\t#2 String\r\n1\t7\tone\tuno\r\n0\t8\ttwo\r\n")
    settings = LabelledTsv(train=["a.tsv"], header=True, text="#1 String", second="#2 String", label="Quality")
    problems = ["1 × does not have 4 columns, as the first line has: a.tsv, line 3 (it has 3)"]
    assert read(settings) == ([Labelled("one", "uno", "1")], problems)
    write("b.tsv", "Sentence\tLabel\none\t1\nlabel\tlabel\n")
    header = ["1 × looks like a header; set data.header = true: b.tsv, line 1"]
    labelled = [Labelled("one", None, "1"), Labelled("label", None, "label")]
    assert read(LabelledTsv(train=["b.tsv"])) == (labelled, header)
    assert read(LabelledTsv(train=["b.tsv"], header=True)) == (labelled, [])
    with pytest.raises(SettingsError, match="second and label are both column 2"):
        LabelledTsv(train=["a.tsv"], second=2)  # the default of label is 2
    assert LabelledTsv(train=["a.tsv"], second=2, labels="absent").second == 2
    absent = LabelledTsv(train=["a.tsv"], header=True, text="#1 String", label="none of them", labels="absent")
    assert read(absent) == ([Labelled("one", None, None)], problems)


def test_parallel_csv() -> None:
    write("a.csv", 'id,en,de\n1,"a, b","ein ""B"""\n2,"two\nlines",zwei\n3,only\n4,,leer\n')
    settings = ParallelCsv(train=["a.csv"], header=True, source="en", target="de")
    assert read(settings) == (
        [Pair("a, b", 'ein "B"'), Pair("two\nlines", "zwei")],
        [
            "1 × does not have 3 columns, as the first line has: a.csv, line 5 (it has 2)",
            "1 × has an empty source: a.csv, line 6",
        ],
    )
    write("a.csv", "one;eins\n")
    assert read(ParallelCsv(train=["a.csv"], separator=";"))[0] == [Pair("one", "eins")]


def test_labelled_csv() -> None:
    # STS-B's: a quoted field may hold commas, quotes and line ends
    write("a.csv", '"A, b","say ""hi""",5.0\nline,"over\ntwo lines",2\nx,y,much\nx,y,nan\n\nx,y\n')
    settings = LabelledCsv(train=["a.csv"], text=1, second=2, label=3, labels="numbers")
    assert read(settings) == (
        [Labelled("A, b", 'say "hi"', 5.0), Labelled("line", "over\ntwo lines", 2.0)],
        [
            "2 × has a label that is not a number: a.csv, line 4 ('much'); a.csv, line 5 ('nan')",
            "1 × does not have 3 columns, as the first line has: a.csv, line 7 (it has 2)",
        ],
    )
    write("a.csv", b'one;1\ngr\xfcn;2\n"three" x;3\nfour;4\n')
    examples, problems = read(LabelledCsv(train=["a.csv"], separator=";"))
    assert examples == [Labelled("one", None, "1"), Labelled("four", None, "4")]
    assert [problem.split(" (")[0] for problem in problems] == [
        "1 × is not UTF-8: a.csv, line 2",
        "1 × is not CSV: a.csv, line 3",
    ]


def test_labelled_jsonl() -> None:
    rows = ['"text": "one", "label": 1', '"text": "two", "label": "b"', '"text": "three", "label": true']
    rows += ['"text": "four", "label": [1]', '"text": "five"', '"label": 1', f'"label": {"9" * 5000}']
    write("a.jsonl", "".join(f"{{{row}}}\n" for row in rows))
    with pytest.raises(ValueError, match="digits") as caught:
        int("9" * 5000)
    too_long = str(caught.value)
    assert read(LabelledJsonl(train=["a.jsonl"])) == (
        [Labelled("one", None, "1"), Labelled("two", None, "b"), Labelled("three", None, "true")],
        [
            "1 × has a label that is not the name of a class: a.jsonl, line 4 ([1])",
            "1 × has no key label: a.jsonl, line 5",
            "1 × has no key text: a.jsonl, line 6",
            f"1 × is not JSON: a.jsonl, line 7 ({too_long})",
        ],
    )


CONLL = """\
-DOCSTART- -X- -X- O

EU NNP I-NP I-ORG
rejects VBZ I-VP O
German JJ I-NP I-MISC

Peter NNP I-NP I-PER
Blackburn NNP I-NP I-PER


-DOCSTART- -X- -X- O
BRUSSELS NNP I-NP I-LOC
"""


def test_conll() -> None:
    write("a.txt", CONLL)
    source = Source(Columns(train=["a.txt"]), "train")
    assert list(source) == [
        Tagged(("EU", "rejects", "German"), ("I-ORG", "O", "I-MISC")),
        Tagged(("Peter", "Blackburn"), ("I-PER", "I-PER")),
        Tagged(("BRUSSELS",), ("I-LOC",)),
    ]
    assert [located.number for located in source.located()] == [3, 7, 12]
    assert read(Columns(train=["a.txt"], tag=2))[0][1].tags == ("NNP", "NNP")
    assert read(Columns(train=["a.txt"], scheme="iob1"))[0][1].tags == ("B-PER", "I-PER")
    # Ramshaw and Marcus 1995: in IOB1, B- occurs only where an entity follows another one of its kind.
    iob1 = "I-PER I-PER O I-LOC I-PER B-PER I-PER I-LOC O B-PER"
    assert " ".join(begin_entities(iob1.split())) == "B-PER I-PER O B-LOC B-PER B-PER I-PER B-LOC O B-PER"
    assert read(Columns(train=["a.txt"], document_mark=""))[0][0].words == ("-DOCSTART-",)
    write("a.txt", "New York\tB-LOC\nis\tO\n")
    assert read(Columns(train=["a.txt"], separator="tab"))[0] == [Tagged(("New York", "is"), ("B-LOC", "O"))]


def test_a_bad_line_spoils_its_sentence_only() -> None:
    write("a.txt", b"a X O\nb O\nc\n\nd X O\n\nK\xf6ln X O\ne X O\n\nf X O\n")
    assert read(Columns(train=["a.txt"])) == (
        [Tagged(("d",), ("O",)), Tagged(("f",), ("O",))],
        [
            "1 × does not have 3 columns, as the first line has: a.txt, line 2 (it has 2)",
            "1 × is not UTF-8: a.txt, line 7 (byte 2 is 0xf6)",
        ],
    )
    write("a.txt", "\nword\n")
    for settings in (Columns(train=["a.txt"]), Columns(train=["a.txt"], tag=4)):
        with pytest.raises(DataError, match=r"line 2 has 1 columns.*data\.tag"):
            read(settings)


def test_slots() -> None:
    Path("a").mkdir()
    write("a/seq.in", b"play jazz\ngo \na b\n\nx\xff\nd\n")
    write("a/seq.out", "O B-genre \nO\nO\nO\nO\nO\n")
    write("a/label", "Play\nGo\nx\ny\nz\n\n")
    examples, problems = read(Slots(train=["a"]))
    assert examples == [Tagged(("play", "jazz"), ("O", "B-genre"), "Play"), Tagged(("go",), ("O",), "Go")]
    assert [problem.replace("\\", "/") for problem in problems] == [
        "1 × has different numbers of words and tags: a/seq.in, line 3 (2 words, 1 tags)",
        "2 × is empty: a/seq.in, line 4; a/label, line 6",
        "1 × is not UTF-8: a/seq.in, line 5 (byte 2 is 0xff)",
    ]
    write("a/label", "x\n")
    with pytest.raises(DataError, match="has 1 lines; line n"):
        read(Slots(train=["a"]))


CONTEXT = "Ada was born in 1815."


def squad(*questions: dict[str, Any], context: Any = CONTEXT) -> None:
    data = {"version": "1.1", "data": [{"title": "t", "paragraphs": [{"context": context, "qas": list(questions)}]}]}
    write("a.json", json.dumps(data))


def asked(name: str, *answers: tuple[str, int]) -> dict[str, Any]:
    found = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": name, "question": "When?", "answers": found}


def test_questions() -> None:
    nothing = {"id": "q5", "question": " ", "answers": []}
    squad(
        asked("q1", ("1815", 16), ("in 1815", 13), ("1815", 16)),
        asked("q2") | {"is_impossible": True},
        asked("q3", ("1815", 15)),
        asked("q4", ("", 0)),
        nothing,
        asked("q6") | {"question": "When\ud83d?"},
    )
    assert read(Squad(train=["a.json"])) == (
        [
            Question("q1", "When?", CONTEXT, (Answer("1815", 16), Answer("in 1815", 13))),
            Question("q2", "When?", CONTEXT, ()),
        ],
        [
            "1 × has an answer that is not in its context: a.json, question 3 (q3: 1815)",
            "1 × has an answer without text and answer_start: a.json, question 4 (q4)",
            "1 × has no question: a.json, question 5 (q5)",
            "1 × contains a lone surrogate: a.json, question 6 (q6: question)",
        ],
    )
    squad(asked("q1"), context=None)
    with pytest.raises(DataError, match=r"a\.json, question 1 has no context \(q1\).*data\.bad"):
        read(Squad(train=["a.json"], bad="stop"))


def test_files_that_are_not_squad() -> None:
    for text, message in [
        (b"{", "is not JSON"),
        (b"[]", "SQuAD's format"),
        (b'{"data": [{"paragraphs": [3]}]}', "SQuAD's format"),
        (b'{"data": [{"paragraphs": [{"context": "x"}]}]}', "SQuAD's format"),
        (b'{"data": [{"paragraphs": [{"context": "x", "qas": [1]}]}]}', "SQuAD's format"),
        (b'{"data": "\xff"}', "utf-8.*position 10"),
    ]:
        write("a.json", text)
        with pytest.raises(DataError, match=message):
            read(Squad(train=["a.json"]))
