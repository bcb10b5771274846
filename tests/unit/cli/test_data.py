"""`regard data`: a screen for people, JSON for programs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from regard.cli.app import app
from regard.errors import DataError, RegardError, SettingsError

pytestmark = pytest.mark.slow

RECIPE = """
task = "translate"
[data]
train = ["train.en", "train.de"]
valid = ["valid.en", "valid.de"]
[data.filters]
copies = true
[model]
preset = "transformer-tiny"
"""


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in").mkdir()
    Path("recipe.toml").write_text(RECIPE, encoding="utf-8")
    Path("in/train.en").write_bytes(b"the dog\nBerlin\ngr\xfcn\nthe dog\na cat sleeps\n")
    Path("in/train.de").write_text("der Hund\nBerlin\ngrün\nder Hund\neine Katze schläft\n", encoding="utf-8")
    Path("in/valid.en").write_text("the dog\na bird\n", encoding="utf-8")
    Path("in/valid.de").write_text("ein Hund\nein Vogel\n", encoding="utf-8")
    Path("labels.tsv").write_text("good film\tpos\nbad film\tneg\nnice\tpos\n", encoding="utf-8")
    Path("test.tsv").write_text("fair\tneutral\n", encoding="utf-8")


def shown(*arguments: str) -> list[str]:
    result = CliRunner().invoke(app, ["data", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def cells(lines: list[str], start: str) -> list[str]:
    (line,) = [line for line in lines if line.startswith(start)]
    return line.removeprefix(start).split()


def test_a_screen_for_people() -> None:
    lines = shown("recipe.toml", "data.root=in")
    assert lines[0].split() == ["parallel", "examples", "skipped", "removed", "duplicates"]
    assert cells(lines, "train  ")[:4] == ["3", "1", "1", "1"]
    assert cells(lines, "valid  ") == ["2", "0", "0", "0"]
    assert cells(lines, "train source")[:5] == ["7", "2.3", "2", "3", "3"]
    assert cells(lines, "valid source")[5:7] == ["25.00", "%"]
    assert "1 examples of valid (50.00 %) are also in train, by source; first number 1" in lines
    place = Path("in/train.en")
    assert f"train: 1 skipped: is not UTF-8; first {place}, line 3 (byte 3 is 0xfc)" in lines
    assert f"train: 1 removed: copies its source; first {place}, line 2 (Berlin | Berlin)" in lines
    assert len(lines) <= 24


def test_json_and_one_split() -> None:
    found = json.loads("\n".join(shown("recipe.toml", "root=in", "--json")))
    assert found["splits"]["train"]["examples"] == 3
    assert found["splits"]["train"]["removed"]["copies its source"]["count"] == 1
    leak = found["leaks"][0]
    assert leak.pop("first")
    assert leak == {"earlier": "train", "later": "valid", "side": "source", "count": 1, "share": 0.5}
    found = json.loads("\n".join(shown("recipe.toml", "root=in", "--split", "valid", "--json")))
    assert list(found["splits"]) == ["valid"]


def test_labels_numbers_and_images() -> None:
    assert shown("labels.tsv")[0].split()[0] == "text"
    lines = shown("labels.tsv", "kind=labelled-tsv", 'test=["test.tsv"]')
    assert "label in train, 2 in total: pos (2), neg (1)" in lines
    assert "label in test but not in train, 1 in total: neutral (1)" in lines
    Path("scores.tsv").write_text("a\t1\nb\t4\n", encoding="utf-8")
    lines = shown("scores.tsv", "kind=labelled-tsv", "labels=numbers")
    assert "labels in train: from 1 to 4, mean 2.5" in lines
    np.savez("a.npz", images=np.zeros((2, 3, 4), "uint8"), labels=np.array([1, 2]))
    assert cells(shown("a.npz", "kind=npz"), "train") == ["2", "0", "0", "1", "3×4×1", "(2)"]


def test_embedded_corpora_have_no_files() -> None:
    Path("grammar.toml").write_text('[data]\nkind = "grammar"\nvalid_pairs = 12\n', encoding="utf-8")
    lines = shown("grammar.toml", "data.train_pairs=30", "data.test_pairs=5")
    assert lines[0].split()[0] == "grammar"
    assert [cells(lines, f"{split}  ")[0] for split in ("train", "valid", "test")] == ["30", "12", "5"]
    assert cells(shown("kind=python", "--split", "valid"), "valid  ")[1:3] == ["0", "0"]


def test_errors() -> None:
    cases: list[tuple[str, type[RegardError], str]] = [
        ("a b c", SettingsError, "kind"),
        ("root=x", SettingsError, "the data are missing"),
        ("recipe.toml other", SettingsError, "'other' is not an override"),
        ("recipe.toml data.rot=x", SettingsError, "data.rot (did you mean root?)"),
        ("none.toml", SettingsError, "none.toml"),
        ("recipe.toml root=in --split test", SettingsError, "data.test"),
        ("kind=python --split test", SettingsError, "python"),
        ("in/train.en in/valid.de", DataError, "5 lines"),
    ]
    for words, kind, message in cases:
        error = CliRunner().invoke(app, ["data", *words.split()]).exception
        assert isinstance(error, kind), words
        assert message in str(error)
