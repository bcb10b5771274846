"""The structure of the package: imports point down the layers, and what must answer quickly does not import torch."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import regard.settings

SOURCE = Path(regard.settings.__file__).parent
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


# -------------------------------------------------------------------------------------------- names and reachability


class Module:
    """The definitions of a file, and what each of them mentions."""

    def __init__(self, name: str, tree: ast.Module) -> None:
        self.name = name
        self.imports: dict[str, str] = {}
        """Local names and the dotted names that they stand for."""
        self.mentions: dict[str, set[str]] = {"": set()}
        """What each definition mentions; what runs at import stands under the empty name."""
        self.public: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                self.imports |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            elif isinstance(node, ast.Import):
                self.imports |= {alias.asname or alias.name: alias.name for alias in node.names}
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                self.mentions[node.name] = mentioned(node)
                if not node.name.startswith("_"):
                    self.public.add(node.name)
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for name in (target.id for target in targets if isinstance(target, ast.Name)):
                    self.mentions[name] = mentioned(node)
            elif not isinstance(node, ast.Import | ast.ImportFrom):
                self.mentions[""] |= mentioned(node)


def mentioned(node: ast.AST) -> set[str]:
    """Names (`decode`) and attributes of names (`beam.search`), also inside annotations that are strings."""
    found = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            found.add(part.id)
        elif isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name):
            found.add(f"{part.value.id}.{part.attr}")
        elif isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value.isidentifier():
            found.add(part.value)
    return found


def modules() -> dict[str, Module]:
    found = {}
    for file in FILES:
        parts = ("regard", *file.relative_to(SOURCE).with_suffix("").parts)
        name = ".".join(parts).removesuffix(".__init__")
        found[name] = Module(name, ast.parse(file.read_text(encoding="utf-8")))
    return found


def documented() -> set[str]:
    """The dotted names that the examples of the documentation import."""
    found: set[str] = set()
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for block in re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL):
            for node in ast.walk(ast.parse(block)):
                if isinstance(node, ast.ImportFrom) and node.module:
                    found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_every_public_definition_is_reachable() -> None:
    """From the command line, from the public names of `regard`, or from a documented example."""
    known = modules()
    waiting = [
        "regard.cli.app.main",
        *(known["regard"].imports[name] for name in known["regard"].imports),
        *documented(),
    ]
    seen: set[str] = set()
    while waiting:
        dotted = waiting.pop()
        if dotted in seen:
            continue
        seen.add(dotted)
        home, _, name = dotted.rpartition(".")
        if dotted in known:  # a module: what runs when it is imported
            home, name = dotted, ""
        if home not in known:
            continue
        module = known[home]
        waiting.append(home)
        if name in module.imports and name not in module.mentions:
            waiting.append(module.imports[name])
        for mention in module.mentions.get(name, ()):
            first, _, rest = mention.partition(".")
            if first in module.mentions:
                waiting.append(f"{home}.{first}")
            if first in module.imports:
                target = module.imports[first]
                waiting += [target, f"{target}.{rest}"] if rest else [target]
    unreached = [f"{module.name}.{name}" for module in known.values() for name in sorted(module.public)]
    unreached = [name for name in unreached if name not in seen]
    assert not unreached, f"{len(unreached)} definitions are used by nobody: {unreached}"


def test_public_names_are_defined_once() -> None:
    """A settings class and the class that it describes may share a name."""
    homes: dict[str, list[str]] = {}
    for module in modules().values():
        for name in module.public:
            homes.setdefault(name, []).append(module.name)
    twice = {
        name: found
        for name, found in homes.items()
        if len(found) > 2 or (len(found) == 2 and not any("settings" in home for home in found))
    }
    assert not twice
