"""The rooms of the house: imports only point down the list, and what must answer quickly does not import torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import regard.settings

SOURCE = Path(regard.settings.__file__).parent
ROOMS = [
    "cli",
    "serving",
    "look",
    "use",
    "tasks",
    "training",
    "decoding",
    "weights",
    "data",
    "text",
    "models",
    "blocks",
    "settings",
    "files",
    "figures",
    "shipped",
    "errors",
]
"""From the top to the bottom; a room imports only itself and rooms below it."""

FILES = sorted(SOURCE.rglob("*.py"))
INTERNAL = [file for file in FILES if file.parent != SOURCE or file.stem in ROOMS]
WITHOUT_TORCH = [
    "regard.errors",
    "regard.settings",
    "regard.blocks.settings",
    "regard.models.settings",
    "regard.text.settings",
    "regard.text.train",
    "regard.models.presets",
    "regard.models.parameters",
    "regard.models.recipe",
    "regard.models.count",
    "regard.data.settings",
    "regard.data.recipe",
    "regard.data.report",
    "regard.data.vocabularies",
    "regard.data.prepare",
    "regard.training.log",
    "regard.training.hardware",
    "regard.tasks.job",
    "regard.cli.app",
    "regard",
]


def room_of(file: Path) -> str:
    return file.relative_to(SOURCE).with_suffix("").parts[0]


def imported_rooms(file: Path) -> set[str]:
    """The rooms that a file imports, at its top or inside a function."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("regard.")}
    return found


def name(file: Path) -> str:
    return file.relative_to(SOURCE).as_posix()


@pytest.mark.parametrize("file", INTERNAL, ids=name)
def test_imports_point_down(file: Path) -> None:
    own = ROOMS.index(room_of(file))
    above = {room for room in imported_rooms(file) if room not in ROOMS or ROOMS.index(room) < own}
    assert not above, f"{name(file)} imports {sorted(above)}, which lie above {ROOMS[own]}"


def test_every_file_has_a_room() -> None:
    doors = {"__init__", "__main__"}
    assert {room_of(file) for file in FILES} <= {*ROOMS, *doors}


@pytest.mark.parametrize("file", FILES, ids=name)
def test_a_file_has_one_subject(file: Path) -> None:
    assert len(file.read_text(encoding="utf-8").splitlines()) <= 420, "split it: a file holds about 400 lines at most"


@pytest.mark.parametrize("module", WITHOUT_TORCH)
def test_settings_counting_and_help_need_no_torch(module: str) -> None:
    """A fresh process, since this one may have imported torch for another test."""
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_says_that_it_needs_no_torch_needs_none() -> None:
    """All in one process: it names the first file that breaks its word."""
    claiming = [file for file in FILES if "no torch" in (_docstring(file) or "").lower()]
    modules = [".".join(file.relative_to(SOURCE.parent).with_suffix("").parts) for file in claiming]
    assert len(modules) > 20
    code = (
        "import importlib, sys\n"
        f"for module in {modules}:\n"
        "    importlib.import_module(module.removesuffix('.__init__'))\n"
        "    if 'torch' in sys.modules: sys.exit(module)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _docstring(file: Path) -> str | None:
    return ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))
