"""`regard translate` and `regard align`."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_translator import write_translator
from typer.testing import CliRunner, Result

import regard
from regard.cli.app import app
from regard.errors import DataError, InputError, RegardError, SettingsError, WeightsError
from regard.look.alignment import Aligner, align, format_links, measured_in
from regard.use.model import load
from regard.weights.convert import convert

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


def test_closed_standard_output(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after `>&-` in a shell: a file can still be written."""
    monkeypatch.setattr(sys, "stdout", None)
    given = ["translate", str(place), "ein Hund läuft", "--device", "cpu"]
    with pytest.raises(InputError, match="standard output is closed"):
        app(given, standalone_mode=False)
    app([*given, "--output", str(tmp_path / "out")], standalone_mode=False)
    assert (tmp_path / "out").read_text(encoding="utf-8").count("\n") == 1


def test_options_of_the_model(place: Path, tmp_path: Path) -> None:
    """Those of `generation_config.json` hold unless an option is given, as in Python."""
    convert(place, tmp_path / "theirs", "huggingface", language="en")
    file = tmp_path / "theirs" / "generation_config.json"
    stated = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    file.write_text(json.dumps(stated | {"num_beams": 1}), encoding="utf-8")
    text = "ein Hund läuft und eine Katze"
    scores = [
        load(tmp_path / "theirs", "cpu").translate(text, details=True, **each).score for each in ({}, {"beam": 5})
    ]
    assert scores[0] != pytest.approx(scores[1])
    for arguments, score in (((), scores[0]), (("--beam", "5"), scores[1])):
        result = translate(tmp_path / "theirs", text, "--json", *arguments)
        assert json.loads(result.stdout)["score"] == pytest.approx(score), arguments


def test_lines_of_standard_input(place: Path, expected: list[str], tmp_path: Path) -> None:
    for given in (LINES, LINES + "\n", LINES.replace("\n", "\r\n"), "\ufeff" + LINES):
        result = translate(place, given=given)
        assert result.exit_code == 0, result.exception
        assert result.stdout == "".join(f"{line}\n" for line in expected)
    assert translate(place, "--ahead", "1", given=LINES).stdout == "".join(f"{line}\n" for line in expected)
    assert translate(place, given="").stdout == ""
    (tmp_path / "empty").touch()
    assert translate(place, "--input", str(tmp_path / "empty")).stdout == ""
    odd = ["\x85", "\u2028", "\x0c", "\x1c", "\v", "\r"]  # only a line feed ends a line
    result = translate(place, "--beam", "1", given="".join(f"ein{each}Hund\n" for each in odd) + "und")
    assert result.stdout.count("\n") == len(odd) + 1
    result = translate(place, "ein Hund läuft", "und eine Katze")
    assert result.stdout == f"{expected[0]}\n{expected[3]}\n"


def test_files(place: Path, tmp_path: Path, expected: list[str]) -> None:
    source, output = tmp_path / "in.gz", tmp_path / "out"
    source.write_bytes(gzip.compress(LINES.encode()))
    result = translate(place, "--input", str(source), "--output", str(output))
    assert result.exit_code == 0
    assert result.stdout == ""
    assert output.read_text(encoding="utf-8").split("\n") == [*expected, ""]


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
    result = translate(place, "--nbest", "2", "--align", "ein Hund", "und")
    lines = [line.split(" ||| ") for line in result.stdout.replace("\r", "").split("\n") if " ||| " in line]
    assert [line[0] for line in lines if line[0].isdigit()] == ["0", "0", "1", "1"]
    assert all("-" in line[-1] or line[-1] == "" for line in lines)


def test_wishes(place: Path) -> None:
    assert translate(place, "--prefix", "the dog", "ein Hund").stdout.startswith("the dog")
    assert "snow" in translate(place, "--must", "snow", "--must", "the", "ein Hund").stdout
    drawn = [translate(place, "--temperature", "1.5", "--seed", seed, "ein Hund").stdout for seed in ("1", "1", "2")]
    assert drawn[0] == drawn[1] != drawn[2]
    assert translate(place, "--int8", "--no-keep", "--no-split-sentences", "--batch-tokens", "9", "ein").exit_code == 0


def test_wrong_options(place: Path) -> None:
    cases: list[tuple[list[str], type[RegardError], str]] = [
        (["--to", "fr", "ein"], InputError, "fr"),
        (["--from", "en", "ein"], InputError, "en"),
        (["--nbest", "9", "ein"], SettingsError, "nbest (9) must be at most beam (5)"),
        (["--top-p", "2", "ein"], SettingsError, "sampling.top_p"),
        (["--input", "nowhere.txt"], DataError, "nowhere.txt does not exist"),
        (["ein", "--input", "x"], SettingsError, "--input x"),
    ]
    for arguments, kind, message in cases:
        error = wrong(place, *arguments)
        assert isinstance(error, kind), arguments
        assert message in str(error)
    error = wrong("de-eng", "ein")
    assert isinstance(error, WeightsError)
    assert "did you mean de-en?" in str(error)


