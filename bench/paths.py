"""Counts the files and functions of the package that four common jobs run through, with a profiler hook.

    python bench/paths.py                         # this checkout
    PYTHONPATH=OTHER/src python bench/paths.py    # another one, for example the commit before a change

Only function calls count, not code that runs when a module is imported. The jobs: `regard.train` up to its first
update, one sentence translated on a CPU (by a model loaded before), the first Heads view of the page over HTTP, and a
Hugging Face directory read into a model.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import pkgutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

import regard

SOURCE = str(Path(regard.__file__).parent)
FUNCTION = 0x1
"""The flag of code that has fast locals: functions, not modules or class bodies."""


class Calls:
    """The functions of the package that were called."""

    def __init__(self) -> None:
        self.seen: set[tuple[str, str]] = set()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_flags & FUNCTION and code.co_filename.startswith(SOURCE):
            self.seen.add((code.co_filename.removeprefix(SOURCE + "/"), code.co_qualname))

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def report(self, name: str) -> dict[str, Any]:
        files = sorted({file for file, _ in self.seen})
        return {"path": name, "files": len(files), "functions": len(self.seen), "which": files}


class _FirstUpdate(Exception):  # noqa: N818
    pass


def train() -> Calls:
    """Up to the first forward pass of the first update."""
    calls = Calls()

    def stop(*_: Any) -> None:
        raise _FirstUpdate

    handle = register_module_forward_pre_hook(stop)
    with tempfile.TemporaryDirectory() as directory:
        pairs = "\n".join(f"the dog number {i} sleeps\tder Hund Nummer {i} schläft" for i in range(400))
        (Path(directory) / "train.tsv").write_text(pairs, encoding="utf-8")
        recipe = Path(directory) / "recipe.toml"
        recipe.write_text(
            'task = "translate"\n[data]\nkind = "parallel-tsv"\ntrain = ["train.tsv"]\nlanguages = ["en", "de"]\n'
            '[text]\nkind = "bpe"\nsize = 300\n[model]\npreset = "transformer-tiny"\n[train]\nsteps = 2\n',
            encoding="utf-8",
        )
        with contextlib.chdir(directory), contextlib.suppress(_FirstUpdate), calls.counted():
            regard.train(recipe, device="cpu")
    handle.remove()
    return calls


def translate() -> Calls:
    """One sentence, beam 5."""
    calls, model = Calls(), regard.load("de-en")
    with calls.counted():
        model.translate("Ein Hund läuft durch den Schnee.")
    return calls


def heads() -> Calls:
    """What the page asks of the server until the Heads view stands: the run, its output, a map, notes of its heads."""
    from starlette.testclient import TestClient

    calls = Calls()
    client = TestClient(page_app(), base_url="http://localhost")
    with calls.counted(), client:
        run = (
            client.post("/api/run", json={"text": "Ein Hund läuft durch den Schnee."}).raise_for_status().json()["run"]
        )
        client.post("/api/output", json={"run": run}).raise_for_status()
        at = "decoder.1.cross"
        client.get("/api/tensor", params={"run": run, "name": f"{at}.weights"}).raise_for_status()
        client.post("/api/notes", json={"run": run, "at": at}).raise_for_status()
    return calls


def page_app() -> Any:
    """The page's application, wherever this version of the package keeps it."""
    from regard.look.study import Study

    study = Study(regard.load("de-en"))
    try:
        from regard.serving.look_app import create_look_app
        from regard.serving.look_settings import Looking
    except ImportError:
        from regard.serving.page import create_page_app
        from regard.serving.settings import PageSettings

        return create_page_app(study, PageSettings())
    return create_look_app(study, Looking())


def huggingface() -> Calls:
    """A BERT directory as `transformers` writes it."""
    from transformers import BertConfig, BertModel

    calls = Calls()
    config = BertConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64
    )
    with tempfile.TemporaryDirectory() as directory:
        BertModel(config).save_pretrained(directory)
        with calls.counted():
            read_model(directory)
    return calls


def read_model(directory: str) -> Any:
    """The function that reads a directory into a module."""
    from regard.weights.directory import load_model

    return load_model(directory)


def import_everything() -> None:
    """Imports all modules, so that what they call when they are imported is not counted."""
    for module in pkgutil.walk_packages(regard.__path__, "regard."):
        if not module.name.endswith("__main__"):
            with contextlib.suppress(ImportError):  # Triton
                importlib.import_module(module.name)


PATHS: dict[str, Callable[[], Calls]] = {
    "train": train,
    "translate": translate,
    "heads": heads,
    "huggingface": huggingface,
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    import_everything()
    for name in sys.argv[1:] or PATHS:
        print(json.dumps(PATHS[name]().report(name)))
