"""The command `regard`: help without torch, exit codes, completion, closed pipes."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import typer
from typer.testing import CliRunner

import regard
from regard.cli import app as cli
from regard.errors import SettingsError, WeightsError

VERBS = sorted(typer.main.get_group(cli.app).commands)
QUICK = ("--help", "--version", "count --help", "data --help", "train --help", "presets", "recipes", "count --lenght 3")

WRONG_MODELS = (
    "translate de-nn Hallo",
    "evaluate de-nn",
    "predict de-nn Hallo",
    "look de-nn Hallo",
    "look de-en Hallo --against de-nn",
    "align de-nn one two",
    "convert de-nn out --format bf16",
    "serve de-en de-nn",
)


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Python in a process of its own."""
    command = (sys.executable, *command)
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environment)


def test_torch_is_not_imported() -> None:
    """Importing regard, help, version, presets and a wrong option."""
    code = (
        "import sys, regard\n"
        "regard.preset('gpt2')\n"
        "from regard.cli.app import main\n"
        f"for words in {QUICK!r}:\n"
        "    sys.argv = ['regard', *words.split()]\n"
        "    try:\n        main()\n"
        "    except SystemExit as end:\n        assert end.code in (None, 0, 2), (words, end.code)\n"
        "    assert not {'torch', 'numpy'} & set(sys.modules), words\n"
    )
    result = run("-c", code, PYTHONIOENCODING="ascii")  # such a terminal gets question marks
    assert result.returncode == 0, result.stderr
    assert f"regard {regard.__version__}\n" in result.stdout


def test_completion_answers_without_torch() -> None:
    """The shell asks for the words after `regard count bert-`; a torch that fails to import proves it is not needed."""
    words = {"_REGARD_COMPLETE": "complete_bash", "COMP_WORDS": "regard count bert-", "COMP_CWORD": "2"}
    code = "import sys; sys.modules['torch'] = None; from regard.cli.app import main; main()"
    found = run("-c", code, **words).stdout.split()
    assert found == ["bert-tiny", "bert-mini", "bert-small", "bert-medium", "bert-base", "bert-large"]


def test_a_wrong_model_is_reported_before_torch_is_imported() -> None:
    code = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from regard.cli.app import main\n"
        f"for words in {WRONG_MODELS!r}:\n"
        "    sys.argv = ['regard', *words.split()]\n"
        "    try:\n        main()\n"
        "    except SystemExit as end:\n        assert end.code == 1, words\n"
    )
    result = run("-c", code)
    assert result.returncode == 0, result.stderr
    lines = result.stderr.splitlines()
    assert len(lines) == len(WRONG_MODELS)
    assert all("model de-nn is unknown (did you mean de-en?)" in line for line in lines)


@pytest.mark.slow
def test_one_sentence_does_not_import_the_compiler() -> None:
    code = "import sys; sys.modules['torch._dynamo'] = None; from regard.cli.app import main; main()"
    result = run("-c", code, "translate", "de-en", "Ein Hund läuft.")
    assert result.returncode == 0, result.stderr
    assert "dog" in result.stdout


@pytest.mark.parametrize("module", ["typer", "regard.cli.train", "torch.nn"])
def test_ctrl_c_during_imports_ends_in_one_line(module: str) -> None:
    code = f"""
import os, runpy, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
sys.argv = ["regard", "translate", "de-en", "Hallo."]
runpy.run_module("regard", run_name="__main__")
"""
    result = run("-c", code)
    assert (result.returncode, result.stderr, result.stdout) == (130, "regard: interrupted\n", "")


