"""`regard align`: links of two files; with gold, how right they are; what is wrong is told in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_translator import write_translator
from typer.testing import CliRunner, Result

import regard
from regard.cli.app import app
from regard.errors import DataError, InputError, RegardError, SettingsError
from regard.look.align import Aligner, align, measured_in
from regard.look.links import written

SOURCES = ["ein Hund läuft", "", "und eine Katze", "durch den Schnee"]
TARGETS = ["a dog is running", "", "and a cat too", "through the snow"]


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, lines in (("in.de", SOURCES), ("in.en", TARGETS)):
        Path(name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    write_translator(Path("model"))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["align", "model", "in.de", "in.en", "--device", "cpu", *arguments])


def wrong(*arguments: str) -> RegardError:
    error = run(*arguments).exception
    assert isinstance(error, RegardError), error
    return error


def own() -> list[str]:
    model = regard.load("model", device="cpu")
    return [written(links) for links in align(Aligner(model, "en"), list(zip(SOURCES, TARGETS, strict=True)))]


def test_a_line_of_links_for_each_pair() -> None:
    result = run("--to", "en")
    assert result.exit_code == 0, result.exception
    assert result.stdout.splitlines() == own()
    assert run("--to", "en", "--output", "out").stdout == ""
    assert Path("out").read_text(encoding="utf-8") == result.stdout
    assert run("--to", "en", "--joined").stdout.count("\n") == len(SOURCES)


def test_gold_that_it_made_itself_is_without_error() -> None:
    Path("gold").write_text("".join(f"{line}\n" for line in own()), encoding="utf-8")
    told = json.loads(run("--to", "en", "--gold", "gold", "--json").stdout)
    assert told["pairs"] == len(SOURCES)
    assert told["scores"]["one direction"] == {"error": 0.0, "precision": 1.0, "recall": 1.0}
    assert set(told["scores"]) == {"one direction", "as lectures draw it"}
    plain = run("--to", "en", "--gold", "gold", "--joined")
    assert "both directions" in plain.stdout
    assert "at the step that writes a word" in plain.stdout


def test_a_choice_is_scored_on_the_other_pairs_and_kept() -> None:
    Path("gold").write_text("".join(f"{line}\n" for line in own()), encoding="utf-8")
    told = json.loads(run("--to", "en", "--gold", "gold", "--choose", "3", "--save", "--json").stdout)
    assert told["pairs"] == 1
    best = told["tried"][0]
    assert told["look"] == {"heads": best["heads"], "consumed": best["consumed"]}
    kept = regard.load("model", device="cpu").frame.look
    assert kept is not None
    assert [list(head) for head in kept.heads] == best["heads"]
    assert "tried" in run("--to", "en", "--gold", "gold", "--choose", "3").stdout
    scores = told["scores"]
    (measured,) = measured_in(regard.load("model", device="cpu").config)
    assert (measured.to, measured.data, measured.pairs, measured.joined) == ("en", "gold", 1, None)
    assert measured.error == scores["one direction"]["error"]
    assert measured.naive == scores["as lectures draw it"]["error"]


def test_heads_that_are_named() -> None:
    Path("gold").write_text("".join(f"{line}\n" for line in own()), encoding="utf-8")
    told = json.loads(run("--to", "en", "--gold", "gold", "--head", "0.1", "--consumed", "--json").stdout)
    assert told["look"] == {"heads": [[0, 1]], "consumed": True}
    told = json.loads(run("--to", "en", "--gold", "gold", "--layer", "-1", "--json").stdout)
    assert told["look"] == {"heads": [[0, 0], [0, 1]], "consumed": False}


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ("--choose 2", SettingsError, "--choose, --save and --json need gold links; name them: --gold FILE"),
        ("--json", SettingsError, "--choose, --save and --json need gold links; name them: --gold FILE"),
        ("--gold gold --output out", SettingsError, "--output (out) takes links, and with --gold only figures"),
        ("--save --gold gold", SettingsError, "--save keeps what --choose found; say by how many pairs: --choose 100"),
        ("--layer 0 --head 0.1", SettingsError, "--layer means all its heads; give it, or some heads: --head 0.3"),
        ("--consumed", SettingsError, "--consumed needs a layer or heads to look at; name one: --layer 0"),
        ("--head 3", SettingsError, "--head (3) is none; write LAYER.HEAD, counted from 0, such as 0.3"),
        ("--head 0.7", InputError, "head (7) is not there: layer 0 has 2, from 0 to 1; choose one"),
        ("--layer 4", InputError, "layer (4) is not there: the decoder has 1, from 0 to 0; choose one"),
        ("--gold gone", DataError, "gone does not exist; check the name"),
        ("--gold gold --choose 4", SettingsError, "--choose (4) leaves none of the 4 pairs to score; choose by fewer"),
    ],
)
def test_what_is_wrong(arguments: str, kind: type[RegardError], message: str) -> None:
    Path("gold").write_text("1-1\n\n\n\n", encoding="utf-8")
    error = wrong("--to", "en", *arguments.split())
    assert isinstance(error, kind)
    assert str(error).startswith(message)


def test_texts_that_do_not_match() -> None:
    Path("in.en").write_text("a dog\n", encoding="utf-8")
    assert str(wrong("--to", "en")) == "in.en ends before line 2; give as many lines of both languages"
    Path("in.en").unlink()
    assert str(wrong("--to", "en")).startswith("in.en does not exist")


def test_a_model_of_one_direction_needs_another_for_the_way_back() -> None:
    write_translator(Path("one"), both=False)
    result = CliRunner().invoke(app, ["align", "one", "in.de", "in.en", "--joined"])
    assert str(result.exception) == "model (one) does not translate back; name one that does: --back MODEL"
    with_other = CliRunner().invoke(app, ["align", "one", "in.de", "in.en", "--back", "model"])
    assert with_other.exit_code == 0, with_other.exception
    assert with_other.stdout.count("\n") == len(SOURCES)
