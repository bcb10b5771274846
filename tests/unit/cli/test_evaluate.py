"""`regard evaluate` and `regard predict`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import sacrebleu
import torch
from typer.testing import CliRunner

import regard
from regard.blocks.settings import Attention
from regard.cli.app import app
from regard.errors import DataError, InputError, RegardError, SettingsError
from regard.models.settings import Decoder, EncoderDecoder
from regard.text.settings import Bpe, SpecialTokens
from regard.text.tokenizer import TokenizerPair
from regard.text.train import train_tokenizer
from regard.use.evaluation import corpus_metrics
from regard.use.model import load
from regard.weights.directory import save_model

ENGLISH = ["the dog sees a cat", "a red house", "the bird sings and the dog sleeps", "birds sing"]
GERMAN = ["der Hund sieht eine Katze", "ein rotes Haus", "der Vogel singt und der Hund schläft", "Vögel singen"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Test data and two untrained models, of which one writes both languages."""
    home = tmp_path_factory.mktemp("home")
    (home / "test.en").write_text("\n".join(ENGLISH) + "\n")
    (home / "test.de").write_text("\n".join(GERMAN) + "\n", encoding="utf-8")
    data: dict[str, Any] = {"kind": "parallel", "root": str(home), "test": ["test.en", "test.de"]}
    for name, both in (("run", False), ("both", True)):
        tags = ("<2de>", "<2en>") if both else ()
        tokenizers = TokenizerPair.of(
            train_tokenizer(Bpe(size=90, special=SpecialTokens(extra=tags)), ENGLISH + GERMAN)
        )
        torch.manual_seed(0)
        model = regard.build(
            EncoderDecoder(vocabulary=tokenizers.source.size, width=16, depth=1, attention=Attention(heads=2))
        )
        with torch.no_grad():
            model.target.tokens.weight.mul_(8)  # so that it writes something
        tables = {"task": {"kind": "translate"}, "data": data | {"languages": ["en", "de"], "both": both}}
        save_model(model, home / name, tables=tables)
        tokenizers.save(home / name)
    return home


def shown(*words: object) -> str:
    result = CliRunner().invoke(app, ["evaluate", *map(str, words)])
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*words: object) -> RegardError:
    result = CliRunner().invoke(app, ["evaluate", *map(str, words)])
    assert isinstance(result.exception, RegardError), result.output
    return result.exception


