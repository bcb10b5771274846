"""The report: every number against one counted by hand or by NumPy."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from regard.data.report import report_data
from regard.data.settings import LabelledTsv, Npz, Parallel, RawText


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(**files: str) -> None:
    for name, text in files.items():
        Path(name).write_text(text, encoding="utf-8")


def leak(later: str, side: str, count: int, share: float, first: list[int]) -> dict[str, object]:
    return {"earlier": "train", "later": later, "side": side, "count": count, "share": share, "first": first}


def test_pairs() -> None:
    write(
        a="the dog runs\nthe dog runs\nthe dog runs\na cat\n\n",
        b="der Hund läuft\nder Hund läuft\nes läuft\neine Katze\nleer\n",
        c="a cat\na bird flies\n",
        d="die Katze\nder Hund läuft\n",
    )
    found = report_data(Parallel(train=["a", "b"], valid=["c", "d"]))
    train, valid = found["splits"]["train"], found["splits"]["valid"]
    assert found["kind"] == "parallel"
    assert (train["examples"], valid["examples"]) == (4, 2)
    assert train["files"] == ("a", "b")
    assert train["skipped"]["is empty"]["first"] == ["a, line 5"]
    assert train["duplicates"] == {"source": 2, "target": 1, "whole": 1}
    assert train["lengths"]["source"] == {"total": 11, "mean": 2.75, "median": 3, "percentile_95": 3, "longest": 3}
    assert train["lengths"]["target"]["median"] == 2
    assert train["unknown"] == {}
    assert valid["unknown"] == {"source": 2 / 5, "target": 1 / 5}  # bird and flies; die
    assert found["leaks"] == [leak("valid", "source", 1, 0.5, [1]), leak("valid", "target", 1, 0.5, [2])]


def test_filters_and_labels() -> None:
    write(a="a\tx\na\tx\nb\ty\n")
    settings = LabelledTsv(train=["a"], valid=["a"]).changed({"filters.duplicates": True})
    found = report_data(settings)
    assert found["splits"]["train"]["removed"]["is a duplicate"]["count"] == 1
    assert found["splits"]["valid"]["duplicates"] == {"text": 1}
    assert found["splits"]["train"]["labels"] == {"label": {"x": 1, "y": 1}}
    assert found["leaks"] == [leak("valid", "text", 3, 1.0, [1, 2, 3])]
    write(a="a\t1\nb\t2.5\nc\t2.5\n")
    train = report_data(LabelledTsv(train=["a"], labels="numbers"))["splits"]["train"]
    assert (train["numbers"], train["labels"]) == ({"least": 1.0, "mean": 2.0, "most": 2.5}, {})


def test_raw_text_is_compared_by_lines_and_measured_by_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.data.readers.PIECE", 4)
    write(a="one two\nthree\n\none two\n", b="three\nfour\n")
    found = report_data(RawText(train=["a"], test=["b"], document="file"))
    train = found["splits"]["train"]
    assert train["examples"] == 1
    assert train["lengths"]["text"]["total"] == train["lengths"]["text"]["longest"] == 5
    assert train["duplicates"] == {"line": 1}
    assert found["leaks"] == [leak("test", "line", 1, 0.5, [1])]


def test_images() -> None:
    pixels = np.zeros((3, 2, 2), np.uint8)
    pixels[2] = 1
    np.savez("a.npz", images=pixels, labels=np.array([1, 1, 0]))
    np.savez("b.npz", images=np.zeros((1, 5, 4, 3), np.uint8), labels=np.array([7]))
    found = report_data(Npz(train=["a.npz", "b.npz"]))["splits"]["train"]
    assert found["sizes"] == {"2×2×1": 3, "5×4×3": 1}
    assert found["duplicates"] == {"pixels": 1}
    assert found["labels"] == {"label": {"1": 2, "0": 1, "7": 1}}
    assert found["lengths"] == {}


def test_progress_and_plain_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.data.report.EVERY", 2)
    write(a="a\nb\nc\nd\ne\n")
    calls: list[tuple[str, int]] = []
    settings = RawText(train=["a"], valid=["a"])
    found = report_data(settings, ["valid"], progress=lambda split, number: calls.append((split, number)))
    assert list(found["splits"]) == ["valid"]
    assert calls == [("valid", 2), ("valid", 4)]
    assert found["splits"]["valid"]["unknown"] == {}
    assert json.loads(json.dumps(found))["splits"]["valid"]["lengths"]["text"]["longest"] == 1