@pytest.mark.skipif(os.name == "nt", reason="Windows has other signals")
def test_lines_that_come_slowly_are_translated_as_they_come_and_ctrl_c_is_quiet(
    place: Path, expected: list[str]
) -> None:
    command = [sys.executable, "-m", "regard", "translate", str(place), "--device", "cpu", "--threads", "1"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as running:
        assert running.stdin
        assert running.stdout
        assert running.stderr
        for line, found in zip(LINES.split("\n"), expected, strict=True):
            running.stdin.write(line.encode() + b"\n")
            running.stdin.flush()
            assert running.stdout.readline().decode() == f"{found}\n"
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 130
        assert b"Traceback" not in running.stderr.read()


SOURCES = ["ein Hund läuft", "", "und eine Katze", "durch den Schnee"]
TARGETS = ["a dog is running", "", "and a cat too", "through the snow"]


@pytest.fixture
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, lines in (("in.de", SOURCES), ("in.en", TARGETS)):
        Path(name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    write_translator(Path("model"))


def run_align(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["align", "model", "in.de", "in.en", "--device", "cpu", *arguments])


def wrong_align(*arguments: str) -> RegardError:
    error = run_align(*arguments).exception
    assert isinstance(error, RegardError), error
    return error


def own() -> list[str]:
    model = regard.load("model", device="cpu")
    return [format_links(links) for links in align(Aligner(model, "en"), list(zip(SOURCES, TARGETS, strict=True)))]


@pytest.mark.usefixtures("_files")
def test_a_line_of_links_for_each_pair() -> None:
    result = run_align("--to", "en")
    assert result.exit_code == 0, result.exception
    assert result.stdout.splitlines() == own()
    assert run_align("--to", "en", "--output", "out").stdout == ""
    assert Path("out").read_text(encoding="utf-8") == result.stdout
    assert run_align("--to", "en", "--joined").stdout.count("\n") == len(SOURCES)


@pytest.mark.usefixtures("_files")
def test_gold_links_heads_and_a_saved_choice() -> None:
    Path("gold").write_text("".join(f"{line}\n" for line in own()), encoding="utf-8")
    gold = ("--to", "en", "--gold", "gold")
    found = json.loads(run_align(*gold, "--json").stdout)
    assert found["pairs"] == len(SOURCES)
    assert found["scores"]["one direction"] == {"error": 0.0, "precision": 1.0, "recall": 1.0}
    assert set(found["scores"]) == {"one direction", "last layer"}
    plain = run_align(*gold, "--joined")
    assert "both directions" in plain.stdout
    assert "step that writes a word" in plain.stdout
    assert "candidates" in run_align(*gold, "--choose", "3").stdout
    found = json.loads(run_align(*gold, "--choose", "3", "--save-choice", "--json").stdout)
    assert found["pairs"] == 1
    best = found["tried"][0]
    assert found["look"] == {"heads": best["heads"], "consumed": best["consumed"]}
    (measured,) = measured_in(regard.load("model", device="cpu").config)
    assert (measured.to, measured.data, measured.pairs, measured.joined) == ("en", "gold", 1, None)
    assert measured.error == found["scores"]["one direction"]["error"]
    assert measured.naive == found["scores"]["last layer"]["error"]


@pytest.mark.usefixtures("_files")
def test_wrong_options_of_align() -> None:
    Path("gold").write_text("1-1\n\n\n\n", encoding="utf-8")
    cases: list[tuple[str, type[RegardError], str]] = [
        ("--choose 2", SettingsError, "--gold FILE"),
        ("--json", SettingsError, "--gold FILE"),
        ("--gold gold --output out", SettingsError, "--output (out)"),
        ("--save-choice --gold gold", SettingsError, "--save-choice needs --choose"),
        ("--gold gone", DataError, "gone does not exist"),
        ("--gold gold --choose 4", SettingsError, "--choose (4)"),
    ]
    for arguments, kind, message in cases:
        error = wrong_align("--to", "en", *arguments.split())
        assert isinstance(error, kind), arguments
        assert message in str(error)


@pytest.mark.usefixtures("_files")
def test_texts_that_do_not_match() -> None:
    Path("in.en").write_text("a dog\n", encoding="utf-8")
    assert str(wrong_align("--to", "en")) == "in.en ends before line 2; both files need the same number of lines"
    Path("in.en").unlink()
    assert str(wrong_align("--to", "en")).startswith("in.en does not exist")


@pytest.mark.usefixtures("_files")
def test_a_model_of_one_direction_needs_another_for_the_way_back() -> None:
    write_translator(Path("one"), both=False)
    result = CliRunner().invoke(app, ["align", "one", "in.de", "in.en", "--joined"])
    assert str(result.exception) == "model (one) has no direction back; give one that has: --back MODEL"
    with_other = CliRunner().invoke(app, ["align", "one", "in.de", "in.en", "--back", "model"])
    assert with_other.exit_code == 0, with_other.exception
    assert with_other.stdout.count("\n") == len(SOURCES)
