"""`regard data`: a screen for people, JSON for programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from regard.cli.app import app
from regard.cli.data import read_data
from regard.data.settings import LabelledTsv, Parallel, RawText
from regard.errors import SettingsError

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
    place = Path("in/valid.en")
    leak = f"1 examples of valid (50.00 %) are also in train, by source; first {place}, line 1 (the dog | ein Hund)"
    assert leak in lines
    place = Path("in/train.en")
    assert f"train: 1 skipped: is not UTF-8; first {place}, line 3 (byte 3 is 0xfc)" in lines
    assert f"train: 1 removed: copies its source; first {place}, line 2 (Berlin | Berlin)" in lines
    assert len(lines) <= 24


def test_json_for_programs() -> None:
    found = json.loads("\n".join(shown("recipe.toml", "root=in", "--json")))
    assert found["splits"]["train"]["examples"] == 3
    assert found["splits"]["train"]["removed"]["copies its source"]["count"] == 1
    leak = found["leaks"][0]
    assert leak.pop("first")
    assert leak == {"earlier": "train", "later": "valid", "side": "source", "count": 1, "share": 0.5}


def test_one_split() -> None:
    found = json.loads("\n".join(shown("recipe.toml", "root=in", "--split", "valid", "--json")))
    assert list(found["splits"]) == ["valid"]


def test_labels() -> None:
    lines = shown("labels.tsv", "kind=labelled-tsv", 'test=["test.tsv"]')
    assert "label in train, 2 in total: pos (2), neg (1)" in lines
    assert "label in test but not in train, 1 in total: neutral (1)" in lines


def test_numbers() -> None:
    Path("scores.tsv").write_text("a\t1\nb\t4\n", encoding="utf-8")
    lines = shown("scores.tsv", "kind=labelled-tsv", "labels=numbers")
    assert "labels in train: from 1 to 4, mean 2.5" in lines


def test_images() -> None:
    np = pytest.importorskip("numpy")
    np.savez("a.npz", images=np.zeros((2, 3, 4), "uint8"), labels=np.array([1, 2]))
    assert cells(shown("a.npz", "kind=npz"), "train") == ["2", "0", "0", "1", "3×4×1", "(2)"]


def test_a_task_may_be_a_table() -> None:
    Path("a.en").write_text("one\n", encoding="utf-8")
    Path("job.toml").write_text(
        'task = { kind = "translate", smoothing = 0.0 }\n[data]\ntrain = ["a.en", "a.en"]\n', encoding="utf-8"
    )
    assert cells(shown("job.toml"), "train  ")[0] == "1"


def test_embedded_corpora_have_no_files() -> None:
    Path("grammar.toml").write_text('[data]\nkind = "grammar"\nvalid_pairs = 12\n', encoding="utf-8")
    lines = shown("grammar.toml", "data.train_pairs=30", "data.test_pairs=5")
    assert lines[0].split()[0] == "grammar"
    assert [cells(lines, f"{split}  ")[0] for split in ("train", "valid", "test")] == ["30", "12", "5"]
    assert cells(shown("kind=python", "--split", "valid"), "valid  ")[1:3] == ["0", "0"]
    result = CliRunner().invoke(app, ["data", "kind=python", "--split", "test"])
    assert isinstance(result.exception, SettingsError)
    assert "kind python have no test" in str(result.exception)


def test_files_alone() -> None:
    assert read_data(["a", "b", "root=in"]) == Parallel(train=("a", "b"), root="in")
    assert read_data(["a"]) == RawText(train=("a",))
    assert read_data(["a", "b", "kind=labelled-tsv"]) == LabelledTsv(train=("a", "b"))


def test_a_file_may_have_an_equals_sign_in_its_name() -> None:
    Path("a=b.txt").write_text("x\n", encoding="utf-8")
    assert read_data(["a=b.txt"]) == RawText(train=("a=b.txt",))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["a", "b", "c"], "data needs a kind, which says how its files are written"),
        (["root=x"], "the data are missing; give a recipe, or files"),
        (["recipe.toml", "other"], "'other' is not an override; write key=value, such as data.root=DIR"),
        (["recipe.toml", "data.rot=x"], "unknown setting data.rot (did you mean root?)"),
        (["none.toml"], "recipe (none.toml) cannot be read"),
    ],
)
def test_wrong_usage(words: list[str], expected: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_data(words)
    assert str(caught.value).startswith(expected)


def run(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "regard", "data", *arguments],
        input=stdin,
        capture_output=True,
        check=False,
        env=os.environ | {"PYTHONIOENCODING": "utf-8"},
    )


def test_standard_input() -> None:
    result = run("-", "--json", stdin=b"one two\nthree\n")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["splits"]["train"]["lengths"]["text"]["total"] == 3
    assert result.stderr == b""


def test_bad_data_is_one_message_and_code_1() -> None:
    result = run("in/train.en", "in/valid.de")
    assert result.returncode == 1
    assert result.stdout == b""
    assert result.stderr.decode().startswith("regard: in")
    assert "has 5 lines" in result.stderr.decode()


def test_a_split_without_files_is_wrong_usage() -> None:
    result = run("recipe.toml", "root=in", "--split", "test")
    assert result.returncode == 2
    assert result.stderr.decode().startswith("regard: data.test is empty")
