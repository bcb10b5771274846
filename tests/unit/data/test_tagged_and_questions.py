"""CoNLL's columns, slot files and SQuAD's JSON: what is read, and every bad entry by its reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from regard.data.examples import Answer, Question, Tagged
from regard.data.settings import Columns, DataSettings, Slots, Squad
from regard.data.sources import Source
from regard.data.tagged import begin_entities
from regard.errors import DataError


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def read(settings: DataSettings) -> tuple[list[Any], list[str]]:
    source = Source(settings, "train")
    return list(source), source.problems.text().splitlines()


def refused(settings: DataSettings) -> str:
    with pytest.raises(DataError) as caught:
        list(Source(settings, "train"))
    return str(caught.value)


# ------------------------------------------------------------------------------------------------------------ columns

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


def test_conll_sentences() -> None:
    Path("a.txt").write_text(CONLL, encoding="utf-8")
    source = Source(Columns(train=["a.txt"]), "train")
    assert list(source) == [
        Tagged(("EU", "rejects", "German"), ("I-ORG", "O", "I-MISC")),
        Tagged(("Peter", "Blackburn"), ("I-PER", "I-PER")),
        Tagged(("BRUSSELS",), ("I-LOC",)),
    ]
    assert [placed.number for placed in source.placed()] == [3, 7, 12]
    assert read(Columns(train=["a.txt"], tag=2))[0][1].tags == ("NNP", "NNP")
    assert read(Columns(train=["a.txt"], scheme="iob1"))[0][1].tags == ("B-PER", "I-PER")


def test_a_document_mark_may_be_a_word() -> None:
    Path("a.txt").write_text(CONLL, encoding="utf-8")
    examples, _ = read(Columns(train=["a.txt"], document_mark=""))
    assert examples[0].words == ("-DOCSTART-",)


@pytest.mark.parametrize(
    ("iob1", "iob2"),
    [
        ("I-PER I-PER O I-LOC", "B-PER I-PER O B-LOC"),
        ("I-PER B-PER I-PER", "B-PER B-PER I-PER"),
        ("I-PER I-LOC I-LOC", "B-PER B-LOC I-LOC"),
        ("O O", "O O"),
        ("B-PER I-PER O B-PER", "B-PER I-PER O B-PER"),
    ],
)
def test_every_entity_begins_with_b(iob1: str, iob2: str) -> None:
    """Ramshaw and Marcus 1995: in IOB1, B- stands only where an entity follows another one of its kind."""
    assert begin_entities(iob1.split()) == iob2.split()
    assert begin_entities(iob2.split()) == iob2.split()


def test_a_bad_line_spoils_its_sentence_only() -> None:
    Path("a.txt").write_bytes(b"a X O\nb O\nc\n\nd X O\n\nK\xf6ln X O\ne X O\n\nf X O\n")
    assert read(Columns(train=["a.txt"])) == (
        [Tagged(("d",), ("O",)), Tagged(("f",), ("O",))],
        [
            "1 × has not 3 columns as the first has: a.txt, line 2 (it has 2)",
            "1 × is not UTF-8: a.txt, line 7 (byte 2 is 0xf6)",
        ],
    )


def test_tabs_let_words_hold_spaces() -> None:
    Path("a.txt").write_text("New York\tB-LOC\nis\tO\n", encoding="utf-8")
    assert read(Columns(train=["a.txt"], separator="tab"))[0] == [Tagged(("New York", "is"), ("B-LOC", "O"))]


def test_columns_that_are_not_there() -> None:
    Path("a.txt").write_text("\nword\n", encoding="utf-8")
    expected = "a.txt, line 2 has 1 columns, but data.tag is column {}; choose another, or another data.separator"
    assert refused(Columns(train=["a.txt"])) == expected.format(2)
    assert refused(Columns(train=["a.txt"], tag=4)) == expected.format(4)


# -------------------------------------------------------------------------------------------------------------- slots


def slots(words: str | bytes, tags: str, labels: str) -> None:
    Path("a").mkdir()
    Path("a/seq.in").write_bytes(words if isinstance(words, bytes) else words.encode())
    Path("a/seq.out").write_text(tags, encoding="utf-8")
    Path("a/label").write_text(labels, encoding="utf-8")


def test_slots() -> None:
    slots("play jazz\ngo \n", "O B-genre \nO\n", "Play\nGo\n")
    assert read(Slots(train=["a"])) == (
        [Tagged(("play", "jazz"), ("O", "B-genre"), "Play"), Tagged(("go",), ("O",), "Go")],
        [],
    )


def test_slots_of_unequal_length() -> None:
    slots("a\nb\n", "O\nO\nO\n", "x\n")
    assert refused(Slots(train=["a"])) == (
        "a: seq.in has 2 lines, seq.out has 3 lines, label has 1 lines; each needs one line for each sentence"
    )


def test_bad_slots() -> None:
    slots(b"a b\n\nx\xff\nd\ne\n", "O\nO\nO\nO\nO\n", "x\ny\nz\n\nw\n")
    examples, problems = read(Slots(train=["a"]))
    assert examples == [Tagged(("e",), ("O",), "w")]
    assert [problem.replace("\\", "/") for problem in problems] == [
        "1 × has not as many words as tags: a/seq.in, line 1 (2 and 1)",
        "2 × is empty: a/seq.in, line 2; a/label, line 4",
        "1 × is not UTF-8: a/seq.in, line 3 (byte 2 is 0xff)",
    ]


def test_slots_are_folders() -> None:
    assert refused(Slots(train=["-"])) == (
        "slots are folders of three files and cannot come from standard input; name the folder"
    )


# ---------------------------------------------------------------------------------------------------------- questions


def squad(*questions: dict[str, Any], context: Any = "Ada was born in 1815.") -> None:
    data = {"version": "1.1", "data": [{"title": "t", "paragraphs": [{"context": context, "qas": list(questions)}]}]}
    Path("a.json").write_text(json.dumps(data), encoding="utf-8")


def asked(name: str, *answers: tuple[str, int]) -> dict[str, Any]:
    found = [{"text": text, "answer_start": start} for text, start in answers]
    return {"id": name, "question": "When?", "answers": found}


def test_questions() -> None:
    squad(asked("q1", ("1815", 16), ("in 1815", 13), ("1815", 16)), asked("q2") | {"is_impossible": True})
    context = "Ada was born in 1815."
    assert read(Squad(train=["a.json"])) == (
        [
            Question("q1", "When?", context, (Answer("1815", 16), Answer("in 1815", 13))),
            Question("q2", "When?", context, ()),
        ],
        [],
    )


def test_bad_questions() -> None:
    nothing = {"id": "q4", "question": " ", "answers": []}
    squad(asked("q1", ("1815", 15)), asked("q2", ("", 0)), asked("q3", ("Ada", 0)), nothing)
    examples, problems = read(Squad(train=["a.json"]))
    assert [example.id for example in examples] == ["q3"]
    assert problems == [
        "1 × has an answer that is not in its context: a.json, question 1 (q1: 1815)",
        "1 × has an answer without text and answer_start: a.json, question 2 (q2)",
        "1 × has no question: a.json, question 4 (q4)",
    ]


def test_a_question_without_its_context() -> None:
    squad(asked("q1"), context=None)
    assert refused(Squad(train=["a.json"], bad="stop")) == (
        'a.json, question 1 has no context (q1); mend it, or set data.bad = "skip" to pass over such examples'
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "a.json is not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1); give"),
        ("[]", "a.json is JSON, but not SQuAD's: it needs data, a list of articles with paragraphs"),
        ('{"data": [{"paragraphs": [3]}]}', "a.json is JSON, but not SQuAD's"),
        ('{"data": [{"paragraphs": [{"context": "x"}]}]}', "a.json is JSON, but not SQuAD's"),
    ],
)
def test_json_of_another_kind(text: str, expected: str) -> None:
    Path("a.json").write_text(text, encoding="utf-8")
    assert refused(Squad(train=["a.json"])).startswith(expected)


def test_json_that_is_not_utf_8() -> None:
    Path("a.json").write_bytes(b'{"data": "\xff"}')
    assert refused(Squad(train=["a.json"])) == "a.json is not UTF-8 (byte 11); save it as UTF-8"
