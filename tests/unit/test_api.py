"""The public names: typed for user code, documented with examples that run, and nothing else in `dir(regard)`."""

from __future__ import annotations

import doctest
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import regard
from regard.decoding.settings import AllKeywords, TranslateOptions

ROOT = Path(__file__).parents[2]
TYPED = ROOT / "tests" / "cases" / "typed_user_code.py"


def names() -> dict[str, Any]:
    network = regard.build(regard.preset("llama-tiny")).eval()
    tokens = torch.tensor([[1, 2, 3]])
    return {"regard": regard, "torch": torch, "network": network, "settings": network.settings, "tokens": tokens}


def test_dir_shows_the_public_names_only() -> None:
    assert dir(regard) == sorted(regard.__all__)
    assert not [name for name in dir(regard) if name.startswith("_") and name != "__version__"]


def test_every_public_name_has_an_example_that_runs() -> None:
    """Those that train, or make a page, are only compiled."""
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner(verbose=False)
    for name in [name for name in regard.__all__ if name != "__version__"]:
        value = getattr(regard, name)
        text = inspect.getdoc(value) or ""
        inline, examples = re.findall(r"Example: `(.+)`", text), parser.get_examples(text)
        assert len(inline) + bool(examples) == 1, name
        code = compile(inline[0] if inline else examples[0].source, name, "exec")
        if inspect.isclass(value) and issubclass(value, Exception):
            with pytest.raises(value):
                exec(code, names())
        elif examples:
            runner.run(parser.get_doctest(text, names(), name, None, None))
        elif name not in ("show", "train", "resume"):
            exec(code, names())
    assert runner.summarize().failed == 0


def test_keywords_are_those_of_the_options() -> None:
    assert {*AllKeywords.__annotations__, "nbest"} == set(TranslateOptions.model_fields)


@pytest.mark.slow
def test_user_code_passes_a_strict_type_checker(tmp_path: Path) -> None:
    """Without the plugin of pydantic. Lines that end in `# error` must be refused, all others pass."""
    command = [sys.executable, "-m", "mypy", "--strict", "--no-pretty", "--config-file=", str(TYPED)]
    cache = ["--cache-dir", str(ROOT / ".mypy_cache" / "user")]
    paths = os.environ | {"MYPYPATH": str(Path(regard.__file__).parents[1])}
    done = subprocess.run([*command, *cache], capture_output=True, text=True, check=False, cwd=tmp_path, env=paths)
    lines = TYPED.read_text(encoding="utf-8").splitlines()
    wrong = {number for number, line in enumerate(lines, 1) if line.endswith("# error")}
    found = {int(number) for number in re.findall(r"typed_user_code\.py:(\d+): error", done.stdout)}
    assert wrong, "the sample must contain mistakes"
    assert found == wrong, done.stdout + done.stderr
