"""The structure of the package: imports point down the layers, and what must answer quickly does not import torch."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import regard

SOURCE = Path(regard.__file__).parent
ROOT = Path(__file__).parents[2]
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


DEFINITION = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def mentioned(node: ast.AST) -> set[str]:
    """Names, attributes, and strings that could be names, such as those of annotations."""
    found = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            found.add(part.id)
        elif isinstance(part, ast.Attribute):
            found.add(part.attr)
        elif isinstance(part, ast.Constant) and isinstance(part.value, str):
            found.add(part.value)
    return found


def documented() -> set[str]:
    """The names that the examples of the documentation import."""
    found: set[str] = set()
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for block in re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL):
            for node in ast.walk(ast.parse(block)):
                if isinstance(node, ast.ImportFrom):
                    found |= {alias.name for alias in node.names}
    return found


def test_every_public_definition_is_reachable() -> None:
    """From the command line, from the public names of `regard`, or from a documented example."""
    mentions: dict[str, set[str]] = {}
    public: list[str] = []
    waiting = {"main", *regard.__all__, *documented()}
    for file in FILES:
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, DEFINITION):
                mentions.setdefault(node.name, set()).update(mentioned(node))
                public += [] if node.name.startswith("_") else [node.name]
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    for name in mentioned(target):
                        mentions.setdefault(name, set()).update(mentioned(node))
            elif not isinstance(node, ast.Import | ast.ImportFrom):
                waiting |= mentioned(node)  # runs when the module is imported
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        seen.add(name)
        waiting |= mentions.get(name, set()) - seen
    unreached = [name for name in public if name not in seen]
    assert not unreached, f"{len(unreached)} definitions are used by nobody: {unreached}"


def test_public_names_are_defined_once() -> None:
    """A settings class and the class that it describes may share a name."""
    homes: dict[str, list[str]] = {}
    for file in FILES:
        nodes = [node for node in ast.parse(file.read_text(encoding="utf-8")).body if isinstance(node, DEFINITION)]
        for name in {node.name for node in nodes if not node.name.startswith("_")}:  # overloads count once
            homes.setdefault(name, []).append(str(file.relative_to(SOURCE)))
    twice = {
        name: found
        for name, found in homes.items()
        if len(found) > 2 or (len(found) == 2 and not any("settings" in home for home in found))
    }
    assert not twice
