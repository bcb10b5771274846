"""Lines are what `wc -l` counts; one that is no text does not spoil its neighbours."""

from __future__ import annotations

from pathlib import Path

import pytest

from regard.data import lines
from regard.data.lines import BadLine, count_rest, read_lines, read_numbered


@pytest.fixture(params=[3, 1 << 20])
def _block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "BLOCK", request.param)


def read(tmp_path: Path, data: bytes) -> list[object]:
    file = tmp_path / "a.txt"
    file.write_bytes(data)
    return list(read_lines(str(file)))


@pytest.mark.usefixtures("_block")
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"a", ["a"]),
        (b"a\n", ["a"]),
        (b"a\nb", ["a", "b"]),
        (b"\n", [""]),
        (b"\n\na\n\n", ["", "", "a", ""]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"a\r\nb", ["a", "b"]),
        (b"a\rb\n", ["a\rb"]),
        ("längere Zeile\nß\n".encode(), ["längere Zeile", "ß"]),
    ],
)
def test_lines(tmp_path: Path, data: bytes, expected: list[str]) -> None:
    assert read(tmp_path, data) == expected


@pytest.mark.usefixtures("_block")
@pytest.mark.parametrize("sign", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\r"])
def test_only_a_line_feed_ends_a_line(tmp_path: Path, sign: str) -> None:
    assert read(tmp_path, f"a{sign}b\nc\n".encode()) == [f"a{sign}b", "c"]


@pytest.mark.usefixtures("_block")
def test_a_line_that_is_not_utf_8(tmp_path: Path) -> None:
    assert read(tmp_path, b"one\ngr\xfc\xdfe\r\nthree\r\n") == [
        "one",
        BadLine("is not UTF-8", "byte 3 is 0xfc"),
        "three",
    ]


def test_a_zero_byte_far_into_the_file_is_a_bad_line(tmp_path: Path) -> None:
    found = read(tmp_path, b"text\n" * 2000 + b"ze\0ro\nlast\n")
    assert found[-3:] == ["text", BadLine("holds a zero byte", "byte 3"), "last"]


def test_a_bad_line_is_false() -> None:
    assert not BadLine("is not UTF-8", "")


def test_numbers_start_at_one_and_the_rest_is_counted(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("a\nb\nc\n", encoding="utf-8")
    assert list(read_numbered(str(file))) == [(1, "a"), (2, "b"), (3, "c")]
    rest = read_lines(str(file))
    next(rest)
    assert count_rest(rest) == 2
