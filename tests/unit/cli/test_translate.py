"""`regard translate`: lines in, lines out; files; JSON; what is wrong is told in one line."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from tiny_translator import write_translator
from typer.testing import CliRunner, Result

from regard.cli.app import app
from regard.cli.reading import require
from regard.errors import DataError, InputError, RegardError, SettingsError, WeightsError
from regard.use.model import load

pytestmark = pytest.mark.slow

LINES = "ein Hund läuft\n\n   \nund eine Katze"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_translator(tmp_path_factory.mktemp("model"), both=False)


def translate(place: Path | str, *arguments: str, given: str | bytes | None = None) -> Result:
    return CliRunner().invoke(app, ["translate", str(place), "--device", "cpu", *arguments], input=given)


def wrong(place: Path | str, *arguments: str, given: str | bytes | None = None) -> RegardError:
    error = translate(place, *arguments, given=given).exception
    assert isinstance(error, RegardError), error
    return error


@pytest.fixture(scope="module")
def expected(place: Path) -> list[str]:
    return [text.replace("\n", " ") for text in load(place, "cpu").translate(LINES.split("\n"))]


def test_lines_of_standard_input(place: Path, expected: list[str]) -> None:
    for given in (LINES, LINES + "\n", LINES.replace("\n", "\r\n"), "\ufeff" + LINES):
        result = translate(place, given=given)
        assert result.exit_code == 0, result.exception
        assert result.stdout == "".join(f"{line}\n" for line in expected)
    assert translate(place, "--ahead", "1", given=LINES).stdout == "".join(f"{line}\n" for line in expected)


def test_nothing_gives_nothing(place: Path, tmp_path: Path) -> None:
    assert translate(place, given="").stdout == ""
    (tmp_path / "empty").touch()
    assert translate(place, "--input", str(tmp_path / "empty")).stdout == ""


@pytest.mark.parametrize("odd", ["\x85", "\u2028", "\x0c", "\x1c", "\v", "\r"])
def test_only_a_line_feed_ends_a_line(place: Path, odd: str) -> None:
    result = translate(place, "--beam", "1", given=f"ein{odd}Hund\nund")
    assert result.stdout.count("\n") == 2


def test_texts_on_the_command_line(place: Path, expected: list[str]) -> None:
    result = translate(place, "ein Hund läuft", "und eine Katze")
    assert result.stdout == f"{expected[0]}\n{expected[3]}\n"


def test_files(place: Path, tmp_path: Path, expected: list[str]) -> None:
    source, output = tmp_path / "in.gz", tmp_path / "out"
    source.write_bytes(gzip.compress(LINES.encode()))
    result = translate(place, "--input", str(source), "--output", str(output))
    assert result.exit_code == 0
    assert result.stdout == ""
    assert output.read_text(encoding="utf-8").split("\n") == [*expected, ""]


def test_a_file_is_written_whole_or_not_at_all(place: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.write_text("old", encoding="utf-8")
    wrong(place, "--output", str(output), "--ahead", "1", given=b"ein\n\xff\n")
    assert output.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [output]
    told = str(wrong(place, "ein", "--output", str(tmp_path / "no" / "out")))
    assert told.endswith("cannot be written: No such file or directory; choose another file")


def test_json(place: Path) -> None:
    result = translate(place, "--json", "--nbest", "2", "--align", given=LINES)
    first, empty, *_ = map(json.loads, result.stdout.splitlines())
    model = load(place, "cpu")
    best, second = model.translate("ein Hund läuft", nbest=2)
    assert first["text"] == best.text
    assert first["score"] == pytest.approx(best.score, abs=1e-4)
    assert first["tokens"] == best.tokens
    assert [each["text"] for each in first["nbest"]] == [best.text, second.text]
    assert first["alignment"]["source"] == ["ein", "Hund", "läuft"]
    assert all(0 <= source < 3 for source, _ in first["alignment"]["pairs"])
    assert (empty["text"], empty["score"], empty["tokens"]) == ("", 0.0, [])
    plain = json.loads(translate(place, "--json", "ein").stdout)
    assert "nbest" not in plain
    assert "alignment" not in plain


def test_several_and_their_words_as_text(place: Path) -> None:
    result = translate(place, "--nbest", "2", "--align", "ein Hund", "und")
    lines = [
        line.split(" ||| ") for line in result.stdout.rstrip("\n").replace("\r", "").split("\n") if " ||| " in line
    ]
    assert [line[0] for line in lines if line[0].isdigit()] == ["0", "0", "1", "1"]
    assert all("-" in line[-1] or line[-1] == "" for line in lines)


def test_wishes(place: Path) -> None:
    assert translate(place, "--prefix", "the dog", "ein Hund").stdout.startswith("the dog")
    assert "snow" in translate(place, "--must", "snow", "--must", "the", "ein Hund").stdout
    drawn = [translate(place, "--temperature", "1.5", "--seed", seed, "ein Hund").stdout for seed in ("1", "1", "2")]
    assert drawn[0] == drawn[1] != drawn[2]
    assert translate(place, "--int8", "--no-keep", "--no-split", "--batch-tokens", "9", "ein").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (["--to", "fr", "ein"], InputError, r"language fr is not known to model .* which translates de to en; choose"),
        (["--from", "en", "ein"], InputError, r"from en to … is not for model"),
        (["--nbest", "9", "ein"], SettingsError, r"nbest \(9\) must be at most beam \(5\)"),
        (["--top-p", "2", "ein"], SettingsError, "sampling.top_p"),
        (["--input", "nowhere.txt"], DataError, "nowhere.txt does not exist"),
        (["ein", "--input", "x"], SettingsError, r"texts are given and a file of them \(--input x\) too; give one"),
    ],
)
def test_what_makes_no_sense(place: Path, arguments: list[str], kind: type[RegardError], message: str) -> None:
    with pytest.raises(kind, match=message):
        raise wrong(place, *arguments)


def test_models_that_are_not_there() -> None:
    with pytest.raises(WeightsError, match=r"model \(de-eng\) is not known \(did you mean de-en\?\)"):
        raise wrong("de-eng", "ein")


@pytest.mark.parametrize("ahead", ["1", "2", "1000"])
def test_lines_before_one_that_is_no_text_are_written(
    place: Path, expected: list[str], ahead: str, tmp_path: Path
) -> None:
    given = LINES.encode() + b"\nein\xe4\nein\n"
    (tmp_path / "in").write_bytes(given)
    for result in (
        translate(place, "--ahead", ahead, given=given),
        translate(place, "--ahead", ahead, "--input", str(tmp_path / "in")),
    ):
        assert result.stdout == "".join(f"{line}\n" for line in expected)
        assert isinstance(result.exception, DataError)
        assert "line 5 is not UTF-8" in str(result.exception)


def test_what_is_no_plain_file_is_written_itself(place: Path, tmp_path: Path) -> None:
    assert translate(place, "ein", "--output", os.devnull).exit_code == 0
    assert not Path(os.devnull).is_file()
    assert "it is a directory; choose another file" in str(wrong(place, "ein", "--output", str(tmp_path)))
    if Path("/dev/full").exists():
        assert "(/dev/full) cannot be written: No space left" in str(wrong(place, "ein", "--output", "/dev/full"))


def test_streams_that_are_closed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", None)
        with pytest.raises(DataError, match="standard input is closed; give texts"):
            require("-")


def test_what_is_no_text(place: Path) -> None:
    with pytest.raises(DataError, match=r"standard input: line 2 is not UTF-8 \(byte 4 of it is 0xe4\); convert it"):
        raise wrong(place, given=b"ein\nein\xe4\n")


# ------------------------------------------------------------------------------------------------------- as a process


def process(place: Path, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "regard", "translate", str(place), "--device", "cpu", "--threads", "1", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=os.environ | {"OMP_NUM_THREADS": "1"})


@pytest.mark.slow
def test_lines_that_come_slowly_are_translated_as_they_come(place: Path, expected: list[str]) -> None:
    """No line waits for the next; what is wrong with one is told behind what came before it."""
    with process(place) as running:
        assert running.stdin
        assert running.stdout
        assert running.stderr
        for line, found in zip(LINES.split("\n"), expected, strict=True):
            running.stdin.write(line.encode() + b"\n")
            running.stdin.flush()
            assert running.stdout.readline().decode() == f"{found}\n"
        running.stdin.write(b"ein Hund l\xc3\xa4uft\nein\xe4\nein\n")
        running.stdin.close()
        assert running.stdout.read().decode() == f"{expected[0]}\n"
        assert running.wait(60) == 1
        assert running.stderr.read().startswith(b"regard: standard input: line 6 is not UTF-8")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a full disk is only known to Linux")
def test_a_full_disk_is_told_in_one_line(place: Path) -> None:
    command = [sys.executable, "-m", "regard", "translate", str(place), "--device", "cpu", "ein"]
    with open("/dev/full", "wb") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)
    assert ended.returncode == 1
    assert ended.stderr == b"regard: standard output cannot be written: No space left on device; send it elsewhere\n"


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="Windows has no pseudo-terminals of this kind")
def test_progress_on_a_terminal_leaves_nothing_behind_after_ctrl_c(place: Path, tmp_path: Path) -> None:
    import pty

    (tmp_path / "in").write_text("ein Hund läuft\n" * 100_000, encoding="utf-8")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "regard", "translate", str(place), "--device", "cpu", "--beam", "1"]
    with (tmp_path / "out").open("wb") as out:
        running = subprocess.Popen([*command, "--input", str(tmp_path / "in")], stdout=out, stderr=theirs)
    os.close(theirs)
    told = b""
    while b"lines" not in told:
        told += os.read(ours, 4096)
    running.send_signal(signal.SIGINT)
    with suppress(OSError):  # how Linux says that nobody is at the other end any more
        while more := os.read(ours, 4096):
            told += more
    os.close(ours)
    assert running.wait(60) == 130
    assert b"Traceback" not in told
    assert told.rstrip().endswith(b"\x1b[2K")  # the line is gone
    assert told.count(b"\x1b[?25h") == told.count(b"\x1b[?25l")  # and the cursor is back


@pytest.mark.slow
def test_a_pipe_that_is_closed_ends_it_quietly(place: Path) -> None:
    with process(place, "--ahead", "1", "--beam", "1") as running:
        assert running.stdin
        assert running.stdout
        assert running.stderr
        running.stdin.write(b"ein Hund\n" * 2_000)
        running.stdin.flush()
        assert running.stdout.readline()
        running.stdout.close()
        with suppress(BrokenPipeError):
            running.stdin.close()
        assert running.wait(60) == 1
        assert running.stderr.read() == b""


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="Windows has other signals")
def test_ctrl_c_ends_it_quietly(place: Path) -> None:
    with process(place, "--ahead", "1", "--beam", "1") as running:
        assert running.stdin
        assert running.stdout
        assert running.stderr
        running.stdin.write(b"ein Hund\n")
        running.stdin.flush()
        assert running.stdout.readline()  # and now it waits for more
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 130
        assert b"Traceback" not in running.stderr.read()
