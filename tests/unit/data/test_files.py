"""Opening files by their content, and reading lines as `wc -l` counts them."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from regard.data import readers
from regard.data.examples import Problem
from regard.data.readers import open_bytes, open_text, read_lines, require_there
from regard.errors import DataError, RegardError

TEXT = "Grüße aus Köln\nzwei\n"
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "plain": lambda data: data,
    "gzip": gzip.compress,
    "xz": lzma.compress,
    "bzip2": bz2.compress,
}


def lines(file: Path | str) -> list[object]:
    return list(read_lines(str(file)))


def test_the_content_decides_and_not_the_name(tmp_path: Path) -> None:
    for pack in PACKERS.values():
        for name in ("a.txt", "a.gz", "a.xz"):
            (tmp_path / name).write_bytes(pack(TEXT.encode()))
            assert lines(tmp_path / name) == ["Grüße aus Köln", "zwei"]
        (tmp_path / "mark").write_bytes(pack(b"\xef\xbb\xbfone\n"))
        assert lines(tmp_path / "mark") == ["one"]
    (tmp_path / "members").write_bytes(gzip.compress(b"one\n") + gzip.compress(b"two\n"))
    assert lines(tmp_path / "members") == ["one", "two"]


# ------------------------------------------------------------------------------------------------------ standard input


class Stdin:
    def __init__(self, buffer: io.BufferedIOBase) -> None:
        self.buffer = buffer


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    for pack in PACKERS.values():
        for buffered in (True, False):
            raw = io.BytesIO(pack(TEXT.encode()))
            stdin = Stdin(io.BufferedReader(raw) if buffered else raw)  # type: ignore[arg-type]
            monkeypatch.setattr(sys, "stdin", stdin)
            assert lines("-") == ["Grüße aus Köln", "zwei"]
            assert not stdin.buffer.closed
    with pytest.raises(DataError, match="standard input is empty or was already read"):
        lines("-")
    require_there(["-"])


# --------------------------------------------------------------------------------------------------------- bad files


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    assert issubclass(DataError, RegardError)
    assert issubclass(DataError, ValueError)
    for content, message in [
        (b"", "is empty"),
        (gzip.compress(b""), "is empty after decompression"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "byte 8 is zero"),
        (("\ufeff" + TEXT).encode("utf-16-le"), "UTF-16"),
        (("\ufeff" + TEXT).encode("utf-16-be"), "UTF-16"),
    ]:
        (tmp_path / "a").write_bytes(content)
        with pytest.raises(DataError, match=message) as caught:
            lines(tmp_path / "a")
        assert str(tmp_path / "a") in str(caught.value)
    with pytest.raises(DataError, match=r"does not exist.*data\.root"):
        lines(tmp_path / "none")
    with pytest.raises(DataError, match=r"does not exist.*data\.root"):
        require_there([str(tmp_path / "a"), str(tmp_path / "none")])
    with pytest.raises(DataError, match="cannot be read: "):
        lines(tmp_path)
    (tmp_path / "a").write_bytes(b"text\0")
    with pytest.raises(DataError, match="binary"), open_text(str(tmp_path / "a")):
        pass


def test_damaged_files(tmp_path: Path) -> None:
    file = tmp_path / "a"
    for name in ("gzip", "xz", "bzip2"):
        data = PACKERS[name](bytes(range(1, 256)) * 100)
        changed = bytearray(data)
        changed[len(data) // 2] ^= 0xFF
        changed[-6] ^= 0xFF
        for damaged in (data[: len(data) // 2], bytes(changed)):
            file.write_bytes(damaged)
            with pytest.raises(DataError, match="damaged or incomplete"), open_bytes(str(file)) as stream:
                stream.read()


# --------------------------------------------------------------------------------------------------------------- lines


@pytest.mark.parametrize("block", [3, 1 << 20])
def test_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(readers, "BLOCK", block)
    cases: list[tuple[bytes, list[object]]] = [
        (b"a", ["a"]),
        (b"a\n", ["a"]),
        (b"a\nb", ["a", "b"]),
        (b"\n", [""]),
        (b"\n\na\n\n", ["", "", "a", ""]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"a\r\nb", ["a", "b"]),
        ("längere Zeile\nß\n".encode(), ["längere Zeile", "ß"]),
        (b"one\ngr\xfc\xdfe\r\nthree\r\n", ["one", Problem("is not UTF-8", "byte 3 is 0xfc"), "three"]),
    ]
    for sign in ("\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\r"):
        cases.append((f"a{sign}b\nc\n".encode(), [f"a{sign}b", "c"]))
    for data, expected in cases:
        (tmp_path / "a").write_bytes(data)
        assert lines(tmp_path / "a") == expected, data


def test_a_zero_byte_far_into_the_file_is_a_bad_line(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"text\n" * 2000 + b"ze\0ro\nlast\n")
    assert lines(tmp_path / "a")[-3:] == ["text", Problem("holds a zero byte", "byte 3"), "last"]
    assert not Problem("is not UTF-8")