def test_outputs_and_threads_are_checked_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in place of a directory cannot be written by anyone, also not by root."""
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "regard.use.model", None)  # nothing is loaded
    for words, message in (
        ("demo --directory file/new", "--directory (file/new) cannot be written"),
        ("convert de-en file/new --format bf16", "OUT (file/new) cannot be written"),
        ("evaluate --hypotheses x --reference y --save file/new", "--save (file/new) cannot be written"),
        ("evaluate de-en --save .", "--save (.) cannot be written: it is a directory"),
        ("look de-en Hallo --html file/new", "--html (file/new) cannot be written"),
        ("look de-en Hallo --picture file/new.png", "--picture (file/new.png) cannot be written"),
        ("doctor . --png file/new.png", "--png (file/new.png) cannot be written"),
        ("translate de-en Hallo --threads 100000", "--threads"),
        ("train grammar --threads 100000", "--threads"),
        ("serve de-en --threads 100000", "threads (100000) is wrong"),
    ):
        result = CliRunner().invoke(cli.app, words.split())
        assert message in f"{result.exception} {result.output}", words


def test_recipes_are_listed_and_taken_by_name() -> None:
    rows = json.loads(CliRunner().invoke(cli.app, ["recipes", "--json"]).stdout)
    assert {row["name"]: (row["task"], row["data"]) for row in rows}.items() >= {
        "grammar": ("translate", "grammar"),
        "digits": ("image", "digits"),
        "multi30k-en-de": ("translate", "data.root=DIR"),
    }.items()
    assert all(row["description"].endswith(".") for row in rows)
    listed = CliRunner().invoke(cli.app, ["recipes"]).stdout
    assert all(row["name"] in listed for row in rows)
    assert "total" in CliRunner().invoke(cli.app, ["count", "grammar"]).stdout


def test_an_option_means_the_same_in_every_verb() -> None:
    words = {"to": "language", "length": "Tokens", "split": "plit", "reference": "Reference", "save": "Write"}
    words |= {"threads": "CPU threads", "device": "cpu", "json": "JSON", "against": "compare", "output": "Output file"}
    verbs: dict[str, list[str]] = {name: [] for name in words}
    for verb, command in sorted(typer.main.get_group(cli.app).commands.items()):
        for option in command.params:
            for name in [name for name in words if f"--{name}" in option.opts]:
                verbs[name].append(verb)
                assert words[name] in option.help, (verb, name)
                assert option.is_flag is (name == "json")
    assert verbs["to"] == ["align", "convert", "evaluate", "look", "translate"]
    assert (verbs["length"], verbs["reference"], verbs["save"]) == (["count"], ["evaluate"], ["evaluate"])
    assert verbs["split"] == ["data", "evaluate"]
    computing = [
        "align",
        "chat",
        "embed",
        "evaluate",
        "fill",
        "generate",
        "look",
        "predict",
        "serve",
        "train",
        "translate",
    ]
    assert verbs["threads"] == verbs["device"] == computing


def test_settings_that_are_given_as_options() -> None:
    for word, hint in (
        ("--lr", "train.optimizer.rate"),
        ("--resumee", "resume"),
        ("--batch-size", "train.tokens or train.examples"),
    ):
        result = CliRunner().invoke(cli.app, ["train", "grammar", word, "3"])
        assert f"unknown option {word.replace('-s', '_s')} (did you mean {hint}?)" in str(result.exception)


def test_every_verb_has_help_with_an_example() -> None:
    for verb in VERBS:
        result = CliRunner().invoke(cli.app, [verb, "--help"])
        assert result.exit_code == 0
        assert f"Example: regard {verb}" in result.stdout
    result = CliRunner().invoke(cli.app, [])
    assert "Usage: regard" in result.output
    assert all(verb in result.output for verb in VERBS)


def test_errors_are_one_message_and_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def check(code: int, message: str) -> None:
        with pytest.raises(SystemExit) as end:
            cli.main()
        written = capsys.readouterr()
        assert (end.value.code, written.out) == (code, "")
        assert message in written.err
        assert "Traceback" not in written.err

    for words, message in (
        ("count gtp2", "regard: preset (gtp2) is not known (did you mean gpt2?)"),
        ("count gpt2 dropuot=0.1", "regard: unknown setting model.dropuot (did you mean dropout?)"),
        ("count missing.toml", "regard: recipe (missing.toml)"),
        ("cuont gpt2", "cuont"),
    ):
        monkeypatch.setattr(sys, "argv", ["regard", *words.split()])
        check(2, message)
    cases: list[tuple[BaseException, int]] = [
        (SettingsError("no"), 2),
        (WeightsError("no"), 1),
        (KeyboardInterrupt(), 130),
    ]
    for error, code in cases:

        def fail(error: BaseException = error) -> None:
            raise error

        broken = typer.Typer(pretty_exceptions_enable=False)
        broken.command()(lambda fail=fail: fail())
        monkeypatch.setattr(cli, "app", broken)
        monkeypatch.setattr(sys, "argv", ["regard"])
        check(code, "" if isinstance(error, KeyboardInterrupt) else "regard: no")


@pytest.mark.skipif(os.name == "nt", reason="closing a pipe early is a POSIX affair")
def test_a_closed_pipe_is_not_a_traceback() -> None:
    command, pipe = [sys.executable, "-m", "regard", "presets", "--json"], subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 1
    for redirection in (">/dev/full", ">/dev/full 2>/dev/full"):
        done = subprocess.run(f"{shlex.join(command)} {redirection}", shell=True, capture_output=True, check=False)
        assert done.returncode == 1
        expected = b"regard: standard output cannot be written: No space left on device; send it elsewhere\n"
        assert done.stderr == (b"" if "2>" in redirection else expected)
    for error in (MemoryError(), ImportError("libtorch_cpu.so: failed to map segment from shared object")):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cli, "app", Mock(side_effect=error))
            with pytest.raises(SystemExit, match="memory ran out"):
                cli.main()
