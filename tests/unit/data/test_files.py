"""Files are opened by their content, and a file that cannot be used says so in one sentence."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from regard.data.files import full_name, open_bytes, open_text
from regard.data.lines import read_lines
from regard.errors import DataError, RegardError

TEXT = "Grüße aus Köln\nzwei\n"
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "plain": lambda data: data,
    "gzip": gzip.compress,
    "xz": lzma.compress,
    "bzip2": bz2.compress,
}


def message(action: Callable[[], object]) -> str:
    with pytest.raises(DataError) as caught:
        action()
    return str(caught.value)


def lines(file: Path | str) -> list[object]:
    return list(read_lines(str(file)))


def test_a_data_error_is_a_value_error_of_ours() -> None:
    assert issubclass(DataError, RegardError)
    assert issubclass(DataError, ValueError)


@pytest.mark.parametrize("packer", PACKERS)
@pytest.mark.parametrize("name", ["a.txt", "a.gz", "a.xz"])
def test_the_content_decides_and_not_the_name(tmp_path: Path, packer: str, name: str) -> None:
    file = tmp_path / name
    file.write_bytes(PACKERS[packer](TEXT.encode()))
    assert lines(file) == ["Grüße aus Köln", "zwei"]


def test_gzip_of_several_members_is_read_to_its_end(tmp_path: Path) -> None:
    file = tmp_path / "a.gz"
    file.write_bytes(gzip.compress(b"one\n") + gzip.compress(b"two\n"))
    assert lines(file) == ["one", "two"]


@pytest.mark.parametrize("packer", PACKERS)
def test_a_byte_order_mark_is_no_text(tmp_path: Path, packer: str) -> None:
    file = tmp_path / "a"
    file.write_bytes(PACKERS[packer](b"\xef\xbb\xbfone\n"))
    assert lines(file) == ["one"]


# ------------------------------------------------------------------------------------------------------ standard input


class Stdin:
    def __init__(self, buffer: io.BufferedIOBase) -> None:
        self.buffer = buffer


@pytest.mark.parametrize("packer", PACKERS)
@pytest.mark.parametrize("buffered", [True, False])
def test_standard_input(packer: str, buffered: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO(PACKERS[packer](TEXT.encode()))
    stdin = Stdin(io.BufferedReader(raw) if buffered else raw)  # type: ignore[arg-type]
    monkeypatch.setattr(sys, "stdin", stdin)
    assert lines("-") == ["Grüße aus Köln", "zwei"]
    assert not stdin.buffer.closed


def test_standard_input_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin(io.BytesIO(b"a\n")))
    lines("-")
    assert message(lambda: lines("-")) == "standard input is empty, or was read before; give a file with data"


def test_the_root_is_put_before_names() -> None:
    assert full_name("data", "a.txt") == str(Path("data/a.txt"))
    assert full_name("data", "/b/a.txt") == str(Path("/b/a.txt"))
    assert full_name("data", "-") == "-"


# --------------------------------------------------------------------------------------------------------- bad files


def test_an_empty_file(tmp_path: Path) -> None:
    file = tmp_path / "empty.txt"
    file.touch()
    assert message(lambda: lines(file)) == f"{file} is empty; give a file with data"


def test_a_compressed_file_with_nothing_inside(tmp_path: Path) -> None:
    file = tmp_path / "empty.gz"
    file.write_bytes(gzip.compress(b""))
    assert message(lambda: lines(file)) == f"{file} is empty once decompressed; give a file with data"


def test_a_binary_file(tmp_path: Path) -> None:
    file = tmp_path / "image.png"
    file.write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")
    expected = f"{file} is a binary file (byte 8 is zero), not text; give UTF-8 text"
    assert message(lambda: lines(file)) == expected


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_a_file_in_utf_16(tmp_path: Path, encoding: str) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(("\ufeff" + TEXT).encode(encoding))
    assert message(lambda: lines(file)) == f"{file} is UTF-16 text; save it as UTF-8: iconv -f UTF-16 -t UTF-8"


def test_a_missing_file(tmp_path: Path) -> None:
    file = tmp_path / "none.txt"
    told = f"{file} does not exist; check the name (in a recipe data.root stands before it)"
    assert message(lambda: lines(file)) == told


def test_a_folder_in_place_of_a_file(tmp_path: Path) -> None:
    text = message(lambda: lines(tmp_path))
    assert text.startswith(f"{tmp_path} cannot be read: ")


@pytest.mark.parametrize("packer", ["gzip", "xz", "bzip2"])
@pytest.mark.parametrize("damage", ["cut", "changed"])
def test_a_damaged_file(tmp_path: Path, packer: str, damage: str) -> None:
    file = tmp_path / "a"
    data = bytearray(PACKERS[packer](bytes(range(1, 256)) * 100))
    if damage == "cut":
        data = data[: len(data) // 2]
    else:
        data[len(data) // 2] ^= 0xFF
        data[-6] ^= 0xFF
    file.write_bytes(data)

    def read() -> None:
        with open_bytes(str(file)) as stream:
            stream.read()

    text = message(read)
    assert text.startswith(f"{file} is compressed, but damaged or cut short (")
    assert text.endswith("); fetch it again")


def test_text_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"text\0")
    with pytest.raises(DataError, match="binary"), open_text(str(file)):
        pass
