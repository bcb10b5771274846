"""The wheel works where it is installed: outside the checkout, in an environment of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import regard.settings

CHECKOUT = Path(__file__).parents[2]
Run = Callable[..., str]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(CHECKOUT)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def run(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs a program of a fresh environment that holds the wheel, and borrows the dependencies of this one."""
    home = tmp_path_factory.mktemp("installed")
    environment = home / "env"
    venv.create(environment, with_pip=False)
    programs = environment / ("Scripts" if os.name == "nt" else "bin")
    pip = [sys.executable, "-m", "pip", "--python", str(programs / "python"), "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)], check=True, cwd=home)
    (packages,) = environment.glob("**/site-packages")
    # Only a line in a .pth file: the editable install of the checkout, itself a .pth file over there, is not followed.
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

    def run(program: str, *arguments: str) -> str:
        command = [str(programs / program), *arguments]
        done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=home, env=variables)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert "regard/py.typed" in names
    for file in ("LICENSE", "NOTICE"):
        assert any(name.endswith(f"licenses/{file}") for name in names)
    assert {name.split("/")[0] for name in names} == {"regard", "regard-0.1.0.dist-info"}
    source = Path(regard.settings.__file__).parent
    modules = {f"regard/{file.relative_to(source).as_posix()}" for file in source.rglob("*.py")}
    assert modules <= names


def test_the_wheel_runs(run: Run) -> None:
    assert run("regard", "--version").split()[-1] == "0.1.0"
    code = """
import regard, torch
settings = regard.preset("transformer-tiny", vocabulary=99)
network = regard.build(settings)
tokens = torch.zeros(1, 3, dtype=torch.long)
assert sum(p.numel() for p in network.parameters()) == regard.count(settings).parameters
print(regard.__file__, *network(tokens, tokens).shape)
"""
    file, *shape = run("python", "-c", code).split()
    assert shape == ["1", "3", "99"]
    assert CHECKOUT not in Path(file).parents
    assert "site-packages" in Path(file).parts


def test_without_extras_every_verb_works_or_names_the_extra(run: Run) -> None:
    """Modules of extras cannot be imported. Recipes are found by name."""
    code = """
import shlex, sys
names = "fastapi uvicorn prometheus_client python_multipart matplotlib tensorboard wandb PIL sklearn ctranslate2"
sys.modules.update(dict.fromkeys(names.split()))
from pathlib import Path
from typer.testing import CliRunner
from regard.cli.app import app
Path("a.de").write_text("Guten Morgen.\\n"); Path("a.en").write_text("Good morning.\\n"); Path("a.png").touch()
for words, extra in (
    ("recipes", ""), ("presets", ""), ("runs", ""), ("count digits", ""), ("count transformer-base", ""),
    ("data a.de a.en", ""), ("data digits", "vision"), ("data . kind=image-folder", "vision"),
    ("translate de-en Danke.", ""), ("predict de-en Danke.", ""), ("align de-en a.de a.en", ""),
    ("evaluate de-en --input a.de --reference a.en", ""), ("look de-en Danke. --html page.html --views heads", ""),
    ("look de-en Danke. --picture page.png", "plot"), ("look de-en --no-browser", "serve"), ("serve de-en", "serve"),
    ("convert de-en small --format int8", ""), ("convert de-en theirs --format ctranslate2", "ctranslate2"),
    ("train digits", "vision"), ("train grammar train.wandb=x", "wandb"),
):
    result = CliRunner().invoke(app, shlex.split(words))
    if extra:
        assert f"pip install 'regard[{extra}]'" in str(result.exception), (words, result.exception, result.output)
    else:
        assert result.exit_code == 0, (words, result.exception, result.output)
print("done")
"""
    assert run("python", "-c", code) == "done\n"
