"""The structure of the package: imports point down the layers, and what must answer quickly does not import torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import regard.settings

SOURCE = Path(regard.settings.__file__).parent
LAYERS = [
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
    "format",
    "shipped",
    "errors",
]
"""From top to bottom. A file imports only from its own layer and from the layers below."""
ENTRY_POINTS = {"__init__", "__main__"}
FILES = sorted(SOURCE.rglob("*.py"))
WITHOUT_TORCH = [
    "regard",
    "regard.cli.app",
    "regard.models.presets",
    "regard.blocks.settings",
    "regard.models.settings",
    "regard.text.settings",
    "regard.data.settings",
]


def layer_of(file: Path) -> str:
    return file.relative_to(SOURCE).with_suffix("").parts[0]


def imported_layers(file: Path) -> set[str]:
    """The layers that a file imports from, at its top or inside a function."""
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


def test_imports_point_down() -> None:
    wrong = []
    for file in FILES:
        layer = layer_of(file)
        if layer in ENTRY_POINTS:
            continue
        assert layer in LAYERS, f"{file} belongs to no layer"
        above = {name for name in imported_layers(file) if LAYERS.index(name) < LAYERS.index(layer)}
        wrong += [f"{file.relative_to(SOURCE)} imports {name}" for name in sorted(above)]
    assert not wrong


def test_help_and_settings_import_no_torch() -> None:
    """In fresh processes, since this one may have imported torch for another test."""
    code = "import sys, {}; sys.exit('torch' in sys.modules)"
    slow = [
        module
        for module in WITHOUT_TORCH
        if subprocess.run([sys.executable, "-c", code.format(module)], check=False).returncode
    ]
    assert not slow
