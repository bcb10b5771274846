"""The tutorials and the notebook run from top to bottom, and print what they show."""

from __future__ import annotations

import ast
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from regard.cli.app import app

DOCS = Path(__file__).parents[2] / "docs"
SECTIONS = re.split(r"^## ", (DOCS / "tutorials.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.slow


def run_commands(text: str) -> None:
    """Runs the commands of a console, and looks for the lines that follow each in its output, in order."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, *expected = part.splitlines()
        result = CliRunner().invoke(app, shlex.split(command, comments=True)[1:])
        assert result.exit_code == 0, (command, result.output, result.exception)
        lines = iter([" ".join(line.split()) for line in result.stdout.splitlines()])
        for line in expected:
            assert " ".join(line.split()) in lines, (command, line, result.stdout)


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.partition("\n")[0])
def test_a_tutorial_runs(section: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("regard.tasks.run.draw_curves", lambda *_: False)  # it takes longer than all else
    names: dict[str, Any] = {}
    kinds = []
    for kind, text in BLOCK.findall(section):
        kinds.append(kind)
        if kind == "python":
            exec(compile(text, "tutorials.md", "exec"), names)
        elif kind == "toml":
            Path(text.partition("\n")[0].strip("# ")).write_text(text, encoding="utf-8")
        else:
            run_commands(text)
    assert {"python", "toml", "console"} <= set(kinds)


def test_the_notebook_runs_and_shows_its_own_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    notebook = json.loads((DOCS / "notebook.ipynb").read_text(encoding="utf-8"))
    names: dict[str, Any] = {}
    shown = 0
    for cell in [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]:
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "notebook", "exec"), names)
        value = None if last is None else eval(compile(ast.Expression(last.value), "notebook", "eval"), names)
        stored = [output["data"]["text/plain"] for output in cell["outputs"]]
        assert stored == ([[repr(value)]] if stored else []), (cell["source"], value)
        shown += len(stored)
    assert shown >= 4