def test_given_translations(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a b c d e\n")
    (tmp_path / "right").write_text("a b c d f\n")
    words = ("--hypotheses", tmp_path / "out", "--reference", tmp_path / "right")
    report = json.loads(shown(*words, "--json"))["reports"][""]
    assert report["metrics"]["bleu"]["score"] == pytest.approx(100 * 0.2**0.25)  # worked out in test_scoring
    assert report["metrics"]["ter"]["score"] == pytest.approx(20)
    assert (report["sentences"], report["exact"], report["seconds"]) == (1, 0, None)
    lines = shown(*words).splitlines()
    assert lines[0] == f"{tmp_path / 'out'}: 1 sentence"
    signature = f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:{sacrebleu.__version__}"
    assert lines[2].split()[:3] == ["BLEU", "66.87", signature]
    assert ["exact", "matches", "0.0", "%"] in [line.split() for line in lines]
    assert lines[-2:] == ["  reference    a b c d f", "  translation  a b c d e"]
    (tmp_path / "out").write_text("A b c d .\n")
    (tmp_path / "right").write_text("a b c d .\n")
    lower = json.loads(shown(*words, "--json", "--lowercase", "--tokenize", "none"))["reports"][""]["metrics"]
    assert lower["bleu"]["score"] == pytest.approx(100)


def test_two_files_are_compared(tmp_path: Path) -> None:
    (tmp_path / "right").write_text("".join(f"a b c d {number}\n" for number in range(40)))
    (tmp_path / "good").write_text("".join(f"a b c d {number}\n" for number in range(40)))
    (tmp_path / "bad").write_text("".join(f"a b x d {number}\n" for number in range(40)))
    words = ("--hypotheses", tmp_path / "good", "--reference", tmp_path / "right", "--against", tmp_path / "bad")
    found = json.loads(shown(*words, "--json"))["reports"][""]["against"]
    assert found["bleu"]["score"] == pytest.approx(100)
    assert found["bleu"]["against"] < 60
    assert found["bleu"]["p"] < 0.01
    table = next(line for line in shown(*words).splitlines() if line.startswith("against"))
    assert table.split() == ["against", str(tmp_path / "bad"), "here", "there", "p", "95", "%", "signature"]


def test_a_run_on_its_own_data(home: Path, tmp_path: Path) -> None:
    found = json.loads(shown(home / "run", "--json", "--save", tmp_path / "out.de", "--device", "cpu", "--worst", 1))
    assert found["evaluated"] == f"{home / 'run'}, test"
    report = found["reports"]["en-de"]
    expected = load(home / "run", device="cpu").translate(ENGLISH, beam=5, split=False, keep=False)
    assert (tmp_path / "out.de").read_text(encoding="utf-8").splitlines() == [
        " ".join(e.splitlines()) for e in expected
    ]
    assert report["metrics"]["bleu"]["score"] == pytest.approx(corpus_metrics(expected, GERMAN)["bleu"].score)
    assert (report["sentences"], len(report["worst"])) == (4, 1)
    assert report["seconds"] > 0


def test_both_directions_have_a_report_each(home: Path, tmp_path: Path) -> None:
    found = json.loads(shown(home / "both", "--json", "--limit", 2, "--save", tmp_path / "out"))
    assert {name: report["sentences"] for name, report in found["reports"].items()} == {"en-de": 2, "de-en": 2}
    assert {path.name for path in tmp_path.iterdir()} == {"out.en-de", "out.de-en"}
    found = json.loads(shown(home / "both", "--json", "--to", "en"))
    assert list(found["reports"]) == ["de-en"]
    for run in ("both", "run"):
        assert "which translates" in str(refused(home / run, "--to", "fr"))


def test_a_file_in_place_of_a_split_and_moved_data(home: Path, tmp_path: Path) -> None:
    words = (home / "run", "--input", home / "test.en", "--reference", home / "test.de", "--json", "--limit", 3)
    report = json.loads(shown(*words))["reports"][""]
    assert report["sentences"] == 3
    assert report["worst"][0]["source"] in ENGLISH
    for language in ("en", "de"):
        (tmp_path / f"test.{language}").write_text("eins\nzwei\n")
    found = json.loads(shown(home / "run", f"data.root={tmp_path}", "--json"))
    assert found["reports"]["en-de"]["sentences"] == 2


def test_another_task_has_its_own_metrics(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(Bpe(size=80), ENGLISH)
    (tmp_path / "valid.txt").write_text("\n\n".join(ENGLISH) + "\n")
    settings = Decoder(vocabulary=tokenizer.size, width=16, depth=1, attention=Attention(heads=2))
    tables = {
        "task": {"kind": "language", "context": 16},
        "data": {"kind": "text", "root": str(tmp_path), "valid": ["valid.txt"]},
        "train": {"steps": 1, "tokens": 64},
    }
    save_model(regard.build(settings), tmp_path / "run", tables=tables)
    TokenizerPair.of(tokenizer).save(tmp_path / "run")
    found = json.loads(shown(tmp_path / "run", "--json", "--device", "cpu"))
    assert found["split"] == "valid"
    assert set(found["metrics"]) >= {"loss", "perplexity", "accuracy"}
    lines = shown(tmp_path / "run", "--device", "cpu").splitlines()
    assert lines[0].startswith(f"{tmp_path / 'run'}, valid")
    assert lines[1].split()[0] == "loss"


def test_wrong_options(home: Path, tmp_path: Path) -> None:
    (tmp_path / "short").write_text("eins\n")
    save_model(
        regard.build(Decoder(vocabulary=20, width=16, depth=1, attention=Attention(heads=2))), tmp_path / "decoder"
    )
    lines, short, run = home / "test.de", tmp_path / "short", home / "run"
    cases: list[tuple[tuple[object, ...], type[RegardError], str]] = [
        ((), SettingsError, "nothing to evaluate"),
        (("one", "two"), SettingsError, "2 models are given (one, two)"),
        (("--hypotheses", "out"), SettingsError, "--reference is missing"),
        (("run", "--reference", "right"), SettingsError, "--reference needs --input"),
        (("run", "--hypotheses", "out", "--reference", "right"), SettingsError, "--hypotheses needs no model"),
        ((run, "--input", lines, "--reference", short), DataError, "has 4 lines and"),
        (("--hypotheses", lines, "--reference", short), RegardError, "4 translations do not match 1 references"),
        (("--hypotheses", lines, "--reference", lines, "--against", run), SettingsError, "needs --input"),
        ((tmp_path / "decoder", "--input", short, "--reference", short), InputError, "has kind decoder"),
        (("nowhere",), RegardError, "nowhere"),
    ]
    for words, kind, message in cases:
        error = refused(*words)
        assert isinstance(error, kind), words
        assert message in str(error)
    result = CliRunner().invoke(app, ["predict", str(tmp_path / "decoder"), "eins", "--device", "cpu"])
    assert isinstance(result.exception, InputError)
    assert "decoder has no task" in str(result.exception)


def test_predict(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Model:
        def predict(self, inputs: list[str]) -> list[Any]:
            if "bad" in inputs:
                raise DataError(f"inputs[{inputs.index('bad')}] does not decode; give a PNG file")
            return [text.upper() if text != "number" else {"label": 3, "p": 0.5} for text in inputs]

    def run(*words: object, given: str | None = None) -> str:
        result = CliRunner().invoke(app, ["predict", "de-en", *map(str, words)], input=given)
        assert result.exit_code == 0, result.exception
        return result.stdout

    monkeypatch.setattr(regard, "load", lambda name, device, **more: Model(), raising=False)
    assert run("a", "number") == 'A\n{"label": 3, "p": 0.5}\n'
    assert run("--json", given="a\nnumber\n") == '"A"\n{"label": 3, "p": 0.5}\n'
    (tmp_path / "in").write_text("a\n\nb\n")
    assert run("--input", tmp_path / "in", "--output", tmp_path / "out") == ""
    assert (tmp_path / "out").read_text() == "A\n\nB\n"
    several = CliRunner().invoke(app, ["predict", "de-en", "a", "bad", "b"])
    assert (several.exit_code, several.stdout) == (1, "A\nerror: inputs[1] does not decode; give a PNG file\nB\n")
    several = CliRunner().invoke(app, ["predict", "de-en", "--json"], input="a\n" * 300 + "bad\na\n")
    assert (several.exit_code, several.stdout.count("error")) == (1, 1)
    assert "inputs[300] does not decode" in several.stdout
    assert isinstance(CliRunner().invoke(app, ["predict", "de-en", "bad"]).exception, DataError)
    wrong = CliRunner().invoke(app, ["predict", "model", "a", "--input", "in"])
    assert isinstance(wrong.exception, SettingsError)
