"""The command `regard` as a process: help without torch, exit codes, completion, closed pipes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

import regard
from regard.cli import app as cli
from regard.errors import RegardError, SettingsError, WeightsError

VERBS = sorted(typer.main.get_group(cli.app).commands)


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`regard` in a process of its own."""
    command = [sys.executable, "-m", "regard", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environment)


# ----------------------------------------------------------------------------------------------------- without torch

QUICK = ["--help", "--version", "count --help", "data --help", "count transformer-base", "count gpt3 --json", "presets"]


@pytest.mark.parametrize("arguments", QUICK)
def test_torch_is_not_imported(arguments: str) -> None:
    code = (
        "import sys\n"
        "from regard.cli.app import main\n"
        f"sys.argv = ['regard', *{arguments.split()!r}]\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    assert not end.code, end.code\n"
        "assert 'torch' not in sys.modules\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout


def test_importing_regard_does_not_import_torch() -> None:
    code = "import sys, regard; regard.count(regard.preset('gpt2')); assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_completion_answers_without_torch() -> None:
    """The shell asks for the words after `regard count bert-`; a torch that fails to import proves it is not needed."""
    words = {"_REGARD_COMPLETE": "complete_bash", "COMP_WORDS": "regard count bert-", "COMP_CWORD": "2"}
    code = "import sys; sys.modules['torch'] = None; from regard.cli.app import main; main()"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=os.environ | words
    )
    assert result.stdout.split() == ["bert-tiny", "bert-mini", "bert-small", "bert-medium", "bert-base", "bert-large"]


# -------------------------------------------------------------------------------------------------------------- help


def test_version() -> None:
    assert run("--version").stdout == f"regard {regard.__version__}\n"


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_an_example(verb: str) -> None:
    result = CliRunner().invoke(cli.app, [verb, "--help"])
    assert result.exit_code == 0
    assert f"Example: regard {verb}" in result.stdout


def test_no_arguments_show_help() -> None:
    result = CliRunner().invoke(cli.app, [])
    assert "Usage: regard" in result.output
    assert all(verb in result.output for verb in VERBS)


# ------------------------------------------------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["count", "gtp2"], "regard: preset (gtp2) is not known (did you mean gpt2?)"),
        (["count", "gpt2", "dropuot=0.1"], "regard: unknown setting model.dropuot (did you mean dropout?)"),
        (["count", "gpt2", "dropout"], "regard: 'dropout' is no override"),
        (["count", "missing.toml"], "regard: recipe (missing.toml) cannot be read"),
        (["cuont", "gpt2"], "cuont"),
    ],
)
def test_wrong_usage_is_one_message_and_code_2(arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("error", "code"),
    [(SettingsError("no"), 2), (WeightsError("no"), 1), (RegardError("no"), 1), (KeyboardInterrupt(), 130)],
)
def test_exit_codes(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise error

    broken = typer.Typer(pretty_exceptions_enable=False)
    broken.command()(fail)
    monkeypatch.setattr(cli, "app", broken)
    monkeypatch.setattr(sys, "argv", ["regard"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == code
    written = capsys.readouterr()
    assert "Traceback" not in written.err
    assert written.out == ""


@pytest.mark.skipif(os.name == "nt", reason="closing a pipe early is a POSIX affair")
@pytest.mark.parametrize(
    "arguments", [["count", "gpt3", "--by", "tensor"], ["count", "gpt3", "--by", "tensor", "--json"]]
)
def test_a_closed_pipe_is_no_traceback(arguments: list[str]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "regard", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait() in (0, 1)


# ------------------------------------------------------------------------------------------------------ public names


def test_public_names() -> None:
    assert set(regard.__all__) <= set(dir(regard))
    assert regard.count is regard.count
    assert callable(regard.build)
    with pytest.raises(AttributeError, match="has no attribute 'bild'"):
        regard.bild  # noqa: B018


@pytest.mark.parametrize("arguments", ["presets", "count vit-b16"])
def test_a_terminal_of_few_letters_gets_question_marks(arguments: str) -> None:
    done = run(*arguments.split(), PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
