"""Words, lines of standard input, lines of output."""

from __future__ import annotations

import contextlib
import io
import os
import string
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from run_cases import healthy_log, write_run
from safetensors.torch import save_file

from regard import build, preset
from regard.cli.app import main
from regard.cli.terminal import FIRST_BLOCK, read_input, require_server, split_words, text_lines, write_lines
from regard.errors import DataError, InputError, RunError, SettingsError
from regard.weights.directory import save_model


class Pipe:
    """Standard input as a pipe that a test writes to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        read, self.write_end = os.pipe()
        monkeypatch.setattr(sys, "stdin", os.fdopen(read))

    def write(self, data: bytes) -> None:
        os.write(self.write_end, data)

    def close(self) -> None:
        os.close(self.write_end)


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipe]:
    yield Pipe(monkeypatch)
    sys.stdin.close()


def test_lines_are_returned_as_they_come(pipe: Pipe) -> None:
    lines = read_input(1000)
    pipe.write(b"a\nb\r\nhalf")
    assert next(lines) == ["a", "b"]
    pipe.write(b" a line\n\n")
    assert next(lines) == ["half a line", ""]
    pipe.write("end ohne Zeilenende ä".encode())
    pipe.close()
    assert list(lines) == [["end ohne Zeilenende ä"]]


def test_many_lines_are_returned_in_order_and_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    given = [str(number) for number in range(20_000)]
    raw = "\ufeff" + "".join(f"{line}\n" for line in given)
    assert len(raw) > FIRST_BLOCK
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw.encode())))
    found = list(read_input(1000))
    assert [line for chunk in found for line in chunk] == given
    assert max(map(len, found)) <= 1000
    assert len(found) < 60


def test_a_line_that_is_not_utf8_comes_after_the_lines_before_it(pipe: Pipe, tmp_path: Path) -> None:
    raw = b"a\nb\n\xe4\nc\n"
    pipe.write(raw)
    pipe.close()
    (tmp_path / "in").write_bytes(raw)
    (tmp_path / "empty").touch()
    lines = read_input(1000)
    assert next(lines) == ["a", "b"]
    with pytest.raises(DataError, match=r"standard input: line 3 is not UTF-8 \(byte 1 is 0xe4\)"):
        next(lines)
    with pytest.raises(DataError, match="in: line 3 is not UTF-8"):
        list(text_lines(str(tmp_path / "in")))
    assert list(text_lines(str(tmp_path / "empty"))) == []
    (tmp_path / "zero").write_bytes(b"a\n" * 5_000 + b"b\0\n")
    with pytest.raises(DataError, match=r"line 5,001 holds a zero byte .*; correct it$"):  # iconv would keep it
        list(text_lines(str(tmp_path / "zero")))


def test_a_line_that_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.data.readers.LONGEST", 10_000)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\n" + b"b" * 50_000)))
    with pytest.raises(DataError, match="line 2 has more than 10,000 bytes"):
        list(read_input(1000))


def test_closed_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(DataError, match="standard input is closed"):
        list(read_input(1))


def test_a_file_is_replaced_when_it_is_complete(tmp_path: Path) -> None:
    def failing() -> Iterator[str]:
        yield "new"
        raise DataError("no")

    path = tmp_path / "out"
    path.write_text("old", encoding="utf-8")
    with pytest.raises(DataError):
        write_lines(failing(), path)
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]
    write_lines(["ä", "b"], path)
    assert path.read_bytes() == "ä\nb\n".encode()
    write_lines(["a"], Path(os.devnull))
    for wrong in (tmp_path, tmp_path / "no" / "out"):
        with pytest.raises(InputError, match=r"cannot be written.*choose another file"):
            write_lines(["a"], wrong)
    if Path("/dev/full").exists():
        with pytest.raises(InputError, match="No space left"):
            write_lines(["a"], Path("/dev/full"))


def test_standard_output_that_is_full_or_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", closed)
        with pytest.raises(BrokenPipeError):
            write_lines(["a"], None)
        os.dup2(os.open(os.devnull, os.O_WRONLY), closed.fileno())
    if Path("/dev/full").exists():
        with open("/dev/full", "w") as full, monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", full)
            with pytest.raises(InputError, match=r"standard output cannot be written: No space left.*elsewhere"):
                write_lines(["a"], None)


def test_names_and_overrides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a=b").touch()
    assert split_words(["x", "data.root=in", "a=b", "n=3"], "data.") == (["x", "a=b"], {"root": "in", "n": 3})
    with pytest.raises(SettingsError):
        split_words(["=5"])


def test_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.cli.terminal.find_spec", lambda name: None)
    with pytest.raises(RunError, match=r"regard look .*pip install 'regard\[serve\]'"):
        require_server("look")


HOSTILE = "a\x1b]0;title\x07\x1b[31mred\x9b2J\u202eb\r"


def test_control_characters_are_shown_as_escapes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In names of files, runs, tensors and labels, in excerpts and messages, as text and as JSON."""
    monkeypatch.chdir(tmp_path)
    for name in ("runs", "damaged"):
        write_run(tmp_path / name / HOSTILE, healthy_log())
    Path("damaged", HOSTILE, "config.toml").write_text(f"[{HOSTILE}", encoding="utf-8")
    Path("labelled.tsv").write_text(f"good\t{HOSTILE[:-1]}\nonly one column {HOSTILE}\nbad\tb\n", encoding="utf-8")
    Path(f"{HOSTILE}.toml").write_text(f"{HOSTILE} = 1", encoding="utf-8")
    save_model(build(preset("transformer-tiny", vocabulary=9)), "model")
    save_file({HOSTILE: torch.zeros(1)}, "model/weights.safetensors")
    Path("model/checksums.json").unlink()
    for words in (
        ["runs"],
        ["runs", "damaged"],
        ["runs", "--json"],
        ["runs", "runs", HOSTILE, HOSTILE],
        ["doctor", f"runs/{HOSTILE}"],
        ["doctor", HOSTILE],
        ["data", "labelled.tsv", "data.kind=labelled-tsv"],
        ["data", "labelled.tsv", "data.kind=labelled-tsv", "--json"],
        ["data", HOSTILE],
        ["count", HOSTILE],
        ["count", "transformer-tiny", f"{HOSTILE}=1"],
        ["train", f"{HOSTILE}.toml"],
        ["translate", HOSTILE, "a"],
        ["translate", "model", "a"],
        ["convert", "model", "out", "--to", "int8"],
        ["convert", HOSTILE, HOSTILE, "--to", "int8"],
        ["evaluate", HOSTILE],
        ["predict", HOSTILE, "a"],
        ["serve", HOSTILE],
        ["look", HOSTILE],
        [HOSTILE],
    ):
        monkeypatch.setattr(sys, "argv", ["regard", *words])
        with contextlib.suppress(SystemExit):
            main()
        found = "".join(capsys.readouterr())
        assert found
        assert not set(found) & set(HOSTILE) - set(string.printable[:95]), (words, found)


def test_long_words_are_refused_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    long, deep = "a" * 10_000, "[" * 5_000
    for words in (
        ["count", "transformer-tiny", f"{long}=1"],
        ["count", "transformer-tiny", f"width={deep}"],
        ["count", "transformer-tiny", f"width={'9' * 5_000}"],
        ["count", long],
        ["data", long],
        ["train", long],
        ["translate", long, "a"],
        ["evaluate", long],
        ["doctor", long],
        ["runs", long],
    ):
        monkeypatch.setattr(sys, "argv", ["regard", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        assert (capsys.readouterr().err or str(ended.value)).startswith("regard: ")


def test_a_terminal_gets_escapes_and_a_pipe_the_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for terminal, wanted in ((True, "a\\u001b[31m\tä\n"), (False, "a\x1b[31m\tä\n")):
        monkeypatch.setattr(sys.stdout, "isatty", lambda terminal=terminal: terminal)
        write_lines(["a\x1b[31m\tä"], None)
        assert capsys.readouterr().out == wanted
