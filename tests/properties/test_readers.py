"""Every format gives back exactly what was written, for every compression, line end and block size."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.data import readers
from regard.data.examples import Labelled, Pair, Problem, Text
from regard.data.readers import read_lines
from regard.data.settings import DataSettings, LabelledCsv, Parallel, ParallelJsonl, RawText
from regard.data.source import Source

PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "plain": lambda data: data,
    "gzip": gzip.compress,
    "xz": lzma.compress,
    "bzip2": bz2.compress,
}
ENDS = ["\n", "\r\n"]


def texts(without: str) -> st.SearchStrategy[str]:
    """Any text that a line can hold: all of Unicode but what the format itself uses; a last \\r belongs to the end."""
    signs = st.characters(exclude_categories=("Cs",), exclude_characters=f"\0{without}")
    return st.text(signs, min_size=1, max_size=12).filter(
        lambda text: bool(text.strip()) and not text.endswith("\r") and not text.startswith("\ufeff")
    )


packers = st.sampled_from(sorted(PACKERS))
ends = st.sampled_from(ENDS)
blocks = st.sampled_from([1, 2, 7, 64, 1 << 20])
pairs = st.lists(st.builds(Pair, texts("\n\t"), texts("\n\t"), st.none()), min_size=1, max_size=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sources")


def write(file: Path, rows: list[str], packer: str, end: str, last: bool) -> str:
    """`last`: whether the last line has an end too."""
    file.write_bytes(PACKERS[packer]((end.join(rows) + (end if last else "")).encode()))
    return str(file)


def read(settings: DataSettings, block: int = readers.BLOCK) -> list[object]:
    with patch.object(readers, "BLOCK", block):
        source = Source(settings, "train")
        found: list[object] = list(source)
    assert not source.problems
    return found


@given(pairs, packers, packers, ends, st.booleans(), blocks)
def test_two_files(folder: Path, pairs: list[Pair], first: str, second: str, end: str, last: bool, block: int) -> None:
    source = write(folder / "a", [pair.source for pair in pairs], first, end, last)
    target = write(folder / "b", [pair.target for pair in pairs], second, "\n", True)
    assert read(Parallel(train=(source, target)), block) == pairs


@given(st.lists(st.builds(Pair, texts(""), texts(""), st.none()), min_size=1, max_size=8), packers, ends, st.booleans())
def test_jsonl_holds_line_ends_too(folder: Path, pairs: list[Pair], packer: str, end: str, escaped: bool) -> None:
    rows = [json.dumps({"source": pair.source, "target": pair.target}, ensure_ascii=escaped) for pair in pairs]
    file = write(folder / "a", rows, packer, end, True)
    assert read(ParallelJsonl(train=(file,))) == pairs


@given(st.lists(st.tuples(texts(""), texts("")), min_size=1, max_size=8), packers)
def test_csv_holds_line_ends_too(folder: Path, rows: list[tuple[str, str]], packer: str) -> None:
    written = io.StringIO(newline="")
    csv.writer(written, quoting=csv.QUOTE_ALL).writerows([*rows])
    (folder / "a").write_bytes(PACKERS[packer](written.getvalue().encode()))
    found = read(LabelledCsv(train=(str(folder / "a"),)))
    assert found == [Labelled(text, None, label.strip()) for text, label in rows]


@given(st.lists(texts("\n"), min_size=1, max_size=8), packers, ends, blocks)
def test_raw_text_by_lines_and_as_a_file(folder: Path, rows: list[str], packer: str, end: str, block: int) -> None:
    file = write(folder / "a", rows, packer, end, True)
    assert read(RawText(train=(file,)), block) == [Text(row) for row in rows]
    pieces = read(RawText(train=(file,), document="file"), block)
    assert "".join(piece.text for piece in pieces if isinstance(piece, Text)) == "".join(f"{row}\n" for row in rows)


@given(st.binary(max_size=60), blocks)
def test_any_bytes_give_the_lines_that_python_finds(folder: Path, data: bytes, block: int) -> None:
    """Held against bytes.split, with text before and after so that the file is neither empty nor binary."""
    data = data.replace(b"\0", b"")
    (folder / "a").write_bytes(b"first\n" + data + b"\nlast")
    with patch.object(readers, "BLOCK", block):
        found = list(read_lines(str(folder / "a")))
    expected = [line.removesuffix(b"\r") for line in (b"first\n" + data + b"\nlast").split(b"\n")]
    assert len(found) == len(expected)
    for line, raw in zip(found, expected, strict=True):
        if isinstance(line, Problem):
            with pytest.raises(UnicodeDecodeError):
                raw.decode()
        else:
            assert line == raw.decode()
